# SPDX-License-Identifier: Apache-2.0
"""The demand mix, counted from a list or learned from history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.driver.core.placement.demand import DemandLearner, DemandMix
from gpudra.driver.core.placement.types import PlacementError, share
from tests.unit.placement.generators import requests


@given(stream=st.lists(requests(), min_size=1, max_size=30), order=st.randoms())
def test_the_mix_does_not_depend_on_the_order(stream: list, order: object) -> None:  # type: ignore[type-arg]
    """The same requests in any order give the same kinds, order and probabilities."""
    shuffled = list(stream)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    mix = DemandMix.of(stream)
    assert mix == DemandMix.of(shuffled)
    assert sum(mix.probabilities) == pytest.approx(1.0)
    assert list(mix.probabilities) == sorted(mix.probabilities, reverse=True)


def test_the_head_of_the_mix_covers_the_wanted_part() -> None:
    """Kinds are taken by frequency until the part is reached, then scaled to one."""
    mix = DemandMix.of([share(100)] * 6 + [share(200)] * 3 + [share(300)])
    assert mix.most_frequent(0.9).kinds == (share(100), share(200))
    assert mix.most_frequent(0.9).probabilities == pytest.approx((2 / 3, 1 / 3))
    assert mix.most_frequent(0.91).kinds == mix.kinds


def test_an_empty_list_gives_an_empty_mix() -> None:
    """No requests, no kinds; nothing is divided by zero."""
    assert DemandMix.of([]) == DemandMix((), ())


def test_what_was_asked_long_ago_counts_less() -> None:
    """After one half-life an old request weighs half of a new one."""
    learner = DemandLearner(half_life_s=60)
    learner.observe(share(100), 0.0)
    learner.observe(share(200), 60.0)
    assert learner.mix().kinds == (share(200), share(100))
    assert learner.mix().probabilities == pytest.approx((2 / 3, 1 / 3))


def test_a_clock_set_back_does_no_harm() -> None:
    """An earlier time counts as the last one: nothing grows."""
    learner = DemandLearner(half_life_s=60)
    learner.observe(share(100), 100.0)
    learner.observe(share(200), 0.0)
    assert learner.mix().probabilities == pytest.approx((0.5, 0.5))


def test_the_learner_forgets_the_lightest_beyond_its_limit() -> None:
    """Memory is bounded: with room for two kinds the weakest of three goes."""
    learner = DemandLearner(half_life_s=60, limit=2)
    for at_s, size in enumerate((100, 200, 200, 300)):
        learner.observe(share(size), float(at_s))
    assert set(learner.mix().kinds) == {share(200), share(300)}
    with pytest.raises(PlacementError):
        DemandLearner(half_life_s=0)


def test_a_mix_of_countless_kinds_is_looked_at_coarsely() -> None:
    """Sizes are rounded up in doubling steps until few kinds are left; small mixes stay as they are."""
    many = DemandMix.of([share(i % 900 + 50, cpu_milli=i * 7) for i in range(3000)])
    coarse = many.coarse(200)
    assert len(coarse.kinds) <= 200
    assert sum(coarse.probabilities) == pytest.approx(1.0)
    assert max(kind.card_milli for kind in coarse.kinds) <= 1000
    few = DemandMix.of([share(123, cpu_milli=7)])
    assert few.coarse(200) is few
