# SPDX-License-Identifier: Apache-2.0
"""The cluster state: what fits, what is taken, and what is refused."""

import pytest

from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import (
    MigProfile,
    MigTable,
    NodeSpec,
    Placement,
    PlacementError,
    Request,
    share,
    whole_cards,
)

A100 = MigTable((MigProfile("1g", 1, (0, 1, 2, 3, 4, 5, 6)), MigProfile("3g", 4, (0, 4))))


def two_nodes() -> ClusterState:
    """A node of two cards and one of four, of different models."""
    return ClusterState(
        [NodeSpec("a", 8000, 1024, 2, "T4"), NodeSpec("b", 16000, 2048, 4, "G2", mig=A100)]
    )


def test_take_and_give_leave_the_state_as_it_was() -> None:
    """What one take changed, the matching give restores exactly."""
    state = two_nodes()
    request, place = share(300, cpu_milli=1000, memory_mib=100), Placement(0, (1,))
    state.take(request, place)
    assert (state.cpu[0], state.memory[0], state.compute[0, 1]) == (7000, 924, 700)
    state.give(request, place)
    assert (state.cpu[0], state.memory[0], state.compute[0, 1]) == (8000, 1024, 1000)


@pytest.mark.parametrize(
    ("request_", "place", "words"),
    [
        (whole_cards(2), Placement(0, (0,)), "2 different cards"),
        (whole_cards(2), Placement(0, (1, 1)), "2 different cards"),
        (whole_cards(1), Placement(0, (2,)), "no such card"),
        (whole_cards(1), Placement(7, (0,)), "outside"),
        (whole_cards(1, cpu_milli=9000), Placement(0, (0,)), "not enough CPU"),
        (
            Request(cards=1, card_milli=5, models=frozenset({"X"})),
            Placement(0, (0,)),
            "not allowed",
        ),
    ],
)
def test_take_refuses_what_is_not_there(request_: Request, place: Placement, words: str) -> None:
    """A wrong placement is refused by name and changes nothing."""
    state = two_nodes()
    with pytest.raises(PlacementError, match=words):
        state.take(request_, place)
    assert state.cpu.tolist() == [8000, 16000]
    assert state.free_milli == 6000


def test_give_refuses_what_was_not_held() -> None:
    """Releasing twice is an error, not more capacity than there is."""
    state = two_nodes()
    with pytest.raises(PlacementError, match="was not held"):
        state.give(share(100), Placement(0, (0,)))


def test_a_share_keeps_a_whole_card_request_away() -> None:
    """A card in use by a share is not given whole, and a whole card takes no share."""
    state = two_nodes()
    state.take(share(1), Placement(0, (0,)))
    assert not state.fits(whole_cards(2), 0)
    state.take(whole_cards(1), Placement(0, (1,)))
    assert state.open_cards(share(100), 0) == [0]


def test_a_share_of_all_compute_and_half_the_memory_is_still_a_share() -> None:
    """A whole card means all of both; a memory-only share may still join the rest."""
    request = share(1000, memory_milli=500)
    assert not request.whole
    state = two_nodes()
    state.take(request, Placement(0, (0,)))
    assert state.open_cards(share(0, memory_milli=500), 0) == [0, 1]
    assert state.open_cards(share(1, memory_milli=10), 0) == [1]


def test_mig_slices_exclude_each_other_and_shares() -> None:
    """Overlapping instances are refused; a card with instances is neither shared nor given whole."""
    state = two_nodes()
    big = Request(cards=1, mig_profile="3g")
    small = Request(cards=1, mig_profile="1g")
    state.take(big, Placement(1, (0,), 4))
    with pytest.raises(PlacementError, match="slices at 5 are taken"):
        state.take(small, Placement(1, (0,), 5))
    with pytest.raises(PlacementError, match="cannot start"):
        state.take(big, Placement(1, (1,), 2))
    assert state.open_cards(share(10), 1) == [1, 2, 3]
    assert state.free_milli == 6000 - 500
    state.give(big, Placement(1, (0,), 4))
    assert state.open_cards(whole_cards(4), 1) == [0, 1, 2, 3]
    with pytest.raises(PlacementError, match="were not held"):
        state.give(big, Placement(1, (0,), 4))


@pytest.mark.parametrize(
    "bad",
    [
        {"cpu_milli": -1},
        {"cards": 1, "card_milli": 1001},
        {"cards": 1, "card_memory_milli": -5},
        {"cards": 0, "card_milli": 10},
        {"cards": 2, "mig_profile": "1g"},
    ],
)
def test_impossible_requests_are_refused(bad: dict[str, object]) -> None:
    """A request that no node could serve consistently cannot be made."""
    with pytest.raises(PlacementError):
        Request(**bad)  # type: ignore[arg-type]


def test_impossible_nodes_are_refused() -> None:
    """No nodes, negative capacity and topology of another width are errors."""
    with pytest.raises(PlacementError, match="at least one node"):
        ClusterState([])
    with pytest.raises(PlacementError, match="negative capacity"):
        ClusterState([NodeSpec("a", -1, 0, 1, "T4")])
    with pytest.raises(PlacementError, match="3 entries for 2 cards"):
        ClusterState([NodeSpec("a", 1, 0, 2, "T4", (0, 0, 0))])
