# SPDX-License-Identifier: Apache-2.0
"""Derived attributes: expressions that compute an attribute from others (alpha in 1.37).

``ExactDeviceRequest.derivedAttributes`` of ``resource.k8s.io/v1``, gate DRADerivedAttributes. The
allocator calls ``compile_attribute`` once per text and asks ``value_for`` once per kind of device.
"""

from functools import lru_cache

from gpudra.api.attributes import AttributeValue
from gpudra.api.semver import Semver
from gpudra.driver.core.cel.ast import Node
from gpudra.driver.core.cel.device import CelDevice
from gpudra.driver.core.cel.environment import Environment, environment
from gpudra.driver.core.cel.errors import CelEvaluationError, CelSyntaxError, CelTypeError
from gpudra.driver.core.cel.expression import CompiledExpression
from gpudra.driver.core.cel.types import ANY, BOOL, DYN, INT, SEMVER, STRING, Type
from gpudra.driver.core.cel.values import Optional, TypeValue, Value, type_name

_CACHE_SIZE = 4096
_ELEMENTS = frozenset({BOOL, INT, STRING, SEMVER, DYN, ANY})
_PLAIN: frozenset[type] = frozenset({bool, int, str, Semver})


class CompiledAttribute(CompiledExpression):
    """The expression of a derived attribute, ready to be evaluated."""

    __slots__ = ()

    def __init__(self, expression: str, rules: Environment) -> None:
        super().__init__(expression, rules)
        # Constants that cannot be worked out are refused here and now, as for selectors.
        self._counting()

    def _check_result(self, root: Node) -> None:
        if _may_be_value(root.type):
            return
        raise CelTypeError(
            f"a derived attribute is a bool, int, string, version or a list of one of these, "
            f"this is a {root.type}",
            expression=self.expression,
            offset=root.pos,
            hint="convert it, or take one part of it",
        )

    def value_for(self, device: CelDevice) -> AttributeValue:
        """The attribute of a device; an empty list has no value to compare.

        Raises:
            CelEvaluationError: the expression fails on this device, costs too much, or gives what
                an attribute cannot be.
        """
        value, _ = self.value(device)
        if isinstance(value, tuple):
            return self._list(value)
        found = _scalar(value)
        if found is None:
            raise CelEvaluationError(
                f"the expression gives a {type_name(value)}, which no attribute can be",
                hint="convert it to a bool, int, string or version",
            )
        return found

    @staticmethod
    def _list(values: tuple[Value, ...]) -> AttributeValue:
        found = [_scalar(value) for value in values]
        kinds = {type(value) for value in found}
        if len(kinds) > 1 or None in found:
            names = ", ".join(sorted({type_name(value) for value in values}))
            raise CelEvaluationError(
                f"the expression gives a list of {names}",
                hint="make a list of bools, ints, strings or versions, all of one type",
            )
        return tuple(found)  # type: ignore[return-value]  # of one type, as just tested


def _may_be_value(kind: Type) -> bool:
    return kind in _ELEMENTS or (kind.kind == "list" and kind.params[0] in _ELEMENTS)


def _scalar(value: Value) -> bool | int | str | Semver | None:
    """One value as an attribute holds it, or None.

    Behind ``dyn()`` upstream looks through optionals, and takes a type for its name.
    """
    while isinstance(value, Optional) and value.present:
        value = value.value
    if isinstance(value, TypeValue):
        return value.name
    return value if type(value) in _PLAIN else None


@lru_cache(maxsize=_CACHE_SIZE)
def compile_attribute(expression: str) -> CompiledAttribute:
    """Compiles the expression of a derived attribute, or takes it from a bounded cache.

    The rules are those by which the scheduler reads stored expressions: attributes may be lists.

    Raises:
        CelSyntaxError: it is no CEL.
        CelTypeError: names or types do not fit.
    """
    try:
        return CompiledAttribute(expression, environment(list_attributes=True))
    except RecursionError as error:
        raise CelSyntaxError(
            "the expression is nested too deeply", expression=expression, hint="split it"
        ) from error
