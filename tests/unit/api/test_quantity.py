# SPDX-License-Identifier: Apache-2.0
"""Quantities: text in, exact amount, canonical text out."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.errors import InputError
from gpudra.api.quantity import NANO, Format, Quantity


@pytest.mark.parametrize(
    ("text", "canonical", "value"),
    [
        ("0", "0", 0),
        ("0Gi", "0", 0),
        ("1024Mi", "1Gi", 2**30),
        ("1.5Gi", "1536Mi", 3 * 2**29),
        ("0.5Ki", "512", 512),
        ("1000000", "1M", 10**6),
        ("1500", "1500", 1500),
        ("1.5", "1500m", 2),
        ("500m", "500m", 1),
        ("-500m", "-500m", -1),
        ("1e3", "1e3", 1000),
        ("12E", "12E", 12 * 10**18),
        ("1Ei", "1Ei", 2**60),
        ("8Ei", "9223372036854775807", 2**63 - 1),
        ("+5", "5", 5),
        (".5", "500m", 1),
        ("1.", "1", 1),
        ("0.0000000001", "1n", 1),
        ("9223372036854775808", "9223372036854775808", 2**63),
        (7, "7", 7),
        (2.5, "2500m", 3),
    ],
)
def test_reads_and_writes_as_kubernetes_does(text: str | float, canonical: str, value: int) -> None:
    """A quantity keeps its amount and is written in canonical form."""
    quantity = Quantity.parse(text)
    assert (str(quantity), quantity.value) == (canonical, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        "1gi",
        "1 Gi",
        "1KiB",
        "0x10",
        "1e",
        "--1",
        "1e99999",
        "\uff11",
        "1_000",
        "NaN",
        True,
        None,
        [1],
    ],
)
def test_refuses_what_is_no_quantity(text: object) -> None:
    """Anything that Kubernetes would refuse is an InputError that shows the text."""
    with pytest.raises(InputError, match=r"not a quantity|out of range"):
        Quantity.parse(text)  # type: ignore[arg-type]


@given(st.integers(-(10**27), 10**27), st.sampled_from(list(Format)))
def test_canonical_text_reads_back_to_the_same_amount(nanos: int, fmt: Format) -> None:
    """Writing and reading again changes no quantity."""
    quantity = Quantity(nanos, fmt)
    assert Quantity.parse(str(quantity)) == quantity


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_sums_and_order_are_those_of_exact_numbers(left: int, right: int) -> None:
    """No sum, difference or comparison loses a bit."""
    a, b = Quantity(left), Quantity(right)
    assert (a + b).nanos == left + right
    assert (a - b).nanos == left - right
    assert (a < b, a == b, a >= b) == (left < right, left == right, left >= right)


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=12, min_value=-(10**9), max_value=10**9
    )
)
def test_finer_than_a_nano_rounds_away_from_zero(number: object) -> None:
    """Digits below a nano never make the amount smaller in magnitude."""
    text = f"{number:f}"
    exact = Fraction(text)
    nanos = Quantity.parse(text).nanos
    assert abs(Fraction(nanos, NANO)) >= abs(exact)
    assert abs(Fraction(nanos, NANO) - exact) < Fraction(1, NANO)


def test_as_integer_refuses_fractions_and_numbers_beyond_int64() -> None:
    """CEL's asInteger fails where a whole int64 cannot hold the amount."""
    assert Quantity.parse("3Ki").as_integer() == 3072
    for text in ("500m", "9223372036854775808"):
        with pytest.raises(InputError):
            Quantity.parse(text).as_integer()


def test_equal_amounts_are_one_key_whatever_their_spelling() -> None:
    """1Gi and 1024Mi are equal and hash alike."""
    assert len({Quantity.parse("1Gi"), Quantity.parse("1024Mi"), Quantity.parse("1073741824")}) == 1


def test_a_float_beyond_all_floats_is_infinite() -> None:
    """CEL's asApproximateFloat never fails."""
    assert Quantity(10**400).as_approximate_float() == float("inf")
    assert Quantity(-(10**400)).as_approximate_float() == float("-inf")
