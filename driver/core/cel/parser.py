# SPDX-License-Identifier: Apache-2.0
"""Turns tokens into a tree, macros expanded. Called by the checker's front door, ``environment``.

A plain recursive descent over the grammar of the language definition. Depth is bounded at 250, both
of grammar rules within themselves and of operations within operations, as in cel-go; so hostile
text ends in an error that has a position.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

from gpudra.driver.core.cel.ast import (
    Call,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Message,
    Node,
    Select,
)
from gpudra.driver.core.cel.errors import CelSyntaxError
from gpudra.driver.core.cel.lexer import Token, bytes_content, string_content, tokenize
from gpudra.driver.core.cel.library.conversions import digits_to_int
from gpudra.driver.core.cel.macros import MACROS, MacroError
from gpudra.driver.core.cel.values import INT_MAX, INT_MIN, UINT_MAX, Uint

MAX_LENGTH = 10 * 1024  # CELSelectorExpressionMaxLength, in bytes
_MAX_DEPTH = 250
# Python's own limit of 1000 frames is lower than what 250 levels need. Frames of Python code
# live on the heap, so raising it costs nothing; it is never lowered, for other threads' sake.
_FRAMES = 20_000
_SHALLOW = 24

_RESERVED = frozenset(
    {
        "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
        "loop", "package", "namespace", "return", "var", "void", "while",
    }
)  # fmt: skip
_RELATIONS = {
    "<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "==": "_==_", "!=": "_!=_", "in": "@in",
}  # fmt: skip
_SUMS = {"+": "_+_", "-": "_-_"}
_PRODUCTS = {"*": "_*_", "/": "_/_", "%": "_%_"}


class Clause(NamedTuple):
    """One operand of the outermost ``&&``, with the text it came from."""

    text: str
    node: Node


class Parsed(NamedTuple):
    """A tree, and the clauses of its outermost conjunction (one, if there is none)."""

    root: Node
    clauses: tuple[Clause, ...]


def parse(expression: str) -> Parsed:
    """Parses an expression.

    Raises:
        CelSyntaxError: it is not CEL, too long, or nested too deeply.
    """
    try:
        size = len(expression.encode())
    except UnicodeEncodeError as error:
        raise CelSyntaxError(
            "the text is not valid Unicode", expression=expression, offset=error.start
        ) from error
    if size > MAX_LENGTH:
        raise CelSyntaxError(
            f"the expression has {size} bytes, {MAX_LENGTH} are allowed",
            expression=expression,
            hint="split it into several selectors",
        )
    return _Parser(expression).run()


class _Parser:
    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens = tokenize(expression)
        self.index = 0
        self.token = self.tokens[0]
        self.nesting = {"expr": 0, "relation": 0, "calc": 0}
        self.conjunction: list[tuple[int, int, Node]] = []
        self.conjunction_root: Node | None = None

    def run(self) -> Parsed:
        root = self.expr()
        if self.token.kind != "end":
            raise self.unexpected("an operator or the end")
        if self.conjunction_root is root:
            clauses = tuple(
                Clause(self.expression[start:end], node) for start, end, node in self.conjunction
            )
        else:
            clauses = (Clause(self.expression.strip(), root),)
        return Parsed(root, clauses)

    # --- tokens ---

    def advance(self) -> Token:
        token = self.token
        self.index += 1
        self.token = self.tokens[self.index] if self.index < len(self.tokens) else token
        return token

    def accept(self, kind: str) -> bool:
        if self.token.kind == kind:
            self.advance()
            return True
        return False

    def expect(self, kind: str) -> Token:
        if self.token.kind != kind:
            raise self.unexpected(repr(kind))
        return self.advance()

    def error(self, what: str, offset: int, hint: str = "") -> CelSyntaxError:
        return CelSyntaxError(what, expression=self.expression, offset=offset, hint=hint)

    def unexpected(self, wanted: str) -> CelSyntaxError:
        found = "the end of the text" if self.token.kind == "end" else repr(self.token.text)
        return self.error(f"expected {wanted}, found {found}", self.token.start)

    def enter(self, rule: str) -> None:
        self.nesting[rule] += 1
        self.check_depth(self.nesting[rule], self.token.start)

    def leave(self, rule: str) -> None:
        self.nesting[rule] -= 1

    def check_depth(self, depth: int, offset: int) -> None:
        if depth > _MAX_DEPTH:
            raise self.error(
                f"nested more than {_MAX_DEPTH} levels deep",
                offset,
                "split it into several selectors",
            )
        if depth == _SHALLOW and sys.getrecursionlimit() < _FRAMES:
            sys.setrecursionlimit(_FRAMES)

    def built(self, node: Node, own: int, *parts: Node | None) -> Node:
        """Notes how deep operations are nested in a new node; ``own`` is 1 for an operation."""
        node.depth = own + max((part.depth for part in parts if part is not None), default=0)
        self.check_depth(node.depth, node.pos)
        return node

    def call(self, pos: int, function: str, args: list[Node], target: Node | None = None) -> Node:
        own = 0 if target is None else 1
        expand = MACROS.get((function, len(args), target is not None))
        if expand is not None:
            try:
                expanded = expand(pos, target, args)
            except MacroError as error:
                raise self.error(error.what, error.pos, error.hint) from error
            if expanded is not None:
                return self.built(expanded, own, target, *args)
        return self.built(Call(pos, function, args, target), own, target, *args)

    # --- grammar ---

    def expr(self) -> Node:
        self.enter("expr")
        node = self.chain("||", "_||_", lambda: self.chain("&&", "_&&_", self.relation))
        if self.token.kind == "?":
            pos = self.advance().start
            then = self.chain("||", "_||_", lambda: self.chain("&&", "_&&_", self.relation))
            self.expect(":")
            other = self.expr()
            node = self.built(Call(pos, "_?_:_", [node, then, other]), 1, node, then, other)
        self.leave("expr")
        return node

    def chain(self, op: str, function: str, operand: Callable[[], Node]) -> Node:
        """``a && b && c`` as a balanced tree: long chains stay shallow, as in cel-go."""
        spans = [self.spanned(operand)]
        if self.token.kind != op:
            return spans[0][2]
        positions: list[int] = []
        while self.token.kind == op:
            positions.append(self.advance().start)
            spans.append(self.spanned(operand))
        terms = [span[2] for span in spans]
        root = _balance(function, terms, positions, 0, len(positions) - 1)
        root = self.built(root, 0, *terms)
        if op == "&&":
            self.conjunction, self.conjunction_root = spans, root
        return root

    def spanned(self, operand: Callable[[], Node]) -> tuple[int, int, Node]:
        start = self.token.start
        node = operand()
        return start, self.tokens[self.index - 1].end, node

    def relation(self) -> Node:
        self.enter("relation")
        node = self.left_assoc("relation", _RELATIONS, self.sum)
        self.leave("relation")
        return node

    def sum(self) -> Node:
        self.enter("calc")
        node = self.left_assoc("calc", _SUMS, self.product)
        self.leave("calc")
        return node

    def product(self) -> Node:
        return self.left_assoc("calc", _PRODUCTS, self.unary)

    def left_assoc(self, rule: str, operators: dict[str, str], operand: Callable[[], Node]) -> Node:
        node = operand()
        while (function := operators.get(self.token.kind)) is not None:
            pos = self.advance().start
            self.enter(rule)
            right = operand()
            self.leave(rule)
            node = self.built(Call(pos, function, [node, right]), 1, node, right)
        return node

    def unary(self) -> Node:
        kind = self.token.kind
        if kind not in {"!", "-"}:
            return self.member()
        if kind == "-" and self.tokens[self.index + 1].kind in {"int", "float"}:
            pos = self.advance().start
            return self.member(self.number(pos, negative=True))
        pos, count = self.token.start, 0
        while self.accept(kind):
            count += 1
        node = self.member()
        if count % 2 == 0:
            return node
        return self.built(Call(pos, "!_" if kind == "!" else "-_", [node]), 0, node)

    def member(self, node: Node | None = None) -> Node:
        if node is None:
            node = self.primary()
        while self.token.kind in {".", "["}:
            token = self.advance()
            if token.kind == ".":
                node = self.selection(node, token.start)
                continue
            function = "_[?_]" if self.accept("?") else "_[_]"
            index = self.expr()
            self.expect("]")
            node = self.built(Call(token.start, function, [node, index]), 1, node, index)
        return node

    def selection(self, operand: Node, pos: int) -> Node:
        optional = self.accept("?")
        token = self.advance()
        if token.kind not in {"ident", "quoted"}:
            self.index -= 1
            self.token = token
            raise self.unexpected("a field name")
        name = token.text if token.kind == "ident" else token.text[1:-1]
        if optional:
            access = Call(pos, "_?._", [operand, Literal(token.start, name)])
            return self.built(access, 1, operand)
        if token.kind == "ident" and self.token.kind == "(":
            at = self.advance().start
            return self.call(at, name, self.arguments(), operand)
        return self.built(Select(pos, operand, name), 1, operand)

    def arguments(self) -> list[Node]:
        args: list[Node] = []
        if self.token.kind != ")":
            args.append(self.expr())
            while self.accept(","):
                args.append(self.expr())
        self.expect(")")
        return args

    def primary(self) -> Node:
        token = self.token
        parse_token = _PRIMARY.get(token.kind)
        if parse_token is None:
            raise self.unexpected("a value")
        return parse_token(self)

    def nested(self) -> Node:
        self.advance()
        node = self.expr()
        self.expect(")")
        return node

    def name(self) -> Node:
        start = self.token.start
        dot = "." if self.accept(".") else ""
        message = self.message(start, dot)
        if message is not None:
            return message
        token = self.expect("ident")
        if token.text in _RESERVED:
            raise self.error(f"{token.text!r} is a reserved word", token.start, "use another name")
        if self.token.kind == "(":
            pos = self.advance().start
            return self.call(pos, dot + token.text, self.arguments())
        return Ident(start, dot + token.text)

    def message(self, start: int, dot: str) -> Node | None:
        """``a.b.Name{…}``, which only a look ahead can tell from ``a.b.name``."""
        ahead, parts = self.index, [dot]
        while self.tokens[ahead].kind == "ident":
            parts.append(self.tokens[ahead].text)
            if self.tokens[ahead + 1].kind != ".":
                break
            parts.append(".")
            ahead += 2
        else:
            return None
        if self.tokens[ahead + 1].kind != "{":
            return None
        self.index = ahead + 1
        self.token = self.tokens[self.index]
        self.fields()
        return Message(start, "".join(parts))

    def fields(self) -> None:
        self.expect("{")
        while self.token.kind not in {"}", ","}:
            self.accept("?")
            if self.token.kind not in {"ident", "quoted"}:
                raise self.unexpected("a field name")
            self.advance()
            self.expect(":")
            self.expr()
            if self.token.kind != "}" and self.expect(","):
                continue
        self.accept(",")
        self.expect("}")

    def list_literal(self) -> Node:
        pos = self.advance().start
        elements: list[Node] = []
        optional: set[int] = set()
        while self.token.kind not in {"]", ","}:
            if self.accept("?"):
                optional.add(len(elements))
            elements.append(self.expr())
            if self.token.kind != "]":
                self.expect(",")
                if self.token.kind == ",":
                    raise self.unexpected("a value")
        if not elements:
            self.accept(",")
        self.expect("]")
        return self.built(ListNode(pos, elements, frozenset(optional)), 0, *elements)

    def map_literal(self) -> Node:
        pos = self.advance().start
        entries: list[tuple[Node, Node, bool]] = []
        while self.token.kind not in {"}", ","}:
            optional = self.accept("?")
            key = self.expr()
            self.expect(":")
            entries.append((key, self.expr(), optional))
            if self.token.kind != "}":
                self.expect(",")
                if self.token.kind == ",":
                    raise self.unexpected("a key")
        if not entries:
            self.accept(",")
        self.expect("}")
        parts = [part for key, value, _ in entries for part in (key, value)]
        return self.built(MapNode(pos, entries), 0, *parts)

    # --- literals ---

    def number(self, pos: int = -1, *, negative: bool = False) -> Node:
        token = self.advance()
        pos = token.start if pos < 0 else pos
        if token.kind == "float":
            value = float(token.text)
            if math.isinf(value):
                raise self.error("the number is too large for a double", pos)
            return Literal(pos, -value if negative else value)
        text = token.text.rstrip("uU")
        number = int(text, 16) if text.startswith("0x") else digits_to_int(text)
        number = -number if negative else number
        if token.kind == "uint":
            if number > UINT_MAX:
                raise self.error("the number does not fit a uint (64 bits)", pos)
            return Literal(pos, Uint(number))
        if not INT_MIN <= number <= INT_MAX:
            raise self.error("the number does not fit an int (64 bits)", pos)
        return Literal(pos, number)

    def text(self) -> Node:
        token = self.advance()
        try:
            content = string_content if token.kind == "string" else bytes_content
            return Literal(token.start, content(token.text))
        except ValueError as error:
            raise self.error(str(error), token.start) from error

    def constant(self) -> Node:
        token = self.advance()
        return Literal(token.start, {"true": True, "false": False, "null": None}[token.kind])


_PRIMARY: dict[str, Callable[[_Parser], Node]] = {
    "(": _Parser.nested,
    "[": _Parser.list_literal,
    "{": _Parser.map_literal,
    ".": _Parser.name,
    "ident": _Parser.name,
    "int": _Parser.number,
    "uint": _Parser.number,
    "float": _Parser.number,
    "string": _Parser.text,
    "bytes": _Parser.text,
    "true": _Parser.constant,
    "false": _Parser.constant,
    "null": _Parser.constant,
}


def _balance(function: str, terms: list[Node], positions: list[int], low: int, high: int) -> Node:
    middle = (low + high + 1) // 2
    left = terms[middle] if middle == low else _balance(function, terms, positions, low, middle - 1)
    right = (
        terms[middle + 1]
        if middle == high
        else _balance(function, terms, positions, middle + 1, high)
    )
    return Call(positions[middle], function, [left, right])
