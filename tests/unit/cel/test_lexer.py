# SPDX-License-Identifier: Apache-2.0
"""Tokens of CEL text."""

import pytest

from gpudra.driver.core.cel import CelSyntaxError
from gpudra.driver.core.cel.lexer import bytes_content, string_content, tokenize


def kinds(text: str) -> list[str]:
    """The kinds of all tokens."""
    return [token.kind for token in tokenize(text)]


def test_longest_token_wins() -> None:
    """A number takes as many characters as it can."""
    assert kinds("1.5e3 0x1Fu .5 1.foo") == ["float", "uint", "float", "int", ".", "ident", "end"]


def test_keywords_are_no_identifiers() -> None:
    """The words in, true, false and null are tokens of their own."""
    assert kinds("in true false null inner") == ["in", "true", "false", "null", "ident", "end"]


def test_comments_and_spaces_vanish() -> None:
    """What stands behind two slashes is skipped up to the end of the line."""
    assert kinds("1 // 2\n\f 3") == ["int", "int", "end"]


def test_tokens_know_where_they_stand() -> None:
    """Offsets count code points."""
    token = tokenize('"é" + x')[2]
    assert (token.text, token.start, token.end) == ("x", 6, 7)


@pytest.mark.parametrize("text", ['"open', '"\\q"', "a & b", "#", "'a\nb'", "`a$b`"])
def test_what_is_no_token_is_refused(text: str) -> None:
    """Unfinished strings, unknown escapes and stray characters have a position."""
    with pytest.raises(CelSyntaxError) as caught:
        tokenize(text)
    assert caught.value.position[0] == 1


@pytest.mark.parametrize(
    ("token", "content"),
    [
        (r'"a\n\x41\u00e9\U0001f600\101"', "a\nAé😀A"),
        (r"r'\n'", r"\n"),
        ('"""a"b\r\nc"""', 'a"b\nc'),
        ("''", ""),
    ],
)
def test_string_content(token: str, content: str) -> None:
    """Escapes are resolved, raw strings kept, line ends made alike."""
    assert string_content(token) == content


@pytest.mark.parametrize("token", [r'"\ud800"', r'"\U00110000"'])
def test_escapes_name_code_points(token: str) -> None:
    """Surrogates and numbers beyond Unicode are refused."""
    with pytest.raises(ValueError, match="code point"):
        string_content(token)


def test_bytes_content() -> None:
    """Byte escapes are bytes, other text is UTF-8."""
    assert bytes_content(r'b"\xff\377é"') == b"\xff\xff\xc3\xa9"
    with pytest.raises(ValueError, match="escape"):
        bytes_content(r'b"\u00e9"')
