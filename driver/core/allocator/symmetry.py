# SPDX-License-Identifier: Apache-2.0
"""What need not be tried, because something just like it was.

Islands of one class in one state can be exchanged without anything else changing, and so can
devices of one local class inside an island. Devices are tried in order, so when one has failed, every
answer that is smaller in that order is known not to exist; an answer with a device of equal
*likeness* in its place could be turned into such a smaller one, so it does not exist either. The
same exchange makes tries of equal *key* succeed or fail alike.
"""

from collections.abc import Sequence
from typing import Any

from gpudra.driver.core.allocator.template import Template, compress
from gpudra.driver.core.allocator.tries import Try


class Symmetry:
    """Likeness and keys on one template.

    Args:
        template: the node.
        rows: per claim and constraint, the row of the template's bits.
        marks: per position, what a scorer tells devices apart by although the claims do not;
            empty: nothing.
    """

    def __init__(
        self, template: Template, rows: Sequence[Sequence[int]], marks: Sequence[int] = ()
    ) -> None:
        self._template = template
        self._marks = marks
        self._rows = rows
        self._later: dict[tuple[int, int, int, int], tuple[tuple[int, int], ...]] = {}

    def likeness(self, position: int, current: Try) -> Any:
        """Equal for devices of which one can stand for the other, as things are."""
        template = self._template
        index = template.island_of[position]
        island = template.islands[index]
        local = template.local_of[position]
        state = current.islands[index]
        _, used, claimed, shares, _ = state
        share = next((own for member, own in shares if member == local), None) if shares else None
        return (
            island.kind,
            state,
            island.local_class[local],
            used >> local & 1,
            claimed >> local & 1,
            share,
            self._local_patterns(current, index) if current.constraints else (),
            self._marks[position] if self._marks else 0,
        )

    def _local_patterns(self, current: Try, index: int) -> tuple[int, ...]:
        island = self._template.islands[index]
        rows = self._rows[current.claim]
        return tuple(
            compress(state, island.local_bits[rows[at]]) if island.local_bits[rows[at]] else 0
            for at, state in enumerate(current.constraints)
        )

    def key(self, current: Try) -> Any:
        """Equal for tries that succeed or fail alike.

        Islands of one kind are exchangeable, and devices that nobody can ask for any more do not
        count.
        """
        masks = self._masks(current)
        states = current.islands
        islands = self._template.islands
        signatures = []
        for index, island in enumerate(islands):
            free, used, claimed, shares, groups = states[index]
            own, later = masks[index]
            mask = own | later
            signatures.append(
                (
                    island.kind,
                    own,
                    later,
                    used & mask,
                    claimed & mask,
                    free,
                    shares,
                    groups,
                    self._local_patterns(current, index) if current.constraints else (),
                )
            )
        signatures.sort(key=_order)
        return (
            current.claim,
            current.request,
            current.alternative,
            current.slot,
            current.total,
            self._shared_bits(current),
            tuple(signatures),
        )

    def _shared_bits(self, current: Try) -> tuple[int, ...]:
        """The constraint states without the bits that belong to one island only."""
        if not current.constraints:
            return ()
        common = self._template.common_bits
        rows = self._rows[current.claim]
        return tuple(state & common[rows[at]] for at, state in enumerate(current.constraints))

    def _masks(self, current: Try) -> tuple[tuple[int, int], ...]:
        """Per island, the members that this request and later ones may still ask for."""
        key = (current.claim, current.request, current.alternative, current.start)
        known = self._later.get(key)
        if known is None:
            known = self._later[key] = self._remaining(*key)
        return known

    def _remaining(
        self, claim: int, request: int, alternative: int, start: int
    ) -> tuple[tuple[int, int], ...]:
        template = self._template
        own, later = [0] * len(template.islands), [0] * len(template.islands)
        for (c, r, _), found in template.candidates.items():
            if (c, r) < (claim, request) or ((c, r) == (claim, request) and alternative >= 0):
                continue
            for position in found.selected:
                later[template.island_of[position]] |= 1 << template.local_of[position]
        if alternative >= 0:
            found = template.candidates[claim, request, alternative]
            for position in found.positions[start:]:
                own[template.island_of[position]] |= 1 << template.local_of[position]
        return tuple(zip(own, later, strict=True))


def _order(signature: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sortable although compatibility groups are sets."""
    return (*signature[:7], str(signature[7]), signature[8])
