# SPDX-License-Identifier: Apache-2.0
"""Checks of literals after typing (cel-go, cel/validator.go): what can never work is refused early.

Durations, timestamps and patterns given as literals must be valid; elements of one list or map
must have one type; a literal format string must fit its arguments.
"""

from collections.abc import Iterator

from gpudra.driver.core.cel.ast import (
    Call,
    Comprehension,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
)
from gpudra.driver.core.cel.errors import CelTypeError, CelValueError
from gpudra.driver.core.cel.library.conversions import text_to_duration, text_to_timestamp
from gpudra.driver.core.cel.library.format_string import parse_format
from gpudra.driver.core.cel.library.operators import checked_time
from gpudra.driver.core.cel.library.regex import compile_pattern
from gpudra.driver.core.cel.types import Type, unwrap_optional

_STRINGLIKE = frozenset(
    {"list", "map", "int", "uint", "double", "bool", "string", "timestamp", "bytes", "duration",
     "type", "null"}
)  # fmt: skip
_FORMAT_TYPES = {
    "s": _STRINGLIKE,
    "d": {"int", "uint"},
    "f": {"double", "string"},
    "e": {"double", "string"},
    "b": {"int", "uint", "bool"},
    "x": {"int", "uint", "string", "bytes"},
    "X": {"int", "uint", "string", "bytes"},
    "o": {"int", "uint"},
}


def validate(expression: str, root: Node) -> None:
    """Checks a typed tree.

    Raises:
        CelTypeError: a literal can never work.
    """
    for node, exempt in _walk(root, exempt=False):
        if isinstance(node, ListNode) and not exempt:
            _same_types(expression, [(e, i in node.optional) for i, e in enumerate(node.elements)])
        elif isinstance(node, MapNode) and not exempt:
            _same_types(expression, [(key, False) for key, _, _ in node.entries])
            _same_types(expression, [(value, opt) for _, value, opt in node.entries])
        elif isinstance(node, Call):
            _check_call(expression, node)


def _walk(node: Node, *, exempt: bool) -> Iterator[tuple[Node, bool]]:
    pending = [(node, exempt)]
    while pending:
        node, exempt = pending.pop()
        yield node, exempt
        inside = exempt or (isinstance(node, Call) and node.function == "format")
        pending.extend((child, inside) for child in children(node))


def children(node: Node) -> list[Node]:
    """The nodes right below."""
    if isinstance(node, Select):
        return [node.operand]
    if isinstance(node, Call):
        return node.operands()
    if isinstance(node, ListNode):
        return node.elements
    if isinstance(node, MapNode):
        return [part for key, value, _ in node.entries for part in (key, value)]
    if isinstance(node, Comprehension):
        return [node.iter_range, node.accu_init, node.condition, node.step, node.result]
    return []


def has_loop(root: Node) -> bool:
    """Whether anything is computed more than once in one evaluation."""
    return any(
        isinstance(node, Comprehension) and node.kind != "bind"
        for node, _ in _walk(root, exempt=True)
    )


def _same_types(expression: str, elements: list[tuple[Node, bool]]) -> None:
    wanted: Type | None = None
    for node, optional in elements:
        if optional and node.type.kind == "dyn":
            # The API server crashes on this; better to say so than to let a file depend on it.
            raise CelTypeError(
                "'?' needs an optional value of a known type, this is dyn",
                expression=expression,
                offset=node.pos,
                hint="write .orValue(default) and drop the '?'",
            )
        kind = unwrap_optional(node.type)[0] if optional else node.type
        if wanted is None:
            wanted = kind
        elif wanted != kind:
            raise CelTypeError(
                f"the first element is a {wanted}, this is a {kind}",
                expression=expression,
                offset=node.pos,
                hint="keep one type in a list or map, or wrap every element in dyn()",
            )


def _check_call(expression: str, call: Call) -> None:
    if call.function == "format":
        _check_format(expression, call)
        return
    first = call.args[0] if call.args else None
    if call.function not in {"duration", "timestamp", "matches"} or not isinstance(first, Literal):
        return
    value = first.value
    try:
        if call.function == "matches" and isinstance(value, str):
            compile_pattern(value)
        elif call.function == "duration" and isinstance(value, str):
            text_to_duration(value)
        elif call.function == "timestamp" and isinstance(value, str):
            text_to_timestamp(value)
        elif call.function == "timestamp" and type(value) is int:
            checked_time(value * 10**9)
    except CelValueError as error:
        raise CelTypeError(
            error.what, expression=expression, offset=first.pos, hint=error.hint
        ) from error


def _check_format(expression: str, call: Call) -> None:
    target, args = call.target, call.args
    if not isinstance(target, Literal) or not isinstance(target.value, str):
        return
    if len(args) != 1 or not isinstance(args[0], ListNode):
        return
    elements = args[0].elements
    try:
        clauses, _ = parse_format(target.value)
    except CelValueError as error:
        raise CelTypeError(
            error.what, expression=expression, offset=call.pos, hint=error.hint
        ) from error
    if len(clauses) != len(elements):
        raise CelTypeError(
            f"the format has {len(clauses)} clauses for {len(elements)} arguments",
            expression=expression,
            offset=call.pos,
        )
    for clause, element in zip(clauses, elements, strict=True):
        _check_argument(expression, clause.kind, element)


def _check_argument(expression: str, kind: str, node: Node) -> None:
    if node.type.kind != "dyn" and node.type.kind not in _FORMAT_TYPES[kind]:
        raise CelTypeError(
            f"%{kind} cannot format a {node.type}", expression=expression, offset=node.pos
        )
    if kind == "s" and isinstance(node, ListNode | MapNode):
        for child in children(node):
            _check_argument(expression, kind, child)
