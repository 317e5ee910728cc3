# SPDX-License-Identifier: Apache-2.0
"""Past use of queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.driver.core.queueing.history import UsageHistory

HOUR = 3600.0


def test_half_is_forgotten_after_a_half_life() -> None:
    """And half of the way to a new share is gone in the same time."""
    history = UsageHistory(HOUR)
    history.note({"a": 0.8, "b": 0.0}, 0)
    assert history.values(HOUR) == pytest.approx({"a": 0.4, "b": 0})
    history.note({"a": 0.0, "b": 0.4}, HOUR)
    assert history.values(2 * HOUR) == pytest.approx({"a": 0.2, "b": 0.2})


def test_a_queue_that_is_gone_is_forgotten() -> None:
    """A new one of the same name starts without a past."""
    history = UsageHistory(HOUR)
    history.note({"a": 1.0}, 0)
    history.note({}, HOUR)
    history.note({"a": 0.0}, 2 * HOUR)
    assert history.values(2 * HOUR) == {"a": 0.0}


def test_without_a_half_life_nothing_is_kept() -> None:
    """It is off unless somebody wants it."""
    history = UsageHistory()
    history.note({"a": 1.0}, 0)
    history.restore("a", 1.0, 0, 5)
    assert history.values(HOUR) == {}


@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    restart=st.integers(0, 5),
    step=st.floats(1, 1e5),
)
def test_a_restart_forgets_nothing(shares: list[float], restart: int, step: float) -> None:
    """What was written down at one moment goes on in another process as if nothing had been."""
    kept, now = UsageHistory(HOUR), 1e9
    other = kept
    for number, share in enumerate(shares):
        kept.note({"a": share}, now)
        other.note({"a": share}, now)
        if number == restart:
            other = UsageHistory(HOUR)
            other.restore("a", kept.values(now)["a"], now, now)
            other.note({"a": share}, now)
        now += step
    assert other.values(now) == pytest.approx(kept.values(now))


def test_a_clock_from_the_future_adds_nothing() -> None:
    """What was written down later than now counts as of now."""
    history = UsageHistory(HOUR)
    history.restore("a", 0.5, 9 * HOUR, HOUR)
    assert history.values(2 * HOUR) == pytest.approx({"a": 0.25})
