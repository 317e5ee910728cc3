# SPDX-License-Identifier: Apache-2.0
"""The cost of breaking linked cards apart, and the best set of cards for a group.

A set is a group of cards that reach each other over NVLink, or that share a
PCIe switch. Free cards of a set that has become too small for the groups the
mix asks for are stuck: singles should take cards that are in no set, or in a
set already broken, and a group should take the smallest set that holds it.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import combinations

from gpudra.driver.core.placement.types import PlacementError

SWITCH_PART = 0.5
"""A broken PCIe-switch pair costs half a broken NVLink set: the slower path is lost."""

MOST_TRIED = 20_000
"""Card sets tried for one group at most; 8 of 16 cards are 12,870."""

Sets = tuple[tuple[int, ...], tuple[int, ...]]
"""Set number per card: over NVLink, and by PCIe switch; -1 is none."""


class TopologyTerm:
    """Potential of one mix: cards stuck in sets too small for its groups.

    ``demand`` maps a group size to its part of the GPU demand. Masks have one bit
    per card that is wholly free.
    """

    def __init__(self, demand: dict[int, float]) -> None:
        self._demand = {n: d for n, d in sorted(demand.items()) if n > 1}
        self.potential = lru_cache(maxsize=65_536)(self._potential)
        self.best_group = lru_cache(maxsize=65_536)(self._best_group)

    def _potential(self, sets: Sets, free: int) -> float:
        """Stuck cards, each weighted by the part of the demand that it can no longer serve."""
        total = 0.0
        for level, part in zip(sets, (1.0, SWITCH_PART), strict=True):
            for members in _by_set(level).values():
                left = sum(free >> card & 1 for card in members)
                wanted = (d for n, d in self._demand.items() if left < n <= len(members))
                total += part * left * sum(wanted)
        return total

    def single(self, sets: Sets, free: int, card: int) -> float:
        """Change of the potential when a free card is begun."""
        return self.potential(sets, free & ~(1 << card)) - self.potential(sets, free)

    def _best_group(self, sets: Sets, free: int, count: int, linked: bool) -> tuple[float, int]:
        """Cost and mask of the best ``count`` free cards; ties to the lowest cards.

        With ``linked`` each pair of chosen cards without NVLink adds its part of
        all pairs, so a connected set is found wherever there is one.
        """
        cards = [c for c in range(len(sets[0])) if free >> c & 1]
        if len(cards) < count:
            raise PlacementError(f"{count} cards wanted, {len(cards)} are free")
        before = self.potential(sets, free)
        best_cost, best_mask = float("inf"), 0
        for chosen in _candidates(sets, cards, count):
            mask = sum(1 << c for c in chosen)
            cost = self.potential(sets, free & ~mask) - before
            if linked:
                cost += _unlinked_part(sets[0], chosen)
            if cost < best_cost - 1e-12:
                best_cost, best_mask = cost, mask
        return best_cost, best_mask


def _candidates(sets: Sets, cards: list[int], count: int) -> Iterable[tuple[int, ...]]:
    """All card sets, or where they are too many only runs of cards ordered by set."""
    total = 1
    for i in range(count):
        total = total * (len(cards) - i) // (i + 1)
    if total <= MOST_TRIED:
        return combinations(cards, count)
    ordered = sorted(cards, key=lambda c: (sets[0][c], sets[1][c], c))
    return (tuple(ordered[i : i + count]) for i in range(len(ordered) - count + 1))


def _by_set(level: tuple[int, ...]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for card, number in enumerate(level):
        if number >= 0:
            members.setdefault(number, []).append(card)
    return members


def _unlinked_part(linked: tuple[int, ...], chosen: tuple[int, ...]) -> float:
    pairs = list(combinations(chosen, 2))
    apart = sum(1 for a, b in pairs if linked[a] < 0 or linked[a] != linked[b])
    return apart / len(pairs) if pairs else 0.0
