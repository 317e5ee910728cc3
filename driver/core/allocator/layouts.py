# SPDX-License-Identifier: Apache-2.0
"""Counters of pools by number, and what devices take from them.

Nodes repeat each other: what one pool's counters and devices come to is found again for all pools of
the same content. The memos here only save work; they are bounded, and consulted for exactly the same
content only. Used by ``pools``.
"""

import itertools
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from gpudra.api.resource_v1 import CounterConsumption, CounterSet, Device

Amounts = tuple[tuple[int, int], ...]
"""(counter slot, nanos) pairs of one device."""
Groups = tuple[tuple[str, frozenset[str]], ...]
"""(counter set, compatibility groups) pairs of one device."""

Slot = tuple[str, str]
"""Names of a counter set and of a counter in it."""

_MEMO_LIMIT = 100_000
_LAYOUT_LIMIT = 2_000  # each has memos of its own
_NANOS = attrgetter("value.nanos")
_FRESH = itertools.count(1)  # never used twice, so a memo may be cleared at any time
_SETS: dict[tuple[Any, ...], int] = {}
_LAYOUTS: dict[tuple[int, ...], "Layout"] = {}
_Entry = tuple[int, Amounts]
_NOTHING: _Entry = (0, ())


class PoolProblemError(Exception):
    """Ends the reading of a pool that contradicts itself."""


class Layout:
    """Counter sets by number: what pools have in common that differ in the names of their sets.

    Attributes:
        names: of the counters of each set, sorted.
        counters: nanos of each slot while nothing is allocated.
        sets: number of the counter set of each slot.

    Raises:
        PoolProblemError: a counter is negative.
    """

    __slots__ = ("_entries", "_tables", "counters", "names", "sets")

    def __init__(self, counter_sets: Sequence[CounterSet]) -> None:
        counters: list[int] = []
        sets: list[int] = []
        self.names = tuple(tuple(sorted(one.counters)) for one in counter_sets)
        for at, counter_set in enumerate(counter_sets):
            for name in self.names[at]:
                value = counter_set.counters[name].value.nanos
                if value < 0:
                    raise PoolProblemError(f"counter {counter_set.name}/{name} is negative")
                counters.append(value)
                sets.append(at)
        self.counters, self.sets = tuple(counters), tuple(sets)
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._tables: dict[tuple[int, ...], tuple[int, tuple[Amounts, ...]]] = {}

    def amounts(
        self, devices: Sequence[Device], slots: Sequence[Slot]
    ) -> tuple[int, tuple[Amounts, ...], tuple[Groups, ...]]:
        """What devices take: a number for the whole, amounts and groups per device.

        Groups are empty if no device has any.

        Raises:
            PoolProblemError: one refers to what is not there, or takes a negative amount.
        """
        if len(self._entries) > _MEMO_LIMIT or len(self._tables) > _MEMO_LIMIT:
            self._entries.clear()
            self._tables.clear()
        entries, nanos, grouped = self._entries, _NANOS, False
        place = {slots[at][0]: number for at, number in enumerate(self.sets)}
        found: list[_Entry] = []
        for device in devices:
            consumed = device.consumes_counters
            if not consumed:
                found.append(_NOTHING)
                continue
            if len(consumed) > 1:
                key: tuple[Any, ...] = _long_key(consumed, place)
                grouped = grouped or any(one.compatibility_groups for one in consumed)
            else:
                (one,) = consumed
                counters = one.counters
                key = (place.get(one.counter_set), *counters, *map(nanos, counters.values()))
                if one.compatibility_groups:
                    grouped = True
            entry = entries.get(key)
            if entry is None:
                entry = entries[key] = (next(_FRESH), _work_out(device, slots))
            found.append(entry)
        groups = _groups(devices) if grouped else ()
        return (*self._table(found), groups)

    def _table(self, found: Sequence[_Entry]) -> tuple[int, tuple[Amounts, ...]]:
        key = tuple([number for number, _ in found])
        table = self._tables.get(key)
        if table is None:
            table = (next(_FRESH), tuple([amounts for _, amounts in found]))
            self._tables[key] = table
        return table


def _work_out(device: Device, slots: Sequence[Slot]) -> Amounts:
    number = {slot: index for index, slot in enumerate(slots)}
    taken: dict[int, int] = {}
    for consumption in device.consumes_counters:
        set_name = consumption.counter_set
        for name, counter in consumption.counters.items():
            slot = number.get((set_name, name))
            if slot is None:
                raise PoolProblemError(_missing(device, consumption, number))
            nanos = counter.value.nanos
            if nanos < 0:
                raise PoolProblemError(f"device {device.name} takes a negative {set_name}/{name}")
            taken[slot] = taken.get(slot, 0) + nanos
    return tuple(sorted(taken.items()))


def layout_of(counter_sets: Sequence[CounterSet]) -> tuple[Layout, tuple[Slot, ...]]:
    """The layout of a pool's counter sets, shared by equal ones, and the names of its slots.

    Raises:
        PoolProblemError: a set stands twice, or has a negative counter.
    """
    names = [one.name for one in counter_sets]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PoolProblemError(f"counter set {twice} twice")
    if len(_SETS) > _MEMO_LIMIT or len(_LAYOUTS) > _LAYOUT_LIMIT:
        _SETS.clear()
        _LAYOUTS.clear()
    numbers = []
    for one in counter_sets:
        counters = one.counters
        key = (*counters, *map(_NANOS, counters.values()))
        number = _SETS.get(key)
        if number is None:
            number = _SETS[key] = next(_FRESH)
        numbers.append(number)
    found = _LAYOUTS.get(tuple(numbers))
    if found is None:
        found = _LAYOUTS[tuple(numbers)] = Layout(counter_sets)
    slots = [(name, own) for name, inner in zip(names, found.names, strict=True) for own in inner]
    return found, tuple(slots)


def _long_key(consumed: Sequence[CounterConsumption], place: dict[str, int]) -> tuple[Any, ...]:
    return tuple(
        (place.get(one.counter_set), *one.counters, *map(_NANOS, one.counters.values()))
        for one in consumed
    )


def _missing(
    device: Device, consumption: CounterConsumption, number: dict[tuple[str, str], int]
) -> str:
    set_name = consumption.counter_set
    if not any(known == set_name for known, _ in number):
        return f"device {device.name} refers to the missing counter set {set_name}"
    unknown = [name for name in consumption.counters if (set_name, name) not in number]
    return f"device {device.name} refers to the missing counter {set_name}/{unknown[0]}"


def _groups(devices: Sequence[Device]) -> tuple[Groups, ...]:
    return tuple(
        tuple(
            (one.counter_set, frozenset(one.compatibility_groups))
            for one in device.consumes_counters
        )
        for device in devices
    )
