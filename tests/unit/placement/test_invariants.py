# SPDX-License-Identifier: Apache-2.0
"""Conservation and feasibility at every step, for every policy, over random histories."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.policies import NAMES, OURS, prepare
from gpudra.driver.core.placement.rows import RowPlacer
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import NodeSpec, Placement, Request, Weights
from tests.unit.placement.generators import nodes, requests

Held = list[tuple[Request, Placement]]


def placer(policy: str, cluster: list[NodeSpec], mix: DemandMix) -> RowPlacer:
    """A policy bound to a fresh state; ours without its trials."""
    weights = Weights() if policy == OURS else None
    return prepare(policy, cluster, mix, weights=weights)(ClusterState(cluster), 1)


def check_conservation(state: ClusterState, cluster: list[NodeSpec], held: Held) -> None:
    """What is free plus what is held is the cluster, in every column."""
    again = ClusterState(cluster)
    for request, place in held:
        again.take(request, place)
    for column in ("cpu", "memory", "compute", "card_memory", "mig"):
        assert np.array_equal(getattr(state, column), getattr(again, column)), column
    assert state.cpu.min() >= 0
    assert state.memory.min() >= 0
    assert state.compute.min() >= 0


@pytest.mark.parametrize("policy", NAMES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_step_is_feasible_and_nothing_is_lost(policy: str, data: st.DataObject) -> None:
    """Each choice fits, a request is refused only when no node fits, and amounts are conserved."""
    cluster = data.draw(nodes())
    stream = data.draw(st.lists(requests(), min_size=1, max_size=25))
    chosen = placer(policy, cluster, DemandMix.of(stream))
    held: Held = []
    for request in stream:
        if held and data.draw(st.booleans()):
            chosen.release(*held.pop(data.draw(st.integers(0, len(held) - 1))))
        fitting = [n for n in range(len(cluster)) if chosen.state.fits(request, n)]
        place = chosen.choose(request)
        assert (place is not None) == bool(fitting)
        if place is not None:
            assert place.node in fitting
            chosen.commit(request, place)
            held.append((request, place))
        check_conservation(chosen.state, cluster, held)
    while held:
        chosen.release(*held.pop())
    check_conservation(chosen.state, cluster, [])


@pytest.mark.parametrize("policy", [name for name in NAMES if name != "random"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_long_history_chooses_like_a_fresh_start(policy: str, data: st.DataObject) -> None:
    """Kept scores never differ from those of a placer that has only seen the present state."""
    cluster = data.draw(nodes())
    stream = data.draw(st.lists(requests(), min_size=2, max_size=20))
    mix = DemandMix.of(stream)
    old = placer(policy, cluster, mix)
    held: Held = []
    for request in stream:
        place = old.choose(request)
        if place is not None:
            old.commit(request, place)
            held.append((request, place))
        if len(held) > 3:
            old.release(*held.pop(0))
    fresh = placer(policy, cluster, mix)
    for request, place in held:
        fresh.commit(request, place)
    for request in set(stream):
        assert old.choose(request) == fresh.choose(request)
