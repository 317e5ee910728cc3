# SPDX-License-Identifier: Apache-2.0
"""Regular expressions: ``matches``, ``find``, ``findAll``, with RE2 as upstream.

RE2 runs in time linear in the text, so a hostile pattern cannot stall the resolver.
"""

import functools
import re
from typing import Any

import re2

from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.errors import CelValueError, no_overload
from gpudra.driver.core.cel.types import BOOL, INT, STRING, list_of
from gpudra.driver.core.cel.values import Value

_ESCAPES = re.compile(r"\\.", re.DOTALL)
_REMEMBERED_LENGTH = 256
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


@functools.lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Any:
    """A compiled pattern.

    Raises:
        CelValueError: it is not RE2 syntax.
    """
    if r"\C" in _ESCAPES.findall(pattern):
        raise CelValueError(f"{pattern!r} is not a regular expression", hint=r"\C is unknown in Go")
    try:
        return re2.compile(pattern, options=_OPTIONS)
    except re2.error as error:
        raise CelValueError(f"{pattern!r} is not a regular expression", hint=str(error)) from error


def matches(text: Value, pattern: Value) -> bool:
    """Whether the pattern occurs in the text."""
    if type(text) is not str or type(pattern) is not str:
        raise no_overload("matches", text, pattern)
    if len(text) > _REMEMBERED_LENGTH:
        return compile_pattern(pattern).search(text) is not None
    return _search(pattern, text)


@functools.lru_cache(maxsize=4096)
def _search(pattern: str, text: str) -> bool:
    """Devices repeat few texts; remembering is twenty times as fast as asking RE2 again."""
    return compile_pattern(pattern).search(text) is not None


def _find(text: str, pattern: str) -> str:
    found = compile_pattern(pattern).search(text)
    return str(found.group()) if found is not None else ""


def _find_all(text: str, pattern: str, count: int = -1) -> tuple[str, ...]:
    """All matches from left to right. An empty one right behind another match does not count."""
    found: list[str] = []
    compiled, previous = compile_pattern(pattern), -1
    for match in compiled.finditer(text):
        if 0 <= count <= len(found):
            break
        start, end = match.span()
        if start != end or start != previous:
            found.append(match.group())
        previous = end
    return tuple(found)


_TWO = [STRING, STRING]

FUNCTIONS: list[Function] = [
    Function(
        "matches",
        (overload("matches", _TWO, BOOL), method("matches_string", _TWO, BOOL)),
        matches,
    ),
    Function("find", (method("string_find_string", _TWO, STRING, _find),)),
    Function(
        "findAll",
        (
            method("string_find_all_string", _TWO, list_of(STRING), _find_all),
            method("string_find_all_string_int", [*_TWO, INT], list_of(STRING), _find_all),
        ),
    ),
]
