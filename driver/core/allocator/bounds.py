# SPDX-License-Identifier: Apache-2.0
"""Upper bounds: what cannot be reached is not searched for.

Every bound errs on the high side only, so it may end a hopeless search and never a good one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpudra.driver.core.allocator.counters import IslandState
from gpudra.driver.core.allocator.requests import Plan
from gpudra.driver.core.allocator.template import Candidates, Template


def island_bound(
    template: Template, island: int, positions: Sequence[int], state: IslandState
) -> int:
    """At most so many of the given devices of one island can be given out together."""
    free, used, claimed, shares, _ = state
    body = template.islands[island]
    live = {local for local, _ in shares}
    open_amounts = []
    taking_nothing = 0
    blocked = used | claimed
    for position in positions:
        local = template.local_of[position]
        if template.multiple[position]:
            if used >> local & 1:
                continue
            if local in live:
                taking_nothing += 1
                continue
        elif blocked >> local & 1:
            continue
        amounts = body.amounts[local]
        if not amounts:
            taking_nothing += 1
        elif all(free[slot] >= amount for slot, amount in amounts):
            open_amounts.append(amounts)
    if not open_amounts:
        return taking_nothing
    return taking_nothing + _most(free, open_amounts)


def _most(free: Sequence[int], wanted: Sequence[Sequence[tuple[int, int]]]) -> int:
    """Per counter, how many of the smallest takers fit; the scarcest counter decides."""
    per_slot: dict[int, list[int]] = {}
    for amounts in wanted:
        for slot, amount in amounts:
            per_slot.setdefault(slot, []).append(amount)
    most = len(wanted)
    for slot, takers in per_slot.items():
        untouched = len(wanted) - len(takers)
        takers.sort()
        left, count = free[slot], 0
        for amount in takers:
            left -= amount
            if left < 0:
                break
            count += 1
        most = min(most, untouched + count)
    return most


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an alternative asks under one constraint.

    Attributes:
        found: the devices it can use.
        count: how many it needs at least.
        admin: administrative access.
        row: the source of the constraint.
    """

    found: Candidates
    count: int
    admin: bool
    row: int


class Bounds:
    """Bounds over all islands of a node, remembered per island class and state."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._known = template.bounds

    def devices(self, found: Candidates, islands: Sequence[IslandState], *, admin: bool) -> int:
        """At most so many devices an alternative can get."""
        if admin:
            return len(found.positions)
        total, known = 0, self._known
        for island, positions in found.by_island.items():
            state = islands[island]
            key = (found.identity, island, state)
            bound = known.get(key)
            if bound is None:
                bound = island_bound(self._template, island, positions, state)
                known[key] = bound
            total += bound
        return total

    def common_elements(
        self,
        wanted: Iterable[Sequence[Wanted]],
        islands: Sequence[IslandState],
    ) -> int:
        """The elements that every request under a match constraint could still share.

        Args:
            wanted: per request, its alternatives.
            islands: states.
        """
        common = -1
        for alternatives in wanted:
            feasible = 0
            for one in alternatives:
                feasible |= self._elements(one, islands)
            common &= feasible
            if not common:
                break
        return common

    def _elements(self, one: Wanted, islands: Sequence[IslandState]) -> int:
        tally: dict[int, int] = {}
        bits = self._template.bits[one.row]
        for island, positions in one.found.by_island.items():
            by_bits: dict[int, list[int]] = {}
            for position in positions:
                by_bits.setdefault(bits[position], []).append(position)
            for mask, own in by_bits.items():
                if one.admin:
                    bound = len(own)
                else:
                    bound = self._part_bound(island, mask, own, islands[island])
                if bound and mask:
                    tally[mask] = tally.get(mask, 0) + bound
        return _reached(tally, one.count)

    def _part_bound(self, island: int, mask: int, positions: list[int], state: IslandState) -> int:
        key = (island, mask, tuple(positions), state)
        bound = self._known.get(key)
        if bound is None:
            bound = island_bound(self._template, island, positions, state)
            self._known[key] = bound
        return bound


def _reached(tally: dict[int, int], count: int) -> int:
    """The elements that at least ``count`` devices have."""
    whole = 0
    for mask in tally:
        whole |= mask
    feasible, bit = 0, 1
    while bit <= whole:
        if whole & bit and sum(n for mask, n in tally.items() if mask & bit) >= count:
            feasible |= bit
        bit <<= 1
    return feasible


def distinct_elements(template: Template, wanted: Iterable[Wanted]) -> int:
    """How many elements the candidates have altogether: each device needs one of its own."""
    union = 0
    for one in wanted:
        bits = template.bits[one.row]
        for position in one.found.positions:
            union |= bits[position]
    return union.bit_count()


def short_of_supply(plan: Plan, template: Template, islands: Sequence[IslandState]) -> bool:
    """Whether requests that draw on the same devices want more than there are."""
    demand: dict[int, int] = {}
    found_by: dict[int, Candidates] = {}
    for c, claim in enumerate(plan.claims):
        for r, request in enumerate(claim.requests):
            one = request.alternatives[0]
            if len(request.alternatives) > 1 or one.take_all or one.admin:
                continue
            found = template.candidates[c, r, 0]
            if any(template.multiple[position] for position in found.positions):
                continue
            demand[found.identity] = demand.get(found.identity, 0) + one.count
            found_by[found.identity] = found
    bounds = Bounds(template)
    if len(demand) > 1:
        demand = _with_subsets(demand, found_by)
    return any(
        bounds.devices(found_by[identity], islands, admin=False) < wanted
        for identity, wanted in demand.items()
    )


def _with_subsets(demand: dict[int, int], found_by: dict[int, Candidates]) -> dict[int, int]:
    """Demand on a set of devices includes that of requests which draw on a part of it."""
    sets = {identity: set(found.positions) for identity, found in found_by.items()}
    return {
        identity: sum(count for other, count in demand.items() if sets[other] <= whole)
        for identity, whole in sets.items()
    }
