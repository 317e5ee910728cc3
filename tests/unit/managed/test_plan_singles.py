# SPDX-License-Identifier: Apache-2.0
"""Pods of their own: where they go, what is written, and why they wait."""

from tests.support import managedscene as scene


def test_a_pod_gets_a_node_and_a_device() -> None:
    """A waiting pod is placed: its claim gets an allocation with the toleration, and the pod a node."""
    state = scene.cluster(1)
    scene.submit(state, "a")
    plan = state.plan(0.0)
    (placement,) = plan.placements
    (written,) = placement.claims
    (result,) = written.allocation.devices.results
    assert placement.pods[0].node == result.pool == "node-000"
    assert [one.key for one in result.tolerations] == ["gpu.gpudra.io/managed"]
    assert written.reserved_for[0].uid == "pod-default-a-0"
    assert placement.amounts.of("gpus") == 1000
    assert plan.waiting == ()


def test_planning_changes_nothing() -> None:
    """The same state gives the same plan again."""
    state = scene.cluster(3)
    scene.submit(state, "a", 3, pods=5)
    assert state.plan(0.0) == state.plan(0.0)


def test_one_plan_never_gives_a_device_twice() -> None:
    """More pods than cards: as many as there are cards are placed, on different ones."""
    state = scene.cluster(2)
    scene.submit(state, "a", pods=20)
    plan = state.plan(0.0)
    results = [one for p in plan.placements for one in p.claims[0].allocation.devices.results]
    assert len({(one.pool, one.device) for one in results}) == len(plan.placements) == 16
    assert [one.reason for one in plan.waiting] == ["NoRoom"] * 4
    assert [one.position for one in plan.waiting] == [17, 18, 19, 20]


def test_a_pod_whose_claim_does_not_exist_waits_and_others_go_on() -> None:
    """A missing claim is named; the next pod is placed all the same."""
    state = scene.cluster(1)
    state.put_pod(scene.pod("early", "nothing"))
    scene.submit(state, "a")
    plan = state.plan(0.0)
    assert [one.job for one in plan.placements] == ["pod/default/a-0"]
    assert plan.waiting[0].reason == "WaitingForClaims"
    assert "default/nothing" in plan.waiting[0].message
