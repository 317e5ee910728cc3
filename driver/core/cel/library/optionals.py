# SPDX-License-Identifier: Apache-2.0
"""Optional values (cel-go ``OptionalTypes``). ``or`` and ``orValue`` are lazy: the planner runs them."""

from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.errors import CelValueError, no_overload
from gpudra.driver.core.cel.types import BOOL, DYN, STRING, B, list_of, optional_of
from gpudra.driver.core.cel.values import (
    MAPS,
    NONE,
    Duration,
    Optional,
    Timestamp,
    Uint,
    Value,
    map_size,
)

_YEAR_ONE = -62135596800 * 10**9
_SIZED = (str, bytes, tuple)
_NUMBERS = (bool, int, Uint, float)


def _is_zero(value: Value) -> bool:
    kind = type(value)
    if value is None:
        return True
    if kind in _NUMBERS:
        return bool(value == 0)
    if kind in _SIZED:
        return len(value) == 0
    if isinstance(value, MAPS):
        return map_size(value) == 0
    if kind is Duration:
        return bool(value.nanos == 0)
    if kind is Timestamp:
        return bool(value.nanos == _YEAR_ONE)
    return False


def _of_non_zero(value: Value) -> Optional:
    return NONE if _is_zero(value) else Optional(value)


def _value(holder: Optional) -> Value:
    if not holder.present:
        raise CelValueError("value() of an absent optional", hint="use orValue(default)")
    return holder.value


def _first(items: tuple[Value, ...]) -> Optional:
    return Optional(items[0]) if items else NONE


def _last(items: tuple[Value, ...]) -> Optional:
    return Optional(items[-1]) if items else NONE


def _unwrap(items: tuple[Value, ...]) -> tuple[Value, ...]:
    for item in items:
        if type(item) is not Optional:
            raise no_overload("unwrap", item)
    return tuple(item.value for item in items if item.present)


_OPT, _LIST, _OPTS = optional_of(B), list_of(B), list_of(optional_of(B))

FUNCTIONS: list[Function] = [
    Function("optional.of", (overload("optional_of", [B], _OPT, Optional),)),
    Function(
        "optional.ofNonZeroValue", (overload("optional_ofNonZeroValue", [B], _OPT, _of_non_zero),)
    ),
    Function("optional.none", (overload("optional_none", [], _OPT, lambda: NONE),)),
    Function("value", (method("optional_value", [_OPT], B, _value),)),
    Function("hasValue", (method("optional_hasValue", [_OPT], BOOL, lambda o: o.present),)),
    Function("or", (method("optional_or_optional", [_OPT, _OPT], _OPT),)),
    Function("orValue", (method("optional_orValue_value", [_OPT, B], B),)),
    Function("_?._", (overload("select_optional_field", [DYN, STRING], _OPT),)),
    Function("last", (method("list_last", [_LIST], _OPT, _last),)),
    Function("first", (method("list_first", [_LIST], _OPT, _first),)),
    Function("optional.unwrap", (overload("optional_unwrap", [_OPTS], _LIST, _unwrap),)),
    Function("unwrapOpt", (method("optional_unwrapOpt", [_OPTS], _LIST, _unwrap),)),
]
