# SPDX-License-Identifier: Apache-2.0
"""How any two cards of a node reach each other, in the words of ``nvidia-smi topo -m``. Pure.

Used by ``gpudra devices --topology``. From an inventory the matrix is complete; from published
devices the number of NVLinks is not known (``NV``), and whether one PCIe switch lies between two
cards or several (``PXB`` stands for both).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gpudra.driver.core.inventory import Gpu, Inventory, LinkPeer

SELF = "X"
LEGEND: Mapping[str, str] = MappingProxyType(
    {
        "X": "the card itself",
        "NV#": "# NVLinks, directly or over NVSwitches",
        "NV": "NVLink (slices do not tell how many)",
        "PIX": "one PCIe switch",
        "PXB": "PCIe switches, no host bridge",
        "PHB": "a PCIe host bridge",
        "NODE": "host bridges of one NUMA node",
        "SYS": "the link between NUMA nodes",
    }
)
_NO_LINKS: Mapping[str, int] = MappingProxyType({})
# Below a switch each card has a downstream port of its own, and nothing else.
_PORTS_BELOW_ONE_SWITCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one card sits.

    Attributes:
        key: unique among the cards.
        root: its PCIe root complex.
        bridges: above it from the root port down; None: not known.
        switch: a PCIe switch that it shares with every card that names the same.
        numa: its NUMA node.
        domain: cards of the same one reach each other over NVLink; for where links are not known.
        links: NVLinks by key of the card at the other end.
    """

    key: str
    root: str | None = None
    bridges: tuple[str, ...] | None = None
    switch: str | None = None
    numa: int | None = None
    domain: str | None = None
    links: Mapping[str, int] = field(default_factory=lambda: _NO_LINKS)


def places(inventory: Inventory) -> tuple[Place, ...]:
    """The cards of an inventory, in its order."""
    return tuple(
        Place(
            key=gpu.key,
            root=gpu.pci.root if gpu.pci else None,
            bridges=gpu.pci.bridges if gpu.pci else None,
            numa=gpu.numa_node,
            links=_links(gpu, inventory),
        )
        for gpu in inventory.gpus
    )


def matrix(cards: Sequence[Place]) -> tuple[tuple[str, ...], ...]:
    """One row a card, one column a card."""
    return tuple(tuple(between(one, other) for other in cards) for one in cards)


def between(one: Place, other: Place) -> str:
    """The best way between two cards."""
    if one.key == other.key:
        return SELF
    links = one.links.get(other.key, 0)
    if links:
        return f"NV{links}"
    if one.domain is not None and one.domain == other.domain:
        return "NV"
    return _over_pci(one, other)


def _over_pci(one: Place, other: Place) -> str:
    if one.root is not None and one.root == other.root:
        if one.switch is not None and one.switch == other.switch:
            return "PXB"
        return _below_root(one.bridges or (), other.bridges or ())
    if one.numa is not None and one.numa == other.numa:
        return "NODE"
    return "SYS"


def _below_root(one: Sequence[str], other: Sequence[str]) -> str:
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    if not shared:
        return "PHB"
    below = max(len(one), len(other)) - shared
    return "PIX" if below <= _PORTS_BELOW_ONE_SWITCH else "PXB"


def _links(gpu: Gpu, inventory: Inventory) -> dict[str, int]:
    """Links to each other card: bridged, or as many as both have to the switches."""
    found: dict[str, int] = {}
    mine = _to_switches(gpu)
    for other in inventory.gpus:
        if other.key == gpu.key:
            continue
        address = other.pci.bus_id if other.pci else None
        direct = sum(
            link.active and link.peer is LinkPeer.GPU and link.peer_bus_id == address
            for link in gpu.nvlinks
            if address is not None
        )
        number = direct or min(mine, _to_switches(other))
        if number:
            found[other.key] = number
    return found


def _to_switches(gpu: Gpu) -> int:
    return sum(link.active and link.peer is LinkPeer.SWITCH for link in gpu.nvlinks)
