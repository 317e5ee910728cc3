# SPDX-License-Identifier: Apache-2.0
"""Random histories: invariants at every step, the same answer after a restart, and no starvation."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.managedhistory import History

FIXED = (1, 2, 3, 7, 42, 90001)
STEPS = 60


def live(seed: int, *, share: bool) -> History:
    """A history of so many steps."""
    history = History(seed, share=share)
    for _ in range(STEPS):
        history.step()
    return history


def same_after_restart(history: History) -> None:
    """What is in flight is dropped, as by a restart; then both states say the same."""
    state = history.state
    for job in list(state.flights):
        state.drop(job)
    fresh = history.rebuilt()
    mine, theirs = state.plan(history.now), fresh.plan(history.now)
    assert mine.repairs == theirs.repairs
    assert mine.placements == theirs.placements
    assert mine.undo == theirs.undo
    assert [(w.job, w.reason, w.position) for w in mine.waiting] == [
        (w.job, w.reason, w.position) for w in theirs.waiting
    ]
    for name in ("main", "limited", "parent", "child"):
        assert state.book.used(name) == fresh.book.used(name)


def ends_empty(history: History) -> None:
    """When all that runs ends, everything that may ever run has run."""
    left = history.end_everything()
    plan = history.state.plan(history.now)
    excused = {"InvalidQueue", "UnknownQueue", "NeverPlaceable", "WaitingForGang", "AboveLimit"}
    reasons = {one.uid: w.reason for w in plan.waiting for one in w.pods}
    assert {pod.key: reasons[pod.uid] for pod in left if reasons[pod.uid] not in excused} == {}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("seed", FIXED)
def test_fixed_histories(seed: int, share: bool) -> None:
    """Histories that were looked at before stay right."""
    history = live(seed, share=share)
    same_after_restart(history)
    ends_empty(history)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), share=st.booleans())
def test_fresh_histories(seed: int, share: bool) -> None:
    """New histories on every run; a failing seed is printed and can be added above."""
    history = live(seed, share=share)
    same_after_restart(history)
    ends_empty(history)
