# SPDX-License-Identifier: Apache-2.0
"""Ours, upstream's allocator and brute force over generated clusters (see tests/fuzz/allocator.py)."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.alloccompare import compare, draw_case, question
from tests.support.oracle import Oracle

_RELAXED = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """Upstream's allocator."""
    with Oracle("allocate") as running:
        yield running


def _check(seed: int, oracle: Oracle) -> None:
    rng = random.Random(seed)
    case = draw_case(rng, size=rng.choice([3, 5]))
    findings = compare(case, oracle.ask(question(case, timeoutMs=3_000)))
    assert not [one for one in findings if not one.row], findings


@pytest.mark.parametrize("block", range(10))
def test_fixed_cases(oracle: Oracle, block: int) -> None:
    """Five hundred clusters that stay the same have no unexplained difference."""
    for seed in range(block * 50, block * 50 + 50):
        _check(seed, oracle)


@settings(max_examples=500, **_RELAXED)  # type: ignore[arg-type]
@given(seed=st.integers(min_value=2**32, max_value=2**63))
def test_fresh_cases(oracle: Oracle, seed: int) -> None:
    """Five hundred clusters drawn anew have no unexplained difference."""
    _check(seed, oracle)
