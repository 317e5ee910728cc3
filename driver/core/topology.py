# SPDX-License-Identifier: Apache-2.0
"""Which GPUs belong together: PCIe switches, NVLink domains, islands and pairs.

Reads the Inventory only. The names that come out are meant for ``matchAttribute``: two devices
carry the same text exactly when they belong to the same set, on one node or, for a multi-node
fabric, anywhere.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpudra.driver.core.inventory import Gpu, Inventory, LinkPeer

# A switch shows itself in sysfs as an upstream port with downstream ports below it, so a card
# behind a switch has at least three bridges above it: root port, upstream, downstream.
_BRIDGES_WITH_SWITCH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Sets of GPUs by key of the card. A card that is in no set is absent from the maps.

    Attributes:
        domains: cards that reach each other over NVLink or NVSwitch.
        islands: cards of which each reaches each other directly or through one NVSwitch.
        pairs: two cards with a bridge between them and no other NVLink partner.
        switches: address of the PCIe switch (its upstream port) that the card shares with others.
    """

    domains: Mapping[str, str]
    islands: Mapping[str, str]
    pairs: Mapping[str, str]
    switches: Mapping[str, str]

    @classmethod
    def of(cls, inventory: Inventory) -> "Topology":
        """Works out the sets of one node."""
        peers = _peers(inventory)
        local = {key: name for part in _components(peers) for key, name in _named(part)}
        fabric = {
            gpu.key: f"{gpu.fabric.cluster_uuid}.{gpu.fabric.clique_id}"
            for gpu in inventory.gpus
            if gpu.fabric is not None and gpu.fabric.usable
        }
        return cls(
            domains={**local, **fabric},
            islands={key: name for part in _islands(peers) for key, name in _named(part)},
            pairs={key: name for pair in _pairs(inventory) for key, name in _named(pair)},
            switches=_switches(inventory.gpus),
        )


def _switch_ports(gpu: Gpu) -> tuple[str, ...]:
    """Upstream ports of the PCIe switches above a card, the nearest first."""
    bridges = gpu.pci.bridges if gpu.pci else None
    if bridges is None or len(bridges) < _BRIDGES_WITH_SWITCH:
        return ()
    return bridges[-2:0:-2]


def _switches(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Card → upstream port of its nearest switch that another card shares, else of its nearest.

    Some machines give every card a switch of its own below a common one (DGX A100); the common one
    is what a claim for two cards "on one switch" means.
    """
    ports = {gpu.key: _switch_ports(gpu) for gpu in gpus}
    below = Counter(port for own in ports.values() for port in own)
    return {
        key: next((port for port in own if below[port] > 1), own[0])
        for key, own in ports.items()
        if own
    }


def _bridges(inventory: Inventory) -> dict[str, frozenset[str]]:
    """Card → cards at the other ends of its own links, switches left out."""
    by_address = {gpu.pci.bus_id: gpu.key for gpu in inventory.gpus if gpu.pci}
    found: dict[str, frozenset[str]] = {}
    for gpu in inventory.gpus:
        others = {
            by_address[link.peer_bus_id]
            for link in gpu.nvlinks
            if link.active and link.peer is LinkPeer.GPU and link.peer_bus_id in by_address
        }
        others.discard(gpu.key)
        if others:
            found[gpu.key] = frozenset(others)
    return found


def _pairs(inventory: Inventory) -> set[frozenset[str]]:
    """Two cards that are linked to each other and to nobody else."""
    around = _bridges(inventory)
    return {
        others | {key}
        for key, others in around.items()
        if len(others) == 1 and all(around.get(other) == frozenset({key}) for other in others)
    }


def _peers(inventory: Inventory) -> dict[str, frozenset[str]]:
    """Card → cards it reaches over one link or one NVSwitch; symmetric.

    Behind NVSwitches no link names a GPU. The switches of a node form one fabric, so cards that
    are linked to any switch reach each other even where their links go to different ones.
    """
    peers: dict[str, set[str]] = {}
    for key, others in _bridges(inventory).items():
        for other in others:
            peers.setdefault(key, set()).add(other)
            peers.setdefault(other, set()).add(key)
    switched = [
        gpu.key
        for gpu in inventory.gpus
        if any(link.active and link.peer is LinkPeer.SWITCH for link in gpu.nvlinks)
    ]
    for one, other in itertools.permutations(switched, 2):
        peers.setdefault(one, set()).add(other)
    return {key: frozenset(around) for key, around in peers.items()}


def _components(peers: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Sets of cards that reach each other over any number of hops."""
    left = set(peers)
    found = []
    while left:
        part, edge = set[str](), {min(left)}
        while edge:
            part |= edge
            edge = {peer for key in edge for peer in peers[key]} - part
        left -= part
        found.append(frozenset(part))
    return found


def _islands(peers: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Disjoint fully connected sets, the largest first; the smallest keys win ties."""
    left = set(peers)
    found = []
    while left:
        best = max(
            (_grown_clique(key, left, peers) for key in sorted(left)),
            key=len,
        )
        if len(best) > 1:
            found.append(best)
        left -= best
    return found


def _grown_clique(
    start: str, left: Iterable[str], peers: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """The largest fully connected set around a card. Sixteen cards a node keep this cheap."""
    best: frozenset[str] = frozenset({start})
    stack = [(best, sorted(peers[start] & set(left)))]
    while stack:
        clique, candidates = stack.pop()
        if len(clique) > len(best):
            best = clique
        if len(clique) + len(candidates) <= len(best):
            continue
        for index in range(len(candidates) - 1, -1, -1):
            key = candidates[index]
            rest = [other for other in candidates[index + 1 :] if other in peers[key]]
            stack.append((clique | {key}, rest))
    return best


def _named(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Each key with the name of the set: a hash of its smallest uuid, so nodes never share it."""
    members = sorted(keys)
    name = hashlib.sha256(members[0].encode()).hexdigest()[:16]
    return [(key, name) for key in members]
