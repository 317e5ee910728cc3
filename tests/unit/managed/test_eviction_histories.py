# SPDX-License-Identifier: Apache-2.0
"""Evictions in random histories: nobody in vain, nobody of equal importance, no budget, no loop."""

from dataclasses import replace

import pytest

from tests.support.evictionhistory import MIN_RUNTIME, PATIENCE, STEP, cluster, run
from tests.support.managedscene import carry_out, finish, submit


@pytest.mark.parametrize("seed", range(6))
def test_no_rule_of_evictions_is_broken(seed: int) -> None:
    """Each plan is replayed without the victims, and with them; the next ones give the room to whom it is for."""
    history = run(seed, 120)
    assert history.counts.get("Reclaimed", 0) + history.counts.get("Preempted", 0) > 0


@pytest.mark.parametrize("victims", [0, 1, 2])
def test_what_is_its_own_is_back_in_time(victims: int) -> None:
    """Within a minute and the time that the others may run at least."""
    state = cluster()
    pods = submit(state, "theirs", pods=6, queue="b")
    now = 0.0
    for placement in state.plan(now).placements:
        carry_out(state, placement)
    # A third kept free for the guarantee is not lent.
    for one in pods:
        if state.pods[one.uid].node:
            state.put_pod(replace(state.pods[one.uid], started=now))
    submit(state, "mine", pods=victims, queue="a", created=now)
    submit(state, "sure", pods=1, queue="c", created=now)
    waiting = {f"pod/default/mine-{n}" for n in range(victims)} | {"pod/default/sure-0"}
    while waiting and now <= MIN_RUNTIME + PATIENCE:
        plan = state.plan(now)
        for placement in plan.placements:
            carry_out(state, placement)
            waiting.discard(placement.job)
        for uid in {one.pod.uid for one in plan.evictions}:
            finish(state, state.pods[uid])
        now += STEP
    assert not waiting


def test_two_queues_at_their_share_leave_each_other_alone() -> None:
    """Ten thousand plans with jobs waiting on both sides, and nobody goes."""
    state = cluster()
    for queue in "abc":
        for one in submit(state, f"own-{queue}", pods=2, queue=queue):
            assert one.queue == queue
    for placement in state.plan(0.0).placements:
        carry_out(state, placement)
    for pod in list(state.pods.values()):
        state.put_pod(replace(pod, started=0.0))
    submit(state, "more-a", pods=2, queue="a")
    submit(state, "more-b", pods=2, queue="b")
    for number in range(10_000):
        assert state.plan(1000.0 + number).evictions == ()
