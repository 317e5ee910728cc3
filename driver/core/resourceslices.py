# SPDX-License-Identifier: Apache-2.0
"""Devices cut into ResourceSlices.

Counter sets go into slices of their own, eight a slice; then comes one slice per card, so that a
change on one card rewrites one slice. Names of slices end with a number: the stock scheduler reads
the slices of a pool in the order of their names and takes the first device that fits.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpudra.api.errors import InputError
from gpudra.api.meta import NodeSelector, ObjectMeta
from gpudra.api.names import (
    MAX_COUNTER_SETS_PER_SLICE,
    MAX_DEVICES_PER_SLICE,
    MAX_DEVICES_PER_SLICE_WITH_DETAILS,
    check_dns_subdomain,
    check_driver_name,
    check_pool_name,
)
from gpudra.api.resource_v1 import (
    CounterSet,
    Device,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from gpudra.driver.core.allocatable import (
    AllocatableDevice,
    PublishPolicy,
    allocatable_devices,
    naming_problems,
)
from gpudra.driver.core.attributes import device_attributes, device_capacity
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.slicelimits import check_counter_sets, check_devices, has_details
from gpudra.driver.core.taints import inventory_taints, keeps_off
from gpudra.driver.core.topology import Topology

DRIVER_NAME = "gpu.gpudra.io"
_MAX_SLICE_NAME = 253
_NO_TAINTS: Mapping[str, tuple[DeviceTaint, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """What the API server keeps of a slice; found out by a dry-run write, never guessed.

    Attributes:
        counters: ``sharedCounters`` and ``consumesCounters`` (DRAPartitionableDevices).
        consumable_capacity: ``allowMultipleAllocations`` with request policies
            (DRAConsumableCapacity).
        device_taints: ``taints`` (DRADeviceTaints).
        list_attributes: list-valued attributes (DRAListTypeAttributes).
    """

    counters: bool = False
    consumable_capacity: bool = False
    device_taints: bool = False
    list_attributes: bool = False


ALL_FEATURES = ServerFeatures(
    counters=True, consumable_capacity=True, device_taints=True, list_attributes=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredSlice:
    """One slice as it should be; holds devices or counter sets, never both."""

    name: str
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredPool:
    """A pool as it should be.

    Attributes:
        driver: name of the driver.
        name: name of the pool; that of the node for a node's own devices.
        node_name: the one node that reaches the devices; empty for a pool of a fabric.
        node_selector: for pools that several nodes reach.
        slices: at least one, so that an empty pool shows that the driver runs.
        problems: cards that were left out, and why, for the log and for people.
    """

    driver: str
    name: str
    node_name: str = ""
    node_selector: NodeSelector | None = None
    slices: tuple[DesiredSlice, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, in the order in which the scheduler sees them."""
        return tuple(device for one in self.slices for device in one.devices)


def build_pool(
    inventory: Inventory,
    *,
    node_name: str,
    features: ServerFeatures,
    driver: str = DRIVER_NAME,
    policy: PublishPolicy | None = None,
    taints: Mapping[str, tuple[DeviceTaint, ...]] = _NO_TAINTS,
) -> DesiredPool:
    """The pool of a node.

    A device with a taint that forbids new allocations is left out where the server does not keep
    taints. A card that breaks a limit is left out and listed in ``problems``; the others stay.

    Args:
        inventory: what the hardware said.
        node_name: also the name of the pool.
        features: what the server keeps.
        driver: its name is the domain of attributes and taints.
        policy: of the node.
        taints: further taints, by name of the device. Names that are not published are ignored.

    Raises:
        InputError: the name of the node or of the driver is not one.
    """
    topology = Topology.of(inventory)
    problems = [str(error) for error in naming_problems(inventory, policy)]
    groups: dict[str, list[Device]] = {}
    for device in allocatable_devices(inventory, policy):
        marks = (*inventory_taints(device.gpu, driver), *taints.get(device.name, ()))
        made = _device(device, topology, marks, features)
        try:
            check_devices([made] if made else [])
        except InputError as error:
            problems.append(str(error))
            continue
        if made is not None:
            groups.setdefault(device.gpu.key, []).append(made)
    pool = cut_pool(
        driver=driver, pool=node_name, node_name=node_name, groups=list(groups.values())
    )
    return dataclasses.replace(pool, problems=tuple(problems))


def _device(
    device: AllocatableDevice,
    topology: Topology,
    taints: tuple[DeviceTaint, ...],
    features: ServerFeatures,
) -> Device | None:
    if not features.device_taints:
        if any(keeps_off(taint) for taint in taints):
            return None
        taints = ()
    return Device(
        name=device.name,
        attributes=device_attributes(device, topology),
        capacity=device_capacity(device),
        taints=taints,
    )


def cut_pool(
    *,
    driver: str,
    pool: str,
    node_name: str = "",
    node_selector: NodeSelector | None = None,
    groups: Sequence[Sequence[Device]],
    counter_sets: Sequence[CounterSet] = (),
) -> DesiredPool:
    """Cuts devices and counter sets into slices within the limits of the API.

    Args:
        driver: name of the driver.
        pool: name of the pool.
        node_name: see DesiredPool.
        node_selector: see DesiredPool.
        groups: devices that belong together (one card each); a slice never holds two groups.
        counter_sets: what the devices consume.

    Raises:
        InputError: a name or limit would be broken, or a device consumes from a set that is not
            there.
    """
    check_driver_name(driver)
    check_pool_name(pool)
    check_counter_sets(counter_sets)
    devices = [device for group in groups for device in group]
    check_devices(devices)
    _check_references(devices, counter_sets)
    base = slice_base_name(pool, driver)
    size = MAX_COUNTER_SETS_PER_SLICE
    counters = [
        DesiredSlice(
            name=f"{base}-counters-{number:05x}",
            shared_counters=tuple(counter_sets[number * size : (number + 1) * size]),
        )
        for number in range(-(-len(counter_sets) // size))
    ]
    parts = [part for group in groups for part in _cut(group)] or [()]
    return DesiredPool(
        driver=driver,
        name=pool,
        node_name=node_name,
        node_selector=node_selector,
        slices=(
            *counters,
            *(
                DesiredSlice(name=f"{base}-devices-{number:05x}", devices=part)
                for number, part in enumerate(parts)
            ),
        ),
    )


def _cut(devices: Iterable[Device]) -> list[tuple[Device, ...]]:
    """Pieces of 128, or of 64 as soon as a device in it has taints, counters or lists."""
    parts: list[list[Device]] = [[]]
    details = False
    for device in devices:
        detailed = details or has_details(device)
        limit = MAX_DEVICES_PER_SLICE_WITH_DETAILS if detailed else MAX_DEVICES_PER_SLICE
        if len(parts[-1]) >= limit:
            parts.append([])
            detailed = has_details(device)
        parts[-1].append(device)
        details = detailed
    return [tuple(part) for part in parts if part]


def _check_references(devices: Iterable[Device], sets: Iterable[CounterSet]) -> None:
    known = {one.name: one for one in sets}
    for device in devices:
        for index, entry in enumerate(device.consumes_counters):
            where = f"consumesCounters[{index}]"
            found = known.get(entry.counter_set)
            if found is None:
                raise InputError(
                    f"counter set {entry.counter_set!r} is not in the pool",
                    obj=f"device {device.name}",
                    field=f"{where}.counterSet",
                )
            for name in entry.counters:
                if name not in found.counters:
                    raise InputError(
                        f"counter set {entry.counter_set!r} has no counter {name!r}",
                        obj=f"device {device.name}",
                        field=f"{where}.counters[{name}]",
                    )


def slice_base_name(pool: str, driver: str) -> str:
    """What the names of a pool's slices begin with: ``<pool>-<driver>``; a name too long for an object is cut and made unique by a hash.

    Slashes of a fabric's pool name become dashes, which needs the hash as well.
    """
    base = f"{pool}-{driver}"
    room = _MAX_SLICE_NAME - len("-counters-00000")
    if "/" in pool or len(base) > room:
        digest = hashlib.sha256(f"{pool}\0{driver}".encode()).hexdigest()[:12]
        kept = base.replace("/", "-")[: room - len(digest) - 1].rstrip("-.")
        base = f"{kept}-{digest}"
    return check_dns_subdomain(base, "metadata.name")


def resource_slices(pool: DesiredPool, *, generation: int = 1) -> tuple[ResourceSlice, ...]:
    """The slices as they are sent, without owner."""
    spec = ResourceSliceSpec(
        driver=pool.driver,
        pool=ResourcePool(
            name=pool.name, generation=generation, resource_slice_count=len(pool.slices)
        ),
        node_name=pool.node_name,
        node_selector=pool.node_selector,
    )
    return tuple(
        ResourceSlice(
            metadata=ObjectMeta(name=one.name),
            spec=dataclasses.replace(
                spec, devices=one.devices, shared_counters=one.shared_counters
            ),
        )
        for one in pool.slices
    )
