# SPDX-License-Identifier: Apache-2.0
"""Errors of CEL expressions: those of the text, and those of an evaluation.

::

    InputError
    ├── CelCompileError        the expression itself cannot be used; has a position
    │   ├── CelSyntaxError     it is not CEL
    │   └── CelTypeError       names or types do not fit
    └── CelEvaluationError     the expression has no answer for this device
        ├── CelValueError      an error value; ``&&`` and ``||`` may absorb it
        └── CelCostExceeded    the run-time cost limit was reached; never absorbed
"""

from gpudra.api.errors import InputError


class CelCompileError(InputError):
    """An expression cannot be used, whatever the device.

    Attributes:
        expression: the whole text.
        position: (line, column), both counted from 1; columns count code points.
    """

    def __init__(self, what: str, *, expression: str, offset: int = 0, hint: str = "") -> None:
        before = expression[:offset]
        self.expression = expression
        self.position = (before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)
        line, column = self.position
        super().__init__(f"{what} (line {line}, column {column})", hint=hint)


class CelSyntaxError(CelCompileError):
    """The text is not CEL, is too long, or is nested too deeply."""


class CelTypeError(CelCompileError):
    """A name is unknown, types do not fit, or a literal argument can never work."""


class CelEvaluationError(InputError):
    """The expression has no answer for this device.

    In Kubernetes this ends the whole scheduling attempt of the pod; it is not "no match".
    """


class CelValueError(CelEvaluationError):
    """An error value, such as an attribute that the device does not have."""


class CelCostExceeded(CelEvaluationError):  # noqa: N818 - the name is part of the public API
    """Evaluation was stopped because it cost more than the limit allows."""


def no_overload(function: str, *args: object) -> CelValueError:
    """The error of a function that meets values which it is not made for."""
    kinds = ", ".join(type(arg).__name__ for arg in args)
    return CelValueError(
        f"{function} does not work on ({kinds})",
        hint="test the type of the attribute first, or convert the value",
    )
