# SPDX-License-Identifier: Apache-2.0
"""Pools: what the slices of one driver and pool name amount to.

A pool is read as a whole, all nodes together: only the newest generation counts, all of its slices
must be there, and what contradicts itself makes this pool invalid and no other. Which of its
devices a node reaches is decided afterwards, so the answer never depends on the order or the node
for which slices were seen first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gpudra.api.meta import NodeSelector
from gpudra.api.resource_v1 import (
    Device,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from gpudra.driver.core.allocator.layouts import Amounts, Groups, PoolProblemError, layout_of
from gpudra.driver.core.allocator.nodeselector import reaches, selector_problem
from gpudra.driver.core.allocator.types import Node, PoolKey

SKIP_FEATURE = "DRAOptionalNodeOperations"
"""What a node must declare before devices with skipNodeOperations may go there."""


class PoolStatus(Enum):
    """Whether devices may be given out from a pool."""

    READY = "ready"
    INCOMPLETE = "incomplete"  # slices of the generation are missing: the driver is at work
    INVALID = "invalid"


@dataclass(slots=True)
class Home:
    """Where the devices of one slice may be used, and how.

    Attributes:
        node_name, all_nodes, selector, per_device: as in the slice's spec.
        problem: why the selector fits no node, or empty.
        skip_operations: ``skipNodeOperations`` of the slice.
    """

    node_name: str
    all_nodes: bool
    selector: NodeSelector | None
    per_device: bool
    problem: str
    skip_operations: tuple[str, ...]

    def reaches(self, node: Node) -> bool:
        """Whether the slice as a whole is for the node; per-device slices answer True."""
        return self.per_device or reaches(node, self.node_name, self.all_nodes, self.selector)


@dataclass(slots=True)
class Pool:
    """One pool of the newest generation. Treat as frozen (a frozen class is slower to make).

    Attributes:
        key: driver and name.
        status: see PoolStatus.
        problem: why it is not ready, as a sentence.
        devices: in the order of slice names and then as listed.
        homes: one per slice that has devices.
        home_of: index into ``homes`` per device.
        amounts: what each device takes from the counters; empty for most.
        groups: compatibility groups per device; an empty tuple if no device has any.
        table: equal for pools of which all devices take alike; 0 if none takes anything.
        slots: counter slot of each (counter set, counter).
        sets: number of the counter set of each slot.
        counters: nanos of each slot while nothing is allocated.
        skips: whether any slice has skipNodeOperations.
        binding: whether any device has binding conditions; such pools are tried last.
        node_name: set if all slices belong to this one node.
        ready: whether devices may be given out: the status is READY.
    """

    key: PoolKey
    status: PoolStatus
    problem: str = ""
    devices: tuple[Device, ...] = ()
    homes: tuple[Home, ...] = ()
    home_of: tuple[int, ...] = ()
    amounts: tuple[Amounts, ...] = ()
    groups: tuple[Groups, ...] = ()
    slots: tuple[tuple[str, str], ...] = ()
    counters: tuple[int, ...] = ()
    table: int = 0
    sets: tuple[int, ...] = ()
    skips: bool = False
    binding: bool = False
    node_name: str = ""
    ready: bool = False
    _index_of: dict[str, int] | None = None

    @property
    def index_of(self) -> dict[str, int]:
        """Index of each device by name; made when first asked for."""
        if self._index_of is None:
            self._index_of = {device.name: index for index, device in enumerate(self.devices)}
        return self._index_of

    @property
    def label(self) -> str:
        """``driver/pool``."""
        return "/".join(self.key)

    def reaches(self, node: Node) -> bool:
        """Whether a node has to care for this pool.

        A pool that is not ready keeps its homes: the node must know that devices are missing.
        """
        if self.node_name:
            return self.node_name == node.name
        return any(self._home_reaches(index, node) for index in range(len(self.homes)))

    def binds(self, node: Node) -> bool:
        """Whether a slice that the node reaches has a device with binding conditions."""
        if not self.binding or self.node_name:
            return self.binding
        return any(
            device.binding_conditions and self._home_reaches(home, node)
            for device, home in zip(self.devices, self.home_of, strict=True)
        )

    def _home_reaches(self, index: int, node: Node) -> bool:
        home = self.homes[index]
        return self._any_device(index, node) if home.per_device else home.reaches(node)

    def _any_device(self, index: int, node: Node) -> bool:
        return any(
            device_reaches(device, node)
            for device, home in zip(self.devices, self.home_of, strict=True)
            if home == index
        )

    def on_node(self, node: Node) -> Sequence[int]:
        """Indices of the devices that the node reaches, in order."""
        if self.node_name:
            return range(len(self.devices))
        open_homes = [home.reaches(node) for home in self.homes]
        return [
            index
            for index, home in enumerate(self.home_of)
            if open_homes[home]
            and (not self.homes[home].per_device or device_reaches(self.devices[index], node))
        ]

    def selector_problems(self) -> list[str]:
        """Selectors so malformed that nobody can tell which nodes they mean: all are concerned."""
        found = [home.problem for home in self.homes if home.problem]
        for device, home in zip(self.devices, self.home_of, strict=True):
            if self.homes[home].per_device and device.node_selector is not None:
                problem = selector_problem(device.node_selector)
                if problem and not device.node_name and not device.all_nodes:
                    found.append(f"device {device.name}: {problem}")
        return found


def device_reaches(device: Device, node: Node) -> bool:
    """Per-device node selection."""
    return reaches(node, device.node_name, device.all_nodes, device.node_selector)


_UNREADABLE = "gpudra.io/unreadable"


def unreadable_slice(
    one: ResourceSlice, why: str, *, generation: int | None = None
) -> ResourceSlice:
    """Stands for a slice that cannot be used: its pool is invalid, all others go on.

    Args:
        one: what could be read of it: name, driver, pool, and where it belongs.
        why: what is wrong, as a sentence.
        generation: if it is not known, none may be thought newer.
    """
    pool = ResourcePool(
        name=one.spec.pool.name, generation=_NEWEST if generation is None else generation
    )
    placed = bool(one.spec.node_name or one.spec.node_selector)
    spec = ResourceSliceSpec(
        driver=one.spec.driver,
        pool=pool,
        node_name=one.spec.node_name,
        node_selector=one.spec.node_selector,
        all_nodes=not placed,
        extra={_UNREADABLE: why},
    )
    return ResourceSlice(metadata=one.metadata, spec=spec)


def is_unreadable(one: ResourceSlice) -> bool:
    """Whether a slice was made by unreadable_slice."""
    return _UNREADABLE in one.spec.extra


_NEWEST = 2**63 - 1  # nobody knows its generation, so nothing may be thought newer


def build_pool(key: PoolKey, slices: Iterable[ResourceSlice]) -> Pool:
    """The pool that these slices make up; slices of older generations are left aside.

    Args:
        key: driver and pool name, the same for all of them.
        slices: all slices of the pool in the cluster, whatever their node, in any order.
    """
    current = _newest(list(slices))
    devices: tuple[Device, ...] = ()
    homes: list[Home] = []
    home_of: list[int] = []
    for one in current:
        spec = one.spec
        if spec.devices or not spec.shared_counters:
            home_of += [len(homes)] * len(spec.devices)
            homes.append(_home(one))
            devices += spec.devices
    base = Pool(
        key,
        PoolStatus.INVALID,
        devices=devices,
        homes=tuple(homes),
        home_of=tuple(home_of),
        node_name=_single_node(current),
        skips=any(home.skip_operations for home in homes),
    )
    try:
        missing = _check_slices(current)
        if missing:
            return _fail(base, PoolStatus.INCOMPLETE, missing)
        _check_names(devices)
        _add_counters(base, current)
    except PoolProblemError as problem:
        return _fail(base, PoolStatus.INVALID, str(problem))
    base.status, base.ready = PoolStatus.READY, True
    return base


def _newest(slices: list[ResourceSlice]) -> list[ResourceSlice]:
    """The slices of the newest generation by name; most pools have one slice."""
    if len(slices) == 1:
        return slices
    newest = max(one.spec.pool.generation for one in slices)
    current = [one for one in slices if one.spec.pool.generation == newest]
    current.sort(key=lambda one: one.metadata.name)
    return current


def _fail(pool: Pool, status: PoolStatus, problem: str) -> Pool:
    pool.status = status
    pool.problem = f"pool {pool.label}: {problem}"
    return pool


def _single_node(slices: Sequence[ResourceSlice]) -> str:
    if len(slices) == 1:
        return slices[0].spec.node_name
    names = {one.spec.node_name for one in slices}
    return names.pop() if len(names) == 1 else ""


def _home(one: ResourceSlice) -> Home:
    spec = one.spec
    problem = ""
    if spec.node_selector is not None and not spec.node_name and not spec.all_nodes:
        problem = selector_problem(spec.node_selector)
        problem = f"slice {one.metadata.name}: {problem}" if problem else ""
    chosen = bool(spec.node_name or spec.all_nodes or spec.node_selector is not None)
    skipped = spec.extra.get("skipNodeOperations") or ()
    return Home(
        node_name=spec.node_name,
        all_nodes=bool(spec.all_nodes),
        selector=spec.node_selector,
        per_device=bool(spec.per_device_node_selection) and not chosen,
        problem=problem,
        skip_operations=tuple(str(item) for item in skipped),
    )


def _check_slices(current: Sequence[ResourceSlice]) -> str:
    """Why slices are missing, or empty.

    Raises:
        PoolProblemError: they disagree about how many there are, or one carries two kinds of content.
    """
    for one in current:
        if is_unreadable(one):
            raise PoolProblemError(str(one.spec.extra[_UNREADABLE]))
    counts = {one.spec.pool.resource_slice_count for one in current}
    if len(counts) > 1:
        said = ", ".join(str(count) for count in sorted(counts))
        raise PoolProblemError(f"slices disagree about resourceSliceCount ({said})")
    for one in current:
        if one.spec.devices and one.spec.shared_counters:
            raise PoolProblemError(f"slice {one.metadata.name} has both devices and sharedCounters")
    wanted = counts.pop()
    if wanted == len(current):
        return ""
    generation = current[0].spec.pool.generation
    return f"{len(current)} of {wanted} slices of generation {generation} are there"


def _check_names(devices: Sequence[Device]) -> None:
    if len({device.name for device in devices}) == len(devices):
        return
    seen: set[str] = set()
    for device in devices:
        if device.name in seen:
            raise PoolProblemError(f"device name {device.name} twice")
        seen.add(device.name)


def _add_counters(pool: Pool, current: Sequence[ResourceSlice]) -> None:
    counted = False
    for device in pool.devices:
        if device.consumes_counters:
            counted = True
        if device.binding_conditions:
            pool.binding = True
    if not counted:
        pool.amounts = ((),) * len(pool.devices)
        if len(current) == 1 and not current[0].spec.shared_counters:
            return
    layout, pool.slots = layout_of([one for part in current for one in part.spec.shared_counters])
    pool.counters, pool.sets = layout.counters, layout.sets
    if counted:
        pool.table, pool.amounts, pool.groups = layout.amounts(pool.devices, pool.slots)
