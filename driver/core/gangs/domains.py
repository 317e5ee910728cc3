# SPDX-License-Identifier: Apache-2.0
"""Topology: domains of nodes and devices, and jobs that have to, or should, be inside one.

A key is an attribute of devices (``nvlinkDomain``, ``pcieSwitch``) or a label of nodes. Devices of a
node that are outside a domain are kept off as if somebody held them, so the allocator needs to know
nothing of gangs. A PCIe switch is named by its address, which repeats from node to node: there the
node is a part of the domain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpudra.api.resource_v1 import AllocationResult
from gpudra.driver.core.allocator import Deadline
from gpudra.driver.core.allocator.pools import Pool
from gpudra.driver.core.allocator.types import PoolKey
from gpudra.driver.core.gangs.cards import UNTOUCHED
from gpudra.driver.core.gangs.ground import Cell, Ground
from gpudra.driver.core.gangs.kinds import Filter
from gpudra.driver.core.gangs.solver import Failed, Floor, Need, solve
from gpudra.driver.core.gangs.types import Placed

SWITCH = "pcieSwitch"
DEVICE_KEYS = frozenset({"nvlinkDomain", SWITCH})

Values = tuple[str, ...]
Barred = Mapping[PoolKey, tuple[str, ...]]
_EVERYTHING: Barred = {}


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes, and the devices on them, that agree in all keys.

    Attributes:
        values: of the keys, for people.
        nodes: per node, the devices that are outside, by pool; empty for most.
    """

    values: Values
    nodes: Mapping[str, Barred]

    def contains(self, node: str, allocations: Sequence[AllocationResult]) -> bool:
        """Whether a pod on a node with these devices is inside."""
        barred = self.nodes.get(node)
        if barred is None:
            return False
        return not any(
            one.device in barred.get((one.driver, one.pool), ())
            for allocation in allocations
            for one in allocation.devices.results
        )


@dataclass(frozen=True, slots=True)
class Anchor:
    """A pod of the gang that has its place already."""

    node: str
    allocations: tuple[AllocationResult, ...]


@dataclass(slots=True)
class _Known:
    structure: int
    domains: tuple[Domain, ...]


@dataclass(slots=True)
class Domains:
    """The domains of a ground, by keys; made again when nodes or slices change."""

    ground: Ground
    _known: dict[tuple[str, ...], _Known] = field(default_factory=dict)
    _pools: dict[tuple[int, tuple[str, ...]], tuple[Pool, Mapping[Values, Barred]]] = field(
        default_factory=dict
    )

    def of(self, keys: tuple[str, ...]) -> tuple[Domain, ...]:
        """All domains; nodes and devices that lack one of the keys are in none."""
        known = self._known.get(keys)
        if known is None or known.structure != self.ground.structure:
            known = self._known[keys] = _Known(self.ground.structure, self._make(keys))
        return known.domains

    def _make(self, keys: tuple[str, ...]) -> tuple[Domain, ...]:
        of_devices = tuple(key for key in keys if key in DEVICE_KEYS)
        of_nodes = tuple(key for key in keys if key not in DEVICE_KEYS)
        found: dict[Values, dict[str, Barred]] = {}
        kept: dict[tuple[int, tuple[str, ...]], tuple[Pool, Mapping[Values, Barred]]] = {}
        for name in self.ground.names:
            cell = self.ground.cell(name)
            if cell is None:
                continue
            labels = cell.facts.node.labels
            if any(key not in labels for key in of_nodes):
                continue
            above = tuple(labels[key] for key in of_nodes)
            for values, barred in self._on_node(cell, of_devices, kept):
                found.setdefault(above + values, {})[name] = barred
        self._pools = {k: v for k, v in self._pools.items() if k[1] != of_devices} | kept
        return tuple(Domain(values, found[values]) for values in sorted(found))

    def _on_node(
        self,
        cell: Cell,
        keys: tuple[str, ...],
        kept: dict[tuple[int, tuple[str, ...]], tuple[Pool, Mapping[Values, Barred]]],
    ) -> Iterator[tuple[Values, Barred]]:
        if not keys:
            yield (), _EVERYTHING
            return
        if cell.view is None:
            return
        groups: dict[Values, dict[PoolKey, tuple[str, ...]]] = {}
        pools = []
        for record in cell.view.records:
            pool = record.pool
            if self.ground.layouts.of(pool) is None:
                continue
            known = self._pools.get((id(pool), keys))
            if known is None or known[0] is not pool:
                known = pool, _group(pool, keys, cell.facts.name)
            kept[id(pool), keys] = known
            pools.append(pool)
            for values, barred in known[1].items():
                groups.setdefault(values, {}).update(barred)
        for values, barred in groups.items():
            missing = {
                pool.key: tuple(device.name for device in pool.devices)
                for pool in pools
                if pool.key not in barred
            }
            whole = {key: names for key, names in {**barred, **missing}.items() if names}
            yield values, whole or _EVERYTHING


def _group(pool: Pool, keys: tuple[str, ...], node: str) -> Mapping[Values, Barred]:
    """Per domain that the pool has devices of, the devices outside it."""
    values_of: dict[str, Values] = {}
    for device in pool.devices:
        found = []
        for key in keys:
            value = device.attributes.get(key)
            if not isinstance(value, str) or not value:
                break
            found.append(f"{node}/{value}" if key == SWITCH else value)
        else:
            values_of[device.name] = tuple(found)
    return {
        values: {pool.key: tuple(d.name for d in pool.devices if values_of.get(d.name) != values)}
        for values in sorted(set(values_of.values()))
    }


# --- jobs inside domains ----------------------------------------------------------------------

Clock = Callable[[], Deadline]
"""Makes the deadline of one search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Where a job's pods have to be, and should be.

    Attributes:
        required, preferred: keys; of preferred ones the first is tried first.
        anchors: pods of the gang that have their places.
        least_milli: thousandths of cards that the pods need at least.
        whole: they need whole cards only.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    least_milli: int = 0
    whole: bool = False


def solve_within(
    domains: Domains,
    floor: Floor,
    needs: Sequence[Need],
    wish: Wish,
    *,
    allowed: Filter | None = None,
    clock: Clock | None = None,
) -> tuple[Placed, ...] | Failed:
    """As `solver.solve`, inside one domain of the required keys, and of a preferred key if it can be.

    Domains are tried from the one with the least free that may be enough.

    Raises:
        Refusal: a claim cannot be served anywhere as it is.
    """
    last: tuple[Placed, ...] | Failed = Failed(needs[0], 0)
    for level in (*wish.preferred, ""):
        keys = tuple(dict.fromkeys((*wish.required, *([level] if level else []))))
        if not keys:
            return solve(_timed(floor, clock), needs, allowed)
        last = _in_one(domains.of(keys), _timed(floor, clock), needs, wish, allowed)
        if not isinstance(last, Failed):
            return last
    return last


def _timed(floor: Floor, clock: Clock | None) -> Floor:
    if clock is None:
        return floor
    timed = floor.fork()
    own, whole = clock(), floor.deadline
    timed.deadline = own if whole is None else lambda: own() or whole()
    return timed


def _in_one(
    domains: Sequence[Domain],
    floor: Floor,
    needs: Sequence[Need],
    wish: Wish,
    allowed: Filter | None,
) -> tuple[Placed, ...] | Failed:
    furthest = Failed(needs[0], 0)
    for _, _, domain in _candidates(domains, floor, wish):
        if floor.deadline is not None and floor.deadline():
            return Failed(furthest.need, furthest.placed, late=True)
        inside = floor.fork(domain.nodes)
        for barred in domain.nodes.values():
            for key, devices in barred.items():
                inside.sketch.bar(key, devices)
        found = solve(inside, needs, allowed)
        if not isinstance(found, Failed):
            return found
        if found.placed > furthest.placed or found.late:
            furthest = found
    return furthest


def _candidates(
    domains: Sequence[Domain], floor: Floor, wish: Wish
) -> list[tuple[int, int, Domain]]:
    """Domains that may be large enough and hold all anchors, the one with the least free first."""
    found = []
    free_of: dict[str, int] = {}
    for place, domain in enumerate(domains):
        if not all(domain.contains(one.node, one.allocations) for one in wish.anchors):
            continue
        free = 0
        for name, barred in domain.nodes.items():
            known = -1 if barred else free_of.get(name, -1)
            if known < 0:
                known = _free(floor, name, barred, whole=wish.whole)
                if not barred:
                    free_of[name] = known
            free += known
        if free >= wish.least_milli:
            found.append((free, place, domain))
    return sorted(found, key=lambda one: one[:2])


def _free(floor: Floor, name: str, barred: Barred, *, whole: bool) -> int:
    """Thousandths of cards of a node that are free at most, devices outside the domain left out."""
    cell, board = floor.sketch.cell(name), floor.board
    if cell is None or cell.view is None:
        return 0
    total = 0
    for record in cell.view.records:
        layout = board.ground.layouts.of(record.pool)
        if layout is None:
            continue
        outside = {
            layout.forms[record.pool.index_of[device]].card for device in barred.get(record.key, ())
        }
        for number, card in enumerate(board.cards(layout, record)):
            if number in outside:
                continue
            if whole:
                total += 1000 if card == UNTOUCHED else 0
            else:
                total += card[0] + card[1] + (1000 if card[2] else 0)
    return total
