# SPDX-License-Identifier: Apache-2.0
"""Preemption and reclaim inside a plan: who goes, who stays, and who gets what they leave."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpudra.driver.core.managed import ManagedState, Plan, PodView
from gpudra.driver.core.managed.budgets import budget
from tests.support.managedscene import claim, cluster, finish, group, pod, queue, run, submit

TEAMS = (queue("a", quota={"gpus": 4}), queue("b", quota={"gpus": 4}))
NOW = 1000.0


def started(state: ManagedState, pods: Sequence[PodView], at: float = 0.0) -> None:
    """The kubelet has started the pods of a plan that was carried out."""
    for one in pods:
        state.put_pod(replace(state.pods[one.uid], started=at))


def deleting(state: ManagedState, plan: Plan) -> None:
    """The evicted pods are being deleted, as the watch shows it."""
    for one in plan.evictions:
        state.put_pod(replace(state.pods[one.pod.uid], deleting=True))


def gone(state: ManagedState, plan: Plan) -> None:
    """The evicted pods have ended, and their claims are given back."""
    for one in plan.evictions:
        finish(state, state.pods[one.pod.uid])


def busy(state: ManagedState, name: str, count: int = 1, **more: object) -> list[PodView]:
    """Pods that run since the beginning."""
    pods = submit(state, name, count, **more)  # type: ignore[arg-type]
    run(state)
    run(state)  # pods above a gang's minimum follow it
    started(state, pods)
    assert all(state.pods[one.uid].node for one in pods)
    return pods


def names(plan: Plan) -> list[str]:
    """Who is evicted."""
    return sorted(one.pod.name for one in plan.evictions)


def test_a_quota_is_taken_back_and_no_more() -> None:
    """The newest of the borrowing team go, as many as are needed; nobody else gets their cards."""
    state = cluster(1, queues=TEAMS)
    busy(state, "old", pods=4, queue="b")
    new = submit(state, "new", pods=4, queue="b")
    run(state)
    started(state, new, at=500.0)
    submit(state, "mine", pods=2, queue="a", created=700.0)
    plan = run(state, NOW)
    assert plan.placements == ()
    assert len(plan.evictions) == 2
    assert {one.job.partition("-")[0] for one in plan.evictions} == {"pod/default/new"}
    assert {one.reason for one in plan.evictions} == {"Reclaimed"}
    assert {one.by for one in plan.evictions} == {"pod/default/mine-0", "pod/default/mine-1"}
    assert {one.reason for one in plan.waiting} == {"WaitingForVictims"}
    deleting(state, plan)
    submit(state, "third", pods=1, queue="b", created=600.0)
    again = run(state, NOW + 1)
    assert (again.evictions, again.placements) == ((), ())
    gone(state, plan)
    done = run(state, NOW + 2)
    assert {one.job for one in done.placements} == {"pod/default/mine-0", "pod/default/mine-1"}
    assert run(state, NOW + 3).evictions == ()


def test_a_refused_eviction_is_asked_for_again() -> None:
    """As long as the pod is neither gone nor going."""
    state = cluster(1, queues=TEAMS)
    busy(state, "b", pods=8, queue="b")
    submit(state, "mine", queue="a")
    first = run(state, NOW)
    assert names(run(state, NOW + 1)) == names(first)


def test_shares_are_taken_back_share_by_share() -> None:
    """Two tenants of 20 % go for one of 40 %; their neighbour on the card stays."""
    state = cluster(1, cards=1, queues=TEAMS, share=True)
    part = {"memory": "16Gi", "compute": "20"}
    busy(state, "low", kind="share", capacity=part, pods=2, queue="a", priority=1)
    busy(
        state,
        "mid",
        kind="share",
        capacity={"memory": "32Gi", "compute": "40"},
        queue="a",
        priority=5,
    )
    busy(state, "top", kind="share", capacity=part, queue="a", priority=9)
    submit(
        state,
        "want",
        kind="share",
        capacity={"memory": "32Gi", "compute": "40"},
        queue="a",
        priority=7,
    )
    plan = run(state, NOW)
    assert names(plan) == ["low-0", "low-1"]
    assert {one.reason for one in plan.evictions} == {"Preempted"}
    gone(state, plan)
    assert [one.job for one in run(state, NOW + 1).placements] == ["pod/default/want-0"]


def test_a_gang_goes_as_one() -> None:
    """All of its pods, on all of its nodes, even if one would do."""
    state = cluster(2, cards=2, queues=TEAMS)
    state.put_group(group("g", 4))
    busy(state, "g", pods=4, queue="b", group="default/g", priority=-1)
    submit(state, "mine", queue="b")
    plan = run(state, NOW)
    assert names(plan) == ["g-0", "g-1", "g-2", "g-3"]


def test_a_gang_that_allows_it_loses_extras_first() -> None:
    """With disruption ``single`` the pods above its minimum go one by one, the minimum never."""
    state = cluster(1, cards=4, queues=TEAMS)
    state.put_group(group("g", 2, disruption="single"))
    busy(state, "g", pods=4, queue="b", group="default/g", priority=-1)
    submit(state, "mine", queue="b")
    plan = run(state, NOW)
    assert len(plan.evictions) == 1
    gone(state, plan)
    assert len(run(state, NOW + 1).placements) == 1


def test_a_gang_takes_what_it_needs_and_lets_the_rest_off() -> None:
    """Four cards on two nodes, where neither one alone has four."""
    state = cluster(2, cards=4, queues=(queue("a", quota={"gpus": 6}), queue("b")))
    state.put_group(group("train", 2))
    busy(state, "b", pods=8, queue="b")
    submit(state, "train", 3, pods=2, queue="a", group="default/train")
    plan = run(state, NOW)
    assert len(plan.evictions) == 6
    gone(state, plan)
    (placed,) = run(state, NOW + 1).placements
    assert placed.job == "group/default/train"


def test_pods_that_are_ending_are_counted_on_first() -> None:
    """Nobody is evicted for what comes free anyway; a controller that just started knows as much."""
    state = cluster(1, cards=2, queues=TEAMS)
    pods = busy(state, "b", pods=2, queue="b", priority=-1)
    state.put_pod(replace(state.pods[pods[0].uid], deleting=True))
    submit(state, "mine", queue="b")
    plan = run(state, NOW)
    assert plan.evictions == ()
    assert [one.reason for one in plan.waiting] == ["WaitingForVictims"]
    finish(state, state.pods[pods[0].uid])
    assert len(run(state, NOW + 1).placements) == 1


@pytest.mark.parametrize(("allowed", "evicted"), [(0, 0), (1, 1), (2, 2)])
def test_a_disruption_budget_is_kept(allowed: int, evicted: int) -> None:
    """Never more pods of a budget than it allows at the moment."""
    state = cluster(1, cards=2, queues=TEAMS)
    busy(state, "b", pods=2, queue="b", priority=-1, labels={"app": "web"})
    meta = {"namespace": "default", "name": "pdb", "generation": 1}
    status = {"disruptionsAllowed": allowed, "observedGeneration": 1}
    spec = {"selector": {"matchLabels": {"app": "web"}}}
    state.put_budget(budget({"metadata": meta, "spec": spec, "status": status}))
    submit(state, "mine", pods=2, queue="b")
    assert len(run(state, NOW).evictions) == evicted


def test_a_budget_that_nobody_has_looked_at_allows_nothing() -> None:
    """Its status is of an older generation."""
    meta = {"namespace": "default", "name": "pdb", "generation": 2}
    status = {"disruptionsAllowed": 5, "observedGeneration": 1}
    assert budget({"metadata": meta, "spec": {}, "status": status}).allowed == 0


def test_a_queue_at_its_limit_makes_room_by_itself() -> None:
    """The more important job of a team displaces the team's own, though cards are free."""
    state = cluster(1, cards=4, queues=(queue("a", limit={"gpus": 2}),))
    busy(state, "low", pods=2, queue="a", priority=1)
    submit(state, "high", queue="a", priority=2)
    plan = run(state, NOW)
    assert len(plan.evictions) == 1
    gone(state, plan)
    assert [one.job for one in run(state, NOW + 1).placements] == ["pod/default/high-0"]


def test_equals_never_displace_each_other() -> None:
    """At their quotas, with jobs waiting on both sides, two teams stay quiet."""
    state = cluster(1, queues=TEAMS)
    busy(state, "a", pods=4, queue="a")
    busy(state, "b", pods=4, queue="b")
    submit(state, "more-a", pods=2, queue="a")
    submit(state, "more-b", pods=2, queue="b", priority=0)
    for step in range(5):
        assert run(state, NOW + step).evictions == ()


def test_nothing_is_evicted_in_vain() -> None:
    """A job that would not fit even then disturbs nobody."""
    state = cluster(2, cards=4, queues=(queue("a", quota={"gpus": 8}), queue("b")))
    busy(state, "b", pods=8, queue="b")
    submit(state, "wide", 6, queue="a")
    plan = run(state, NOW)
    assert plan.evictions == ()
    assert [one.reason for one in plan.waiting] == ["NeverPlaceable"]


def test_evictions_can_be_turned_off() -> None:
    """Then everybody just waits."""
    state = cluster(1, queues=TEAMS)
    state.options = replace(state.options, evictions=False)
    busy(state, "b", pods=8, queue="b")
    submit(state, "mine", queue="a")
    plan = run(state, NOW)
    assert plan.evictions == ()
    assert [one.reason for one in plan.waiting] == ["NoRoom"]


def test_a_nomination_ends_with_its_job() -> None:
    """The preemptor is deleted before its victims are gone: the room is anybody's again."""
    state = cluster(1, cards=1, queues=TEAMS)
    busy(state, "b", queue="b", priority=-1)
    (mine,) = submit(state, "mine", queue="b")
    plan = run(state, NOW)
    deleting(state, plan)
    state.remove_pod(mine.uid)
    submit(state, "other", queue="b")
    gone(state, plan)
    assert [one.job for one in run(state, NOW + 1).placements] == ["pod/default/other-0"]
    assert state.nominations == {}


def scattered(moves: int) -> tuple[ManagedState, list[PodView]]:
    """Two cards, half of each taken by a share of its own, and a job that wants a whole card."""
    state = cluster(1, cards=2, queues=(queue("a"), queue("b")), share=True)
    state.options = replace(state.options, moves=moves)
    pods = busy(
        state, "half", kind="share", capacity={"memory": "40Gi"}, queue="a", pods=2, owner="Job/x"
    )
    for number in range(2):
        half = state.claims[f"default/half-{number}"]
        assert half.status.allocation is not None
        (result,) = half.status.allocation.devices.results
        result = replace(result, device=f"gpu-{number}-share")
        devices = replace(half.status.allocation.devices, results=(result,))
        allocation = replace(half.status.allocation, devices=devices)
        state.put_claim(replace(half, status=replace(half.status, allocation=allocation)))
    return state, pods


def test_a_share_is_moved_where_that_makes_a_whole_card() -> None:
    """One pod, which fits beside the other; it comes back there, and nobody loses anything."""
    state, _ = scattered(moves=1)
    submit(state, "whole", queue="b")
    plan = run(state, NOW)
    (one,) = plan.evictions
    assert (one.reason, one.by) == ("Moved", "pod/default/whole-0")
    assert "room for it elsewhere" in one.message
    gone(state, plan)
    submit(state, "again", kind="share", capacity={"memory": "40Gi"}, queue="a", owner="Job/x")
    done = run(state, NOW + 1)
    assert {each.job for each in done.placements} == {"pod/default/whole-0", "pod/default/again-0"}
    assert run(state, NOW + 2).evictions == ()


def test_nothing_is_moved_unless_it_is_wanted_and_helps() -> None:
    """Off by default; never a pod that nobody makes anew, and never without room for it elsewhere."""
    state, _ = scattered(moves=0)
    submit(state, "whole", queue="b")
    assert run(state, NOW).evictions == ()
    state, pods = scattered(moves=1)
    for one in pods:
        state.put_pod(replace(state.pods[one.uid], owner=""))
    submit(state, "whole", queue="b")
    assert run(state, NOW).evictions == ()
    state, _ = scattered(moves=1)
    busy(state, "more", kind="share", capacity={"memory": "20Gi"}, queue="a", pods=2)
    submit(state, "whole", queue="b")
    assert run(state, NOW).evictions == ()


def test_what_if_names_the_victims_and_changes_nothing() -> None:
    """Who would go, why, and what that frees; the plan after it is the same as without."""
    state = cluster(1, queues=TEAMS)
    busy(state, "b", pods=8, queue="b")
    answer = state.what_if([pod("mine", "mine", queue="a")], [claim("mine")], None, NOW)
    (one,) = answer.victims
    assert answer.reason == "WaitingForVictims"
    assert (one.reason, one.frees.of("gpus")) == ("Reclaimed", 1000)
    assert one.message == "queue b borrows 4 gpus, and queue a is within its quota"
    assert state.nominations == {}
    assert run(state, NOW).evictions == ()


def test_room_that_comes_elsewhere_is_taken() -> None:
    """Another pod ends before the victim does: the job goes there, and the victim is asked no more."""
    state = cluster(1, cards=2, queues=TEAMS)
    state.options = replace(state.options, nomination_seconds=1e9)
    busy(state, "low", queue="b", priority=-1)
    (other,) = busy(state, "other", queue="b", priority=5)
    submit(state, "mine", queue="b", priority=3)
    assert names(run(state, NOW)) == ["low-0"]
    finish(state, state.pods[other.uid])
    again = run(state, NOW + 1)
    assert again.evictions == ()
    assert [one.job for one in again.placements] == ["pod/default/mine-0"]
    assert run(state, NOW + 2).evictions == ()
