# SPDX-License-Identifier: Apache-2.0
"""The live adapter: slices and allocations in, pools and device names out, and the simulator's choices."""

import random
from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import DeviceRequestAllocationResult, ResourceSlice
from gpudra.controller.ctl.simulate.placementlog import PlacementLog
from gpudra.controller.ctl.simulate.published import run_published
from gpudra.controller.ctl.simulate.trace import Task, Trace
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.live import LiveCluster, NodeRoom
from gpudra.driver.core.placement.policies import ANCHOR, OURS, prepare
from gpudra.driver.core.placement.rows import RowPlacer
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import (
    NodeSpec,
    Placement,
    PlacementError,
    Request,
    Weights,
    share,
    whole_cards,
)

DRIVER = "gpu.gpudra.io"


def card(node: str, number: int, model: str, **attributes: Any) -> list[dict[str, Any]]:
    """A whole device and its share, as the node agent publishes them."""
    uuid = f"GPU-{node}-{number}"
    common = {"productName": {"string": model}, **attributes}
    whole = {"type": {"string": "gpu"}, "uuid": {"string": uuid}, **common}
    part = {"type": {"string": "share"}, "parentUUID": {"string": uuid}, **common}
    memory = {"memory": {"value": "16Gi"}}
    return [
        {"name": f"gpu-{number}", "attributes": whole, "capacity": memory},
        {"name": f"gpu-{number}-share", "attributes": part, "capacity": memory},
    ]


def mig_device(node: str, number: int, profile: str, start: int, size: int) -> dict[str, Any]:
    """A MIG placement with its counters."""
    counters = {f"memory-slice-{start + i}": {"value": "1"} for i in range(size)}
    return {
        "name": f"gpu-{number}-mig-{profile}-{start}",
        "attributes": {
            "type": {"string": "mig"},
            "parentUUID": {"string": f"GPU-{node}-{number}"},
            "profile": {"string": profile},
        },
        "consumesCounters": [{"counterSet": "c", "counters": counters}],
    }


def slice_of(node: str, devices: list[dict[str, Any]], generation: int = 1) -> ResourceSlice:
    """One slice of a node's pool."""
    return ResourceSlice.from_dict(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{generation}-{devices[0]['name']}"},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
    )


def result(node: str, device: str, **more: Any) -> DeviceRequestAllocationResult:
    """One allocated device of a claim's status."""
    return DeviceRequestAllocationResult.from_dict(
        {"request": "r", "driver": DRIVER, "pool": node, "device": device, **more}
    )


def live_of(specs: list[NodeSpec]) -> LiveCluster:
    """The live view of a cluster, by way of published slices."""
    slices = [
        slice_of(spec.name, [d for i in range(spec.cards) for d in card(spec.name, i, spec.model)])
        for spec in specs
    ]
    rooms = {spec.name: NodeRoom(spec.cpu_milli, spec.memory_mib) for spec in specs}
    return LiveCluster.of(DRIVER, reversed(slices), rooms)


def random_requests(seed: int, count: int) -> list[Request]:
    """CPU-only, shared and whole requests, some bound to a model."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        cpu = rng.choice((1000, 4000, 8000))
        models = frozenset({"T4"}) if rng.random() < 0.2 else frozenset()
        milli = rng.choice((230, 320, 470, 810, 1000, 1000))
        cards = rng.choice((0, 1, 1, 1, 1, 2))
        milli = 0 if not cards else 1000 if cards > 1 else milli
        found.append(Request(cpu, 2048, cards, milli, milli, models if cards else frozenset()))
    return found


@pytest.mark.parametrize("policy", [OURS, ANCHOR])
def test_simulator_and_controller_choose_alike(policy: str) -> None:
    """A simulated run, repeated through slices, allocations and device names, takes the same nodes and cards.

    The live side is built anew before every decision from what claims hold, as
    after a restart of the controller.
    """
    specs = [
        NodeSpec(f"n{i}", 32_000, 65_536, 2 + 2 * (i % 2), "T4" if i % 3 else "G2")
        for i in range(6)
    ]
    stream = random_requests(5, 60)
    mix = DemandMix.of(stream)
    maker = prepare(policy, specs, mix, weights=Weights() if policy == OURS else None)
    simulated = maker(ClusterState(specs), 0)
    claims: list[tuple[Request, list[DeviceRequestAllocationResult], Placement]] = []
    placed = 0
    for request in stream:
        live = live_of(specs)
        fresh: RowPlacer = maker(live.state(), 0)
        for held, results, where in claims:
            fresh.commit(held, (live.held(results) if held.cards else None) or where)
        expected, found = simulated.choose(request), fresh.choose(request)
        assert found == expected
        if expected is None or found is None:
            continue
        simulated.commit(request, expected)
        placed += 1
        pool, names = live.devices(request, found)
        claims.append((request, [result(pool, name) for name in names], found))
    assert placed > 20


def test_the_trace_simulator_itself_uses_the_same_placer() -> None:
    """The figures of a run are those of calling the placer by hand in the same order."""
    specs = [NodeSpec(f"n{i}", 32_000, 65_536, 4, "T4") for i in range(3)]
    tasks = [Task(f"t{i}", r) for i, r in enumerate(random_requests(9, 40))]
    trace = Trace(tuple(specs), tuple(tasks))
    mix = DemandMix.of(t.request for t in tasks)
    maker = prepare(OURS, specs, mix, weights=Weights())
    run = run_published(
        trace, mix, maker, seed=4, until=1.0, log=PlacementLog(), watch=lambda _part: None
    )
    rng, order, placer = random.Random(4), list(range(40)), maker(ClusterState(specs), 4)
    rng.shuffle(order)
    requested = allocated = 0
    while requested < 12_000:
        request = tasks[order.pop(0) if order else rng.randrange(40)].request
        requested += request.amount_milli
        place = placer.choose(request)
        if place is not None:
            placer.commit(request, place)
            allocated += request.amount_milli
    assert run.allocated_percent == pytest.approx(100 * allocated / 12_000)


def test_topology_and_mig_are_read_from_the_devices() -> None:
    """Islands, switches, profiles with their starts, and card memory arrive in the node's columns."""
    devices = [
        *card("a", 0, "A100", nvlinkIsland={"string": "x"}, pcieSwitch={"string": "s0"}),
        *card("a", 1, "A100", nvlinkIsland={"string": "x"}),
        *card("a", 2, "A100"),
        mig_device("a", 0, "1g.5gb", 0, 1),
        mig_device("a", 0, "1g.5gb", 1, 1),
        mig_device("a", 1, "3g.20gb", 4, 4),
    ]
    live = LiveCluster.of(DRIVER, [slice_of("a", devices)], {"a": NodeRoom(1000, 2000)})
    node = live.nodes[0]
    assert (node.cpu_milli, node.memory_mib, node.cards, node.model) == (1000, 2000, 3, "A100")
    assert node.linked_sets == (0, 0, -1)
    assert node.switch_sets == (0, -1, -1)
    assert [(p.name, p.slices, p.starts) for p in node.mig.profiles] == [
        ("1g.5gb", 1, (0, 1)),
        ("3g.20gb", 4, (4,)),
    ]
    held = live.held([result("a", "gpu-0-mig-1g.5gb-1")])
    assert held == Placement(0, (0,), 1)
    request = Request(cards=1, mig_profile="1g.5gb")
    assert live.devices(request, Placement(0, (0,), 1)) == ("a", ("gpu-0-mig-1g.5gb-1",))
    with pytest.raises(PlacementError, match="not published as mig"):
        live.devices(request, Placement(0, (2,), 0))


def test_old_generations_other_drivers_and_unknown_nodes_are_left_out() -> None:
    """Only the newest generation of our own node pools counts."""
    old = slice_of("a", card("a", 0, "T4") + card("a", 1, "T4"), generation=1)
    new = slice_of("a", card("a", 0, "T4"), generation=2)
    foreign = slice_of("b", card("b", 0, "T4"))
    live = LiveCluster.of(DRIVER, [old, new, foreign], {"a": NodeRoom(1, 1)})
    assert [(n.name, n.cards) for n in live.nodes] == [("a", 1)]
    assert LiveCluster.of("other.io", [new], {"a": NodeRoom(1, 1)}).nodes == ()


def test_shares_are_measured_by_the_smallest_card() -> None:
    """A quarter of 16 GiB and 30 percent become 250 and 300 milli-cards; more than a card is refused."""
    live = live_of([NodeSpec("a", 1, 1, 1, "T4")])
    request = live.share_request(
        memory=Quantity.parse("4Gi"), compute_percent=30, room=NodeRoom(2000, 512)
    )
    assert request == share(300, memory_milli=250, cpu_milli=2000, memory_mib=512)
    rounded = live.share_request(
        memory=Quantity.parse("1Mi"), compute_percent=0, room=NodeRoom(0, 0)
    )
    assert rounded.card_memory_milli == 1
    with pytest.raises(PlacementError, match="larger than a card"):
        live.share_request(memory=Quantity.parse("17Gi"), compute_percent=0, room=NodeRoom(0, 0))


def test_allocations_that_cannot_be_accounted_for_are_errors() -> None:
    """Unpublished devices and results on two nodes are named; admin access holds nothing."""
    live = live_of([NodeSpec("a", 1, 1, 1, "T4"), NodeSpec("b", 1, 1, 1, "T4")])
    with pytest.raises(InputError, match=r"a/gpu-9: is allocated but not published"):
        live.held([result("a", "gpu-9")])
    with pytest.raises(InputError, match="on two nodes"):
        live.held([result("a", "gpu-0"), result("b", "gpu-0")])
    assert live.held([result("a", "gpu-0", adminAccess=True)]) is None
    orphan = slice_of("a", card("a", 0, "T4")[1:])
    with pytest.raises(InputError, match="its card is not published"):
        LiveCluster.of(DRIVER, [orphan], {"a": NodeRoom(1, 1)})


def test_a_whole_request_gets_whole_devices_and_a_share_gets_shares() -> None:
    """The names that are written belong to the form that was asked for."""
    live = live_of([NodeSpec("a", 1, 1, 2, "T4")])
    assert live.devices(whole_cards(2), Placement(0, (1, 0))) == ("a", ("gpu-1", "gpu-0"))
    assert live.devices(share(100), Placement(0, (1,))) == ("a", ("gpu-1-share",))
