# SPDX-License-Identifier: Apache-2.0
"""What a device costs a queue.

A whole card is one card. A MIG device is the larger of its parts of the card's memory slices and
compute slices, a share the larger of its parts of memory and compute, rounded up to thousandths: a
queue cannot get more out of a card by cutting it. Monitor devices cost nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudra.api.quantity import Quantity
from gpudra.api.queue import CLASS_PREFIX, COMPUTE, GPUS, MEMORY, MILLI, MODEL_PREFIX
from gpudra.api.resource_v1 import CounterSet, Device
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.nodestate import label_value
from gpudra.driver.core.partitions import COMPUTE_SLICES, MEMORY_SLICE
from gpudra.driver.core.queueing.amounts import NOTHING, Amounts

FULL = 100
"""Percent points of a card."""


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """What a device costs who holds all of it, and how that shrinks for a share.

    Attributes:
        amounts: for all of the device, without its class.
        share: whether what is charged follows the capacity that was consumed.
        model: product name in the form of a node label; empty when the card tells none.
    """

    amounts: Amounts
    share: bool = False
    model: str = ""

    def charge(
        self,
        class_name: str = "",
        consumed: Mapping[str, Quantity] | None = None,
        *,
        admin_access: bool = False,
    ) -> Amounts:
        """What one allocation of the device costs.

        Args:
            class_name: DeviceClass of the request; charged as ``class/NAME``.
            consumed: ``consumedCapacity`` of the result; without it a share is charged whole.
            admin_access: such access holds nothing, and costs nothing.
        """
        if admin_access or not self.amounts:
            return NOTHING
        amounts = self._part(consumed) if self.share and consumed else self.amounts
        more = {f"{CLASS_PREFIX}{class_name}": 1} if class_name else {}
        if self.model:
            more[f"{MODEL_PREFIX}{self.model}"] = amounts.of(GPUS)
        return Amounts({**amounts, **more})

    def _part(self, consumed: Mapping[str, Quantity]) -> Amounts:
        memory, compute = (
            consumed[name].value if name in consumed else 0 for name in (MEMORY, COMPUTE)
        )
        parts = (_part(memory, self.amounts.of(MEMORY)), _part(compute, FULL))
        return Amounts({GPUS: max(parts), MEMORY: memory, COMPUTE: compute})


def pool_costs(
    devices: Iterable[Device], counter_sets: Sequence[CounterSet]
) -> dict[str, DeviceCost]:
    """The costs of the devices of one pool of ours, by device name.

    Devices of a type that is not known cost one whole card each: nothing is free by accident.
    """
    sets = {one.name: one for one in counter_sets}
    return {device.name: _cost(device, sets) for device in devices}


def capacity_of(costs: Mapping[str, DeviceCost], devices: Iterable[Device]) -> Amounts:
    """What the cards of a pool are together, whatever forms they are offered in.

    A card that is offered in parts only counts as its share, or as its best set of equal MIG
    devices: with N memory slices, N devices of one slice.
    """
    cards: dict[str, Amounts] = {}
    for device in devices:
        cost = costs[device.name]
        if not cost.amounts:
            continue
        card = _card(device)
        whole = cost.amounts if cost.amounts.of(GPUS) >= MILLI else _scaled(cost.amounts)
        model = {f"{MODEL_PREFIX}{cost.model}": MILLI} if cost.model else {}
        one = Amounts({**whole, GPUS: MILLI, COMPUTE: FULL, **model})
        cards[card] = cards[card].widest(one) if card in cards else one
    return Amounts.total(cards.values())


def _scaled(amounts: Amounts) -> Amounts:
    """A part blown up to the card it is of."""
    part = amounts.of(GPUS)
    return Amounts((name, amount * MILLI // part) for name, amount in amounts.items())


def _card(device: Device) -> str:
    """What says that two devices are forms of one card: its counter set, else its uuid."""
    for consumption in device.consumes_counters:
        return consumption.counter_set
    uuid = device.attributes.get("parentUUID", device.attributes.get("uuid"))
    return uuid if isinstance(uuid, str) else device.name


def _cost(device: Device, sets: Mapping[str, CounterSet]) -> DeviceCost:
    kind = device.attributes.get("type")
    if kind == DeviceKind.MONITOR:
        return DeviceCost(NOTHING)
    name = device.attributes.get("productName")
    model = label_value(name) if isinstance(name, str) else ""
    memory = device.capacity[MEMORY].value.value if MEMORY in device.capacity else 0
    if kind == DeviceKind.MIG:
        return DeviceCost(_mig(device, memory, sets), model=model)
    whole = Amounts({GPUS: MILLI, MEMORY: memory, COMPUTE: FULL})
    return DeviceCost(whole, share=kind == DeviceKind.SHARE, model=model)


def _mig(device: Device, memory: int, sets: Mapping[str, CounterSet]) -> Amounts:
    """Its part of the card, by the counters that it takes."""
    slices = compute = 0
    of_slices = of_compute = 0
    for consumption in device.consumes_counters:
        everything = (
            sets[consumption.counter_set].counters if consumption.counter_set in sets else {}
        )
        for name, counter in consumption.counters.items():
            slices += name.startswith(MEMORY_SLICE)
            compute += counter.value.value if name == COMPUTE_SLICES else 0
        of_slices += sum(name.startswith(MEMORY_SLICE) for name in everything)
        if COMPUTE_SLICES in everything:
            of_compute += everything[COMPUTE_SLICES].value.value
    points = _part(compute, of_compute, FULL)
    return Amounts(
        {
            GPUS: max(_part(slices, of_slices), _part(compute, of_compute)),
            MEMORY: memory,
            COMPUTE: points,
        }
    )


def _part(amount: int, of: int, scale: int = MILLI) -> int:
    """``amount / of`` in parts of ``scale``, rounded up; all of it when the whole is not known."""
    if of <= 0:
        return scale
    return min(scale, -(-amount * scale // of))
