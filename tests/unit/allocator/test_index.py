# SPDX-License-Identifier: Apache-2.0
"""The index as it follows changes: it always knows what a fresh one would."""

import random
from typing import Any

import pytest

from gpudra.controller.ctl.objects import ObjectSet, objects_of
from gpudra.driver.core.allocator import Answer, ClusterIndex, Node, Outcome, Refusal
from tests.support.alloccompare import asked, draw_case
from tests.support.allocgen import Case


def _objects(case: Case) -> ObjectSet:
    return objects_of([raw for kind in case.objects.values() for raw in kind])


def _told(answer: Answer) -> tuple[Any, ...]:
    return answer.outcome, answer.message, [one.to_dict() for one in answer.allocations]


def _everything(index: ClusterIndex, claims: list[Any]) -> dict[str, Any]:
    try:
        return {name: _told(one) for name, one in index.everywhere(claims).items()}
    except Refusal as refusal:
        return {"": refusal.message}


def _step(rng: random.Random, index: ClusterIndex, held: dict[str, Any], found: ObjectSet) -> None:
    """One change, made in the index and in ``held``, which a fresh index is made of."""
    kind = rng.randrange(4)
    if kind == 0:
        one = rng.choice(found.slices)
        if held["slices"].pop(one.metadata.name, None) is None:
            held["slices"][one.metadata.name] = one
            index.put_slice(one)
        else:
            index.remove_slice(one.metadata.name)
    elif kind == 1 and found.rules:
        rule = found.rules[0]
        if held["rules"].pop(rule.metadata.name, None) is None:
            held["rules"][rule.metadata.name] = rule
            index.put_rule(rule)
        else:
            index.remove_rule(rule.metadata.name)
    elif kind == 2:
        node = Node(rng.choice(found.nodes).name, {"zone": rng.choice(["x", "y"])})
        held["nodes"][node.name] = node
        index.put_node(node)
    else:
        states = [claim for claim in found.claims if claim.status.allocation is not None]
        if states:
            claim = rng.choice(states)
            if held["claims"].pop(claim.metadata.name, None) is None:
                held["claims"][claim.metadata.name] = claim
                index.put_claim(claim)
            else:
                index.remove_claim(claim)


@pytest.mark.parametrize("seed", range(60))
def test_week_old_equals_fresh(seed: int) -> None:
    """After any sequence of changes the answers are those of an index made from scratch."""
    rng = random.Random(seed)
    case = draw_case(rng, 4)
    found, claims = _objects(case), asked(case)
    held: dict[str, Any] = {"slices": {}, "rules": {}, "nodes": {}, "claims": {}}
    held["nodes"] = {node.name: node for node in found.nodes}
    index = ClusterIndex.of(nodes=found.nodes, classes=found.classes)
    for one in found.slices:
        held["slices"][one.metadata.name] = one
        index.put_slice(one)
    for _ in range(12):
        _step(rng, index, held, found)
        fresh = ClusterIndex.of(
            nodes=held["nodes"].values(),
            slices=held["slices"].values(),
            classes=found.classes,
            claims=held["claims"].values(),
            rules=held["rules"].values(),
        )
        assert _everything(index, claims) == _everything(fresh, claims)


def _gpus(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"gpu-{i}", **more} for i in range(count)]


def _cluster(devices: list[dict[str, Any]], **exactly: Any) -> tuple[ClusterIndex, list[Any]]:
    spec = {
        "driver": "gpu.example.com", "nodeName": "node-a", "devices": devices,
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
    }  # fmt: skip
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}
    head = {"apiVersion": "resource.k8s.io/v1"}
    found = objects_of(
        [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}},
            {**head, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
            {**head, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec},
            {
                **head, "kind": "ResourceClaim", "metadata": {"name": "asks", "namespace": "d"},
                "spec": {"devices": {"requests": [request]}},
            },
        ]
    )  # fmt: skip
    index = ClusterIndex.of(nodes=found.nodes, slices=found.slices, classes=found.classes)
    return index, found.claims


def test_time_is_up() -> None:
    """When the time is up the outcome is timeout, which is not kept as an answer."""
    devices = [
        {"name": f"gpu-{i}", "attributes": {"a": {"int": i % 7}, "b": {"int": i % 5}}}
        for i in range(60)
    ]
    index, claims = _cluster(devices, count=9)
    spec = claims[0].spec.devices
    raw = claims[0].to_dict()
    raw["spec"]["devices"]["constraints"] = [
        {"distinctAttribute": "gpu.example.com/a"},
        {"distinctAttribute": "gpu.example.com/b"},
    ]
    del spec
    hard = objects_of([raw]).claims
    assert index.allocate(hard, "node-a").outcome is Outcome.UNSATISFIABLE
    raw["spec"]["devices"]["requests"][0]["exactly"]["count"] = 5
    easy = objects_of([raw]).claims
    late = index.allocate(easy, "node-a", deadline=lambda: True)
    assert late.outcome in {Outcome.TIMEOUT, Outcome.ALLOCATED}
    assert index.allocate(easy, "node-a").outcome is Outcome.ALLOCATED


def test_scorer_chooses_among_valid_answers() -> None:
    """With a scorer the best of the valid answers is taken instead of the first."""
    devices = [{"name": f"gpu-{i}", "attributes": {"numa": {"int": i}}} for i in range(4)]
    index, claims = _cluster(
        devices,
        selectors=[{"cel": {"expression": 'device.attributes["gpu.example.com"].numa >= 1'}}],
    )
    last = index.allocate(
        claims, "node-a", scorer=lambda solution: float(solution.picks[0].position)
    )
    first = index.allocate(claims, "node-a")
    assert [one.device for one in first.allocations[0].devices.results] == ["gpu-1"]
    assert [one.device for one in last.allocations[0].devices.results] == ["gpu-3"]


def test_allocated_claim_keeps_what_it_has() -> None:
    """A claim that is allocated already keeps its devices, and only where they can be used."""
    index, claims = _cluster(_gpus(1))
    index.put_node(Node("node-b"))
    raw = claims[0].to_dict()
    raw["status"] = {"allocation": index.allocate(claims, "node-a").allocations[0].to_dict()}
    done = objects_of([raw]).claims
    index.put_claim(done[0])
    again = index.allocate(done, "node-a")
    assert again.fits
    assert again.allocations == (done[0].status.allocation,)
    assert index.allocate(done, "node-b").outcome is Outcome.UNSATISFIABLE


def test_share_ids_differ_and_repeat() -> None:
    """Shares of one device have ids of their own, and the same question gives the same ids."""
    index, claims = _cluster(_gpus(1, allowMultipleAllocations=True))
    raw = claims[0].to_dict()
    second = dict(raw["spec"]["devices"]["requests"][0], name="more")
    raw["spec"]["devices"]["requests"].append(second)
    both = objects_of([raw]).claims
    ids = [one.share_id for one in index.allocate(both, "node-a").allocations[0].devices.results]
    again = [one.share_id for one in index.allocate(both, "node-a").allocations[0].devices.results]
    assert len(set(ids)) == 2
    assert ids == again


def test_unknown_node() -> None:
    """Asking about a node that nobody knows is a mistake of the caller."""
    index, claims = _cluster(_gpus(1))
    with pytest.raises(KeyError):
        index.allocate(claims, "nowhere")


@pytest.mark.parametrize("size", [8, 32, 128])
def test_hopeless_search_grows_with_the_number_of_devices_only(size: int) -> None:
    """Equal partitions of a card that is too small are not permuted (kubernetes#131730)."""
    amounts = [{"counterSet": "card", "counters": {"units": {"value": "1"}}}]
    devices = [{"name": f"part-{i}", "consumesCounters": amounts} for i in range(size)]
    index, claims = _cluster(devices, count=min(size // 2, 32))
    sets = {"name": "card", "counters": {"units": {"value": str(min(size // 2, 32) - 1)}}}
    raw = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "sets"},
        "spec": {
            "driver": "gpu.example.com", "nodeName": "node-a", "sharedCounters": [sets],
            "pool": {"name": "node-a", "generation": 2, "resourceSliceCount": 2},
        },
    }  # fmt: skip
    parts = {**raw, "metadata": {"name": "s"}}
    parts["spec"] = {**raw["spec"], "devices": devices}
    del parts["spec"]["sharedCounters"]
    for one in objects_of([raw, parts]).slices:
        index.put_slice(one)
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return steps > size

    answer = index.allocate(claims, "node-a", deadline=count)
    assert answer.outcome is Outcome.UNSATISFIABLE
