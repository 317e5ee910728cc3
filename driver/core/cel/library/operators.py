# SPDX-License-Identifier: Apache-2.0
"""Operators, ``size`` and ``in`` (cel-go ``common/stdlib``), checked to 64 bits."""

import math

from gpudra.driver.core.cel.declarations import Function, Overload, method, overload
from gpudra.driver.core.cel.equality import compare, contains
from gpudra.driver.core.cel.errors import CelCostExceeded, CelValueError, no_overload
from gpudra.driver.core.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    B,
    Type,
    list_of,
    map_of,
    optional_of,
)
from gpudra.driver.core.cel.values import (
    INT_MAX,
    INT_MIN,
    MAPS,
    UINT_MAX,
    Duration,
    Timestamp,
    Uint,
    Value,
    map_has,
    map_size,
)

# Years 1 to 9999, the range of protobuf timestamps.
_TIME_MIN = -62135596800
_TIME_MAX = 253402300799
_SECOND = 10**9
MAX_ELEMENTS = 1_000_000  # a longer list could not be read within the cost limit anyway
MAX_TEXT = 16 * 1024 * 1024

Kinds = tuple[type, type]


def checked_int(number: int) -> int:
    """The number, if it fits an int.

    Raises:
        CelValueError: it does not.
    """
    if INT_MIN <= number <= INT_MAX:
        return number
    raise CelValueError("integer overflow", hint="keep results within 64 bits")


def checked_uint(number: int) -> Uint:
    """The number, if it fits a uint.

    Raises:
        CelValueError: it does not.
    """
    if 0 <= number <= UINT_MAX:
        return Uint(number)
    raise CelValueError("unsigned integer overflow", hint="keep results within 64 bits")


def checked_time(nanos: int, zone: int = 0) -> Timestamp:
    """The moment, if its year has four digits.

    Raises:
        CelValueError: it has not.
    """
    if _TIME_MIN <= nanos // _SECOND <= _TIME_MAX:
        return Timestamp(nanos, zone)
    raise CelValueError("timestamp overflow", hint="keep to the years 1 to 9999")


def limited_text(text: str) -> str:
    """The text, unless it outgrew what the cost limit could ever read.

    Raises:
        CelCostExceeded: it did.
    """
    if len(text) > MAX_TEXT:
        raise CelCostExceeded(f"a string grew beyond {MAX_TEXT} characters")
    return text


def limited_list(items: tuple[Value, ...]) -> tuple[Value, ...]:
    """The list, unless it outgrew what the cost limit could ever read.

    Raises:
        CelCostExceeded: it did.
    """
    if len(items) > MAX_ELEMENTS:
        raise CelCostExceeded(f"a list grew beyond {MAX_ELEMENTS} elements")
    return items


def add(left: Value, right: Value) -> Value:
    """``+``."""
    kinds = (type(left), type(right))
    if kinds == (int, int):
        return checked_int(left + right)
    if kinds == (str, str):
        return limited_text(left + right)
    if kinds in {(float, float), (bytes, bytes)}:
        return left + right
    if kinds == (tuple, tuple):
        if len(left) + len(right) > MAX_ELEMENTS:
            raise CelCostExceeded(f"a list grew beyond {MAX_ELEMENTS} elements")
        return left + right
    return _add_rare(left, right, kinds)


def _add_rare(left: Value, right: Value, kinds: Kinds) -> Value:
    if kinds == (Uint, Uint):
        return checked_uint(int(left) + int(right))
    if kinds == (Duration, Duration):
        return Duration(checked_int(left.nanos + right.nanos))
    if kinds == (Timestamp, Duration):
        return checked_time(left.nanos + right.nanos, left.zone)
    if kinds == (Duration, Timestamp):
        return checked_time(left.nanos + right.nanos, right.zone)
    raise no_overload("+", left, right)


def subtract(left: Value, right: Value) -> Value:
    """``a - b``."""
    kinds = (type(left), type(right))
    if kinds == (int, int):
        return checked_int(left - right)
    if kinds == (float, float):
        return left - right
    if kinds == (Uint, Uint):
        return checked_uint(int(left) - int(right))
    if kinds == (Duration, Duration):
        return Duration(checked_int(left.nanos - right.nanos))
    if kinds == (Timestamp, Duration):
        return checked_time(left.nanos + checked_int(-right.nanos), left.zone)
    if kinds == (Timestamp, Timestamp):
        return _between(left, right)
    raise no_overload("-", left, right)


def _between(left: Timestamp, right: Timestamp) -> Duration:
    # Upstream checks the whole seconds first, and only then adds the rest.
    seconds = checked_int((left.nanos // _SECOND - right.nanos // _SECOND) * _SECOND)
    return Duration(checked_int(seconds + left.nanos % _SECOND - right.nanos % _SECOND))


def multiply(left: Value, right: Value) -> Value:
    """``*``."""
    kinds = (type(left), type(right))
    if kinds == (int, int):
        return checked_int(left * right)
    if kinds == (float, float):
        return left * right
    if kinds == (Uint, Uint):
        return checked_uint(int(left) * int(right))
    raise no_overload("*", left, right)


def _truncated(left: int, right: int) -> int:
    if right == 0:
        raise CelValueError("division by zero", hint="test the divisor first")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def divide(left: Value, right: Value) -> Value:
    """``/``; integers truncate towards zero."""
    kinds = (type(left), type(right))
    if kinds == (int, int):
        return checked_int(_truncated(left, right))
    if kinds == (float, float):
        return _divide_floats(left, right)
    if kinds == (Uint, Uint):
        return Uint(_truncated(int(left), int(right)))
    raise no_overload("/", left, right)


def _divide_floats(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or left != left:  # noqa: PLR0124 - the test for NaN
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def modulo(left: Value, right: Value) -> Value:
    """``%``; the result has the sign of the dividend."""
    kinds = (type(left), type(right))
    if kinds == (int, int):
        checked_int(_truncated(left, right))  # the smallest int % -1 overflows upstream too
        return left - right * _truncated(left, right)
    if kinds == (Uint, Uint):
        return Uint(int(left) - int(right) * _truncated(int(left), int(right)))
    raise no_overload("%", left, right)


def negate(value: Value) -> Value:
    """``-a``."""
    kind = type(value)
    if kind is int:
        return checked_int(-value)
    if kind is float:
        return -value
    if kind is Duration:
        return Duration(checked_int(-value.nanos))
    raise no_overload("-", value)


def logical_not(value: Value) -> bool:
    """``!a``."""
    if type(value) is bool:
        return not value
    raise no_overload("!", value)


def less(left: Value, right: Value) -> bool:
    """``<``."""
    return compare(left, right) < 0


def less_equals(left: Value, right: Value) -> bool:
    """``<=``."""
    return compare(left, right) <= 0


def greater(left: Value, right: Value) -> bool:
    """``>``."""
    return compare(left, right) > 0


def greater_equals(left: Value, right: Value) -> bool:
    """``>=``."""
    return compare(left, right) >= 0


def is_in(needle: Value, holder: Value) -> bool:
    """``in``."""
    if type(holder) is tuple:
        return contains(holder, needle)
    if isinstance(holder, MAPS):
        return map_has(holder, needle)
    raise no_overload("in", needle, holder)


def size(value: Value) -> int:
    """``size()``: code points, bytes, elements or keys."""
    if type(value) in {str, bytes, tuple}:
        return len(value)
    if isinstance(value, MAPS):
        return map_size(value)
    raise no_overload("size()", value)


_ORDERED = [
    ("int64", INT),
    ("uint64", UINT),
    ("double", DOUBLE),
]


def _comparison(name: str, symbol: str) -> list[Overload]:
    found = [overload(f"{name}_bool", [BOOL, BOOL], BOOL)]
    for left_name, left in _ORDERED:
        for right_name, right in _ORDERED:
            suffix = left_name if left is right else f"{left_name}_{right_name}"
            found.append(overload(f"{name}_{suffix}", [left, right], BOOL))
    for kind_name, kind in (
        ("string", STRING),
        ("bytes", BYTES),
        ("timestamp", TIMESTAMP),
        ("duration", DURATION),
    ):
        found.append(overload(f"{name}_{kind_name}", [kind, kind], BOOL))
    assert symbol
    return found


def _same(name: str, kinds: dict[str, Type]) -> list[Overload]:
    return [overload(f"{name}_{suffix}", [kind, kind], kind) for suffix, kind in kinds.items()]


_ARITHMETIC = {"double": DOUBLE, "int64": INT, "uint64": UINT}
_LIST, _MAP = list_of(A), map_of(A, B)
_OPT_V = optional_of(B)

FUNCTIONS: list[Function] = [
    Function(
        "_+_",
        (
            overload("add_bytes", [BYTES, BYTES], BYTES),
            overload("add_double", [DOUBLE, DOUBLE], DOUBLE),
            overload("add_duration_duration", [DURATION, DURATION], DURATION),
            overload("add_duration_timestamp", [DURATION, TIMESTAMP], TIMESTAMP),
            overload("add_timestamp_duration", [TIMESTAMP, DURATION], TIMESTAMP),
            overload("add_int64", [INT, INT], INT),
            overload("add_list", [_LIST, _LIST], _LIST),
            overload("add_string", [STRING, STRING], STRING),
            overload("add_uint64", [UINT, UINT], UINT),
        ),
        add,
    ),
    Function(
        "_-_",
        (
            *_same("subtract", {"double": DOUBLE}),
            overload("subtract_duration_duration", [DURATION, DURATION], DURATION),
            overload("subtract_int64", [INT, INT], INT),
            overload("subtract_timestamp_duration", [TIMESTAMP, DURATION], TIMESTAMP),
            overload("subtract_timestamp_timestamp", [TIMESTAMP, TIMESTAMP], DURATION),
            overload("subtract_uint64", [UINT, UINT], UINT),
        ),
        subtract,
    ),
    Function("_*_", tuple(_same("multiply", _ARITHMETIC)), multiply),
    Function("_/_", tuple(_same("divide", _ARITHMETIC)), divide),
    Function("_%_", tuple(_same("modulo", {"int64": INT, "uint64": UINT})), modulo),
    Function(
        "-_",
        (
            overload("negate_double", [DOUBLE], DOUBLE),
            overload("negate_int64", [INT], INT),
        ),
        negate,
    ),
    Function("!_", (overload("logical_not", [BOOL], BOOL),), logical_not),
    Function("_&&_", (overload("logical_and", [BOOL, BOOL], BOOL),)),
    Function("_||_", (overload("logical_or", [BOOL, BOOL], BOOL),)),
    Function("_?_:_", (overload("conditional", [BOOL, A, A], A),)),
    Function("@not_strictly_false", (overload("not_strictly_false", [BOOL], BOOL),)),
    Function("_==_", (overload("equals", [A, A], BOOL),)),
    Function("_!=_", (overload("not_equals", [A, A], BOOL),)),
    Function("_<_", tuple(_comparison("less", "<")), less),
    Function("_<=_", tuple(_comparison("less_equals", "<=")), less_equals),
    Function("_>_", tuple(_comparison("greater", ">")), greater),
    Function("_>=_", tuple(_comparison("greater_equals", ">=")), greater_equals),
    Function(
        "_[_]",
        (
            overload("index_list", [_LIST, INT], A),
            overload("index_map", [_MAP, A], B),
            overload("optional_list_index_int", [optional_of(list_of(B)), INT], _OPT_V),
            overload("optional_map_index_value", [optional_of(_MAP), A], _OPT_V),
        ),
    ),
    Function(
        "_[?_]",
        (
            overload("list_optindex_optional_int", [list_of(B), INT], _OPT_V),
            overload("optional_list_optindex_optional_int", [optional_of(list_of(B)), INT], _OPT_V),
            overload("map_optindex_optional_value", [_MAP, A], _OPT_V),
            overload("optional_map_optindex_optional_value", [optional_of(_MAP), A], _OPT_V),
        ),
    ),
    Function(
        "@in",
        (overload("in_list", [A, _LIST], BOOL), overload("in_map", [A, _MAP], BOOL)),
        is_in,
    ),
    Function(
        "size",
        (
            overload("size_bytes", [BYTES], INT),
            method("bytes_size", [BYTES], INT),
            overload("size_list", [_LIST], INT),
            method("list_size", [_LIST], INT),
            overload("size_map", [_MAP], INT),
            method("map_size", [_MAP], INT),
            overload("size_string", [STRING], INT),
            method("string_size", [STRING], INT),
        ),
        size,
    ),
    Function(
        "cel.@mapInsert",
        (
            overload("@mapInsert_map_key_value", [_MAP, A, B], _MAP),
            overload("@mapInsert_map_map", [_MAP, _MAP], _MAP),
        ),
    ),
]
