# SPDX-License-Identifier: Apache-2.0
"""Macros: calls that the parser rewrites before anything else sees them.

The table at the end holds what the Kubernetes environment offers: the standard ones (cel-spec,
"Macros"), the two-variable forms, ``cel.bind``, ``optMap``, ``optFlatMap`` and ``sortBy``. Names
that begin with ``@`` cannot be written in an expression.
"""

from collections.abc import Callable

from gpudra.driver.core.cel.ast import (
    Call,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
)

RESULT = "@result"
_UNUSED = "#unused"
_SORT_INPUT = "@__sortBy_input__"


class MacroError(Exception):
    """A macro's arguments are not of its form. Carries the offset and a hint."""

    def __init__(self, what: str, pos: int, hint: str) -> None:
        super().__init__(what)
        self.what, self.pos, self.hint = what, pos, hint


# Gets position, target (None for ``has``) and arguments. None means: no macro after all.
Expander = Callable[[int, Node | None, list[Node]], Node | None]


def _variable(node: Node, *, loop: bool = True) -> str:
    if not isinstance(node, Ident):
        raise MacroError("the variable must be a plain name", node.pos, "write for example x")
    if loop and node.name in {RESULT, "__result__"}:
        raise MacroError("__result__ is reserved", node.pos, "choose another variable name")
    return node.name


def _accu(pos: int) -> Node:
    return Ident(pos, RESULT)


def _loop(pos: int, kind: str, target: Node, names: tuple[str, str], *parts: Node) -> Comprehension:
    init, condition, step, result = parts
    loop = Comprehension(
        pos,
        kind,
        iter_range=target,
        iter_vars=names,
        accu=(RESULT, init),
        condition=condition,
        step=step,
        result=result,
    )
    loop.locate_arguments()
    return loop


def _names(args: list[Node], two: bool) -> tuple[tuple[str, str], list[Node]]:
    first = _variable(args[0])
    if not two:
        return (first, ""), args[1:]
    second = _variable(args[1])
    if first == second:
        raise MacroError(f"both variables are called {first}", args[1].pos, "rename one")
    return (first, second), args[2:]


def _require(target: Node | None) -> Node:
    assert target is not None, "method macros always have a target"
    return target


def _all(two: bool) -> Expander:
    def expand(pos: int, target: Node | None, args: list[Node]) -> Node:
        names, (predicate,) = _names(args, two)
        condition = Call(pos, "@not_strictly_false", [_accu(pos)])
        step = Call(pos, "_&&_", [_accu(pos), predicate])
        parts = (Literal(pos, True), condition, step, _accu(pos))
        return _loop(pos, "all", _require(target), names, *parts)

    return expand


def _exists(two: bool) -> Expander:
    def expand(pos: int, target: Node | None, args: list[Node]) -> Node:
        names, (predicate,) = _names(args, two)
        condition = Call(pos, "@not_strictly_false", [Call(pos, "!_", [_accu(pos)])])
        step = Call(pos, "_||_", [_accu(pos), predicate])
        parts = (Literal(pos, False), condition, step, _accu(pos))
        return _loop(pos, "exists", _require(target), names, *parts)

    return expand


def _exists_one(two: bool) -> Expander:
    def expand(pos: int, target: Node | None, args: list[Node]) -> Node:
        names, (predicate,) = _names(args, two)
        more = Call(pos, "_+_", [_accu(pos), Literal(pos, 1)])
        step = Call(pos, "_?_:_", [predicate, more, _accu(pos)])
        result = Call(pos, "_==_", [_accu(pos), Literal(pos, 1)])
        parts = (Literal(pos, 0), Literal(pos, True), step, result)
        return _loop(pos, "exists_one", _require(target), names, *parts)

    return expand


def _collect(pos: int, transform: Node, predicate: Node | None) -> Node:
    step: Node = Call(pos, "_+_", [_accu(pos), ListNode(pos, [transform])])
    if predicate is not None:
        step = Call(pos, "_?_:_", [predicate, step, _accu(pos)])
    return step


def _map(two: bool) -> Expander:
    def expand(pos: int, target: Node | None, args: list[Node]) -> Node:
        names, rest = _names(args, two)
        step = _collect(pos, rest[-1], rest[0] if len(rest) == 2 else None)
        parts = (ListNode(pos, []), Literal(pos, True), step, _accu(pos))
        return _loop(pos, "map", _require(target), names, *parts)

    return expand


def _filter(pos: int, target: Node | None, args: list[Node]) -> Node:
    names, (predicate,) = _names(args, False)
    step = _collect(pos, Ident(args[0].pos, names[0]), predicate)
    parts = (ListNode(pos, []), Literal(pos, True), step, _accu(pos))
    return _loop(pos, "filter", _require(target), names, *parts)


def _transform_map(kind: str) -> Expander:
    def expand(pos: int, target: Node | None, args: list[Node]) -> Node:
        names, rest = _names(args, True)
        inserted = [_accu(pos)]
        if kind == "transform_map":
            inserted.append(Ident(pos, names[0]))
        step: Node = Call(pos, "cel.@mapInsert", [*inserted, rest[-1]])
        if len(rest) == 2:
            step = Call(pos, "_?_:_", [rest[0], step, _accu(pos)])
        parts = (MapNode(pos, []), Literal(pos, True), step, _accu(pos))
        return _loop(pos, kind, _require(target), names, *parts)

    return expand


def bind(pos: int, name: str, value: Node, result: Node) -> Comprehension:
    """A loop over nothing, whose only use is to give a value a name."""
    return Comprehension(
        pos,
        "bind",
        iter_range=ListNode(pos, []),
        iter_vars=(_UNUSED, ""),
        accu=(name, value),
        condition=Literal(pos, False),
        step=Ident(pos, name),
        result=result,
    )


def _cel_bind(pos: int, target: Node | None, args: list[Node]) -> Node | None:
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    return bind(pos, _variable(args[0], loop=False), args[1], args[2])


def _opt_map(flat: bool) -> Expander:
    def expand(pos: int, target: Node | None, args: list[Node]) -> Node:
        name, holder = _variable(args[0], loop=False), _require(target)
        bound: Node = bind(pos, name, Call(pos, "value", [], holder.copy()), args[1])
        if not flat:
            bound = Call(pos, "optional.of", [bound])
        present = Call(pos, "hasValue", [], holder)
        return Call(pos, "_?_:_", [present, bound, Call(pos, "optional.none", [])])

    return expand


def _has(pos: int, _target: Node | None, args: list[Node]) -> Node:
    if not isinstance(args[0], Select) or args[0].test:
        raise MacroError(
            "has() wants a field selection", args[0].pos, "write has(a.b), or 'key' in a for a key"
        )
    return Select(pos, args[0].operand, args[0].field, test=True)


def _sort_by(pos: int, target: Node | None, args: list[Node]) -> Node:
    holder = _require(target)
    if not isinstance(holder, ListNode | Select | Ident | Comprehension | Call):
        raise MacroError("sortBy() wants a list", holder.pos, "call it on a list")
    keys = _map(False)(pos, Ident(pos, _SORT_INPUT), args)
    assert keys is not None
    call = Call(pos, "@sortByAssociatedKeys", [keys], Ident(pos, _SORT_INPUT))
    return bind(pos, _SORT_INPUT, holder, call)


# (name, number of arguments, whether called as a method)
MACROS: dict[tuple[str, int, bool], Expander] = {
    ("has", 1, False): _has,
    ("all", 2, True): _all(False),
    ("all", 3, True): _all(True),
    ("exists", 2, True): _exists(False),
    ("exists", 3, True): _exists(True),
    ("exists_one", 2, True): _exists_one(False),
    ("exists_one", 3, True): _exists_one(True),
    ("existsOne", 3, True): _exists_one(True),
    ("map", 2, True): _map(False),
    ("map", 3, True): _map(False),
    ("filter", 2, True): _filter,
    ("transformList", 3, True): _map(True),
    ("transformList", 4, True): _map(True),
    ("transformMap", 3, True): _transform_map("transform_map"),
    ("transformMap", 4, True): _transform_map("transform_map"),
    ("transformMapEntry", 3, True): _transform_map("transform_entry"),
    ("transformMapEntry", 4, True): _transform_map("transform_entry"),
    ("bind", 3, True): _cel_bind,
    ("optMap", 2, True): _opt_map(False),
    ("optFlatMap", 2, True): _opt_map(True),
    ("sortBy", 2, True): _sort_by,
}
