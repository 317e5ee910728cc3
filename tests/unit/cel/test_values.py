# SPDX-License-Identifier: Apache-2.0
"""Values, equality and order."""

import math

import pytest

from gpudra.api.quantity import Quantity
from gpudra.api.semver import Semver
from gpudra.driver.core.cel import CelEvaluationError
from gpudra.driver.core.cel.equality import compare, contains, equal
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.values import (
    NONE,
    DomainMap,
    Duration,
    MapValue,
    Optional,
    Timestamp,
    Uint,
    map_find,
    map_has,
)


def test_keys_that_python_takes_for_equal_stay_apart() -> None:
    """True, 1, 1u and 1.0 are four keys; a look-up crosses numbers only."""
    value = MapValue([(True, "bool"), (1, "int"), (Uint(2), "uint")])
    assert len(value) == 3
    assert value.find(True) == (True, "bool")
    assert value.find(1) == (True, "int")
    assert value.find(Uint(1)) == (True, "int")
    assert value.find(2) == (True, "uint")
    assert value.find(2.0) == (True, "uint")
    assert value.find("1") == (False, None)


def test_unhashable_keys_end_the_evaluation() -> None:
    """Bytes and versions as keys are errors that && does not absorb, as upstream."""
    with pytest.raises(CelEvaluationError) as caught:
        MapValue([(b"a", 1)])
    assert not isinstance(caught.value, CelValueError)


def test_unknown_domains_are_found_but_not_members() -> None:
    """Look-ups see an empty map, membership does not."""
    domains = DomainMap({"a": {"x": 1}})
    assert map_find(domains, "b") == (True, {})
    assert not map_has(domains, "b")


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, Uint(1), True),
        (1, 1.0, True),
        (True, 1, False),
        (math.nan, math.nan, False),
        ("a", b"a", False),
        ((1, 2), (1.0, Uint(2)), True),
        ((1,), (1, 2), False),
        (None, None, True),
        (Quantity.parse("1"), None, False),
        (Optional(1), Optional(1.0), True),
        (NONE, Optional(None), False),
        ({"a": 1}, MapValue([("a", 1.0)]), True),
        (Duration(1), Duration(1), True),
        (Timestamp(5, 0), Timestamp(5, 3600), True),
        (
            (Quantity.parse("1"),),
            ("1",),
            True,
        ),  # upstream: an error inside a list is not "different"
    ],
)
def test_equality(left: object, right: object, same: bool) -> None:
    """Equality follows cel-go, its corners included."""
    assert equal(left, right) is same


@pytest.mark.parametrize("strict", [Quantity.parse("1"), Semver.parse("1.0.0")])
def test_types_of_kubernetes_refuse_others(strict: object) -> None:
    """A quantity or version on the left cannot be compared with anything else."""
    with pytest.raises(CelValueError):
        equal(strict, "1")
    assert equal("1", strict) is False
    assert not contains(("1",), strict)


def test_order_across_numbers() -> None:
    """Ints, uints and doubles have one order; beyond 64 bits the answer is still right."""
    assert compare(1, 1.5) == -1
    assert compare(Uint(2**64 - 1), -1) == 1
    assert compare(1e300, 2**63 - 1) == 1
    assert compare(-1.0, Uint(0)) == -1
    with pytest.raises(CelValueError, match="NaN"):
        compare(math.nan, 1)
    with pytest.raises(CelValueError):
        compare("a", 1)
