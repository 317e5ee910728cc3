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
    NO_SCHEDULE,
    CounterSet,
    Device,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from gpudra.driver.core.allocatable import card_offers
from gpudra.driver.core.cards import MigPlace, PublishContext, published_card
from gpudra.driver.core.features import ALL_FEATURES, ServerFeatures
from gpudra.driver.core.forms import PublishPolicy
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.slicelimits import check_counter_sets, check_devices, has_details
from gpudra.driver.core.taints import LOST, WITHDRAWN, cause_taint
from gpudra.driver.core.topology import Topology

__all__ = [
    "ALL_FEATURES",
    "DRIVER_NAME",
    "DesiredPool",
    "DesiredSlice",
    "ServerFeatures",
    "build_pool",
    "cut_pool",
    "resource_slices",
    "slice_base_name",
]

DRIVER_NAME = "gpu.gpudra.io"
_MAX_SLICE_NAME = 253
_NO_TAINTS: Mapping[str, tuple[DeviceTaint, ...]] = MappingProxyType({})
_NOTHING_KEPT: Mapping[str, Device] = MappingProxyType({})


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
    own_mig: frozenset[MigPlace] = frozenset(),
    kept: Mapping[str, Device] = _NOTHING_KEPT,
) -> DesiredPool:
    """The pool of a node.

    A device with a taint that forbids new allocations is left out where the server does not keep
    taints. A card that breaks a limit is left out and listed in ``problems``; the others stay.

    Args:
        inventory: what the hardware said.
        node_name: also the name of the pool.
        features: what the server keeps.
        driver: its name is the domain of attributes and taints.
        policy: of the node; without one, whole cards.
        taints: further taints, by name of the device. Names that are not published are ignored.
        own_mig: where claims of ours have MIG instances. What else is there is somebody else's,
            and nothing is offered over it.
        kept: devices that are listed now and that claims hold, by name. They stay, tainted, even
            if policy or hardware offer them no more: the scheduler would take a device that
            vanishes for free, with all that it takes from its card.

    Raises:
        InputError: the name of the node or of the driver is not one.
    """
    policy = policy or PublishPolicy()
    context = PublishContext(
        driver=driver,
        features=features,
        topology=Topology.of(inventory),
        managed=policy.managed,
        taints=taints,
        own_mig=own_mig,
    )
    cards = [
        published_card(offer, context) for offer in card_offers(inventory, policy, kept=kept.keys())
    ]
    problems = [str(error) for card in cards for error in card.problems]
    if policy.managed and not features.device_taints:
        problems.append("managed mode needs device taints, which this API server does not keep")
    listed = {device.name for card in cards for device in card.devices}
    ghosts = [
        _ghost(device, driver, features)
        for name, device in sorted(kept.items())
        if name not in listed
    ]
    pool = cut_pool(
        driver=driver,
        pool=node_name,
        node_name=node_name,
        groups=[card.devices for card in cards if card.devices] + ([ghosts] if ghosts else []),
        counter_sets=[card.counters for card in cards if card.counters],
    )
    return dataclasses.replace(pool, problems=tuple(problems))


def _ghost(device: Device, driver: str, features: ServerFeatures) -> Device:
    """A device whose card is gone, as it was listed last: nothing else can be had of that card."""
    keys = {f"{driver}/{cause}" for cause in (LOST, WITHDRAWN)}
    marks = (
        *(taint for taint in device.taints if taint.key not in keys),
        cause_taint(driver, LOST, effect=NO_SCHEDULE),
    )
    return dataclasses.replace(
        device, consumes_counters=(), taints=marks if features.device_taints else ()
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
