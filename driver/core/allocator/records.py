# SPDX-License-Identifier: Apache-2.0
"""One pool of a cluster, with what was worked out from it.

A record is made when a slice or a hold changes and is never changed afterwards, but what can be
worked out from it is worked out when first asked for: of the thousands of pools that answer a
question by looking just like another one, nobody needs more than a few integers. Used by
``view`` and ``question``.
"""

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any

from gpudra.api.columns import SliceColumns
from gpudra.api.resource_v1 import DeviceTaint, ResourceSlice
from gpudra.driver.core.allocator.counters import PoolState
from gpudra.driver.core.allocator.facts import FactSpace
from gpudra.driver.core.allocator.holdings import PoolHolds
from gpudra.driver.core.allocator.pools import Pool, build_pool
from gpudra.driver.core.allocator.types import PoolKey

ExtraTaints = Callable[[str], tuple[DeviceTaint, ...]]


class PoolRecord:
    """One pool.

    Attributes:
        key: driver and name.
        slices: all of them, old generations included, in any order; not changed.
        holds: what claims hold.
        place: the node, if all slices are for this one.
        taints: taints that rules add, by device name; None if no rule touches the pool.
    """

    # Class attributes stand for what is not worked out yet, so that making a record costs little.
    _pool: Pool | None = None
    _state: PoolState | None = None
    _columns: tuple[SliceColumns, ...] | None = None
    _kinds: dict[int, tuple[int, ...]] | None = None
    _shapes: dict[int, int] | None = None
    base: Hashable = None

    def __init__(
        self,
        key: PoolKey,
        slices: list[ResourceSlice],
        holds: PoolHolds,
        place: str,
        taints: ExtraTaints | None,
    ) -> None:
        self.key = key
        self.slices = slices
        self.holds = holds
        self.place = place
        self.taints = taints

    @property
    def pool(self) -> Pool:
        """As published."""
        if self._pool is None:
            self._pool = build_pool(self.key, self.slices)
        return self._pool

    @property
    def state(self) -> PoolState:
        """What is in use."""
        if self._state is None:
            self._state = PoolState(self.pool, self.holds.devices)
        return self._state

    # --- by column ------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[SliceColumns, ...]:
        """The slices by column, in the order of their names; empty if the pool is unusual.

        Known once asked for: ``base``. Of pools that are not empty here, those of equal driver and base have equal devices in equal
        places, but for names and attributes; either all of them are ready or none.
        """
        if self._columns is None:
            self._columns, self.base = _by_column(self.slices, self.place)
        return self._columns

    def used(self) -> int | None:
        """Devices in use, as bits by index; None if that does not tell everything."""
        holds = self.holds
        if holds.shared:
            return None
        columns = self.columns
        if len(columns) == 1:
            try:
                return sum(map(columns[0].names.__getitem__, holds.devices))
            except KeyError:  # a device that nobody lists any more
                return None
        found = 0
        for name in holds.devices:
            at = 0
            for one in columns:
                bit = one.names.get(name)
                if bit is not None:
                    found |= bit << at
                    break
                at += len(one.names)
            else:
                return None
        return found

    # --- by device ------------------------------------------------------------------------

    def kinds(self, space: FactSpace) -> tuple[int, ...]:
        """Fact numbers of the devices, worked out once per space."""
        known = self._kinds
        if known is None:
            known = self._kinds = {}
        found = known.get(id(space))
        if found is None:
            found = space.number(self.key[0], self.pool.devices, self.taints)
            known[id(space)] = found
        return found

    def shape(self, space: FactSpace) -> int:
        """A number that pools have in common if a question cannot tell them apart."""
        known = self._shapes
        if known is None:
            known = self._shapes = {}
        found = known.get(id(space))
        if found is None:
            pool = self.pool
            content = (pool.key[0], self.kinds(space), *_structure(pool))
            found = known[id(space)] = space.shape(content)
        return found

    def forget(self, space: FactSpace) -> None:
        """Drops what was worked out for a space that is no more."""
        if self._kinds is not None:
            self._kinds.pop(id(space), None)
        if self._shapes is not None:
            self._shapes.pop(id(space), None)

    # --- the same pool otherwise ----------------------------------------------------------

    def with_holds(self, holds: PoolHolds) -> "PoolRecord":
        """The same pool with other devices in use."""
        fresh = PoolRecord(self.key, self.slices, holds, self.place, self.taints)
        fresh._pool, fresh._columns, fresh.base = self._pool, self._columns, self.base
        fresh._kinds, fresh._shapes = self._kinds, self._shapes
        return fresh

    def with_state(self, state: PoolState) -> "PoolRecord":
        """The same pool with other devices in use, for questions of what would be."""
        fresh = self.with_holds(self.holds)
        fresh.suppose(state)
        return fresh

    def suppose(self, state: PoolState) -> None:
        """Before anybody has seen the record: this is in use, whatever claims hold."""
        self._state = state
        self._columns, self.base = (), None


def _structure(pool: Pool) -> tuple[Any, ...]:
    """Counters by number instead of name, and what only some pools have."""
    if not pool.slots and not pool.skips:
        return ()
    skipped = tuple([home.skip_operations for home in pool.homes]) if pool.skips else ()
    return pool.table, pool.groups, pool.sets, pool.home_of if pool.skips else (), skipped


_UNUSUAL: tuple[tuple[SliceColumns, ...], Hashable] = ((), None)


def _by_column(
    slices: Sequence[ResourceSlice], place: str
) -> tuple[tuple[SliceColumns, ...], Hashable]:
    """See PoolRecord.columns; the second part is the base."""
    if len(slices) > 1:
        return _many([one.columns for one in slices]) if place else _UNUSUAL
    own = slices[0].columns
    return ((own,), own.body) if own.alone else _UNUSUAL


def _many(columns: list[SliceColumns]) -> tuple[tuple[SliceColumns, ...], Hashable]:
    count, generation = len(columns), columns[0].generation
    sets: list[str] = []
    columns.sort(key=_name)
    for own in columns:
        if not own.plain or own.generation != generation or own.count != count:
            return _UNUSUAL
        if own.sets:
            sets += own.sets
    places = dict(zip(sets, range(len(sets)), strict=True))
    if len(places) < len(sets) or not _disjoint(columns):
        return _UNUSUAL
    base = []
    for own in columns:
        base += [own.body, own.counters, *map(places.get, own.uses)]
    # A set that is missing makes the pool invalid. The number of sets that a body uses is part of it,
    # so that nothing else can look like this list.
    return (tuple(columns), tuple(base)) if None not in base else _UNUSUAL


_name = attrgetter("name")


def _disjoint(columns: Sequence[SliceColumns]) -> bool:
    """Whether no device name stands in two slices."""
    spans = [(own.first, own.last) for own in columns if own.last]
    spans.sort()
    last = ""
    for begin, end in spans:
        if begin <= last:
            break
        last = end
    else:
        return True
    names: set[str] = set()
    for own in columns:
        names.update(own.names)
    return len(names) == sum(len(own.names) for own in columns)
