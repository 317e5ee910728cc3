# SPDX-License-Identifier: Apache-2.0
"""Type conversions: ``int()``, ``string()``, ``duration()`` and the others.

The source is cel-go ``common/types``, ``ConvertToType``. Texts are read as Go's strconv and time packages read them.
"""

import datetime as dt
import math
import re

from gpudra.driver.core.cel.declarations import Function, overload
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.library.operators import checked_int, checked_time, checked_uint
from gpudra.driver.core.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    type_of,
)
from gpudra.driver.core.cel.values import (
    INT_MAX,
    Duration,
    Timestamp,
    TypeValue,
    Uint,
    Value,
    type_name,
)

_SECOND = 10**9
_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_UINT = re.compile(r"[0-9]+", re.ASCII)
_DIGITS = r"[0-9](?:_?[0-9])*"  # Go lets an underscore stand between digits
_DOUBLE = re.compile(
    rf"[+-]?(?:(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?|inf(?:inity)?)|nan",
    re.ASCII | re.IGNORECASE,
)
_HEX_DOUBLE = re.compile(
    r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+", re.IGNORECASE | re.ASCII
)
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}  # fmt: skip
_SPAN = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})"
    r"(?:[.,]([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC).toordinal()


def _bad(text: str, wanted: str) -> CelValueError:
    shown = text if len(text) <= 40 else text[:40] + "…"
    return CelValueError(f"{shown!r} is not {wanted}")


def text_to_bool(text: str) -> bool:
    """The words that Go's ParseBool knows."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _bad(text, "a bool")


def digits_to_int(text: str) -> int:
    """A decimal number; beyond 40 digits only that it is large is kept, as nobody needs more."""
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").lstrip("0")
    return sign * (int(digits or "0") if len(digits) <= 40 else 10**40)


def text_to_int(text: str) -> int:
    """A decimal int."""
    if _INT.fullmatch(text) is None:
        raise _bad(text, "an int")
    return checked_int(digits_to_int(text))


def text_to_uint(text: str) -> Uint:
    """A decimal uint, without sign."""
    if _UINT.fullmatch(text) is None:
        raise _bad(text, "a uint")
    return checked_uint(digits_to_int(text))


def text_to_double(text: str) -> float:
    """A decimal or hexadecimal double, inf or nan."""
    if _HEX_DOUBLE.fullmatch(text):
        number = _from_hex(text)
    elif _DOUBLE.fullmatch(text):
        number = float(text.replace("_", ""))
    else:
        raise _bad(text, "a double")
    if math.isinf(number) and "inf" not in text.lower():
        raise _bad(text, "a double within range")
    return number


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return math.inf


def double_to_int(number: float) -> int:
    """Truncates; the extremes themselves are out of range, as upstream."""
    if math.isnan(number) or not -(2.0**63) < number < 2.0**63:
        raise CelValueError("the double does not fit an int")
    return int(number)


def double_to_uint(number: float) -> Uint:
    """Truncates."""
    if math.isnan(number) or not 0 <= number < 2.0**64:
        raise CelValueError("the double does not fit a uint")
    return Uint(int(number))


def double_to_text(number: float) -> str:
    """The shortest text, in the manner of Go's %g."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    sign, digits, exponent = _digits(number)
    if -4 <= exponent < 6:
        return sign + _positional(digits, exponent)
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _digits(number: float) -> tuple[str, str, int]:
    """Sign, shortest significant digits, and the exponent of the first one."""
    mantissa, _, power = f"{number!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    joined = whole + fraction
    exponent = len(whole) - 1 + int(power or 0)
    stripped = joined.lstrip("0")
    if not stripped:
        return sign, "0", 0
    exponent -= len(joined) - len(stripped)
    return sign, stripped.rstrip("0") or "0", exponent


def _positional(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    if len(digits) <= exponent + 1:
        return digits + "0" * (exponent + 1 - len(digits))
    return f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"


def plain_decimal(number: float) -> str:
    """The shortest text without exponent, as Go's FormatFloat(x, 'f', -1)."""
    sign, digits, exponent = _digits(number)
    return sign + _positional(digits, exponent)


def text_to_duration(text: str) -> Duration:
    """Go's duration syntax: ``1h30m``, ``-1.5s``, ``0``."""
    body = text[1:] if text[:1] in {"-", "+"} else text
    if body == "0":
        return Duration(0)
    total, offset = 0, 0
    while offset < len(body):
        found = _SPAN.match(body, offset)
        if found is None or not (found[1] or found[2]):
            raise _bad(text, "a duration")
        unit = _UNITS[found[3]]
        total += digits_to_int(found[1] or "0") * unit + _part_of(found[2] or "", unit)
        offset = found.end()
    total = -total if text.startswith("-") else total
    if not body or abs(total) > 2**63 or total == 2**63:
        raise _bad(text, "a duration")
    return Duration(total)


def _part_of(fraction: str, unit: int) -> int:
    """A fraction of a unit in nanoseconds, rounded as Go does: it goes through a double."""
    kept, scale = 0, 1.0
    for digit in fraction:
        if kept > INT_MAX // 10 or kept * 10 + int(digit) > INT_MAX + 1:
            break
        kept, scale = kept * 10 + int(digit), scale * 10
    return int(float(kept) * (float(unit) / scale))


def text_to_timestamp(text: str) -> Timestamp:
    """RFC 3339 with a zone, as Go reads it."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise _bad(text, "a timestamp")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    zone = _zone(found[8], text)
    if hour > 23 or minute > 59 or second > 59:
        raise _bad(text, "a timestamp")
    try:
        # Year 0 exists in RFC 3339 but not in Python; it is out of range in CEL anyway.
        days = dt.date(year or 4, month, day).toordinal() - _EPOCH
    except ValueError as error:
        raise _bad(text, "a timestamp") from error
    if not year:
        days -= 4 * 365 + 1
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - zone
    return checked_time(seconds * _SECOND + int((found[7] or "")[:9].ljust(9, "0")), zone)


def _zone(text: str, whole: str) -> int:
    if text == "Z":
        return 0
    hours, minutes = int(text[1:3]), int(text[4:6])
    if hours > 24 or minutes > 60:
        raise _bad(whole, "a timestamp")
    seconds = (hours * 60 + minutes) * 60
    return -seconds if text[0] == "-" else seconds


def timestamp_to_text(moment: Timestamp) -> str:
    """RFC 3339 with as many fractional digits as needed, in the zone it was written in."""
    seconds, nanos = divmod(moment.nanos, _SECOND)
    days, rest = divmod(seconds + moment.zone, 86400)
    year, date = _calendar(days)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    offset = abs(moment.zone) // 60
    sign = "-" if moment.zone < 0 else "+"
    zone = f"{sign}{offset // 60:02d}:{offset % 60:02d}" if moment.zone else "Z"
    return f"{year:04d}-{date.month:02d}-{date.day:02d}T{clock}{fraction}{zone}"


def _calendar(days: int) -> tuple[int, dt.date]:
    """Year and a date with the same month and day; a zone may reach past Python's years."""
    ordinal = days + _EPOCH
    if ordinal < 1:
        return 0, dt.date.fromordinal(ordinal + 1461)
    if ordinal > dt.date.max.toordinal():
        return 10000, dt.date.fromordinal(ordinal - dt.date.max.toordinal())
    date = dt.date.fromordinal(ordinal)
    return date.year, date


def duration_to_text(span: Duration) -> str:
    """Seconds with an ``s``."""
    # Go adds whole and fractional seconds as doubles; the quotient of ints would round once less.
    whole, rest = abs(span.nanos) // _SECOND, abs(span.nanos) % _SECOND
    seconds = math.copysign(whole + rest / 1e9, span.nanos) if span.nanos else 0.0
    return plain_decimal(seconds) + "s"


def bytes_to_text(data: bytes) -> str:
    """UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CelValueError("the bytes are not valid UTF-8") from error


def to_text(value: Value) -> str:
    """``string()`` of the basic types."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind in {int, Uint}:
        return str(int(value))
    if kind is float:
        return double_to_text(value)
    if kind is bytes:
        return bytes_to_text(value)
    return duration_to_text(value) if kind is Duration else timestamp_to_text(value)


def _identity(value: Value) -> Value:
    return value


def _floor_seconds(moment: Timestamp) -> int:
    return moment.nanos // _SECOND


FUNCTIONS: list[Function] = [
    Function(
        "type", (overload("type", [A], type_of(A)),), lambda value: TypeValue(type_name(value))
    ),
    Function("dyn", (overload("to_dyn", [A], DYN),), _identity),
    Function(
        "bool",
        (
            overload("bool_to_bool", [BOOL], BOOL, _identity),
            overload("string_to_bool", [STRING], BOOL, text_to_bool),
        ),
    ),
    Function(
        "bytes",
        (
            overload("bytes_to_bytes", [BYTES], BYTES, _identity),
            overload("string_to_bytes", [STRING], BYTES, lambda text: text.encode()),
        ),
    ),
    Function(
        "double",
        (
            overload("double_to_double", [DOUBLE], DOUBLE, _identity),
            overload("int64_to_double", [INT], DOUBLE, float),
            overload("string_to_double", [STRING], DOUBLE, text_to_double),
            overload("uint64_to_double", [UINT], DOUBLE, float),
        ),
    ),
    Function(
        "duration",
        (
            overload("duration_to_duration", [DURATION], DURATION, _identity),
            overload("string_to_duration", [STRING], DURATION, text_to_duration),
        ),
    ),
    Function(
        "int",
        (
            overload("int64_to_int64", [INT], INT, _identity),
            overload("double_to_int64", [DOUBLE], INT, double_to_int),
            overload("duration_to_int64", [DURATION], INT, lambda span: span.nanos),
            overload("string_to_int64", [STRING], INT, text_to_int),
            overload("timestamp_to_int64", [TIMESTAMP], INT, _floor_seconds),
            overload("uint64_to_int64", [UINT], INT, lambda number: checked_int(int(number))),
        ),
    ),
    Function(
        "string",
        (
            overload("string_to_string", [STRING], STRING, _identity),
            overload("bool_to_string", [BOOL], STRING, to_text),
            overload("bytes_to_string", [BYTES], STRING, to_text),
            overload("double_to_string", [DOUBLE], STRING, to_text),
            overload("duration_to_string", [DURATION], STRING, to_text),
            overload("int64_to_string", [INT], STRING, to_text),
            overload("timestamp_to_string", [TIMESTAMP], STRING, to_text),
            overload("uint64_to_string", [UINT], STRING, to_text),
        ),
    ),
    Function(
        "timestamp",
        (
            overload("timestamp_to_timestamp", [TIMESTAMP], TIMESTAMP, _identity),
            overload("int64_to_timestamp", [INT], TIMESTAMP, lambda s: checked_time(s * _SECOND)),
            overload("string_to_timestamp", [STRING], TIMESTAMP, text_to_timestamp),
        ),
    ),
    Function(
        "uint",
        (
            overload("uint64_to_uint64", [UINT], UINT, _identity),
            overload("double_to_uint64", [DOUBLE], UINT, double_to_uint),
            overload("int64_to_uint64", [INT], UINT, checked_uint),
            overload("string_to_uint64", [STRING], UINT, text_to_uint),
        ),
    ),
]
