# SPDX-License-Identifier: Apache-2.0
"""Nodes' words about NVLink fabrics, held against each other."""

from collections.abc import Iterable
from typing import Any

from gpudra.api.resource_v1 import ResourceSlice
from gpudra.driver.core.fabric import Contradiction, Reason, contradictions, fabric_cards

DRIVER = "gpu.gpudra.io"


def node(name: str, *cards: dict[str, Any], driver: str = DRIVER) -> ResourceSlice:
    """A slice of a node; each card is given by its attributes."""
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                key: {"int" if isinstance(value, int) else "string": value}
                for key, value in card.items()
            },
        }
        for number, card in enumerate(cards)
    ]
    return ResourceSlice.from_dict(
        {
            "metadata": {"name": f"{name}-slice"},
            "spec": {
                "driver": driver,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
    )


def fabric(uuid: str, domain: str, cluster: str = "c1", clique: int = 1) -> dict[str, Any]:
    """A card on a multi-node fabric."""
    return {
        "uuid": uuid,
        "nvlinkDomain": domain,
        "fabricCluster": cluster,
        "fabricClique": clique,
    }


def check(slices: Iterable[ResourceSlice]) -> tuple[Contradiction, ...]:
    """What the cluster side would find in these slices."""
    return contradictions(card for found in slices for card in fabric_cards(found, DRIVER))


def test_nodes_that_agree_have_no_contradiction() -> None:
    """Local domains on their own nodes, one clique over two nodes, cards without links."""
    slices = [
        node("a", {"uuid": "1", "nvlinkDomain": "x"}, {"uuid": "2", "nvlinkDomain": "x"}),
        node("b", fabric("3", "c1.1"), fabric("4", "c1.1")),
        node("c", fabric("5", "c1.1"), fabric("6", "c1.2", clique=2)),
        node("d", {"uuid": "7"}),
    ]
    assert check(slices) == ()


def test_one_card_on_two_nodes() -> None:
    """The uuid is published twice: a cloned machine, or two agents for one."""
    (found,) = check([node("b", {"uuid": "1"}), node("a", {"uuid": "1"})])
    assert (found.reason, found.subject, found.nodes) == (Reason.DUPLICATE_UUID, "1", ("a", "b"))
    assert str(found) == "GPU 1 is published by more than one node: a, b"


def test_several_forms_of_one_card_on_one_node_are_no_duplicate() -> None:
    """A whole card and its share carry the same uuid."""
    assert check([node("a", {"uuid": "1"}, {"uuid": "1"})]) == ()


def test_a_local_domain_on_two_nodes() -> None:
    """Without a fabric, two nodes can never share a domain."""
    slices = [
        node("a", {"uuid": "1", "nvlinkDomain": "x"}),
        node("b", {"uuid": "2", "nvlinkDomain": "x"}),
    ]
    (found,) = check(slices)
    assert (found.reason, found.subject) == (Reason.DOMAIN_ON_TWO_NODES, "x")


def test_a_clique_with_two_domains() -> None:
    """Nodes of one clique must name the same domain; both nodes are named."""
    slices = [node("a", fabric("1", "c1.1")), node("b", fabric("2", "other"))]
    (found,) = check(slices)
    assert (found.reason, found.subject, found.nodes) == (
        Reason.CLIQUE_MISMATCH,
        "clique c1.1",
        ("a", "b"),
    )


def test_a_domain_over_two_cliques() -> None:
    """Cards of two cliques do not reach each other, so they cannot share a domain."""
    slices = [node("a", fabric("1", "d")), node("b", fabric("2", "d", clique=2))]
    (found,) = check(slices)
    assert (found.reason, found.subject) == (Reason.CLIQUE_MISMATCH, "domain d")


def test_other_drivers_and_slices_without_a_node_say_nothing() -> None:
    """Only our driver's slices of single nodes are compared."""
    shared = ResourceSlice.from_dict(
        {
            "metadata": {"name": "pool"},
            "spec": {
                "driver": DRIVER,
                "allNodes": True,
                "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "d", "attributes": {"uuid": {"string": "1"}}}],
            },
        }
    )
    slices = [node("a", {"uuid": "1"}), node("b", {"uuid": "1"}, driver="other.example"), shared]
    assert check(slices) == ()


def test_the_order_of_slices_does_not_matter() -> None:
    """The same state gives the same answer."""
    slices = [
        node("a", {"uuid": "1"}, fabric("3", "c1.1")),
        node("b", {"uuid": "1"}, fabric("4", "x")),
        node("c", {"uuid": "9", "nvlinkDomain": "l"}),
        node("d", {"uuid": "8", "nvlinkDomain": "l"}),
    ]
    found = check(slices)
    assert len(found) == 3
    assert found == check(reversed(slices))
