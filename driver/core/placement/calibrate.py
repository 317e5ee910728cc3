# SPDX-License-Identifier: Apache-2.0
"""Chooses our policy's weights for a cluster and a demand mix by trying them beforehand.

The policy simulates itself: a small copy of the cluster is filled with streams
drawn from the mix, once for every row of ``CANDIDATES``, and once with FGD as a
floor. Seeds are fixed, so the same cluster and mix always give the same
weights; nothing is known of the requests that will really come. Where no row
stays above the floor, the one that misses it least is taken.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.fgd import Fgd
from gpudra.driver.core.placement.rows import RowPlacer
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import FULL_CARD, NodeSpec, Request, Weights
from gpudra.driver.core.placement.waste import WastePlacer

SMALL_CLUSTER = 1500
"""Cards of the small copy: a quarter of the trace's cluster ranks the candidates as the whole does."""

STREAM_SEEDS = (90_001, 90_002)
UNTIL = 1.3
"""Requested amount at the end of a trial, over capacity (the published protocol's end)."""

LONGEST_STREAM = 30_000
"""Requests of one trial at most, for mixes that hardly ask for cards."""

FLOOR_MARGIN = 0.4
"""Percent by which a candidate must beat FGD when all cards are requested; covers the trial's noise."""

FLOOR_WEIGHT = 3.0
FULL_WEIGHT = 0.2
"""What a percent at "100 % requested" counts beside a percent at the end."""

CANDIDATES: tuple[Weights, ...] = (
    Weights(horizon=0.0109, fresh=0.0728, shortage=1.934, need=0.8032, spread=0.9949, group=0.3598),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """Allocated percent of the small cluster: at the end, and at 100 % requested."""

    end: float
    full: float


def calibrated_weights(nodes: Sequence[NodeSpec], mix: DemandMix) -> Weights:
    """The best candidate for this cluster and mix; the first one where nothing can be tried."""
    cluster = small_copy(nodes)
    streams = [draw_stream(cluster, mix, seed) for seed in STREAM_SEEDS]
    if not all(streams):
        return CANDIDATES[0]
    anchor = _trials(cluster, streams, lambda state: Fgd(state, mix))
    floor = anchor.full + FLOOR_MARGIN
    best, best_score = CANDIDATES[0], float("-inf")
    for weights in CANDIDATES:
        trial = _trials(cluster, streams, lambda s, w=weights: WastePlacer(s, mix, w))  # type: ignore[misc]
        score = trial.end + FULL_WEIGHT * trial.full - FLOOR_WEIGHT * max(0.0, floor - trial.full)
        if score > best_score:
            best, best_score = weights, score
    return best


def small_copy(nodes: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Every n-th node of each type, in list order, so that about SMALL_CLUSTER cards remain."""
    cards = sum(node.cards for node in nodes)
    step = max(1, cards // SMALL_CLUSTER)
    seen: dict[tuple[object, ...], int] = {}
    kept: list[NodeSpec] = []
    for node in nodes:
        kind = (node.model, node.cards, node.cpu_milli, node.memory_mib)
        count = seen.get(kind, step // 2)
        seen[kind] = count + 1
        if count % step == 0:
            kept.append(node)
    return kept or list(nodes)


def draw_stream(nodes: Sequence[NodeSpec], mix: DemandMix, seed: int) -> list[Request]:
    """Independent draws from the mix until UNTIL times the cards are requested.

    Empty where the mix asks for no cards, or the stream would grow too long.
    """
    wanted = UNTIL * sum(node.cards for node in nodes) * FULL_CARD
    mean = sum(p * r.amount_milli for r, p in zip(mix.kinds, mix.probabilities, strict=True))
    if not mean or not wanted or wanted / mean > LONGEST_STREAM:
        return []
    rng = random.Random(seed)  # noqa: S311 - reproducible by design
    weights = list(accumulate(mix.probabilities))
    stream: list[Request] = []
    requested = 0
    while requested < wanted:
        request = rng.choices(mix.kinds, cum_weights=weights)[0]
        stream.append(request)
        requested += request.amount_milli
    return stream


def _trials(
    nodes: Sequence[NodeSpec],
    streams: Sequence[Sequence[Request]],
    make: Callable[[ClusterState], RowPlacer],
) -> Trial:
    trials = [_fill(make(ClusterState(nodes)), stream) for stream in streams]
    count = len(trials)
    return Trial(sum(t.end for t in trials) / count, sum(t.full for t in trials) / count)


def _fill(placer: RowPlacer, stream: Sequence[Request]) -> Trial:
    capacity = placer.state.capacity_milli
    allocated = requested = 0
    full: float | None = None
    for request in stream:
        place = placer.choose(request)
        requested += request.amount_milli
        if place is not None:
            placer.commit(request, place)
            allocated += request.amount_milli
        if full is None and requested >= capacity:
            full = 100.0 * allocated / capacity
    end = 100.0 * allocated / capacity
    return Trial(end, end if full is None else full)
