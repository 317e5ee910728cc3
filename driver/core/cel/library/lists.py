# SPDX-License-Identifier: Apache-2.0
"""List functions of Kubernetes, of cel-go's ``ext`` lists version 3, and ``sets``."""

import functools

from gpudra.driver.core.cel.declarations import Function, Overload, method, overload
from gpudra.driver.core.cel.equality import compare, contains, is_comparable
from gpudra.driver.core.cel.errors import CelCostExceeded, CelValueError, no_overload
from gpudra.driver.core.cel.library.operators import MAX_ELEMENTS, add, limited_list
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
    Type,
    list_of,
)
from gpudra.driver.core.cel.values import Duration, Uint, Value, type_name

Items = tuple[Value, ...]

_SUMMABLE = {"int": (INT, 0), "uint": (UINT, Uint(0)), "double": (DOUBLE, 0.0), "duration": (DURATION, Duration(0))}  # fmt: skip
_COMPARABLE: dict[str, Type] = {
    "int": INT, "uint": UINT, "double": DOUBLE, "bool": BOOL, "duration": DURATION,
    "timestamp": TIMESTAMP, "string": STRING, "bytes": BYTES,
}  # fmt: skip


def _order(left: Value, right: Value) -> int:
    """As ``compare``; what has no order counts as equal, as upstream does in lists."""
    try:
        return compare(left, right)
    except CelValueError:
        return 0


def _need_comparable(items: Items) -> None:
    for item in items:
        if not is_comparable(item):
            raise no_overload("a comparison within the list", item)


def _is_sorted(items: Items) -> bool:
    for index, item in enumerate(items):
        if not is_comparable(item):
            raise no_overload("isSorted()", item)
        if index and _order(items[index - 1], item) > 0:
            return False
    return True


def _extreme(items: Items, name: str, wanted: int) -> Value:
    if not items:
        raise CelValueError(f"{name}() of an empty list", hint="test size() first")
    _need_comparable(items)
    best = items[0]
    for item in items[1:]:
        if _order(best, item) == wanted:
            best = item
    return best


def _min(items: Items) -> Value:
    return _extreme(items, "min", 1)


def _max(items: Items) -> Value:
    return _extreme(items, "max", -1)


def _index_of(items: Items, item: Value) -> int:
    return next((i for i, other in enumerate(items) if contains((item,), other)), -1)


def _last_index_of(items: Items, item: Value) -> int:
    return next((i for i in range(len(items) - 1, -1, -1) if contains((item,), items[i])), -1)


def _includes(holder: Value, item: Value) -> bool:
    values = holder if type(holder) is tuple else (holder,)
    return any(contains((item,), value) for value in values)


def _slice(items: Items, start: int, end: int) -> Items:
    if start < 0 or end < 0 or start > end or end > len(items):
        raise CelValueError(f"slice({start}, {end}) does not lie in a list of {len(items)}")
    return items[start:end]


def _flatten(items: Items, depth: int = 1) -> Items:
    if depth < 0:
        raise CelValueError("flatten() wants a depth of 0 or more")
    flat: list[Value] = []
    for item in items:
        if depth and type(item) is tuple:
            flat.extend(_flatten(item, depth - 1))
        else:
            flat.append(item)
    return limited_list(tuple(flat))


def _sort(items: Items) -> Items:
    return _sort_by(items, items)


def _sort_by(items: Items, keys: Items) -> Items:
    if type(items) is not tuple or type(keys) is not tuple:
        raise no_overload("sort()", items)
    if len(items) != len(keys):
        raise CelValueError(f"{len(items)} elements cannot be sorted by {len(keys)} keys")
    if not items:
        return items
    if not is_comparable(keys[0]):
        raise no_overload("a sort", keys[0])
    if len(keys) > 1 and len({type_name(key) for key in keys}) > 1:
        raise CelValueError("the sort keys are of different types")
    by_key = functools.cmp_to_key(_order)
    order = sorted(range(len(items)), key=lambda index: by_key(keys[index]))
    return tuple(items[index] for index in order)


def _range(count: int) -> Items:
    if count < 0:
        raise CelValueError("lists.range() wants a size of 0 or more")
    if count > MAX_ELEMENTS:
        raise CelValueError(f"lists.range() makes at most {MAX_ELEMENTS} elements")
    return tuple(range(count))


def _distinct(items: Items) -> Items:
    if len(items) > 2_000:  # upstream charges the square, which is beyond the limit here
        raise CelCostExceeded("distinct() of a list this long costs more than the limit")
    found: list[Value] = []
    for item in items:
        if not contains(tuple(found), item):
            found.append(item)
    return tuple(found)


def _within(holder: Items, parts: Items) -> bool:
    if len(holder) * len(parts) > MAX_ELEMENTS:
        raise CelCostExceeded("comparing sets this large costs more than the limit")
    return all(contains(holder, part) for part in parts)


def _intersects(left: Items, right: Items) -> bool:
    if len(left) * len(right) > MAX_ELEMENTS:
        raise CelCostExceeded("comparing sets this large costs more than the limit")
    return any(contains(right, item) for item in left)


def _equivalent(left: Items, right: Items) -> bool:
    return _within(left, right) and _within(right, left)


def _summed(zero: Value) -> "functools.partial[Value]":
    return functools.partial(_total, zero)


def _total(zero: Value, items: Items) -> Value:
    for item in items:
        zero = add(zero, item)
    return zero


def _per_type(prefix: str, result: Type | None, impl: object) -> tuple[Overload, ...]:
    assert callable(impl)
    return tuple(
        method(prefix.format(name), [list_of(kind)], result or kind, impl)
        for name, kind in _COMPARABLE.items()
    )


_LIST = list_of(A)

FUNCTIONS: list[Function] = [
    Function("isSorted", _per_type("list_{0}_is_sorted_bool", BOOL, _is_sorted)),
    Function(
        "sum",
        tuple(
            method(f"list_{name}_sum_{name}", [list_of(kind)], kind, _summed(zero))
            for name, (kind, zero) in _SUMMABLE.items()
        ),
    ),
    Function("max", _per_type("list_{0}_max_{0}", None, _max)),
    Function("min", _per_type("list_{0}_min_{0}", None, _min)),
    Function("indexOf", (method("list_a_index_of_int", [_LIST, A], INT, _index_of),)),
    Function("lastIndexOf", (method("list_a_last_index_of_int", [_LIST, A], INT, _last_index_of),)),
    Function("slice", (method("list_slice", [_LIST, INT, INT], _LIST, _slice),)),
    Function(
        "flatten",
        (
            method("list_flatten", [list_of(_LIST)], _LIST, _flatten),
            method("list_flatten_int", [list_of(DYN), INT], list_of(DYN), _flatten),
        ),
    ),
    Function(
        "sort",
        tuple(
            method(f"list_{kind.name}_sort", [list_of(kind)], list_of(kind))
            for kind in _COMPARABLE.values()
        ),
        _sort,
    ),
    Function(
        "@sortByAssociatedKeys",
        tuple(
            method(f"list_{kind.name}_sortByAssociatedKeys", [_LIST, list_of(kind)], _LIST)
            for kind in _COMPARABLE.values()
        ),
        _sort_by,
    ),
    Function("lists.range", (overload("lists_range", [INT], list_of(INT), _range),)),
    Function("reverse", (method("list_reverse", [_LIST], _LIST, lambda items: items[::-1]),)),
    Function("distinct", (method("list_distinct", [_LIST], _LIST, _distinct),)),
    Function(
        "sets.contains", (overload("list_sets_contains_list", [_LIST, _LIST], BOOL, _within),)
    ),
    Function(
        "sets.equivalent",
        (overload("list_sets_equivalent_list", [_LIST, _LIST], BOOL, _equivalent),),
    ),
    Function(
        "sets.intersects",
        (overload("list_sets_intersects_list", [_LIST, _LIST], BOOL, _intersects),),
    ),
]

# Only with list attributes: the environment of stored expressions.
INCLUDES = Function("includes", (method("list_includes_dyn_dyn", [DYN, DYN], BOOL, _includes),))
