# SPDX-License-Identifier: Apache-2.0
"""Equality and order of values, as cel-go computes them (common/types, ``Equal``, ``Compare``).

Values of different types are unequal, numbers compare across types, and the types that
Kubernetes adds refuse to be compared with anything else: that is an error, which ``!=`` turns
into true and a list comparison into "equal".
"""

import math

from gpudra.api.quantity import Quantity
from gpudra.api.semver import Semver
from gpudra.driver.core.cel.errors import CelValueError, no_overload
from gpudra.driver.core.cel.values import (
    INT_MAX,
    INT_MIN,
    MAPS,
    UINT_MAX,
    Duration,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Value,
    map_find,
    map_items,
    map_size,
)

_NUMBERS = (int, Uint, float)
_PLAIN = frozenset({str, int, bool, bytes, Uint, float, Duration, Timestamp, TypeValue})
# Types whose comparison with another type is an error. Libraries add theirs while they load.
STRICT: set[type] = {Quantity, Semver}


def equal(left: Value, right: Value) -> bool:
    """``left == right``.

    Raises:
        CelValueError: the left value's type refuses the right one's.
    """
    kind = type(left)
    if kind is type(right) and kind in _PLAIN:
        return bool(left == right)
    if left is None or right is None:
        return left is right
    return equal_value(left, right)


def equal_value(left: Value, right: Value) -> bool:
    """As ``equal``, without the special case of null on the right of a strict type."""
    kind, other = type(left), type(right)
    if kind in STRICT:
        if other is not kind:
            raise no_overload("==", left, right)
        return bool(left == right)
    if kind is tuple:
        return other is tuple and _equal_lists(left, right)
    if kind in _NUMBERS and other in _NUMBERS:
        return _equal_numbers(left, right)
    if kind is Optional:
        return other is Optional and _equal_optionals(left, right)
    if isinstance(left, MAPS):
        return isinstance(right, MAPS) and _equal_maps(left, right)
    return kind is other and bool(left == right)


def _equal_numbers(left: Value, right: Value) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return not (math.isnan(left) or math.isnan(right)) and _compare_numbers(left, right) == 0
    return int(left) == int(right)


def _equal_element(left: Value, right: Value) -> bool:
    try:
        return equal(left, right)
    except CelValueError:
        return True  # upstream only stops at a definite false


def _equal_lists(left: tuple[Value, ...], right: tuple[Value, ...]) -> bool:
    return len(left) == len(right) and all(
        _equal_element(a, b) for a, b in zip(left, right, strict=True)
    )


def _equal_maps(left: Value, right: Value) -> bool:
    if map_size(left) != map_size(right):
        return False
    for key, value in map_items(left):
        found, other = map_find(right, key)
        if not found or not _equal_element(value, other):
            return False
    return True


def _equal_optionals(left: Optional, right: Optional) -> bool:
    if not (left.present and right.present):
        return left.present == right.present
    return equal_value(left.value, right.value)


def contains(items: tuple[Value, ...], needle: Value) -> bool:
    """``needle in items``; elements that cannot be compared count as different."""
    for item in items:
        try:
            if equal_value(needle, item):
                return True
        except CelValueError:
            continue
    return False


def _compare_numbers(left: Value, right: Value) -> int:
    if isinstance(left, float) != isinstance(right, float):
        # Outside the integer's range the answer is known; inside, the integer becomes a double.
        if isinstance(right, float):
            return -_compare_numbers(right, left)
        top = UINT_MAX if isinstance(right, Uint) else INT_MAX
        if left < (0 if isinstance(right, Uint) else INT_MIN):
            return -1
        if left > top:
            return 1
        right = float(right)
    return int(left > right) - int(left < right)


def compare(left: Value, right: Value) -> int:
    """-1, 0 or 1 as ``<`` and its kin see it.

    Raises:
        CelValueError: the values have no order.
    """
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if left != left or right != right:  # noqa: PLR0124 - the test for NaN
            raise CelValueError("NaN has no order", hint="test for NaN first")
        return _compare_numbers(left, right)
    if kind is other and kind in {str, bytes, bool, Duration}:
        return int(left > right) - int(left < right)
    if kind is Timestamp and other is Timestamp:
        return int(left.nanos > right.nanos) - int(left.nanos < right.nanos)
    raise no_overload("an order comparison", left, right)


def is_comparable(value: Value) -> bool:
    """Whether the value's type has an order at all."""
    return type(value) in {*_NUMBERS, str, bytes, bool, Duration, Timestamp}
