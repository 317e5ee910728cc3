# SPDX-License-Identifier: Apache-2.0
"""String functions: those of the standard, and cel-go's ``ext`` strings, version 2.

Positions count code points.
"""

from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.errors import CelCostExceeded, CelValueError, no_overload
from gpudra.driver.core.cel.library.operators import MAX_TEXT, limited_text
from gpudra.driver.core.cel.types import BOOL, INT, STRING, list_of
from gpudra.driver.core.cel.values import Value

_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
# What Go's unicode.IsSpace accepts; Python's strip() would also take the separators 1C-1F.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
_QUOTED = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def _out_of_range(index: int) -> CelValueError:
    return CelValueError(
        f"position {index} is outside the string", hint="compare with size() first"
    )


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def _index_of(text: str, part: str, offset: int = 0) -> int:
    if offset < 0:
        raise _out_of_range(offset)
    if not part:
        return min(offset, len(text))
    return text.find(part, offset) if offset < len(text) else -1


def _last_index_of(text: str, part: str) -> int:
    return text.rfind(part) if part else len(text)


def _last_index_of_offset(text: str, part: str, offset: int) -> int:
    if offset < 0:
        raise _out_of_range(offset)
    if not part:
        return min(offset, len(text))
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    times = text.count(old) if old else len(text) + 1
    times = min(times, count) if count >= 0 else times
    if times * max(0, len(new) - len(old)) + len(text) > MAX_TEXT:
        raise CelCostExceeded(f"a string grew beyond {MAX_TEXT} characters")
    return text.replace(old, new, count if count >= 0 else -1)


def _split(text: str, separator: str, count: int = -1) -> tuple[str, ...]:
    if count == 0:
        return ()
    if separator:
        return tuple(text.split(separator, count - 1 if count > 0 else -1))
    if count < 0 or count >= len(text):
        return tuple(text)
    return (*text[: count - 1], text[count - 1 :])


def _substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def _substring_range(text: str, start: int, end: int) -> str:
    if start > end:
        raise CelValueError(f"the range {start} to {end} runs backwards")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:end]


def _join(items: tuple[Value, ...], separator: str = "") -> str:
    if not all(type(item) is str for item in items):
        raise no_overload("join", *items[:3])
    if len(separator) * len(items) > MAX_TEXT:
        raise CelCostExceeded(f"a string grew beyond {MAX_TEXT} characters")
    return limited_text(separator.join(items))


def _quote(text: str) -> str:
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


_ONE = [STRING]
_TWO = [STRING, STRING]
_STRINGS = list_of(STRING)

FUNCTIONS: list[Function] = [
    Function("contains", (method("contains_string", _TWO, BOOL, str.__contains__),)),
    Function("startsWith", (method("starts_with_string", _TWO, BOOL, str.startswith),)),
    Function("endsWith", (method("ends_with_string", _TWO, BOOL, str.endswith),)),
    Function("charAt", (method("string_char_at_int", [STRING, INT], STRING, _char_at),)),
    Function(
        "indexOf",
        (
            method("string_index_of_string", _TWO, INT, _index_of),
            method("string_index_of_string_int", [*_TWO, INT], INT, _index_of),
        ),
    ),
    Function(
        "lastIndexOf",
        (
            method("string_last_index_of_string", _TWO, INT, _last_index_of),
            method("string_last_index_of_string_int", [*_TWO, INT], INT, _last_index_of_offset),
        ),
    ),
    Function(
        "lowerAscii", (method("string_lower_ascii", _ONE, STRING, lambda s: s.translate(_LOWER)),)
    ),
    Function(
        "upperAscii", (method("string_upper_ascii", _ONE, STRING, lambda s: s.translate(_UPPER)),)
    ),
    Function(
        "replace",
        (
            method("string_replace_string_string", [*_TWO, STRING], STRING, _replace),
            method("string_replace_string_string_int", [*_TWO, STRING, INT], STRING, _replace),
        ),
    ),
    Function(
        "split",
        (
            method("string_split_string", _TWO, _STRINGS, _split),
            method("string_split_string_int", [*_TWO, INT], _STRINGS, _split),
        ),
    ),
    Function(
        "substring",
        (
            method("string_substring_int", [STRING, INT], STRING, _substring),
            method("string_substring_int_int", [STRING, INT, INT], STRING, _substring_range),
        ),
    ),
    Function("trim", (method("string_trim", _ONE, STRING, lambda s: s.strip(_SPACE)),)),
    Function(
        "join",
        (
            method("list_join", [_STRINGS], STRING, _join),
            method("list_join_string", [_STRINGS, STRING], STRING, _join),
        ),
    ),
    Function("strings.quote", (overload("strings_quote", _ONE, STRING, _quote),)),
]
