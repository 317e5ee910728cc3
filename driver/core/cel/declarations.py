# SPDX-License-Identifier: Apache-2.0
"""How a library declares its functions to the checker and the planner.

A function has overloads. Each names its static types (a method's target first) and how to compute
it. A function with ``single`` computes all overloads with one routine that looks at the values
itself; that is how operators work in CEL.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpudra.driver.core.cel.assign import has_params
from gpudra.driver.core.cel.types import Type
from gpudra.driver.core.cel.values import MAPS, Value, map_items, map_size, type_name

Impl = Callable[..., Value]
Guard = Callable[[Value], bool]


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature.

    Attributes:
        id: the name that cel-go and the API server give it; costs are keyed by it.
        args: static types of target and arguments.
        result: static type of the value.
        member: whether it is called as a method.
        impl: computes it; None if the function has ``single`` or the planner knows it.
        guards: one per argument: whether a run-time value fits; None accepts all.
        generic: whether type parameters occur.
    """

    id: str
    args: tuple[Type, ...]
    result: Type
    member: bool
    impl: Impl | None
    guards: tuple[Guard | None, ...]
    generic: bool

    def accepts(self, args: Sequence[Value]) -> bool:
        """Whether run-time values fit the signature."""
        return len(args) == len(self.guards) and all(
            guard is None or guard(arg) for guard, arg in zip(self.guards, args, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Function:
    """A name and its overloads, in the order in which they are tried."""

    name: str
    overloads: tuple[Overload, ...]
    single: Impl | None = None


def overload(
    name: str, args: Sequence[Type], result: Type, impl: Impl | None = None, *, member: bool = False
) -> Overload:
    """A global overload, or a method with ``member``."""
    args = tuple(args)
    return Overload(
        name,
        args,
        result,
        member,
        impl,
        tuple(guard_for(arg) for arg in args),
        any(has_params(arg) for arg in (*args, result)),
    )


def method(name: str, args: Sequence[Type], result: Type, impl: Impl | None = None) -> Overload:
    """A method; ``args`` begins with the target."""
    return overload(name, args, result, impl, member=True)


def merge(functions: Sequence[Function]) -> dict[str, Function]:
    """One table; overloads of equal names join in order, an id given again replaces the first."""
    table: dict[str, Function] = {}
    for function in functions:
        known = table.get(function.name)
        if known is None:
            table[function.name] = function
            continue
        joined = {item.id: item for item in (*known.overloads, *function.overloads)}
        table[function.name] = Function(
            function.name, tuple(joined.values()), known.single or function.single
        )
    return table


def guard_for(kind: Type) -> Guard | None:
    """A test whether a run-time value is of a static type; None if any is.

    As in cel-go, only the first element of a list or map is looked at.
    """
    if kind.kind in {"dyn", "any", "param"}:
        return None
    if kind.kind == "list":
        return _list_guard(guard_for(kind.params[0]))
    if kind.kind == "map":
        return _map_guard(guard_for(kind.params[0]), guard_for(kind.params[1]))
    name = "type" if kind.kind == "type" else kind.name
    return lambda value: type_name(value) == name


def _list_guard(element: Guard | None) -> Guard:
    def fits(value: Value) -> bool:
        if type(value) is not tuple:
            return False
        return not value or element is None or element(value[0])

    return fits


def _map_guard(key: Guard | None, element: Guard | None) -> Guard:
    def fits(value: Value) -> bool:
        if not isinstance(value, MAPS):
            return False
        if not map_size(value):
            return True
        first, content = next(iter(map_items(value)))
        return (key is None or key(first)) and (element is None or element(content))

    return fits
