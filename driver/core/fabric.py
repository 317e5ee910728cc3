# SPDX-License-Identifier: Apache-2.0
"""What nodes say about NVLink fabrics and cards, held against each other.

Each agent knows its own node only. Whether the sets that they publish fit together shows only
from above: the cluster side runs this over all slices. A contradiction is serious, because
``matchAttribute: nvlinkDomain`` would put a job on cards that do not reach each other, or two
jobs on one card.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpudra.api.names import split_qualified_name
from gpudra.api.resource_v1 import Device, ResourceSlice


class Reason(StrEnum):
    """Kinds of contradiction."""

    # One card on two nodes: a cloned machine, or two agents for the same hardware.
    DUPLICATE_UUID = "duplicate_uuid"
    # A domain that is not of a multi-node fabric is named after a card, so it has one node.
    DOMAIN_ON_TWO_NODES = "domain_on_two_nodes"
    # Cards of one clique name different domains, or cards of one domain different cliques.
    CLIQUE_MISMATCH = "clique_mismatch"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Contradiction:
    """Nodes that cannot all be right.

    Attributes:
        reason: the kind.
        subject: the uuid, domain or clique that it is about.
        nodes: names of the nodes, sorted.
    """

    reason: Reason
    subject: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        where = ", ".join(self.nodes)
        match self.reason:
            case Reason.DUPLICATE_UUID:
                return f"GPU {self.subject} is published by more than one node: {where}"
            case Reason.DOMAIN_ON_TWO_NODES:
                return (
                    f"NVLink domain {self.subject} is local to a node "
                    f"but published by more than one: {where}"
                )
            case Reason.CLIQUE_MISMATCH:
                return f"nodes disagree about the NVLink domain of {self.subject}: {where}"


@dataclass(frozen=True, slots=True)
class FabricCard:
    """What one device says about its card; all that is kept of forty thousand of them.

    Attributes:
        node: the node that publishes it.
        uuid: of the card; empty when it has none.
        domain: its ``nvlinkDomain``; empty when it is in none.
        clique: ``<cluster>.<clique>`` on a multi-node fabric, else empty.
    """

    node: str
    uuid: str
    domain: str
    clique: str


def fabric_cards(found: ResourceSlice, driver: str) -> tuple[FabricCard, ...]:
    """What a slice says; nothing when it is another driver's or belongs to no single node."""
    if found.spec.driver != driver or not found.spec.node_name:
        return ()
    return tuple(_card(device, found.spec.node_name, driver) for device in found.spec.devices)


def contradictions(said: Iterable[FabricCard]) -> tuple[Contradiction, ...]:
    """All contradictions between nodes, sorted; the order of the cards does not matter."""
    cards = tuple(said)
    return tuple(sorted([*_duplicates(cards), *_local_domains(cards), *_cliques(cards)]))


def _card(device: Device, node: str, driver: str) -> FabricCard:
    values = {
        name: value
        for key, value in device.attributes.items()
        for domain, name in [split_qualified_name(key, driver)]
        if domain == driver
    }
    cluster, clique = values.get("fabricCluster"), values.get("fabricClique")
    has_fabric = cluster is not None and clique is not None
    return FabricCard(
        node=node,
        uuid=str(values.get("uuid") or ""),
        domain=str(values.get("nvlinkDomain") or ""),
        clique=f"{cluster}.{clique}" if has_fabric else "",
    )


def _duplicates(cards: Iterable[FabricCard]) -> list[Contradiction]:
    nodes = _conflicts((card.uuid, card.node) for card in cards if card.uuid)
    return _told(Reason.DUPLICATE_UUID, nodes)


def _local_domains(cards: Iterable[FabricCard]) -> list[Contradiction]:
    local = ((card.domain, card.node) for card in cards if card.domain and not card.clique)
    return _told(Reason.DOMAIN_ON_TWO_NODES, _conflicts(local))


def _cliques(cards: Iterable[FabricCard]) -> list[Contradiction]:
    fabric = [card for card in cards if card.clique]
    domains = _conflicts((card.clique, card.domain) for card in fabric)
    cliques = _conflicts((card.domain, card.clique) for card in fabric)
    nodes: dict[str, set[str]] = {}
    for card in fabric:
        if card.clique in domains:
            nodes.setdefault(f"clique {card.clique}", set()).add(card.node)
        if card.domain in cliques:
            nodes.setdefault(f"domain {card.domain or '(none)'}", set()).add(card.node)
    return _told(Reason.CLIQUE_MISMATCH, nodes)


def _told(reason: Reason, nodes: Mapping[str, set[str]]) -> list[Contradiction]:
    return [
        Contradiction(reason=reason, subject=subject, nodes=tuple(sorted(found)))
        for subject, found in nodes.items()
    ]


def _conflicts(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Keys with more than one value, and their values. Sets are made for those only."""
    first: dict[str, str] = {}
    found: dict[str, set[str]] = {}
    for key, value in pairs:
        known = first.setdefault(key, value)
        if known != value:
            found.setdefault(key, {known}).add(value)
    return found
