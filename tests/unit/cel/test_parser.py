# SPDX-License-Identifier: Apache-2.0
"""Trees of CEL text."""

import pytest

from gpudra.driver.core.cel import CelSyntaxError
from gpudra.driver.core.cel.ast import Call, Comprehension, Ident, ListNode, Literal, Node, Select
from gpudra.driver.core.cel.parser import MAX_LENGTH, parse


def shape(node: Node) -> object:
    """A tree as nested tuples."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select):
        return ("has" if node.test else ".", shape(node.operand), node.field)
    if isinstance(node, Call):
        return (node.function, *map(shape, node.operands()))
    if isinstance(node, ListNode):
        return [shape(item) for item in node.elements]
    assert isinstance(node, Comprehension)
    return (node.kind, shape(node.iter_range), node.iter_var)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1 + 2 * 3 - 4", ("_-_", ("_+_", 1, ("_*_", 2, 3)), 4)),
        ("a || b && c", ("_||_", "a", ("_&&_", "b", "c"))),
        ("a ? b : c ? d : e", ("_?_:_", "a", "b", ("_?_:_", "c", "d", "e"))),
        ("-1 - -x", ("_-_", -1, ("-_", "x"))),
        ("a.b[1].?c[?2]", ("_[?_]", ("_?._", ("_[_]", (".", "a", "b"), 1), "c"), 2)),
        ("has(a.b)", ("has", "a", "b")),
        ("x.f(1)", ("f", "x", 1)),
        (".f(.a)", (".f", ".a")),
        ("[1].all(x, true)", ("all", [1], "x")),
        ("cel.bind(x, 1, x)", ("bind", [], "#unused")),
        ("other.bind(x, 1, x)", ("bind", "other", "x", 1, "x")),
    ],
)
def test_tree(text: str, tree: object) -> None:
    """Precedence, chains and macros give the expected tree."""
    assert shape(parse(text).root) == tree


def test_clauses_are_the_operands_of_the_outermost_and() -> None:
    """Each clause keeps the text it was written with."""
    parsed = parse('a == "x" &&  (b || c) && has(d.e)')
    assert [clause.text for clause in parsed.clauses] == ['a == "x"', "(b || c)", "has(d.e)"]


def test_without_and_there_is_one_clause() -> None:
    """Anything else is one clause, the whole text."""
    assert [clause.text for clause in parse(" a || b && c ").clauses] == ["a || b && c"]


def test_long_conjunctions_stay_shallow() -> None:
    """A thousand clauses are no nesting."""
    assert len(parse(" && ".join(["true"] * 1000)).clauses) == 1000


@pytest.mark.parametrize(
    "text",
    ["(" * 300 + "1" + ")" * 300, "+".join(["1"] * 300), "x" + ".a" * 300, "[" * 300, "!(" * 300],
)
def test_deep_nesting_is_refused(text: str) -> None:
    """Depth beyond 250 is an error with a position, not a crash."""
    with pytest.raises(CelSyntaxError, match="levels deep"):
        parse(text)


def test_length_is_limited_in_bytes() -> None:
    """The limit of 10 KiB counts bytes."""
    parse('"' + "a" * (MAX_LENGTH - 2) + '"')
    with pytest.raises(CelSyntaxError, match="bytes"):
        parse('"' + "é" * (MAX_LENGTH // 2) + '"')


def test_text_must_be_unicode() -> None:
    """A lone surrogate, as a broken file may give, is refused at its place."""
    with pytest.raises(CelSyntaxError, match="Unicode") as caught:
        parse("true && '\udc80'")
    assert caught.value.position == (1, 10)


@pytest.mark.parametrize(
    ("text", "position"),
    [("a &&\n  )", (2, 3)), ("f(1,)", (1, 5)), ("[1 2]", (1, 4)), ("{1}", (1, 3)), ("a.1", (1, 2))],
)
def test_syntax_errors_have_positions(text: str, position: tuple[int, int]) -> None:
    """Line and column count from one."""
    with pytest.raises(CelSyntaxError) as caught:
        parse(text)
    assert caught.value.position == position


@pytest.mark.parametrize(
    "text",
    ["[1].all(1, true)", "[1].map(a.b, 1)", "has(1)", "[1].all(i, i, true)", "cel.bind(1, 2, 3)"],
)
def test_macros_want_names(text: str) -> None:
    """Variables of macros are plain names, and two of them differ."""
    with pytest.raises(CelSyntaxError):
        parse(text)
