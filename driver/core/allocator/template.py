# SPDX-License-Identifier: Apache-2.0
"""Templates: what equal nodes have in common, prepared once for the search.

A template knows positions, not names: position 3 is the fourth device of a node, in the order in
which devices are tried (pools by driver and name, those with binding conditions last; slices by
name; devices as listed). Devices that share counters form an *island*; every other device is an
island of its own. All that a search changes is the state of islands, so islands of one class in
one state can stand for each other, and so can devices of one local class inside an island.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.resource_v1 import Device
from gpudra.driver.core.allocator.constraints import number_elements
from gpudra.driver.core.allocator.consumable_capacity import Fit
from gpudra.driver.core.allocator.derived import Source
from gpudra.driver.core.allocator.derivedvalues import DerivedValues
from gpudra.driver.core.allocator.facts import Verdict
from gpudra.driver.core.allocator.layouts import Amounts, Groups
from gpudra.driver.core.allocator.pools import SKIP_FEATURE, Pool
from gpudra.driver.core.allocator.requests import Alternative, Plan

Judge = Callable[[Alternative, int], Verdict]


@dataclass(frozen=True, slots=True)
class Part:
    """A pool as one node sees it.

    Attributes:
        pool: ready.
        kinds: fact numbers of all devices of the pool.
        indices: the devices that the node reaches, in order.
    """

    pool: Pool
    kinds: tuple[int, ...]
    indices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Island:
    """Devices that share counters.

    Attributes:
        kind: number shared by islands with the same content.
        members: positions, ascending.
        slots: (part, counter slot) of each counter that they share.
        amounts: per member, what it takes: (index into ``slots``, nanos).
        groups: per member, compatibility groups by counter set; empty if nobody has any.
        local_class: per member, equal for members that can stand for each other.
        local_bits: per source, the bits of elements of its attribute that no other island has.
    """

    kind: int
    members: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]
    amounts: tuple[Amounts, ...]
    groups: tuple[Groups, ...]
    local_class: tuple[int, ...]
    local_bits: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Candidates:
    """The devices of a node that an alternative can use as far as the devices alone tell.

    Attributes:
        positions: selected and not kept off, ascending.
        selected: the same, those kept off (taints, node operations) included.
        fits: what the alternative takes of each selected device.
        errors: (position, message) of devices on which a selector fails to run, ascending.
        identity: equal for alternatives of the template with equal positions.
    """

    positions: tuple[int, ...]
    selected: tuple[int, ...]
    fits: dict[int, Fit]
    errors: tuple[tuple[int, str], ...]
    by_island: dict[int, tuple[int, ...]] = field(default_factory=dict)
    identity: int = 0


@dataclass(slots=True)
class Template:
    """One kind of node, seen through one plan.

    Attributes:
        size: number of positions.
        part_of, index_of: where each position lies: part, and device index in its pool.
        multiple: per position, whether it may be shared.
        capacities: per position that may be shared, nanos of each capacity.
        island_of, local_of: per position, its island and its place among the members.
        islands: in order of their first member.
        sources: what constraints compare, sorted, so that those of one attribute stand together.
        bits: per source, the bits of each position; sources of one attribute number its elements
            alike.
        faults: per source, why it fails on a position.
        common_bits: per source, the bits of its attribute that more than one island has.
        position_of: the other way round, by part and index.
        candidates: per alternative, by its identity in the plan (claim, request, index).
        answers: positional answers by the state they were found in; see solve.
    """

    size: int
    part_of: tuple[int, ...]
    index_of: tuple[int, ...]
    multiple: tuple[bool, ...]
    capacities: tuple[tuple[int, ...], ...]
    island_of: tuple[int, ...]
    local_of: tuple[int, ...]
    islands: tuple[Island, ...]
    sources: tuple[Source, ...]
    bits: tuple[tuple[int, ...], ...]
    faults: tuple[dict[int, str], ...]
    common_bits: tuple[int, ...]
    candidates: dict[tuple[int, int, int], Candidates]
    position_of: dict[tuple[int, int], int]
    answers: dict[Any, Any] = field(default_factory=dict)
    bounds: dict[Any, int] = field(default_factory=dict)

    def row_of_attribute(self, attribute: str) -> int:
        """The first source of an attribute; what belongs to the attribute is the same in all."""
        return next(row for row, (name, _) in enumerate(self.sources) if name == attribute)


def constraint_sources(plan: Plan) -> tuple[Source, ...]:
    """What constraints of a plan compare, each once."""
    found: set[Source] = set()
    for claim in plan.claims:
        alternatives = [one for request in claim.requests for one in request.alternatives]
        for constraint in claim.constraints:
            own = {one.source(constraint) for one in alternatives} - {None}
            found |= {source for source in own if source} or {(constraint.attribute, "")}
    return tuple(sorted(found))


def element_table(
    parts: Sequence[Part], sources: Sequence[Source], derived: DerivedValues
) -> tuple[tuple[tuple[Any, ...], ...], ...]:
    """Per source, the elements of each position of a node."""
    return tuple(
        tuple(
            derived.elements(source, part.kinds[index], part.pool.key[0], part.pool.devices[index])
            for part in parts
            for index in part.indices
        )
        for source in sources
    )


def pattern(
    table: Sequence[Sequence[tuple[Any, ...]]], sources: Sequence[Source]
) -> tuple[Any, ...]:
    """The table with elements numbered by first appearance: equal if they repeat alike."""
    rows: list[Any] = []
    numbers: dict[str, dict[Any, int]] = {name: {} for name, _ in sources}
    for row, (name, _) in zip(table, sources, strict=True):
        number = numbers[name]
        rows.append(tuple(tuple(number.setdefault(e, len(number)) for e in own) for own in row))
    return tuple(rows)


class TemplateBuilder:
    """Builds the templates of one plan; keeps the numbering of island classes."""

    def __init__(self, plan: Plan, judge: Judge, derived: DerivedValues) -> None:
        self._plan = plan
        self._judge = judge
        self._derived = derived
        self._kinds: dict[Any, int] = {}
        self.sources = constraint_sources(plan)

    def table(self, parts: Sequence[Part]) -> tuple[tuple[tuple[Any, ...], ...], ...]:
        """What constraints compare on a node; see element_table."""
        return element_table(parts, self.sources, self._derived)

    def build(self, parts: Sequence[Part], features: frozenset[str]) -> Template:
        """The template of a node with these parts."""
        places = [(p, i) for p, part in enumerate(parts) for i in part.indices]
        devices = [parts[p].pool.devices[i] for p, i in places]
        kinds = [parts[p].kinds[i] for p, i in places]
        grouping = _group(parts, places)
        island_of, local_of = _locate(grouping, len(places))
        numbered = self._number(parts, island_of)
        bits = tuple(row for row, _ in numbered)
        islands = tuple(
            self._island(parts, places, kinds, members, bits, [own[i] for _, own in numbered])
            for i, members in enumerate(grouping)
        )
        template = Template(
            size=len(places),
            part_of=tuple(p for p, _ in places),
            index_of=tuple(i for _, i in places),
            multiple=tuple(bool(one.allow_multiple_allocations) for one in devices),
            capacities=tuple(_capacities(one) for one in devices),
            island_of=island_of,
            local_of=local_of,
            islands=islands,
            sources=self.sources,
            bits=bits,
            faults=tuple(self._faults(source, kinds) for source in self.sources),
            common_bits=tuple(self._common(numbered, name) for name, _ in self.sources),
            candidates={},
            position_of={place: position for position, place in enumerate(places)},
        )
        barred = _barred(parts, places, features)
        self._add_candidates(template, kinds, barred)
        return template

    def _number(
        self, parts: Sequence[Part], island_of: tuple[int, ...]
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Per source, the bits of each position and those that only one island has."""
        numbered: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        size = len(island_of)
        own = list(zip(self.sources, self.table(parts), strict=True))
        for _, group in itertools.groupby(own, key=lambda entry: entry[0][0]):
            rows = [row for _, row in group]
            values = [value for row in rows for value in row]
            bits, local = number_elements(values, island_of * len(rows))
            numbered += [(bits[at * size : (at + 1) * size], local) for at in range(len(rows))]
        return numbered

    def _common(
        self, numbered: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], attribute: str
    ) -> int:
        own = [n for n, (name, _) in zip(numbered, self.sources, strict=True) if name == attribute]
        return _union([_union(row) for row, _ in own]) & ~_union(own[0][1])

    def _faults(self, source: Source, kinds: Sequence[int]) -> dict[int, str]:
        if not source[1]:
            return {}
        errors = [self._derived.of_kind(source, kind).error for kind in kinds]
        return {position: error for position, error in enumerate(errors) if error}

    def _island(
        self,
        parts: Sequence[Part],
        places: Sequence[tuple[int, int]],
        kinds: Sequence[int],
        members: Sequence[int],
        bits: Sequence[Sequence[int]],
        local: Sequence[int],
    ) -> Island:
        slots: dict[tuple[int, int], int] = {}
        amounts: list[Amounts] = []
        groups: list[Groups] = []
        for position in members:
            part, index = places[position]
            pool = parts[part].pool
            amounts.append(
                tuple((slots.setdefault((part, s), len(slots)), n) for s, n in pool.amounts[index])
            )
            if pool.groups:
                groups.append(pool.groups[index])
        ranks = [_bit_list(mask) for mask in local]
        describe = [
            (
                kinds[position],
                own,
                groups[at] if groups else (),
                tuple(
                    (row[position] & ~local[a], compress(row[position], ranks[a]))
                    for a, row in enumerate(bits)
                ),
            )
            for at, (position, own) in enumerate(zip(members, amounts, strict=True))
        ]
        classes: dict[Any, int] = {}
        local_class = tuple(classes.setdefault(one, len(classes)) for one in describe)
        kind = self._kinds.setdefault(tuple(describe), len(self._kinds))
        return Island(
            kind,
            tuple(members),
            tuple(slots),
            tuple(amounts),
            tuple(groups),
            local_class,
            tuple(ranks),
        )

    def _add_candidates(
        self, template: Template, kinds: Sequence[int], barred: Sequence[bool]
    ) -> None:
        known: dict[tuple[int, ...], int] = {}
        by_key: dict[tuple[object, ...], Candidates] = {}
        for c, claim in enumerate(self._plan.claims):
            for r, request in enumerate(claim.requests):
                for a, alternative in enumerate(request.alternatives):
                    found = by_key.get(alternative.match_key)
                    if found is None:
                        found = self._candidates(template, alternative, kinds, barred)
                        found.identity = known.setdefault(found.positions, len(known))
                        by_key[alternative.match_key] = found
                    template.candidates[c, r, a] = found

    def _candidates(
        self,
        template: Template,
        alternative: Alternative,
        kinds: Sequence[int],
        barred: Sequence[bool],
    ) -> Candidates:
        positions, selected, fits, errors = [], [], {}, []
        for position, kind in enumerate(kinds):
            verdict = self._judge(alternative, kind)
            if verdict.fit is not None:
                selected.append(position)
                fits[position] = verdict.fit
                if verdict.taint is None and not barred[position]:
                    positions.append(position)
            elif verdict.error:
                errors.append((position, verdict.error))
        by_island: dict[int, list[int]] = {}
        for position in positions:
            by_island.setdefault(template.island_of[position], []).append(position)
        return Candidates(
            tuple(positions),
            tuple(selected),
            fits,
            tuple(errors),
            {island: tuple(own) for island, own in by_island.items()},
        )


def _union(masks: Sequence[int]) -> int:
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def _bit_list(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def compress(mask: int, bits: Sequence[int]) -> int:
    """The given bits of a mask, moved together: a value that equal islands share."""
    value = 0
    for rank, bit in enumerate(bits):
        if mask >> bit & 1:
            value |= 1 << rank
    return value


def _capacities(device: Device) -> tuple[int, ...]:
    if not device.allow_multiple_allocations:
        return ()
    return tuple(capacity.value.nanos for capacity in device.capacity.values())


def _barred(
    parts: Sequence[Part], places: Sequence[tuple[int, int]], features: frozenset[str]
) -> list[bool]:
    """Devices that this node may not use because it does not know skipNodeOperations."""
    if SKIP_FEATURE in features:
        return [False] * len(places)
    return [bool(parts[p].pool.homes[parts[p].pool.home_of[i]].skip_operations) for p, i in places]


def _group(parts: Sequence[Part], places: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Positions by island: those linked by counter sets, in order of their first member."""
    owner: dict[tuple[int, str], int] = {}
    parent = list(range(len(places)))

    def root(position: int) -> int:
        while parent[position] != position:
            parent[position] = parent[parent[position]]
            position = parent[position]
        return position

    for position, (part, index) in enumerate(places):
        pool = parts[part].pool
        for slot, _ in pool.amounts[index]:
            first = owner.setdefault((part, pool.slots[slot][0]), position)
            one, other = root(first), root(position)
            parent[max(one, other)] = min(one, other)
    found: dict[int, list[int]] = {}
    for position in range(len(places)):
        found.setdefault(root(position), []).append(position)
    return list(found.values())


def _locate(
    grouping: Sequence[Sequence[int]], size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    island_of, local_of = [0] * size, [0] * size
    for island, members in enumerate(grouping):
        for local, position in enumerate(members):
            island_of[position], local_of[position] = island, local
    return tuple(island_of), tuple(local_of)
