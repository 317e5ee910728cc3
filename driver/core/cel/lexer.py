# SPDX-License-Identifier: Apache-2.0
"""Splits CEL text into tokens; the parser is the only caller.

The grammar is that of the CEL language definition (cel-spec, langdef.md, "Syntax") with the
escapes that cel-go accepts.
"""

import re
from typing import NamedTuple

from gpudra.driver.core.cel.errors import CelSyntaxError

_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"
_STRING = "|".join(
    (
        r'[rR]"""(?:.|\n)*?"""',
        r"[rR]'''(?:.|\n)*?'''",
        r'[rR]"[^"\n\r]*"',
        r"[rR]'[^'\n\r]*'",
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
    )
)
_FLOAT = r"[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(
    "|".join(
        (
            r"(?P<space>[\t \r\n\f]+|//[^\n]*)",
            rf"(?P<float>{_FLOAT})",
            r"(?P<uint>0x[0-9a-fA-F]+[uU]|[0-9]+[uU])",
            r"(?P<int>0x[0-9a-fA-F]+|[0-9]+)",
            rf"(?P<bytes>[bB](?:{_STRING}))",
            rf"(?P<string>{_STRING})",
            r"(?P<ident>[A-Za-z_][A-Za-z0-9_]*)",
            r"(?P<quoted>`[A-Za-z0-9_.\-/ ]+`)",
            r"(?P<op>==|!=|<=|>=|&&|\|\||[\[\](){}.,:?<>!+\-*/%])",
        )
    )
)
# These words are tokens of their own, never identifiers, not even after a dot.
_KEYWORDS = frozenset({"in", "true", "false", "null"})
_SIMPLE = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?",
}  # fmt: skip
_ESCAPE_FINDER = re.compile(
    r"\\([xX])([0-9a-fA-F]{2})|\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|\\([0-3][0-7]{2})|\\(.)"
)


class Token(NamedTuple):
    """One token: its kind (for operators and keywords, the text itself) and where it stands."""

    kind: str
    text: str
    start: int
    end: int


def tokenize(expression: str) -> list[Token]:
    """All tokens, closed by one of kind ``end``.

    Raises:
        CelSyntaxError: a character that begins no token, or an unfinished string.
    """
    tokens: list[Token] = []
    offset, length, match = 0, len(expression), _TOKEN.match
    while offset < length:
        found = match(expression, offset)
        if found is None:
            raise _unknown(expression, offset)
        kind, text, end = found.lastgroup or "", found.group(), found.end()
        if kind == "op" or (kind == "ident" and text in _KEYWORDS):
            tokens.append(Token(text, text, offset, end))
        elif kind != "space":
            tokens.append(Token(kind, text, offset, end))
        offset = end
    tokens.append(Token("end", "", length, length))
    return tokens


def _unknown(expression: str, offset: int) -> CelSyntaxError:
    char = expression[offset]
    if char in "\"'":
        what = "a string that begins here does not end, or has an escape that CEL does not know"
        hint = "close the quotes; double a backslash, or use a raw string r'…'"
    elif char in "&|=":
        what, hint = f"a single {char!r} means nothing in CEL", f"write {char * 2!r}"
    else:
        what, hint = f"unexpected character {char!r}", "remove it"
    return CelSyntaxError(what, expression=expression, offset=offset, hint=hint)


def string_content(text: str) -> str:
    """The value of a string token.

    Raises:
        ValueError: an escape names no Unicode code point.
    """
    body, raw = _strip_quotes(text)
    if raw or "\\" not in body:
        return body
    return _ESCAPE_FINDER.sub(_string_escape, body)


def _string_escape(found: re.Match[str]) -> str:
    _, hexadecimal, unicode, octal, simple = found.groups()
    if simple is not None:
        return _SIMPLE[simple]
    code = int(octal, 8) if octal else int(hexadecimal or unicode[1:], 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError("the escape names no Unicode code point")
    return chr(code)


def bytes_content(text: str) -> bytes:
    r"""The value of a bytes token; ``\x`` and octal escapes are bytes, other text is UTF-8.

    Raises:
        ValueError: it has a ``\u`` or ``\U`` escape.
    """
    body, raw = _strip_quotes(text[1:])
    if raw or "\\" not in body:
        return body.encode()
    result, last = bytearray(), 0
    for found in _ESCAPE_FINDER.finditer(body):
        result += body[last : found.start()].encode()
        _, hexadecimal, unicode, octal, simple = found.groups()
        if unicode:
            raise ValueError("bytes cannot hold a \\u escape")
        if simple is not None:
            result += _SIMPLE[simple].encode()
        else:
            result.append(int(octal, 8) & 0xFF if octal else int(hexadecimal, 16))
        last = found.end()
    return bytes(result + body[last:].encode())


def _strip_quotes(text: str) -> tuple[str, bool]:
    # Line ends count as \n whatever the file had, as in cel-go.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    if len(text) >= 6 and text[:3] in {'"""', "'''"}:
        return text[3:-3], raw
    return text[1:-1], raw
