# SPDX-License-Identifier: Apache-2.0
"""FGD against the definition in the paper, worked out request by request in plain Python."""

from math import exp, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.fgd import Fgd
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import NodeSpec, Request, share, whole_cards
from tests.unit.placement.generators import nodes, requests


def fragment(cpu: int, free: list[int], model: str, mix: DemandMix) -> float:
    """F of a node: the mean, over the typical requests, of the free amount they cannot use."""
    total = 0.0
    for request, probability in zip(mix.kinds, mix.probabilities, strict=True):
        enough = [f for f in free if f >= request.card_milli]
        fits = (
            request.cards > 0
            and cpu >= request.cpu_milli
            and (not request.models or model in request.models)
            and len(enough) >= request.cards
        )
        total += probability * (sum(free) - (sum(enough) if fits else 0))
    return total


def typical(stream: list[Request]) -> DemandMix:
    """The published typical requests: 95 % of all, host memory ignored."""
    bare = [
        Request(r.cpu_milli, 0, r.cards, r.card_milli, r.card_memory_milli, r.models)
        for r in stream
    ]
    return DemandMix.of(bare).most_frequent(0.95)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_scores_are_those_of_the_definition(data: st.DataObject) -> None:
    """The cost on every node is minus the integer sigmoid score of the best card."""
    cluster = data.draw(nodes(plain=True))
    stream = data.draw(st.lists(requests(plain=True), min_size=1, max_size=12))
    placer, mix = Fgd(ClusterState(cluster), DemandMix.of(stream)), typical(stream)
    for request in stream[:6]:
        place = placer.choose(request)
        if place is not None:
            placer.commit(request, place)
    state = placer.state
    for request in stream:
        for node, spec in enumerate(cluster):
            if not state.fits(request, node):
                continue
            cpu, free = int(state.cpu[node]), [int(f) for f in state.compute[node, : spec.cards]]
            before = fragment(cpu, free, spec.model, mix)
            assert placer.fragment(node) == pytest.approx(before)
            scores = []
            options = [state.open_cards(request, node)[: request.cards]]
            if request.cards == 1 and not request.whole:
                options = [[card] for card in state.open_cards(request, node)]
            for cards in options:
                after = [f - request.card_milli * (c in cards) for c, f in enumerate(free)]
                gain = before - fragment(cpu - request.cpu_milli, after, spec.model, mix)
                # Beside a whole number the last bit of the sum decides; both answers are right.
                scores.append(100 / (1 + exp(-gain / 1000)))
            best = max(scores)
            assert -placer.cost(request, node) in {floor(best - 1e-9), floor(best + 1e-9)}


def test_a_share_fills_the_card_that_nothing_else_can_use() -> None:
    """With halves as the only demand, a half goes beside a half and not onto a fresh card."""
    state = ClusterState(
        [NodeSpec("a", 64000, 65536, 2, "T4"), NodeSpec("b", 64000, 65536, 2, "T4")]
    )
    placer = Fgd(state, DemandMix.of([share(500), whole_cards(2)]))
    placer.commit(share(500), first := placer.choose(share(500)) or pytest.fail("fits"))
    second = placer.choose(share(500))
    assert second is not None
    assert (second.node, second.cards) == (first.node, first.cards)
