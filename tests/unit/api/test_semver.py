# SPDX-License-Identifier: Apache-2.0
"""Semantic versions: grammar and order of semver 2.0.0."""

import itertools

import pytest

from gpudra.api.errors import InputError
from gpudra.api.semver import Semver

# The order that item 11 of the specification itself gives.
ASCENDING = [
    "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2",
    "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0",
]  # fmt: skip


def test_orders_as_the_specification_says() -> None:
    """Every pair of the specification's own list compares as listed."""
    versions = [Semver.parse(text) for text in ASCENDING]
    for (i, low), (j, high) in itertools.product(enumerate(versions), repeat=2):
        assert (low < high) == (i < j)


def test_build_metadata_does_not_count() -> None:
    """Versions that differ in build metadata are equal, and keep their text."""
    assert Semver.parse("1.2.3+a") == Semver.parse("1.2.3+b")
    assert str(Semver.parse("1.2.3+a")) == "1.2.3+a"


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-a..b", "1.2.3 ", "1.2.-3", "1.2.3-ä", "99999999999999999999.0.0", "1.2.3\n"],
)  # fmt: skip
def test_refuses_what_the_grammar_refuses(text: str) -> None:
    """A text outside the grammar is an InputError."""
    with pytest.raises(InputError):
        Semver.parse(text)


@pytest.mark.parametrize(
    ("loose", "strict"),
    [("v1.2.3", "1.2.3"), ("1", "1.0.0"), ("1.2", "1.2.0"), ("535.054.03", "535.54.3"), ("12.8", "12.8.0"), ("1.0-rc.1", "1.0.0-rc.1")],
)  # fmt: skip
def test_normalize_mends_driver_versions(loose: str, strict: str) -> None:
    """A leading v, missing parts and leading zeros are mended."""
    assert str(Semver.normalize(loose)) == strict


@pytest.mark.parametrize("text", ["", "abc", "1.2.3.4", "1..2", "v"])
def test_normalize_refuses_the_rest(text: str) -> None:
    """What is no version at all stays an error."""
    with pytest.raises(InputError):
        Semver.normalize(text)


def test_numbers_of_any_length_are_an_error_or_compared() -> None:
    """Numbers that no machine word holds are refused; long pre-release numbers compare by value."""
    with pytest.raises(InputError):
        Semver.parse("9" * 5000 + ".0.0")
    with pytest.raises(InputError):
        Semver.normalize("9" * 5000)
    assert Semver.parse("1.0.0-" + "9" * 5000) < Semver.parse("1.0.0-1" + "0" * 5000)
