# SPDX-License-Identifier: Apache-2.0
"""Fragmentation Gradient Descent as published: the anchor our policy is measured by.

Weng et al., "Beware of Fragmentation", USENIX ATC'23. For every typical request
m (the most frequent ones, 95 % of all) with probability p_m, a node's fragment
is all its free GPU amount if m does not fit, else the part on cards too small
for m; F is the mean over m. A request goes where F grows least. The change is
squeezed through a sigmoid into an integer 0..100, ties to the first node: both
belong to the published policy and are needed to match its figures.
"""

from dataclasses import dataclass, replace

import numpy as np

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.rows import BoolArray, FloatArray, RowPlacer
from gpudra.driver.core.placement.state import ClusterState, IntArray
from gpudra.driver.core.placement.types import FULL_CARD, Request

TYPICAL_PART = 0.95
"""Part of all requests that the typical ones make up (the authors' setting)."""

MOST_TYPICAL = 256
"""Typical kinds looked at one by one (the openb lists have up to 124); bounds time and memory."""

SCORE_SCALE = 100
"""Scores are integers up to this, as the scheduler framework has them."""


@dataclass(frozen=True, slots=True)
class _Typical:
    """The typical requests as columns: T requests of U distinct card demands."""

    cpu: FloatArray  # [T]
    weight: FloatArray  # [T, U]: p_m in the column of m's card demand, 0 elsewhere
    allowed: FloatArray  # [T, models]
    milli: IntArray  # [U] compute of one card
    cards: IntArray  # [U] number of cards


class Fgd(RowPlacer):
    """FGD for one cluster and one demand mix."""

    name = "fgd"

    def __init__(self, state: ClusterState, mix: DemandMix) -> None:
        super().__init__(state)
        self._typical = _columns(state, _typical(mix))

    def fragment(self, node: int) -> float:
        """F of one node now, in milli-cards."""
        nodes = np.array([node])
        total = self.state.compute[nodes].sum(axis=1)
        return float(self._fragment(nodes, self.state.cpu[nodes], self._fits(nodes), total)[0])

    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        cpu, free = self.state.cpu[nodes], self.state.compute[nodes]
        total = free.sum(axis=1)
        before = self._fragment(nodes, cpu, self._fits(nodes), total)
        after_cpu = cpu - request.cpu_milli
        if not request.cards:
            after = self._fragment(nodes, after_cpu, self._fits(nodes), total)
            return _score(before - after), np.zeros(len(nodes), dtype=np.int64)
        if request.whole:
            fits = self._fits_without(nodes, request.cards)
            left = total - request.amount_milli
            after = self._fragment(nodes, after_cpu, fits, left)
            return _score(before - after), np.zeros(len(nodes), dtype=np.int64)
        after_all = self._after_share(request, nodes, after_cpu, total)
        costs = np.where(
            self.open_cards(request, nodes), _score(before[:, None] - after_all), np.inf
        )
        card = costs.argmin(axis=1)
        return costs[np.arange(len(nodes)), card], card

    def _weights(self, nodes: IntArray, cpu: IntArray) -> FloatArray:
        """[D, U]: probability of each card demand among requests whose CPU and model fit."""
        typical = self._typical
        able = (cpu[:, None] >= typical.cpu) * typical.allowed[:, self.state.model[nodes]].T
        return np.asarray(able @ typical.weight)

    def _fits(self, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """[D, U] each: cards large enough for the demand, and the free amount on the others."""
        free = self.state.compute[nodes][:, :, None]
        enough = free >= self._typical.milli
        return enough.sum(axis=1), (free * ~enough).sum(axis=1)

    def _fits_without(self, nodes: IntArray, cards: int) -> tuple[IntArray, IntArray]:
        """The same after the first ``cards`` wholly free cards are gone."""
        free = self.state.compute[nodes]
        untouched = free == FULL_CARD
        taken = untouched & (untouched.cumsum(axis=1) <= cards)
        left = np.where(taken, 0, free)[:, :, None]
        enough = left >= self._typical.milli
        return enough.sum(axis=1), (left * ~enough).sum(axis=1)

    def _fragment(
        self, nodes: IntArray, cpu: IntArray, fits: tuple[IntArray, IntArray], total: IntArray
    ) -> FloatArray:
        count, small = fits
        usable = np.where(count >= self._typical.cards, total[:, None] - small, 0)
        return np.asarray(total - (self._weights(nodes, cpu) * usable).sum(axis=1))

    def _after_share(
        self, request: Request, nodes: IntArray, cpu: IntArray, total: IntArray
    ) -> FloatArray:
        """[D, G]: F after the share went to each card (meaningless where it does not fit)."""
        typical, asked = self._typical, request.card_milli
        count, small = self._fits(nodes)
        old = self.state.compute[nodes][:, :, None]
        new = old - asked
        was, still = old >= typical.milli, new >= typical.milli
        lost: BoolArray = was & ~still
        count_after = count[:, None, :] - lost
        small_after = small[:, None, :] - old * ~was + new * ~still
        left = (total - asked)[:, None, None]
        usable = np.where(count_after >= typical.cards, left - small_after, 0)
        weighted = np.einsum("du,dgu->dg", self._weights(nodes, cpu), usable)
        return np.asarray((total - asked)[:, None] - weighted)


def _score(gain_milli: FloatArray) -> FloatArray:
    """Minus the published integer score, so that the best is the smallest."""
    gain = np.clip(gain_milli / FULL_CARD, -50.0, 50.0)
    return -np.floor(SCORE_SCALE / (1.0 + np.exp(-gain)))


def _typical(mix: DemandMix) -> DemandMix:
    """The head of the mix; lists with more kinds than MOST_TYPICAL are looked at more coarsely."""
    bare = _without_memory(mix)
    head = bare.most_frequent(TYPICAL_PART)
    return (
        head
        if len(head.kinds) <= MOST_TYPICAL
        else bare.coarse(MOST_TYPICAL).most_frequent(TYPICAL_PART)
    )


def _without_memory(mix: DemandMix) -> DemandMix:
    """The published policy does not look at host memory: kinds that differ in it are one."""
    merged: dict[Request, float] = {}
    for request, probability in zip(mix.kinds, mix.probabilities, strict=True):
        kind = replace(request, memory_mib=0)
        merged[kind] = merged.get(kind, 0.0) + probability
    return DemandMix.weighted(merged)


def _columns(state: ClusterState, mix: DemandMix) -> _Typical:
    demands = sorted({(r.card_milli, r.cards) for r in mix.kinds if r.cards}) or [(1, 1)]
    column = {demand: i for i, demand in enumerate(demands)}
    weight = np.zeros((len(mix.kinds), len(demands)))
    allowed = np.ones((len(mix.kinds), len(state.models)))
    for row, (request, probability) in enumerate(zip(mix.kinds, mix.probabilities, strict=True)):
        if request.cards:
            weight[row, column[request.card_milli, request.cards]] = probability
        if request.models:
            allowed[row] = [model in request.models for model in state.models]
    return _Typical(
        cpu=np.array([r.cpu_milli for r in mix.kinds], dtype=np.float64),
        weight=weight,
        allowed=allowed,
        milli=np.array([d[0] for d in demands], dtype=np.int64),
        cards=np.array([d[1] for d in demands], dtype=np.int64),
    )
