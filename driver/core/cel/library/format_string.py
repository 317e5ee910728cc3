# SPDX-License-Identifier: Apache-2.0
"""``"…".format([…])`` (cel-go ``ext/formatting.go``, used by strings version 2).

Numbers with ``%f`` and ``%e`` come out in the manner of Go's message printer for English: digits in
groups of three, and powers of ten in superscript.
"""

import decimal
import math
import re
from collections.abc import Callable
from typing import NamedTuple

from gpudra.driver.core.cel.declarations import Function, method
from gpudra.driver.core.cel.errors import CelCostExceeded, CelValueError
from gpudra.driver.core.cel.library.conversions import to_text
from gpudra.driver.core.cel.library.operators import MAX_TEXT
from gpudra.driver.core.cel.types import DYN, STRING, list_of
from gpudra.driver.core.cel.values import (
    MAPS,
    Duration,
    Timestamp,
    TypeValue,
    Uint,
    Value,
    map_items,
    type_name,
)

_CLAUSE = re.compile(r"(\.[0-9]*)?(.?)", re.DOTALL | re.ASCII)
_KINDS = "sdfebxXo"
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_DEFAULT_PRECISION = 6
_MAX_PRECISION = 100_000
_SPECIAL = frozenset({"NaN", "Infinity", "-Infinity"})
_INTEGERS = (int, Uint)
_PLAIN = (int, Uint, float, bool, str, bytes, Timestamp, Duration)
_GO_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip


class Clause(NamedTuple):
    """One ``%`` clause: the text before it, its letter, and the precision (None: default)."""

    before: str
    kind: str
    precision: int | None


def parse_format(text: str) -> tuple[list[Clause], str]:
    """The clauses of a format string, and the text behind the last one.

    Raises:
        CelValueError: a clause that does not exist, or an unfinished one.
    """
    clauses: list[Clause] = []
    plain, offset = "", 0
    while (at := text.find("%", offset)) >= 0:
        plain += text[offset:at]
        if text[at + 1 : at + 2] == "%":
            plain, offset = plain + "%", at + 2
            continue
        found = _CLAUSE.match(text, at + 1)
        assert found is not None, "the pattern matches nothing, too"
        if not found[2] or found[2] not in _KINDS or found[1] == ".":
            raise CelValueError(
                f"%{found[0]} is no format clause", hint=f"after % comes one of {' '.join(_KINDS)}"
            )
        clauses.append(Clause(plain, found[2], _precision(found[1])))
        plain, offset = "", found.end()
    return clauses, plain + text[offset:]


def _precision(text: str | None) -> int | None:
    if not text:
        return None
    if len(text) > 7 or int(text[1:]) > _MAX_PRECISION:
        raise CelValueError(f"the precision {text[1:10]} is too large")
    return int(text[1:])


def _wrong(clause: str, value: Value) -> CelValueError:
    return CelValueError(f"{clause} cannot format a {type_name(value)}")


def _as_string(value: Value) -> str:
    if value is None:
        return "null"
    if type(value) is TypeValue:
        return value.name
    if type(value) in _PLAIN:
        return to_text(value)
    if type(value) is tuple or isinstance(value, MAPS):
        return _nested(value)
    raise _wrong("%s", value)


def _nested(value: Value) -> str:
    """An element of a list or map: as ``%s``, but with quotes where CEL text would have them."""
    kind = type(value)
    if kind is tuple:
        return "[" + ", ".join(_nested(item) for item in value) + "]"
    if isinstance(value, MAPS):
        return _nested_map(value)
    if kind is float:
        if math.isnan(value) or math.isinf(value):
            return '"' + to_text(value) + '"'
        return f"{value:.6f}"
    if kind in {Timestamp, Duration}:
        return f'{"timestamp" if kind is Timestamp else "duration"}("{to_text(value)}")'
    if kind is str:
        return _go_quoted(value)
    if kind is bytes:
        return "b" + _go_quoted(to_text(value))
    return _as_string(value)


def _nested_map(value: Value) -> str:
    pairs: list[tuple[str, str]] = []
    for key, item in map_items(value):
        if type(key) not in {str, bool, int, Uint}:
            raise _wrong("%s", key)
        pairs.append((_nested(key), _nested(item)))
    pairs.sort(key=lambda pair: pair[0])
    return "{" + ", ".join(f"{key}:{item}" for key, item in pairs) + "}"


def _go_quoted(text: str) -> str:
    return '"' + "".join(_go_escaped(char) for char in text) + '"'


def _go_escaped(char: str) -> str:
    if char in _GO_ESCAPES:
        return _GO_ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _as_decimal(value: Value) -> str:
    if type(value) in _INTEGERS:
        return str(int(value))
    raise _wrong("%d", value)


def _number(clause: str, value: Value) -> float:
    if type(value) is float:
        return value or 0.0  # the printer drops the sign of a zero
    if type(value) is str and value in _SPECIAL:
        return float(value)
    raise _wrong(clause, value)


def _not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "∞" if number > 0 else "-∞"


def _as_fixed(value: Value, precision: int) -> str:
    number = _number("%f", value)
    if math.isnan(number) or math.isinf(number):
        return _not_finite(number)
    return f"{decimal.Decimal(number):,.{precision}f}"


def _as_scientific(value: Value, width: int) -> str:
    # Upstream forgets the dot: the number behind % is the width, the digits are always six.
    number = _number("%e", value)
    if math.isnan(number) or math.isinf(number):
        return _not_finite(number).rjust(width)
    mantissa, _, power = f"{decimal.Decimal(number):.{_DEFAULT_PRECISION}e}".partition("e")
    exponent = int(power)
    if not number:
        mantissa, exponent = f"{number:.{_DEFAULT_PRECISION}f}", 0
    shown = f"{'-' if exponent < 0 else ''}{abs(exponent):02d}".translate(_SUPERSCRIPT)
    return f"{mantissa}\u00d710{shown}".rjust(width)


def _as_binary(value: Value) -> str:
    if type(value) is bool:
        return "1" if value else "0"
    if type(value) in _INTEGERS:
        return f"{int(value):b}"
    raise _wrong("%b", value)


def _as_hex(value: Value) -> str:
    if type(value) is str:
        return str(value.encode().hex())
    if type(value) is bytes:
        return value.hex()
    if type(value) in _INTEGERS:
        return f"{int(value):x}"
    raise _wrong("%x", value)


def _as_octal(value: Value) -> str:
    if type(value) in _INTEGERS:
        return f"{int(value):o}"
    raise _wrong("%o", value)


_WITHOUT_PRECISION: dict[str, Callable[[Value], str]] = {
    "s": _as_string,
    "d": _as_decimal,
    "b": _as_binary,
    "x": _as_hex,
    "X": lambda value: _as_hex(value).upper(),
    "o": _as_octal,
}


def _format(text: str, args: tuple[Value, ...]) -> str:
    clauses, rest = parse_format(text)
    if len(clauses) > len(args):
        raise CelValueError(f"the format has {len(clauses)} clauses for {len(args)} arguments")
    parts, size = [], len(text)
    for clause, value in zip(clauses, args, strict=False):
        parts.append(clause.before)
        render = _WITHOUT_PRECISION.get(clause.kind)
        if render is not None:
            shown = render(value)
        else:
            precision = _DEFAULT_PRECISION if clause.precision is None else clause.precision
            shown = (_as_fixed if clause.kind == "f" else _as_scientific)(value, precision)
        parts.append(shown)
        size += len(shown)
        if size > MAX_TEXT:
            raise CelCostExceeded(f"a string grew beyond {MAX_TEXT} characters")
    return "".join([*parts, rest])


FUNCTIONS: list[Function] = [
    Function("format", (method("string_format", [STRING, list_of(DYN)], STRING, _format),)),
]
