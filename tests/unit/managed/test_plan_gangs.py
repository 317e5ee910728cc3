# SPDX-License-Identifier: Apache-2.0
"""Gangs in a plan: all or nothing, topology, shared claims, minimum, extras, lost members."""

from dataclasses import replace

import pytest

from gpudra.driver.core.managed import JobPlacement, ManagedState, PlanOptions
from tests.support import managedscene as scene


def nodes_of(placement: JobPlacement) -> list[str]:
    """Nodes of the pods, in order of the pods' names."""
    return [one.node for one in sorted(placement.pods, key=lambda pod: pod.name)]


def devices_of(placement: JobPlacement) -> list[tuple[str, str]]:
    """All devices of a placement."""
    return [
        (one.pool, one.device)
        for claim in placement.claims
        for one in claim.allocation.devices.results
    ]


def test_a_gang_is_placed_whole() -> None:
    """Four pods of four cards go onto two nodes of eight in one placement."""
    state = scene.cluster(2)
    state.put_group(scene.group("g", 4))
    scene.submit(state, "w", 4, pods=4, group="default/g")
    (placement,) = state.plan(0.0).placements
    assert placement.job == "group/default/g"
    assert sorted(nodes_of(placement)) == ["node-000"] * 2 + ["node-001"] * 2
    assert len(set(devices_of(placement))) == 16


def test_a_gang_that_does_not_fit_takes_nothing() -> None:
    """With room for three of four, none is placed, and a later pod has all the room."""
    state = scene.cluster(1, 3)
    state.put_group(scene.group("g", 4))
    scene.submit(state, "w", pods=4, group="default/g")
    scene.submit(state, "later", 3, created=1.0)
    plan = state.plan(0.0)
    assert [one.job for one in plan.placements] == ["pod/default/later-0"]
    assert [one.reason for one in plan.waiting] == ["NeverPlaceable"]


def test_a_gang_waits_for_its_pods() -> None:
    """Below the minimum nothing is tried, and the message counts."""
    state = scene.cluster(1)
    state.put_group(scene.group("g", 4))
    scene.submit(state, "w", pods=3, group="default/g")
    (waiting,) = state.plan(0.0).waiting
    assert (waiting.reason, waiting.message) == ("WaitingForGang", "the group 3 of 4 pods exist")


def test_each_role_has_its_minimum() -> None:
    """Enough pods in all, but none of one role: the role is named."""
    state = scene.cluster(1)
    roles = [{"name": "driver", "minCount": 1}, {"name": "worker", "minCount": 2}]
    state.put_group(scene.group("g", 3, roles=roles))
    scene.submit(state, "w", pods=4, group="default/g", role="worker")
    (waiting,) = state.plan(0.0).waiting
    assert "0 of 1 pods of role driver" in waiting.message
    scene.submit(state, "d", group="default/g", role="driver")
    (first,) = state.plan(0.0).placements
    assert {one.name for one in first.pods} == {"d-0", "w-0", "w-1"}


def test_pods_above_the_minimum_follow_one_by_one() -> None:
    """The minimum is one job; the others come after it, as far as there is room."""
    state = scene.cluster(1, 4)
    state.put_group(scene.group("g", 2))
    scene.submit(state, "w", pods=6, group="default/g")
    first = scene.run(state)
    assert [one.job for one in first.placements] == ["group/default/g"]
    second = scene.run(state)
    assert [one.job for one in second.placements] == ["group/default/g+w-2", "group/default/g+w-3"]
    assert state.book.used("main").of("gpus") == 4000


def linked(*domains: str, nodes: int = 2) -> ManagedState:
    """Nodes whose cards are in these NVLink domains, node by node."""
    state = scene.cluster(0)
    per_node = len(domains) // nodes
    for number in range(nodes):
        name = f"node-{number:03d}"
        own = domains[number * per_node : (number + 1) * per_node]
        state.put_node(scene.node(name))
        state.put_slice(scene.gpus(name, per_node, domains=own))
    return state_with_queue(state)


def state_with_queue(state: ManagedState) -> ManagedState:
    """The state with the queue main."""
    state.put_queue(scene.queue())
    return state


def test_one_domain_beats_a_cheaper_split() -> None:
    """Without topology the gang fills a begun node; with it, it goes where one domain holds it."""
    domains = ["a", "a", "b", "b", "c", "c", "c", "c"]
    for required, wanted in (((), {"node-000"}), (("nvlinkDomain",), {"node-001"})):
        state = linked(*domains)
        state.put_group(scene.group("g", 3, topology={"required": list(required)}))
        scene.submit(state, "w", pods=3, group="default/g", cpu_milli=100)
        (placement,) = state.plan(0.0).placements
        if required:
            assert set(nodes_of(placement)) == wanted


def test_a_domain_across_nodes() -> None:
    """A multi-node NVLink domain holds a gang that no node does."""
    state = linked(*(["x"] * 2 + ["y"] * 2 + ["x"] * 2), nodes=3)
    state.put_group(scene.group("g", 4, topology={"required": ["nvlinkDomain"]}))
    scene.submit(state, "w", pods=4, group="default/g")
    (placement,) = state.plan(0.0).placements
    assert set(nodes_of(placement)) == {"node-000", "node-002"}


def test_a_switch_of_another_node_is_another_switch() -> None:
    """PCIe addresses repeat from node to node; a gang in one pcieSwitch is on one node."""
    state = scene.cluster(0)
    for number in range(2):
        name = f"node-{number:03d}"
        state.put_node(scene.node(name))
        state.put_slice(scene.gpus(name, 2, switches=["0000:01:00.0"] * 2))
    state_with_queue(state)
    state.put_group(scene.group("g", 3, topology={"required": ["pcieSwitch"]}))
    scene.submit(state, "w", pods=3, group="default/g")
    (waiting,) = state.plan(0.0).waiting
    assert waiting.reason == "NeverPlaceable"
    assert "no pcieSwitch has room for the 3 pods together" in waiting.message


@pytest.mark.parametrize(("size", "racks"), [(8, {"r0"}), (16, {"r0", "r1"})])
def test_a_preferred_domain_is_left_where_it_is_too_small(size: int, racks: set[str]) -> None:
    """Preferred: one rack if it fits, else all of them."""
    state = scene.cluster(0)
    for number in range(4):
        name = f"node-{number:03d}"
        state.put_node(scene.node(name, labels={"rack": f"r{number // 2}"}))
        state.put_slice(scene.gpus(name, 4))
    state_with_queue(state)
    state.put_group(scene.group("g", size, topology={"preferred": ["rack"]}))
    scene.submit(state, "w", pods=size, group="default/g")
    (placement,) = state.plan(0.0).placements
    assert {f"r{int(node[-3:]) // 2}" for node in nodes_of(placement)} == racks


def test_the_tightest_domain_that_fits_is_taken() -> None:
    """Of two racks the one with less left, so that the larger one stays whole."""
    state = scene.cluster(0)
    for number, cards in enumerate((8, 4)):
        name = f"node-{number:03d}"
        state.put_node(scene.node(name, labels={"rack": f"r{number}"}))
        state.put_slice(scene.gpus(name, cards))
    state_with_queue(state)
    state.put_group(scene.group("g", 3, topology={"required": ["rack"]}))
    scene.submit(state, "w", pods=3, group="default/g")
    (placement,) = state.plan(0.0).placements
    assert set(nodes_of(placement)) == {"node-001"}


def test_later_members_stay_in_the_domain() -> None:
    """A pod above the minimum goes where the gang is, or waits although there is room elsewhere."""
    state = scene.cluster(0)
    for number in range(2):
        name = f"node-{number:03d}"
        state.put_node(scene.node(name, labels={"rack": f"r{number}"}))
        state.put_slice(scene.gpus(name, 2))
    state_with_queue(state)
    state.put_group(scene.group("g", 2, topology={"required": ["rack"]}))
    scene.submit(state, "w", pods=3, group="default/g")
    scene.run(state)
    plan = state.plan(0.0)
    assert plan.placements == ()
    assert [one.reason for one in plan.waiting] == ["NoRoom"]


def pair(room: str) -> ManagedState:
    """One card on one of two nodes, and a gang of two pods that share a claim."""
    state = scene.cluster(0, options=PlanOptions(node_label=""))
    small = {**scene.ROOMY, "pods": room}
    for name in ("node-a", "node-b"):
        state.put_node(scene.node(name, allocatable=small, managed=False))
    state.put_slice(scene.gpus("node-a", 1))
    state_with_queue(state)
    state.put_group(scene.group("pair", 2))
    state.put_claim(scene.claim("shared"))
    for number in range(2):
        state.put_pod(scene.pod(f"pair-{number}", "shared", group="default/pair"))
    return state


def test_a_shared_claim_is_allocated_once() -> None:
    """Both pods go where the device is, both are consumers, and it is charged once."""
    (placement,) = pair("10").plan(0.0).placements
    (written,) = placement.claims
    assert [one.name for one in written.reserved_for] == ["pair-0", "pair-1"]
    assert nodes_of(placement) == ["node-a", "node-a"]
    assert placement.amounts.of("gpus") == 1000


def test_a_shared_claim_without_room_for_all_is_not_allocated() -> None:
    """Room for one pod on the only node with a device: nothing is given out."""
    plan = pair("1").plan(0.0)
    assert plan.placements == ()
    assert plan.waiting[0].reason == "NeverPlaceable"


def test_devices_of_a_node_are_given_out_anew_for_the_gang() -> None:
    """The first pod's cheapest cards would leave none for the second, which is particular."""
    state = scene.cluster(0)
    state.put_node(scene.node("node-000"))
    state.put_slice(scene.gpus("node-000", 4, domains=["a", "a", "b", "b"]))
    state_with_queue(state)
    state.put_group(scene.group("g", 2))
    matching = [{"matchAttribute": "gpu.gpudra.io/nvlinkDomain"}]
    scene.submit(state, "loose", 2, group="default/g")
    scene.submit(state, "tight", 2, group="default/g", constraints=matching)
    (placement,) = state.plan(0.0).placements
    by_claim = {
        claim.name: {int(one.device[-1]) // 2 for one in claim.allocation.devices.results}
        for claim in placement.claims
    }
    assert len(by_claim["tight-0"]) == 1
    assert len(set(devices_of(placement))) == 4


def test_going_back_over_nodes() -> None:
    """The pod that may go anywhere must leave the only node of the pod that may not."""
    state = scene.cluster(0)
    for number, memory in ((0, "80Gi"), (1, "40Gi")):
        name = f"node-{number:03d}"
        state.put_node(scene.node(name, allocatable={"cpu": "4", "memory": "64Gi", "pods": "1"}))
        state.put_slice(scene.gpus(name, 1, memory=memory))
    state_with_queue(state)
    state.put_group(scene.group("g", 2))
    large = 'device.capacity["gpu.gpudra.io"].memory.compareTo(quantity("60Gi")) > 0'
    scene.submit(state, "any", group="default/g")
    scene.submit(state, "large", group="default/g", selector=large)
    (placement,) = state.plan(0.0).placements
    assert {one.name: one.node for one in placement.pods} == {
        "any-0": "node-001",
        "large-0": "node-000",
    }


def test_a_gang_that_lost_a_member_comes_before_newer_work() -> None:
    """The replacement of a lost pod is served before a job of higher priority."""
    state = scene.cluster(1, 2)
    state.put_group(scene.group("g", 2))
    pods = scene.submit(state, "w", pods=2, group="default/g")
    scene.run(state)
    scene.finish(state, state.pods[pods[0].uid])
    scene.submit(state, "urgent", priority=100, created=5.0)
    scene.submit(state, "again", group="default/g", created=9.0)
    plan = state.plan(10.0)
    assert [one.job for one in plan.placements] == ["group/default/g"]


def test_a_gang_that_stays_broken_is_taken_down_whole() -> None:
    """After its timeout the members that are left give up, with their claims."""
    state = scene.cluster(1)
    state.put_group(scene.group("g", 3, timeout="60s"))
    pods = scene.submit(state, "w", pods=3, group="default/g")
    scene.run(state)
    scene.finish(state, state.pods[pods[0].uid])
    assert state.plan(100.0).undo == ()
    (undo,) = state.plan(160.0).undo
    assert [one.name for one in undo.pods] == ["w-1", "w-2"]
    assert undo.claims == ("default/w-1", "default/w-2")
    assert undo.reason == "GangBroken"


def test_a_gang_that_could_not_start_in_time_is_given_up() -> None:
    """The timeout counts from the oldest pod; the reason is told and nothing is tried."""
    state = scene.cluster(1, 1)
    state.put_group(scene.group("g", 2, timeout="60s"))
    scene.submit(state, "w", pods=2, group="default/g", created=100.0)
    (waiting,) = state.plan(161.0).waiting
    assert waiting.reason == "TimedOut"
    assert "60 s" in waiting.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"queue": "other"}, "InvalidGroup"),
        ({"problem": "two groups claim the pod: a, b"}, "InvalidPod"),
    ],
)
def test_what_is_wrong_with_a_gang_is_said(change: dict[str, str], reason: str) -> None:
    """One bad member keeps its gang and nobody else."""
    state = scene.cluster(1, queues=[scene.queue(), scene.queue("other")])
    state.put_group(scene.group("g", 2))
    first, _ = scene.submit(state, "w", pods=2, group="default/g")
    state.put_pod(replace(first, **change))  # type: ignore[arg-type]
    scene.submit(state, "good")
    plan = state.plan(0.0)
    assert [one.reason for one in plan.waiting] == [reason]
    assert [one.job for one in plan.placements] == ["pod/default/good-0"]


def test_a_group_that_does_not_exist_is_waited_for() -> None:
    """Pods of an unknown group wait for it by name."""
    state = scene.cluster(1)
    scene.submit(state, "w", pods=2, group="default/g")
    (waiting,) = state.plan(0.0).waiting
    assert (waiting.reason, waiting.message) == (
        "WaitingForGang",
        "PodGroup default/g does not exist",
    )
