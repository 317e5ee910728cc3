# SPDX-License-Identifier: Apache-2.0
"""How much of a device a request takes (KEP-5075, consumable capacity).

All arithmetic is exact, in nanos, so milli ranges (DRAFractionalCapacityRange) and amounts above
2^63 need no special path.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpudra.api.names import split_qualified_name
from gpudra.api.quantity import Format, Quantity
from gpudra.api.resource_v1 import CapacityRange, Device, DeviceCapacity


@dataclass(frozen=True, slots=True)
class Fit:
    """What a request takes from each capacity of a device, in the order the device lists them.

    Attributes:
        amounts: nanos per capacity; empty for a device without capacities.
        shown: the same as quantities, by published name: ``consumedCapacity`` of the result.
    """

    amounts: tuple[int, ...]
    shown: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a device can never serve a request for capacity.

    Attributes:
        name: the capacity as published, or as asked for when the device has none of this name.
        detail: the amounts, for people.
    """

    name: str
    detail: str


def capacity_fit(device: Device, driver: str, requests: Mapping[str, Quantity]) -> Fit | Misfit:
    """What a request for these amounts would take from an unused device.

    A name without a domain and one with the driver's domain are the same name.
    """
    asked = _by_published_name(device, driver, requests)
    if isinstance(asked, Misfit):
        return asked
    amounts: list[int] = []
    shown: dict[str, Quantity] = {}
    for name, capacity in device.capacity.items():
        taken = _consumed(asked.get(name), capacity)
        if isinstance(taken, str):
            return Misfit(name, taken)
        if taken.nanos < 0 or capacity.value.nanos < 0:
            return Misfit(name, f"{name} is negative ({taken} of {capacity.value})")
        if taken.nanos > capacity.value.nanos:
            return Misfit(name, f"{name}: {taken} asked, the device has {capacity.value}")
        amounts.append(taken.nanos)
        shown[name] = taken
    return Fit(tuple(amounts), shown)


def _by_published_name(
    device: Device, driver: str, requests: Mapping[str, Quantity]
) -> dict[str, Quantity] | Misfit:
    asked: dict[str, Quantity] = {}
    for name, amount in requests.items():
        if name in device.capacity:
            asked[name] = amount
            continue
        wanted = split_qualified_name(name, driver)
        for published in device.capacity:
            if split_qualified_name(published, driver) == wanted:
                # An exact name in the same request goes before its other spelling.
                asked.setdefault(published, amount)
                break
        else:
            return Misfit(name, f"the device has no capacity {name}")
    return asked


def _consumed(asked: Quantity | None, capacity: DeviceCapacity) -> Quantity | str:
    """The amount taken, or why there is none."""
    policy = capacity.request_policy
    if policy is None:
        return asked if asked is not None else capacity.value
    if asked is None:
        asked = policy.default if policy.default is not None else capacity.value
        if policy.default is not None:
            return asked
    if policy.valid_range is not None:
        return _in_range(asked, policy.valid_range)
    if policy.valid_values:
        for value in policy.valid_values:
            if value.nanos >= asked.nanos:
                return value
        return f"{asked} asked, the largest share is {policy.valid_values[-1]}"
    return asked


def _in_range(asked: Quantity, valid: CapacityRange) -> Quantity | str:
    low = valid.min.nanos if valid.min is not None else 0
    taken = asked
    if asked.nanos < low and valid.min is not None:
        taken = valid.min
    elif valid.step is not None and valid.step.nanos > 0:
        steps = -(-(asked.nanos - low) // valid.step.nanos)
        rounded = low + steps * valid.step.nanos
        if rounded != asked.nanos:
            taken = Quantity(rounded, _step_format(valid.step, asked))
    if valid.max is not None and taken.nanos > valid.max.nanos:
        return f"{asked} asked, a share holds at most {valid.max}"
    return taken


def _step_format(step: Quantity, asked: Quantity) -> Format:
    """Rounded amounts are written like the step, which is how upstream shows them too."""
    return step.format if step.format is not Format.DECIMAL_EXPONENT else asked.format


def normalized(consumed: Mapping[str, Quantity], driver: str) -> dict[tuple[str, str], int]:
    """Consumed amounts of a result by qualified name, however they were spelt."""
    amounts: dict[tuple[str, str], int] = {}
    for name, amount in consumed.items():
        key = split_qualified_name(name, driver)
        amounts[key] = amounts.get(key, 0) + amount.nanos
    return amounts
