# SPDX-License-Identifier: Apache-2.0
"""What a card of each model is worth beyond its amount: prices from the demand that needs it.

Requests name sets of models. Suppose all coming demand is spread over the
*free* cards as evenly as its sets allow; some models then stay more loaded
than the least loaded one because their own demand is large. Those get a price,
so that requests that could go elsewhere do. Prices are a pure function of the
free amounts: as cards go, the price follows.
"""

from collections.abc import Sequence

import numpy as np

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.rows import FloatArray

MOST_GROUPS = 10
"""Groups of models looked at; all subsets are tried, so 2^10 rows at most."""


class ModelPrices:
    """Prices for the models of one cluster under one mix."""

    def __init__(self, models: Sequence[str], mix: DemandMix) -> None:
        demand: dict[frozenset[str], float] = {}
        for request, probability in zip(mix.kinds, mix.probabilities, strict=True):
            amount = probability * max(request.amount_milli, request.cards)
            if amount:
                allowed = frozenset(m for m in models if not request.models or m in request.models)
                demand[allowed] = demand.get(allowed, 0.0) + amount
        demand.pop(frozenset(), None)
        self._group = _group_models(models, demand)
        self._count = max(self._group, default=0) + 1
        self.needed = len(demand) > 1 and self._count > 1
        self._classes: list[tuple[int, float]] = [
            (sum(1 << g for g in {self._group[models.index(m)] for m in allowed}), amount)
            for allowed, amount in demand.items()
        ]
        subsets = np.arange(1 << self._count)
        self._members = ((subsets[:, None] >> np.arange(self._count)) & 1).astype(np.float64)
        self._kept: dict[tuple[int, ...], FloatArray] = {}

    def at(self, free_cards: Sequence[int]) -> FloatArray:
        """Price per card of each model, in cards, when so many are free of each model."""
        key = tuple(free_cards)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) > 20_000:
                self._kept.clear()
            found = self._kept[key] = self._solve(key)
        return found

    def _solve(self, free_cards: tuple[int, ...]) -> FloatArray:
        free = np.zeros(self._count)
        for group, cards in zip(self._group, free_cards, strict=True):
            free[group] += cards
        loads = self._loads(free)
        present = free > 0
        if not present.any():
            return np.zeros(len(self._group))
        least = loads[present].min()
        with np.errstate(divide="ignore", invalid="ignore"):
            price = np.where(present & (loads > least), 1.0 - least / loads, 0.0)
        return np.asarray(price[np.array(self._group)])

    def _loads(self, free: FloatArray) -> FloatArray:
        """Load per group when demand is spread as evenly as possible (max-min decomposition).

        The subset of groups with the most demand that can go nowhere else per free
        card is fixed first; then the rest is looked at without it.
        """
        loads = np.zeros(self._count)
        open_groups = sum(1 << g for g in range(self._count) if free[g] > 0)
        classes = self._classes
        subsets = np.arange(1 << self._count)
        capacity = self._members @ free
        while open_groups and classes:
            bound = np.zeros(1 << self._count)
            for mask, amount in classes:
                left = mask & open_groups
                if left:
                    bound += amount * ((subsets & left) == left)
            usable = (subsets != 0) & ((subsets & ~open_groups) == 0)
            ratio = np.where(usable, bound / np.where(capacity > 0, capacity, 1.0), -1.0)
            worst = int(ratio.argmax())
            for group in range(self._count):
                if worst >> group & 1:
                    loads[group] = ratio[worst]
            classes = [(m, a) for m, a in classes if m & open_groups & ~worst]
            open_groups &= ~worst
        return loads


def _group_models(models: Sequence[str], demand: dict[frozenset[str], float]) -> tuple[int, ...]:
    """Group number per model: models that the same demand may use are one group."""
    signatures = [tuple(model in allowed for allowed in demand) for model in models]
    own: dict[tuple[bool, ...], float] = {}
    for signature in signatures:
        uses = zip(signature, demand.items(), strict=True)
        own[signature] = sum(a / len(allowed) for used, (allowed, a) in uses if used)
    ranked = sorted(own, key=lambda s: (-own[s], s))
    number = {s: min(i, MOST_GROUPS - 1) for i, s in enumerate(ranked)}
    return tuple(number[s] for s in signatures)
