# SPDX-License-Identifier: Apache-2.0
"""What a call costs once its arguments are known (apiserver ``CallCost``, cel-go ``costCall``).

A price is a number, or a function of the arguments and the result. In place of an argument or
result that is an error stands ``FAILED``, which counts as one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from gpudra.driver.core.cel.cost_sizes import LIST_BASE, REGEX_FACTOR, STRING_FACTOR
from gpudra.driver.core.cel.equality import STRICT
from gpudra.driver.core.cel.library.format_names import FormatValue
from gpudra.driver.core.cel.library.network import CidrValue, IpValue
from gpudra.driver.core.cel.values import MAPS, Optional, Value, map_items, map_size

FAILED: Final = object()

Price = int | Callable[[Sequence[Value], Value], int]


def size_of(value: Value) -> int:
    """Code points, bytes, elements, keys, octets; 1 for what has no size."""
    kind = type(value)
    if kind in {str, bytes, tuple}:
        return len(value)
    if isinstance(value, MAPS):
        return map_size(value)
    return value.octets if kind in {IpValue, CidrValue} else 1


def _inner_size(value: Value) -> int:
    """As ``size_of``, looking into optionals, as cel-go does for its own functions."""
    while type(value) is Optional and value.present:
        value = value.value
    return size_of(value)


def _scaled(size: float, factor: float = STRING_FACTOR) -> int:
    return math.ceil(size * factor)


def _traversal(value: Value) -> int:
    """Cost of reading a whole value."""
    kind = type(value)
    if kind is str:
        return int(len(value.encode()) * STRING_FACTOR)
    if kind is bytes:
        return int(len(value) * STRING_FACTOR)
    if kind is tuple:
        return sum(_traversal(item) for item in value)
    if isinstance(value, MAPS):
        return sum(_traversal(key) + _traversal(item) for key, item in map_items(value))
    return 1


def _of_first(factor: float) -> Price:
    return lambda args, _result: _scaled(size_of(args[0]), factor)


def _inner_first(args: Sequence[Value], _result: Value) -> int:
    return _scaled(_inner_size(args[0]))


def _inner_second(args: Sequence[Value], _result: Value) -> int:
    return _scaled(_inner_size(args[1]))


def _regex(args: Sequence[Value], _result: Value) -> int:
    return _scaled(1.0 + size_of(args[0])) * _scaled(size_of(args[1]), REGEX_FACTOR)


def _smaller(args: Sequence[Value], _result: Value) -> int:
    return _scaled(min(_inner_size(args[0]), _inner_size(args[1])))


def equality_price(args: Sequence[Value], result: Value) -> int:
    """``==``: one unit for the types of Kubernetes, else by the smaller side."""
    return 1 if type(args[0]) in STRICT else _smaller(args, result)


def _sum_of_sizes(args: Sequence[Value], _result: Value) -> int:
    return _scaled(_inner_size(args[0]) + _inner_size(args[1]))


def _contains(args: Sequence[Value], _result: Value) -> int:
    return _scaled(_inner_size(args[0])) * _scaled(_inner_size(args[1]))


def _contains_address(*, network: bool, text: bool) -> Price:
    def price(args: Sequence[Value], _result: Value) -> int:
        own = size_of(args[0])
        total = _scaled(own + own)
        if network:
            total += _scaled(own) + 1
        return total + _scaled(size_of(args[1])) if text else total

    return price


def _validate(args: Sequence[Value], _result: Value) -> int:
    if type(args[0]) is not FormatValue:
        return 1
    pattern = _scaled(args[0].regex_size, REGEX_FACTOR)
    return _scaled(1.0 + size_of(args[1])) * pattern


def _allocating(factor: float, size: int) -> int:
    return int(size * factor) + 1 + LIST_BASE


def _output(_args: Sequence[Value], result: Value) -> int:
    return _allocating(1, size_of(result))


def _flatten(args: Sequence[Value], _result: Value) -> int:
    depth = float(args[1]) if len(args) == 2 and type(args[1]) is int else 1.0
    return _allocating(depth if depth >= 0 else 1.0, size_of(args[0]))


def _self_compare(position: int) -> Price:
    def price(args: Sequence[Value], _result: Value) -> int:
        items = args[position]
        size = size_of(items)
        factor = 2.0
        if type(items) is tuple and items and type(items[0]) in {str, bytes}:
            factor += STRING_FACTOR
        return _allocating(factor, size * size)

    return price


def _sets(factor: float) -> Price:
    return lambda args, _result: 1 + int(size_of(args[0]) * size_of(args[1]) * factor)


def call_price(function: str, overload: str) -> Price:
    """The price of a call; ``overload`` is empty if the checker left several open."""
    found = _BY_OVERLOAD.get(overload)
    if found is None:
        found = _BY_FUNCTION.get(function)
    if found is None and overload.startswith("list_"):
        if overload.endswith("_sort"):
            return _self_compare(0)
        if overload.endswith("_sortByAssociatedKeys"):
            return _self_compare(1)
    if found is None:
        found = _STANDARD.get(overload, 1)
    return found


_BY_OVERLOAD: dict[str, Price] = {
    "list_slice": _output,
    "lists_range": _output,
    "list_reverse": _output,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": _self_compare(0),
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "cidr_ip": 1,
    "cidr_contains_ip_string": _contains_address(network=False, text=True),
    "cidr_contains_cidr_string": _contains_address(network=True, text=True),
}
_BY_FUNCTION: dict[str, Price] = {
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"),
        lambda args, _result: _traversal(args[0]),
    ),
    **dict.fromkeys(
        ("url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR", "ip",
         "quantity", "isQuantity", "semver", "isSemver"),
        _of_first(STRING_FACTOR),
    ),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _of_first(2 * STRING_FACTOR)),
    "join": lambda _args, result: _scaled(size_of(result), 2 * STRING_FACTOR),
    **dict.fromkeys(("find", "findAll"), _regex),
    "containsIP": _contains_address(network=False, text=False),
    "containsCIDR": _contains_address(network=True, text=False),
    "validate": _validate,
    "_==_": equality_price,
    "check": 350_000,
    **dict.fromkeys(
        ("fieldSelector", "labelSelector"),
        lambda args, _result: LIST_BASE
        + _scaled(size_of(args[1]))
        + _scaled(_scaled(size_of(args[1]), 0.5), 50.0),
    ),
}  # fmt: skip
_STANDARD: dict[str, Price] = {
    "starts_with_string": _inner_second,
    "ends_with_string": _inner_second,
    **dict.fromkeys(
        ("string_to_bytes", "bytes_to_string", "strings_quote", "string_format"), _inner_first
    ),
    "in_list": lambda args, _result: _inner_size(args[1]),
    "not_equals": _smaller,
    "add_string": _sum_of_sizes,
    "add_bytes": _sum_of_sizes,
    "matches": _regex,
    "matches_string": _regex,
    "contains_string": _contains,
    **dict.fromkeys(
        [f"{name}_{kind}" for name in ("less", "less_equals", "greater", "greater_equals")
         for kind in ("string", "bytes")],
        _smaller,
    ),
}  # fmt: skip
