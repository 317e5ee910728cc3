# SPDX-License-Identifier: Apache-2.0
"""The topology term: good sets of cards stay whole as long as something else will do."""

import pytest

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.topology import TopologyTerm
from gpudra.driver.core.placement.types import (
    NodeSpec,
    Placement,
    PlacementError,
    Weights,
    share,
    whole_cards,
)
from gpudra.driver.core.placement.waste import WastePlacer

PAIRS = ((0, 0, 1, 1), (-1, -1, -1, -1))


def node(name: str, linked: tuple[int, ...], switch: tuple[int, ...] = ()) -> NodeSpec:
    """A roomy node with that topology."""
    return NodeSpec(name, 256_000, 1 << 20, len(linked), "H100", linked, switch)


def test_stuck_cards_are_weighted_by_what_they_can_no_longer_serve() -> None:
    """A pair with one card left costs that card times the demand for pairs; an intact pair costs nothing."""
    term = TopologyTerm({2: 0.4})
    assert term.potential(PAIRS, 0b1111) == 0
    assert term.potential(PAIRS, 0b1110) == pytest.approx(0.4)
    assert term.potential(PAIRS, 0b1100) == 0
    assert term.potential(PAIRS, 0b1010) == pytest.approx(0.8)


def test_a_group_larger_than_a_set_does_not_count_against_it() -> None:
    """Sets of two are not blamed for groups of four that they never could hold."""
    assert TopologyTerm({4: 1.0}).potential(PAIRS, 0b1110) == 0


def test_a_broken_switch_pair_costs_half_a_broken_link() -> None:
    """PCIe switches count as sets of their own, at half the weight."""
    term = TopologyTerm({2: 1.0})
    none = (-1, -1)
    assert term.potential(((0, 0), none), 0b01) == pytest.approx(1.0)
    assert term.potential((none, (0, 0)), 0b01) == pytest.approx(0.5)


def test_a_single_takes_the_unlinked_card() -> None:
    """Between equal cards a one-card request takes the one that is in no set."""
    mix = DemandMix.of([whole_cards(1), whole_cards(2, linked=True), share(300)])
    for request in (whole_cards(1), share(300)):
        placer = WastePlacer(ClusterState([node("a", (0, 0, -1, 1, 1))]), mix, Weights())
        place = placer.choose(request)
        assert place is not None
        assert place.cards == (2,)


def test_a_second_single_finishes_the_broken_pair() -> None:
    """Once a pair is broken the next single takes its other card."""
    placer = WastePlacer(
        ClusterState([node("a", (0, 0, 1, 1))]),
        DemandMix.of([whole_cards(1), whole_cards(2, linked=True)]),
        Weights(),
    )
    placer.commit(whole_cards(1), Placement(0, (2,)))
    assert placer.choose(whole_cards(1)) == Placement(0, (3,))


def test_a_linked_pair_finds_the_set_that_fits_it() -> None:
    """A pair goes into a free set of two, not into half of a set of four."""
    placer = WastePlacer(
        ClusterState([node("a", (0, 0, 0, 0, 1, 1))]),
        DemandMix.of([whole_cards(2, linked=True), whole_cards(4, linked=True)]),
        Weights(),
    )
    assert placer.choose(whole_cards(2, linked=True)) == Placement(0, (4, 5))


def test_a_linked_pair_prefers_the_node_where_it_is_linked() -> None:
    """Of two nodes, the one that can connect the pair is chosen although it is second."""
    placer = WastePlacer(
        ClusterState([node("apart", (0, 1)), node("together", (0, 0))]),
        DemandMix.of([whole_cards(2, linked=True)]),
        Weights(),
    )
    place = placer.choose(whole_cards(2, linked=True))
    assert place is not None
    assert place.node == 1


def test_large_groups_on_wide_nodes_are_searched_in_bounds() -> None:
    """Thirteen of 32 cards would be 347 million sets; runs of cards by set are tried instead."""
    sets = (tuple(i // 16 for i in range(32)), (-1,) * 32)
    cost, mask = TopologyTerm({13: 1.0}).best_group(sets, (1 << 32) - 1, 13, True)
    assert mask.bit_count() == 13
    assert mask & 0xFFFF in (0, mask)
    assert cost == pytest.approx(3.0)


def test_too_few_free_cards_are_an_error() -> None:
    """The caller has to check first that the group fits."""
    with pytest.raises(PlacementError, match="2 are free"):
        TopologyTerm({2: 1.0}).best_group(PAIRS, 0b0011, 3, False)
