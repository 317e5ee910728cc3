# SPDX-License-Identifier: Apache-2.0
"""The waste tables, the shortage term and the model price, on cases that can be worked out by hand."""

import numpy as np
import pytest

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.prices import ModelPrices
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.tables import expected_shortage, waste_tables
from gpudra.driver.core.placement.types import (
    NodeSpec,
    Placement,
    Request,
    Weights,
    share,
    whole_cards,
)
from gpudra.driver.core.placement.waste import WastePlacer


def on(models: set[str], cards: int = 1) -> Request:
    """Whole cards of these models only."""
    return Request(0, 0, cards, 1000, 1000, frozenset(models))


def test_the_waste_of_a_hole_is_what_the_recursion_says() -> None:
    """Halves only: 600 is filled to 100 but for the chance h that nothing comes."""
    table = waste_tables(DemandMix.of([share(500)]), 1, 0.01).columns[:, 0]
    assert table[0] == 0
    assert table[499] == pytest.approx(0.499)
    assert table[600] == pytest.approx((0.01 * 0.6 + 1.0 * 0.1) / 1.01)
    assert table[1000] == pytest.approx((0.01 * 1.0 + table[500]) / 1.01)


def test_a_card_passes_on_the_cpu_of_all_that_will_fit_on_it() -> None:
    """With halves of 4 cores each, a fresh card asks for nearly 8 cores and has no variance to speak of."""
    columns = waste_tables(DemandMix.of([share(500, cpu_milli=4000)]), 1, 1e-6).columns
    assert columns[1000, 1] == pytest.approx(8000, rel=1e-4)
    assert columns[1000, 2] == pytest.approx(0.0, abs=100.0)
    mixed = [share(1000, cpu_milli=2000), share(1000, cpu_milli=6000)]
    assert waste_tables(DemandMix.of(mixed), 1, 1e-6).columns[1000, 2] == pytest.approx(
        4e6, rel=1e-3
    )


def test_cpu_only_requests_do_not_change_what_a_card_needs() -> None:
    """CPU per card is what requests for cards ask for; others are seen when they come."""
    bare = waste_tables(DemandMix.of([whole_cards(1, cpu_milli=4000)]), 1, 0.01)
    mixed = waste_tables(
        DemandMix.of([whole_cards(1, cpu_milli=4000), Request(cpu_milli=64_000)]), 1, 0.01
    )
    assert mixed.cpu_per_card == bare.cpu_per_card == 4000


def test_an_empty_mix_takes_everything_free_for_wasted() -> None:
    """Without history the table is the free amount, and the policy still places."""
    assert waste_tables(DemandMix((), ()), 2, 0.01).columns[700, 0] == pytest.approx(0.7)
    placer = WastePlacer(
        ClusterState([NodeSpec("a", 1000, 1000, 1, "T4")]), DemandMix((), ()), Weights()
    )
    assert placer.choose(share(100)) == Placement(0, (0,))


def test_the_expected_shortage_is_the_newsvendor_loss() -> None:
    """Plenty means no loss, a sure lack is itself, and level means 0.3989 deviations."""
    have, need = np.array([100.0, 0.0, 50.0]), np.array([50.0, 80.0, 50.0])
    loss = expected_shortage(have, need, np.array([1.0, 1.0, 10.0]))
    assert loss == pytest.approx([0.0, 80.0, 3.98942], abs=1e-4)
    z = 0.7371
    exact = 10 * (np.exp(-z * z / 2) / np.sqrt(2 * np.pi) - z * 0.2305300)
    assert expected_shortage(
        np.array([z * 10]), np.array([0.0]), np.array([10.0])
    ) == pytest.approx([exact], abs=1e-4)


def test_cpu_is_kept_for_the_cards_that_need_it() -> None:
    """A CPU-only request goes to the node whose cards will not miss the CPU, though it comes second."""
    mix = DemandMix.of([whole_cards(1, cpu_milli=8000)] * 9 + [Request(cpu_milli=8000)])
    tight = NodeSpec("tight", 16_000, 1 << 20, 2, "T4")
    rich = NodeSpec("rich", 64_000, 1 << 20, 2, "T4")
    place = WastePlacer(ClusterState([tight, rich]), mix, Weights()).choose(Request(cpu_milli=8000))
    assert place == Placement(1)


def test_a_node_without_enough_cards_takes_the_singles() -> None:
    """Singles go where the groups of the mix could not go anyway."""
    mix = DemandMix.of([whole_cards(1), whole_cards(4)])
    wide, narrow = (NodeSpec(n, 64_000, 1 << 20, c, "T4") for n, c in (("wide", 4), ("narrow", 2)))
    place = WastePlacer(ClusterState([wide, narrow]), mix, Weights()).choose(whole_cards(1))
    assert place is not None
    assert place.node == 1


def test_a_model_that_others_depend_on_is_left_to_them() -> None:
    """A request that may go anywhere avoids the model whose own demand would fill it."""
    mix = DemandMix.of([on({"T4"})] * 5 + [whole_cards(1)] * 5)
    nodes = [NodeSpec("t4", 64_000, 1 << 20, 4, "T4"), NodeSpec("g2", 64_000, 1 << 20, 8, "G2")]
    placer = WastePlacer(ClusterState(nodes), mix, Weights())
    place = placer.choose(whole_cards(1))
    assert place is not None
    assert place.node == 1
    scarce = placer.choose(on({"T4"}))
    assert scarce is not None
    assert scarce.node == 0


def test_prices_spread_demand_as_evenly_as_it_allows() -> None:
    """Half of all needs T4: 4 T4 of 12 cards carry more than their part, G2 the rest at no price."""
    prices = ModelPrices(("G2", "T4"), DemandMix.of([on({"T4"}), whole_cards(1)]))
    assert prices.needed
    # T4 carries 0.5 / 4 a card, G2 0.5 / 8: the price is 1 - 1/2.
    assert prices.at((8, 4)) == pytest.approx([0.0, 0.5])
    # With 8 of each the free demand evens it out: no price.
    assert prices.at((8, 8)) == pytest.approx([0.0, 0.0])
    assert prices.at((0, 0)) == pytest.approx([0.0, 0.0])


def test_a_model_that_is_used_up_has_no_price_and_blocks_no_other() -> None:
    """Demand that lost its model goes on with the others it allows."""
    mix = DemandMix.of([on({"A", "B"}), on({"C"}), on({"A"})])
    prices = ModelPrices(("A", "B", "C"), mix)
    assert prices.at((0, 4, 4)) == pytest.approx([0.0, 0.0, 0.0])
    assert prices.at((4, 0, 4))[0] > prices.at((4, 0, 4))[2] == 0


def test_without_model_limits_no_prices_are_needed() -> None:
    """Demand that all models can serve alike makes prices superfluous."""
    assert not ModelPrices(("A", "B"), DemandMix.of([share(500), whole_cards(1)])).needed


def test_many_models_are_grouped_within_bounds() -> None:
    """Thirty models with a demand each are looked at as ten groups, in little time and memory."""
    models = tuple(f"m{i:02d}" for i in range(30))
    prices = ModelPrices(models, DemandMix.of([on({m}) for m in models] + [whole_cards(1)]))
    found = prices.at(tuple(range(1, 31)))
    assert len(found) == 30
    assert found.min() >= 0
    assert found.max() < 1
