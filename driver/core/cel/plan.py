# SPDX-License-Identifier: Apache-2.0
"""What the planner's modules share: plans, and errors of values that a plan cannot use."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gpudra.driver.core.cel.errors import CelCostExceeded, CelValueError
from gpudra.driver.core.cel.values import Value

# Computes a value in a frame (a Frame, or a CelDevice where no variables are needed).
Run = Callable[[Any], Value]


class NeedsCountingError(Exception):
    """A plain plan meets longer loops than it may run without counting cost."""


class Plan(NamedTuple):
    """How to compute a node.

    Attributes:
        run: computes it.
        constant: whether cel-go would fold it into a constant; such nodes cost nothing.
        known: whether ``value`` holds the result, whatever the device.
        value: the result, if known.
    """

    run: Run
    constant: bool = False
    known: bool = False
    value: Value = None


def constant(value: Value) -> Plan:
    """A plan for a constant."""
    return Plan(lambda _frame: value, constant=True, known=True, value=value)


def charge(frame: Any, cost: int) -> None:
    """Adds to the cost of an evaluation.

    Raises:
        CelCostExceeded: the limit is passed.
    """
    frame.cost += cost
    if frame.cost > frame.limit:
        raise CelCostExceeded(
            f"evaluation costs more than {frame.limit}",
            hint="loop over less, or test the cheap clauses first",
        )


def not_a_bool(value: Value, where: str) -> CelValueError:
    """The error of a condition that is no bool."""
    return CelValueError(
        f"{where} got a {type(value).__name__} instead of a bool", hint="compare the attribute"
    )
