# SPDX-License-Identifier: Apache-2.0
"""MIG placements that keep big profiles possible, and shares by memory and compute."""

import pytest

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.tables import mig_waste
from gpudra.driver.core.placement.types import (
    MigProfile,
    MigTable,
    NodeSpec,
    Placement,
    PlacementError,
    Request,
    Weights,
    share,
)
from gpudra.driver.core.placement.waste import WastePlacer

TABLE = MigTable(
    (
        MigProfile("1g", 1, (0, 1, 2, 3, 4, 5, 6)),
        MigProfile("2g", 2, (0, 2, 4)),
        MigProfile("3g", 4, (0, 4)),
        MigProfile("7g", 8, (0,)),
    )
)


def mig(profile: str) -> Request:
    """A request for one instance."""
    return Request(cards=1, mig_profile=profile)


def placer(cards: int, *profiles: str) -> WastePlacer:
    """One node with that many MIG cards, and a mix of these profiles."""
    node = NodeSpec("a", 256_000, 1 << 20, cards, "A100", mig=TABLE)
    return WastePlacer(ClusterState([node]), DemandMix.of(map(mig, profiles)), Weights())


def test_a_small_instance_goes_where_the_half_card_stays_whole() -> None:
    """With one small instance at 4, the next one goes beside it, so that 3g still fits at 0."""
    ours = placer(1, "1g", "3g")
    ours.commit(mig("1g"), Placement(0, (0,), 4))
    place = ours.choose(mig("1g"))
    assert place is not None
    assert place.mig_start in {5, 6}
    ours.commit(mig("1g"), place)
    assert ours.choose(mig("3g")) == Placement(0, (0,), 0)


def test_small_instances_gather_on_one_card() -> None:
    """A begun card is used up before the next is begun, so that whole-card profiles stay possible."""
    ours = placer(2, "1g", "1g", "7g")
    for _ in range(4):
        place = ours.choose(mig("1g"))
        assert place is not None
        assert place.cards == (0,)
        ours.commit(mig("1g"), place)
    assert ours.choose(mig("7g")) == Placement(0, (1,), 0)


def test_the_expected_unused_part_of_a_card_follows_the_demand() -> None:
    """A full card wastes nothing; where only 7g is asked for, a begun card is lost."""
    waste = mig_waste(TABLE, DemandMix.of([mig("7g")]), 0.01)
    assert waste[0b1111_1111] == 0
    assert waste[0] < 0.02
    assert waste[0b0000_0001] == pytest.approx(7 / 8)


def test_without_known_profile_demand_all_profiles_count_alike() -> None:
    """A mix that names no profile still keeps the upper half, whose last slice only 3g can use."""
    waste = mig_waste(TABLE, DemandMix.of([share(500)]), 0.01)
    assert waste[0b0000_1000] < waste[0b0001_0000]


def test_a_malformed_profile_is_refused() -> None:
    """Profiles that reach past the card, or that cannot start anywhere, are errors."""
    with pytest.raises(PlacementError, match="past slice"):
        MigProfile("9g", 4, (5,))
    with pytest.raises(PlacementError, match="starts"):
        MigProfile("0g", 1, ())


def two_cards(*stream: Request) -> WastePlacer:
    """One node with two shared cards."""
    node = NodeSpec("a", 256_000, 1 << 20, 2, "L4")
    return WastePlacer(ClusterState([node]), DemandMix.of(stream), Weights())


def test_a_share_balances_memory_against_compute() -> None:
    """A memory-heavy share goes to the card that has memory left over, not compute."""
    heavy_compute = share(600, memory_milli=200)
    heavy_memory = share(200, memory_milli=600)
    ours = two_cards(heavy_compute, heavy_memory, share(400))
    ours.commit(heavy_compute, Placement(0, (0,)))
    ours.commit(heavy_memory, Placement(0, (1,)))
    first = ours.choose(share(100, memory_milli=500))
    assert first == Placement(0, (0,))
    assert ours.choose(share(500, memory_milli=100)) == Placement(0, (1,))


def test_a_share_that_fits_in_compute_only_does_not_fit() -> None:
    """Both must be free: memory decides where compute would still do."""
    ours = two_cards(share(100))
    for card in (0, 1):
        ours.commit(share(100, memory_milli=900), Placement(0, (card,)))
    assert ours.choose(share(100, memory_milli=200)) is None
    assert ours.choose(share(800, memory_milli=100)) is not None


def test_a_share_fills_the_hole_that_it_fits_exactly() -> None:
    """The expected waste is least where nothing is left: 190 goes beside 810."""
    ours = two_cards(share(810), share(190), share(470))
    ours.commit(share(470), Placement(0, (0,)))
    ours.commit(share(810), Placement(0, (1,)))
    assert ours.choose(share(190)) == Placement(0, (1,))
