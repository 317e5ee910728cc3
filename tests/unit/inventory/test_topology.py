# SPDX-License-Identifier: Apache-2.0
"""Sets of cards: switches, domains, islands, pairs, and the order that comes of them."""

import random
from collections.abc import Iterable, Sequence

import pytest

from gpudra.driver.core.allocatable import DeviceOrder, ordered_gpus
from gpudra.driver.core.inventory import Gpu, Inventory, LinkPeer, NvLink, PciInfo
from gpudra.driver.core.topology import Topology
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware


def _bus(number: int) -> str:
    return f"0000:{number + 16:02x}:00.0"


def _linked(count: int, edges: Iterable[tuple[int, int]], *, active: bool = True) -> Inventory:
    around: dict[int, list[int]] = {number: [] for number in range(count)}
    for one, other in edges:
        around[one].append(other)
        around[other].append(one)
    return Inventory(
        gpus=tuple(
            Gpu(
                uuid=f"GPU-{number}",
                pci=PciInfo(bus_id=_bus(number)),
                nvlinks=tuple(
                    NvLink(index=at, active=active, peer=LinkPeer.GPU, peer_bus_id=_bus(peer))
                    for at, peer in enumerate(peers)
                ),
            )
            for number, peers in around.items()
        )
    )


def _groups(named: dict[str, str]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for key, name in sorted(named.items()):
        found.setdefault(name, []).append(key.removeprefix("GPU-"))
    return sorted(found.values())


def test_a_bridge_makes_a_pair() -> None:
    """Two cards with a bridge are pair, island and domain at once."""
    topology = Topology.of(_linked(4, [(0, 1), (2, 3)]))
    assert _groups(dict(topology.pairs)) == [["0", "1"], ["2", "3"]]
    assert _groups(dict(topology.islands)) == _groups(dict(topology.domains))


def test_a_chain_is_a_domain_but_neither_pair_nor_island() -> None:
    """Three cards in a row reach each other, but not all in one hop."""
    topology = Topology.of(_linked(3, [(0, 1), (1, 2)]))
    assert _groups(dict(topology.domains)) == [["0", "1", "2"]]
    assert topology.pairs == {}
    assert _groups(dict(topology.islands)) == [["0", "1"]]


def test_a_cube_mesh_has_two_islands() -> None:
    """Eight cards in two full quads with cross links (DGX-1): one domain, two islands."""
    quads = [(a + base, b + base) for base in (0, 4) for a in range(4) for b in range(a + 1, 4)]
    topology = Topology.of(_linked(8, [*quads, *((card, card + 4) for card in range(4))]))
    assert _groups(dict(topology.domains)) == [[str(card) for card in range(8)]]
    assert _groups(dict(topology.islands)) == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]


def test_links_that_are_down_join_nothing() -> None:
    """Only active links count."""
    topology = Topology.of(_linked(2, [(0, 1)], active=False))
    assert (topology.domains, topology.islands, topology.pairs) == ({}, {}, {})


def test_cards_behind_nvswitches_are_one_domain() -> None:
    """No link names a card there; one set, and no pairs."""
    inventory = build_inventory(load_hardware("dgx-h100-8x80"))
    topology = Topology.of(inventory)
    assert len(set(topology.domains.values())) == len(set(topology.islands.values())) == 1
    assert len(topology.domains) == 8
    assert topology.pairs == {}


def test_two_nodes_never_share_a_domain_of_their_own() -> None:
    """The name of a node's set is made of a uuid of it."""
    domains = {
        name
        for node in ("node-a", "node-b")
        for name in Topology.of(
            build_inventory(load_hardware("dgx-h100-8x80"), node_name=node)
        ).domains.values()
    }
    assert len(domains) == 2


def test_nodes_of_one_rack_share_their_domain() -> None:
    """Cluster and clique name the domain of a multi-node fabric on every node."""
    domains = {
        name
        for node in ("tray-1", "tray-2")
        for name in Topology.of(
            build_inventory(load_hardware("gb200-nvl72-4x"), node_name=node)
        ).domains.values()
    }
    assert domains == {"7c1f0c36-52d1-4b0e-9d3a-1f6d4b8a2e90.1"}


@pytest.mark.parametrize(
    ("profile", "sets"),
    [
        ("dgx-h100-8x80", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("dgx-a100-8x40", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("hgx-b200-8x180", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("l4-4x", []),
        ("gb200-nvl72-4x", []),
    ],
)
def test_cards_below_one_pcie_switch(profile: str, sets: list[list[int]]) -> None:
    """The nearest switch that two cards share; cards on a root port have none."""
    inventory = build_inventory(load_hardware(profile))
    switches = Topology.of(inventory).switches
    found: dict[str, list[int]] = {}
    for gpu in inventory.gpus:
        if gpu.key in switches:
            found.setdefault(switches[gpu.key], []).append(gpu.index or 0)
    assert sorted(found.values()) == sets


def test_a_card_alone_on_its_switch_names_that_switch() -> None:
    """Without company the nearest switch counts, as for a network card beside the GPU."""
    bridges = ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0")
    alone = Gpu(uuid="GPU-1", pci=PciInfo(bus_id="0000:18:00.0", bridges=bridges))
    topology = Topology.of(Inventory(gpus=(alone,)))
    assert topology.switches == {"GPU-1": "0000:16:00.0"}


def _indexes(gpus: Sequence[Gpu]) -> list[int | None]:
    return [gpu.index for gpu in gpus]


def test_first_fit_finishes_one_switch_before_the_next() -> None:
    """Eight equal cards: set by set, so that pairs stay whole as long as possible."""
    inventory = build_inventory(load_hardware("dgx-h100-8x80"))
    assert _indexes(ordered_gpus(inventory, DeviceOrder.KEEP_SETS)) == list(range(8))


def test_the_worst_connected_cards_come_first() -> None:
    """Singles take the cards without a bridge; the bridged pair stays whole."""
    inventory = build_inventory(load_hardware("mixed"))
    assert _indexes(ordered_gpus(inventory, DeviceOrder.KEEP_SETS)) == [2, 3, 0, 1]


def test_spread_goes_round_the_switches() -> None:
    """Singles that want bandwidth to the host get a switch of their own as long as there is one."""
    inventory = build_inventory(load_hardware("dgx-h100-8x80"))
    assert _indexes(ordered_gpus(inventory, DeviceOrder.SPREAD)) == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("order", list(DeviceOrder))
@pytest.mark.parametrize("profile", ["dgx-a100-8x40", "mixed", "l4-4x", "rtx4090-2x"])
def test_the_order_does_not_depend_on_the_backend(profile: str, order: DeviceOrder) -> None:
    """However a backend lists the cards, and whatever indexes they have, the order is the same."""
    inventory = build_inventory(load_hardware(profile))
    wanted = [gpu.key for gpu in ordered_gpus(inventory, order)]
    shuffled = list(inventory.gpus)
    for seed in range(5):
        random.Random(seed).shuffle(shuffled)
        mixed = Inventory(gpus=tuple(shuffled))
        assert [gpu.key for gpu in ordered_gpus(mixed, order)] == wanted
