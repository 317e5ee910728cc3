# SPDX-License-Identifier: Apache-2.0
"""Delays between tries."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gpudra.driver.kube.backoff import Backoff, delay_for


@given(
    attempt=st.integers(0, 5000),
    base=st.floats(0.001, 10),
    cap=st.floats(0.001, 600),
    seed=st.integers(),
)
def test_a_delay_lies_between_half_and_whole(
    attempt: int, base: float, cap: float, seed: int
) -> None:
    """Every delay lies in [d/2, d], where d doubles with each try up to the cap."""
    delay = delay_for(attempt, base=base, cap=cap, rng=random.Random(seed))
    whole = min(cap, base * 2.0 ** min(attempt, 40))
    assert whole / 2 <= delay <= whole


def test_it_starts_again_after_a_success() -> None:
    """`reset` goes back to the first delay."""
    backoff = Backoff(1.0, 60.0, rng=random.Random(0))
    grown = [backoff.next() for _ in range(5)]
    assert grown[4] > grown[0]
    backoff.reset()
    assert backoff.next() <= 1.0


def test_a_server_that_asks_for_more_gets_more() -> None:
    """A Retry-After above our own delay, even above the cap, is kept."""
    assert Backoff(0.1, 1.0, rng=random.Random(0)).next(at_least=90.0) == 90.0
