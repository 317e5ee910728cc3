# SPDX-License-Identifier: Apache-2.0
"""The state of islands, and what taking a device does to it.

An island's state is one tuple; taking a device makes another one or none. Nothing is ever changed
in place, so a try is dropped by forgetting it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpudra.api.names import split_qualified_name
from gpudra.driver.core.allocator.consumable_capacity import Fit
from gpudra.driver.core.allocator.holdings import Hold
from gpudra.driver.core.allocator.layouts import Amounts, Groups
from gpudra.driver.core.allocator.pools import Pool
from gpudra.driver.core.allocator.template import Island, Template

Shares = tuple[tuple[int, tuple[int, ...]], ...]
"""(member, nanos consumed per capacity) of each member with live shares, by member."""

IslandState = tuple[tuple[int, ...], int, int, Shares, Groups]
"""Free nanos per counter slot; members in use (bits); members given to the claim at hand (bits);
shares; compatibility groups in force per counter set."""


def charge(free: tuple[int, ...], amounts: Amounts) -> tuple[int, ...] | None:
    """Free counters after a device took its share, or None if one would fall below zero."""
    if not amounts:
        return free
    left = list(free)
    for slot, amount in amounts:
        left[slot] -= amount
        if left[slot] < 0:
            return None
    return tuple(left)


def join_groups(held: Groups, mine: Groups) -> Groups | None:
    """Compatibility groups with one more device, or None if it does not get along.

    Devices on one counter set need a group in common; without groups they go with their like.
    """
    table = dict(held)
    for name, groups in mine:
        present = table.get(name)
        if present is None:
            table[name] = groups
            continue
        if not present and not groups:
            continue
        common = present & groups
        if not common:
            return None
        table[name] = common
    return tuple(sorted(table.items(), key=lambda entry: entry[0]))


def take(
    template: Template, position: int, fit: Fit, state: IslandState, *, admin: bool
) -> IslandState | None:
    """The island's state after a device was given out, or None if it cannot be.

    Administrative access looks at nothing that others hold and takes nothing; it only keeps an
    exclusive device from appearing twice in one claim.
    """
    island = template.islands[template.island_of[position]]
    local = template.local_of[position]
    bit = 1 << local
    free, used, claimed, shares, groups = state
    if template.multiple[position]:
        if admin:
            return state
        return None if used & bit else _share(template, position, island, fit, state)
    if claimed & bit:
        return None
    if admin:
        return free, used, claimed | bit, shares, groups
    if used & bit:
        return None
    left = charge(free, island.amounts[local])
    if left is None:
        return None
    if island.groups:
        joined = join_groups(groups, island.groups[local])
        if joined is None:
            return None
        groups = joined
    return left, used | bit, claimed | bit, shares, groups


def _share(
    template: Template, position: int, island: Island, fit: Fit, state: IslandState
) -> IslandState | None:
    """One more share of a device; its counters are charged with the first one only."""
    local = template.local_of[position]
    free, used, claimed, shares, groups = state
    live = dict(shares)
    consumed = live.get(local)
    if consumed is None:
        left = charge(free, island.amounts[local])
        if left is None:
            return None
        free = left
        if island.groups:
            joined = join_groups(groups, island.groups[local])
            if joined is None:
                return None
            groups = joined
        total = fit.amounts
    else:
        total = tuple(a + b for a, b in zip(consumed, fit.amounts, strict=True))
    capacities = template.capacities[position]
    if any(a > b for a, b in zip(total, capacities, strict=True)):
        return None
    live[local] = total
    return free, used, claimed, tuple(sorted(live.items())), groups


_HoldKey = tuple[bool, tuple[tuple[tuple[str, str], int], ...]]
_EXCLUSIVE: _HoldKey = (True, ())


class PoolState:
    """What is in use of one pool, independent of any node.

    Attributes:
        free: nanos left per counter slot; all negative while a device that nobody lists any more
            is held, since what it takes is not known (it was written in the slice only).
        held: holds by device index.
        lost: names of such devices.
        key: equal for equal states.
    """

    __slots__ = ("free", "held", "key", "lost")

    def __init__(self, pool: Pool, holds: Mapping[str, Sequence[Hold]]) -> None:
        self.held: dict[int, Sequence[Hold]] = {}
        self.lost: tuple[str, ...] = ()
        self.free = pool.counters
        if holds and pool.ready:
            self._read(pool, holds)
        self.key: tuple[Any, ...] = (self.free,)
        if self.held:
            keys = [(index, _hold_key(own)) for index, own in self.held.items()]
            keys.sort()
            self.key = (self.free, tuple(keys))

    def _read(self, pool: Pool, holds: Mapping[str, Sequence[Hold]]) -> None:
        index_of, amounts = pool.index_of, pool.amounts
        lost = []
        free = list(pool.counters)
        for name, own in holds.items():
            index = index_of.get(name)
            if index is None:
                lost.append(name)
                continue
            self.held[index] = own
            for slot, amount in amounts[index]:
                free[slot] -= amount
        self.lost = tuple(sorted(lost))
        self.free = tuple([-1] * len(free)) if lost else tuple(free)


def _hold_key(holds: Sequence[Hold]) -> _HoldKey:
    for hold in holds:
        if not hold.shared:
            return _EXCLUSIVE
    return False, tuple(sorted(_sum(holds).items()))


def _sum(holds: Iterable[Hold]) -> dict[tuple[str, str], int]:
    total: dict[tuple[str, str], int] = {}
    for hold in holds:
        for name, amount in hold.amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def island_states(
    template: Template, pools: Sequence[Pool], states: Sequence[PoolState]
) -> tuple[IslandState, ...]:
    """The states of a node's islands as claims that are allocated already have left them."""
    found: list[IslandState] = [
        (tuple(states[part].free[slot] for part, slot in island.slots), 0, 0, (), ())
        for island in template.islands
    ]
    if not any(state.held for state in states):
        return tuple(found)
    position_of = template.position_of
    for part, state in enumerate(states):
        for index, holds in state.held.items():
            position = position_of.get((part, index))
            groups = pools[part].groups
            if position is not None:
                island = template.island_of[position]
                found[island] = _hold(template, pools[part], position, holds, found[island])
            elif groups:
                _hold_elsewhere(template, part, groups[index], found)
    return tuple(found)


def held_state(island: Island, start: IslandState, members: int) -> IslandState:
    """An island's state while members (bits) of it are held, each by somebody alone."""
    free, groups = list(start[0]), start[4]
    for local, amounts in enumerate(island.amounts):
        if not members >> local & 1:
            continue
        for slot, amount in amounts:
            free[slot] -= amount
        if island.groups:
            joined = join_groups(groups, island.groups[local])
            groups = joined if joined is not None else groups
    return tuple(free), members, 0, (), groups


def _hold(
    template: Template,
    pool: Pool,
    position: int,
    holds: Sequence[Hold],
    state: IslandState,
) -> IslandState:
    free, used, claimed, shares, groups = state
    island = template.islands[template.island_of[position]]
    local = template.local_of[position]
    device = pool.devices[template.index_of[position]]
    if not device.allow_multiple_allocations or any(not hold.shared for hold in holds):
        # A share of a device that has meanwhile become exclusive still keeps others off.
        used |= 1 << local
    else:
        consumed: Mapping[tuple[str, str], int] = _sum(holds)
        driver = pool.key[0]
        amounts = tuple(
            consumed.get(split_qualified_name(name, driver), 0) for name in device.capacity
        )
        shares = tuple(sorted((*shares, (local, amounts))))
    if island.groups:
        joined = join_groups(groups, island.groups[local])
        groups = joined if joined is not None else groups
    return free, used, claimed, shares, groups


def _hold_elsewhere(template: Template, part: int, mine: Groups, found: list[IslandState]) -> None:
    """A device of another node that shares counters with ours brings its groups along."""
    names = {name for name, _ in mine}
    for index, island in enumerate(template.islands):
        same_part = any(p == part for p, _ in island.slots)
        if same_part and any(own in names for row in island.groups for own, _ in row):
            free, used, claimed, shares, groups = found[index]
            joined = join_groups(groups, tuple(one for one in mine if one[0] in _sets(island)))
            found[index] = (free, used, claimed, shares, joined or groups)


def _sets(island: Island) -> set[str]:
    return {name for row in island.groups for name, _ in row}
