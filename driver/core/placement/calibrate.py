# SPDX-License-Identifier: Apache-2.0
"""Chooses our policy's weights for a cluster and a demand mix by trying them beforehand.

The policy simulates itself: a small copy of the cluster is filled with streams
drawn from the mix, once for every row of ``CANDIDATES``, and once with FGD as a
floor. Seeds are fixed, so the same cluster and mix always give the same
weights; nothing is known of the requests that will really come. Where no row
stays above the floor, the one that misses it least is taken.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.fgd import Fgd
from gpudra.driver.core.placement.rows import RowPlacer
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import FULL_CARD, NodeSpec, Request, Weights
from gpudra.driver.core.placement.waste import WastePlacer

SMALL_CLUSTER = 1500
"""Cards of the small copy: a quarter of the trace's cluster ranks the candidates as the whole does."""

STREAM_SEEDS = (90_001, 90_002, 90_003)
FINALISTS = 3
UNTIL = 1.3
"""Requested amount at the end of a trial, over capacity (the published protocol's end)."""

LONGEST_STREAM = 30_000
"""Requests of one trial at most, for mixes that hardly ask for cards."""

FLOOR_MARGIN = 0.4
"""Percent by which a candidate must beat FGD when all cards are requested; covers the trial's noise."""

FLOOR_WEIGHT = 3.0
FULL_WEIGHT = 0.2
"""What a percent at "100 % requested" counts beside a percent at the end."""

LOADED = 0.9
LOADED_WEIGHT = 5.0
"""For a steady cluster: requested part at which hardly anything should be refused yet, and its weight."""

CANDIDATES: tuple[Weights, ...] = (
    Weights(
        horizon=0.0109,
        shortage=1.934,
        need=0.8032,
        spread=0.9949,
        group=0.3598,
        fresh=0.0728,
        memory=1,
    ),
    Weights(
        horizon=0.0237,
        shortage=4.4358,
        need=0.9267,
        spread=0.4899,
        group=0.0855,
        fresh=0.0965,
        memory=0.5,
    ),
    Weights(
        horizon=0.0245,
        shortage=0.6804,
        need=0.9468,
        spread=1.2376,
        group=1.3066,
        fresh=0.091,
        memory=0.15,
    ),
    Weights(
        horizon=0.0064,
        shortage=2.418,
        need=0.6761,
        spread=1.6683,
        group=0.2992,
        fresh=0.0665,
        memory=0.1374,
    ),
    Weights(
        horizon=0.0041,
        shortage=1.7064,
        need=0.8968,
        spread=1.4763,
        group=0.1658,
        fresh=0.0425,
        memory=1.5,
    ),
    Weights(
        horizon=0.0144,
        shortage=14.6,
        need=0.829,
        spread=0.088,
        group=0.267,
        fresh=0.0635,
        memory=0.68,
    ),
    Weights(horizon=0.005, shortage=3, need=0.8, spread=1.5, group=0.4, fresh=0, memory=0.5),
    Weights(
        horizon=0.0234,
        shortage=1.5789,
        need=0.818,
        spread=0.8909,
        group=2.0356,
        fresh=0.074,
        memory=0.1069,
    ),
    Weights(
        horizon=0.154,
        shortage=11.159,
        need=1.3343,
        spread=0.1073,
        group=0.0002,
        fresh=0.1508,
        memory=2.1033,
    ),
)


class Goal(Enum):
    """What the weights are chosen for.

    FILL: requests stay, and the amount allocated in the end counts (the published
    protocol). STEADY: requests leave again, and what counts is to refuse nothing
    while there is room; squeezing out large requests would not pay.
    """

    FILL = "fill"
    STEADY = "steady"


@dataclass(frozen=True, slots=True)
class Trial:
    """Allocated percent of the small cluster: at the end, at 100 % and at LOADED requested."""

    end: float
    full: float
    loaded: float

    def score(self, goal: Goal, floor: float) -> float:
        """What the trial is worth when ``floor`` percent should be reached at 100 % requested."""
        if goal is Goal.STEADY:
            return LOADED_WEIGHT * self.loaded + self.full
        return self.end + FULL_WEIGHT * self.full - FLOOR_WEIGHT * max(0.0, floor - self.full)


def calibrated_weights(
    nodes: Sequence[NodeSpec], mix: DemandMix, goal: Goal = Goal.FILL
) -> Weights:
    """The best candidate for this cluster and mix; the first one where nothing can be tried.

    All candidates see the first stream; the best FINALISTS see the others too
    and are ranked by the mean.
    """
    cluster = small_copy(nodes)
    streams = [draw_stream(cluster, mix, seed) for seed in STREAM_SEEDS]
    if not all(streams):
        return CANDIDATES[0]
    floors = [_fill(Fgd(ClusterState(cluster), mix), s).full + FLOOR_MARGIN for s in streams]
    scores: dict[int, list[float]] = {}
    remaining = list(range(len(CANDIDATES)))
    for stream, floor in zip(streams, floors, strict=True):
        for number in remaining:
            placer = WastePlacer(ClusterState(cluster), mix, CANDIDATES[number])
            scores.setdefault(number, []).append(_fill(placer, stream).score(goal, floor))
        remaining.sort(key=lambda n: (-sum(scores[n]), n))
        remaining = remaining[:FINALISTS]
    return CANDIDATES[remaining[0]]


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
    """Requests drawn from the mix until UNTIL times the cards are requested.

    Drawn in blocks of about one cluster's worth: within a block every request
    comes as often as the mix says (systematic sampling), in random order. That
    takes the noise of the composition out of the comparison. Empty where the mix
    asks for no cards, or the stream would grow too long.
    """
    capacity = sum(node.cards for node in nodes) * FULL_CARD
    pairs = list(zip(mix.kinds, mix.probabilities, strict=True))
    average = sum(p * r.amount_milli for r, p in pairs)
    if not average or not capacity or UNTIL * capacity / average > LONGEST_STREAM:
        return []
    rng = random.Random(seed)  # noqa: S311 - reproducible by design
    cumulative = list(accumulate(mix.probabilities))
    block = max(1, round(capacity / average))
    stream: list[Request] = []
    requested = 0
    while True:
        offset = rng.random()
        points = [min((i + offset) / block, cumulative[-1]) for i in range(block)]
        drawn = [mix.kinds[bisect_left(cumulative, point)] for point in points]
        rng.shuffle(drawn)
        for request in drawn:
            stream.append(request)
            requested += request.amount_milli
            if requested >= UNTIL * capacity:
                return stream


def _fill(placer: RowPlacer, stream: Sequence[Request]) -> Trial:
    capacity = placer.state.capacity_milli
    allocated = requested = 0
    marks: dict[float, float] = {}
    for request in stream:
        place = placer.choose(request)
        requested += request.amount_milli
        if place is not None:
            placer.commit(request, place)
            allocated += request.amount_milli
        for mark in (LOADED, 1.0):
            if mark not in marks and requested >= mark * capacity:
                marks[mark] = 100.0 * allocated / capacity
    end = 100.0 * allocated / capacity
    return Trial(end, marks.get(1.0, end), marks.get(LOADED, end))
