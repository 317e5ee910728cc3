# SPDX-License-Identifier: Apache-2.0
"""One card as it is published: its devices, what each takes, and the counter set that ties them.

Called by gpudra.driver.core.resourceslices for every card of a node. A card is never published in
two forms that the server does not tie together: without counters one form remains. The monitor
takes nothing and is tied to nothing; where there are no counters it is not needed, since admin
access to the one form sees the card in use.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpudra.api.errors import InputError
from gpudra.api.resource_v1 import NO_SCHEDULE, CounterConsumption, CounterSet, Device, DeviceTaint
from gpudra.driver.core.allocatable import AllocatableDevice, CardOffer, DeviceKind
from gpudra.driver.core.attributes import device_attributes, device_capacity
from gpudra.driver.core.features import ServerFeatures
from gpudra.driver.core.inventory import Gpu, MigInstance
from gpudra.driver.core.partitions import consume_all, consume_placement, counter_set, fits
from gpudra.driver.core.slicelimits import check_counter_sets, check_devices
from gpudra.driver.core.taints import (
    FOREIGN_MIG,
    MANAGED,
    WITHDRAWN,
    cause_taint,
    inventory_taints,
    keeps_off,
    merged_taints,
)
from gpudra.driver.core.topology import Topology

_SHARED = frozenset({DeviceKind.SHARE, DeviceKind.MONITOR})
_UNPARTED = frozenset({DeviceKind.WHOLE, DeviceKind.SHARE})


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlace:
    """Where on which card a claim of ours has a MIG instance, or is about to make one."""

    card: str
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishContext:
    """What is the same for all cards of a node.

    Attributes:
        driver: name of the driver.
        features: of the API server.
        topology: of the node.
        managed: see PublishPolicy.
        taints: further taints by name of the device.
        own_mig: places of instances that claims of ours hold; all others are somebody else's.
    """

    driver: str
    features: ServerFeatures
    topology: Topology
    managed: bool = False
    taints: Mapping[str, tuple[DeviceTaint, ...]]
    own_mig: frozenset[MigPlace] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCard:
    """The outcome for one card.

    Attributes:
        devices: in published order.
        counters: the set that they consume, if any do.
        problems: what was left out, and why.
    """

    devices: tuple[Device, ...] = ()
    counters: CounterSet | None = None
    problems: tuple[InputError, ...] = ()


def published_card(offer: CardOffer, context: PublishContext) -> PublishedCard:
    """The devices of a card as the API server gets them."""
    card = _Card(offer, context)
    problems = list(offer.problems)
    try:
        check_counter_sets([card.counters] if card.counters else [])
    except InputError as error:
        return PublishedCard(problems=(*problems, error))
    devices = []
    for one in card.chosen:
        made = card.device(one)
        if made is None:
            continue
        try:
            check_devices([made])
        except InputError as error:
            problems.append(error)
            continue
        devices.append(made)
    if offer.devices and not card.chosen:
        problems.append(
            InputError(
                "its forms need counters or consumable capacity, which this API server drops",
                obj=f"GPU {offer.gpu.key}",
                hint="offer it whole, or turn on DRAPartitionableDevices and DRAConsumableCapacity",
            )
        )
    used = any(device.consumes_counters for device in devices)
    return PublishedCard(
        devices=tuple(devices),
        counters=card.counters if used else None,
        problems=tuple(problems),
    )


def foreign_instances(gpu: Gpu, own: frozenset[MigPlace]) -> tuple[MigInstance, ...]:
    """MIG instances of a card that no claim of ours holds."""
    found = (gpu.mig.instances if gpu.mig else None) or ()
    return tuple(
        one
        for one in found
        if MigPlace(card=gpu.key, start=one.placement.start, size=one.placement.size) not in own
    )


class _Card:
    """What the devices of one card have in common."""

    def __init__(self, offer: CardOffer, context: PublishContext) -> None:
        self.offer = offer
        self.context = context
        self.chosen = _tied(offer, context.features)
        dynamic = any(_is_dynamic(one) for one in self.chosen)
        unparted = [one for one in self.chosen if one.kind in _UNPARTED]
        # Static instances are what they are: they exclude nothing that is offered beside them.
        self.foreign = foreign_instances(offer.gpu, context.own_mig) if dynamic or unparted else ()
        # One form alone excludes nothing but itself, which the scheduler does without counters.
        self.counters = (
            counter_set(offer.gpu, partitioned=dynamic, in_use=self.foreign)
            if context.features.counters and (dynamic or len(unparted) > 1)
            else None
        )

    def device(self, one: AllocatableDevice) -> Device | None:
        """As the API server gets it; None where it must not be offered and cannot be tainted."""
        taken = self._consumption(one)
        taints = self._taints(one, taken)
        if not self.context.features.device_taints:
            kept = one.name in self.offer.withdrawn
            if not kept and any(keeps_off(taint) for taint in taints):
                return None
            taints = ()
        return Device(
            name=one.name,
            attributes=device_attributes(one, self.context.topology),
            capacity=device_capacity(one),
            consumes_counters=taken,
            taints=taints,
            allow_multiple_allocations=True if one.kind in _SHARED else None,
        )

    def _consumption(self, one: AllocatableDevice) -> tuple[CounterConsumption, ...]:
        if self.counters is None:
            return ()
        if one.kind in _UNPARTED:
            return consume_all(self._full())
        if _is_dynamic(one) and one.profile is not None and one.placement is not None:
            return consume_placement(self.counters, one.profile, one.placement)
        return ()

    def _full(self) -> CounterSet:
        """The set without foreign instances: the whole card does not fit beside them."""
        assert self.counters is not None
        if not self.foreign:
            return self.counters
        return counter_set(self.offer.gpu, partitioned=len(self.counters.counters) > 1)

    def _taints(
        self, one: AllocatableDevice, taken: tuple[CounterConsumption, ...]
    ) -> tuple[DeviceTaint, ...]:
        driver = self.context.driver
        causes = []
        if one.name in self.offer.withdrawn:
            causes.append(WITHDRAWN)
        if self._meets_foreign(one, taken):
            causes.append(FOREIGN_MIG)
        if self.context.managed:
            causes.append(MANAGED)
        return merged_taints(
            inventory_taints(one.gpu, driver),
            self.context.taints.get(one.name, ()),
            (cause_taint(driver, cause, effect=NO_SCHEDULE) for cause in causes),
        )

    def _meets_foreign(self, one: AllocatableDevice, taken: tuple[CounterConsumption, ...]) -> bool:
        if not self.foreign:
            return False
        if one.kind in _UNPARTED:
            return True
        # By memory slices, and by engines too: two instances may lie apart and want the same one.
        return self.counters is not None and not fits(self.counters, taken)


def _is_dynamic(one: AllocatableDevice) -> bool:
    return one.kind is DeviceKind.MIG and one.instance is None


def _tied(offer: CardOffer, features: ServerFeatures) -> tuple[AllocatableDevice, ...]:
    """The devices that may be published side by side on this server."""
    devices = offer.devices
    if not features.consumable_capacity:
        devices = tuple(one for one in devices if one.kind not in _SHARED)
    if features.counters:
        return devices
    held = tuple(one for one in devices if one.name in offer.withdrawn)
    static = tuple(one for one in devices if one.instance is not None)
    single = tuple(one for one in devices if one.kind in _UNPARTED)[:1]
    return held or static or single
