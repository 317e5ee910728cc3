# SPDX-License-Identifier: Apache-2.0
"""Limits of ``resource.k8s.io/v1`` on slices, checked before anything is sent.

Each error names the device or counter set and the field, since the API server's own message comes
too late and takes the whole pool down. Source: ``k8s.io/api/resource/v1/types.go`` and
``pkg/apis/resource/validation``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpudra.api import names
from gpudra.api.attributes import AttributeValue
from gpudra.api.errors import InputError
from gpudra.api.resource_v1 import CounterSet, Device, DeviceCapacity, DeviceTaint

_EFFECTS = ("None", "NoSchedule", "NoExecute")


def has_details(device: Device) -> bool:
    """Whether the device lowers the limit of its slice from 128 devices to 64."""
    return bool(
        device.taints
        or device.consumes_counters
        or any(isinstance(value, tuple) for value in device.attributes.values())
    )


def check_devices(devices: Iterable[Device]) -> None:
    """Checks every device of a pool, and that no name comes twice.

    Raises:
        InputError: a limit is broken; ``obj`` is the device, ``field`` the field.
    """
    seen: set[str] = set()
    for device in devices:
        try:
            check_device(device)
            _once(device.name in seen)
        except InputError as error:
            raise error.within(obj=f"device {device.name}") from error
        seen.add(device.name)


def check_device(device: Device) -> None:
    """Checks one device.

    Raises:
        InputError: a limit is broken; the field tells which.
    """
    names.check_dns_label(device.name, "name")
    together = len(device.attributes) + len(device.capacity)
    _at_most(together, names.MAX_ATTRIBUTES_AND_CAPACITIES, "attributes and capacity", "attributes")
    values = sum(
        len(value) if isinstance(value, tuple) else 1 for value in device.attributes.values()
    )
    _at_most(values, names.MAX_ATTRIBUTE_VALUES, "attribute values", "attributes")
    for name, value in device.attributes.items():
        _check_attribute(name, value)
    _check_capacity(device.capacity, allow_policy=bool(device.allow_multiple_allocations))
    _check_consumption(device)
    _at_most(len(device.taints), names.MAX_TAINTS_PER_DEVICE, "taints", "taints")
    for index, taint in enumerate(device.taints):
        _check_taint(taint, f"taints[{index}]")


def check_counter_sets(sets: Sequence[CounterSet]) -> None:
    """Checks the counter sets of a pool.

    Raises:
        InputError: a set has no counter, too many, or comes twice; ``obj`` names it.
    """
    counts = Counter(one.name for one in sets)
    for one in sets:
        try:
            _once(counts[one.name] > 1)
            _check_counter_set(one)
        except InputError as error:
            raise error.within(obj=f"counter set {one.name}") from error


def _check_counter_set(one: CounterSet) -> None:
    names.check_dns_label(one.name, "name")
    if not one.counters:
        # The API server refuses such a set, and with it the pool.
        raise InputError("has no counters", field="counters")
    _at_most(len(one.counters), names.MAX_COUNTERS_PER_SET, "counters", "counters")
    for name in one.counters:
        names.check_dns_label(name, f"counters[{name}]")


def _once(again: bool) -> None:
    if again:
        raise InputError("comes twice in the pool", field="name")


def _check_attribute(name: str, value: AttributeValue) -> None:
    field = f"attributes[{name}]"
    names.check_qualified_name(name, field)
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, bool | int):
            continue
        _at_most(len(str(item).encode()), names.MAX_ATTRIBUTE_VALUE_LENGTH, "bytes", field)


def _check_capacity(capacity: Mapping[str, DeviceCapacity], *, allow_policy: bool) -> None:
    for name, amount in capacity.items():
        names.check_qualified_name(name, f"capacity[{name}]")
        if amount.request_policy is not None and not allow_policy:
            raise InputError(
                "is for devices with allowMultipleAllocations only",
                field=f"capacity[{name}].requestPolicy",
            )


def _check_consumption(device: Device) -> None:
    field = "consumesCounters"
    _at_most(len(device.consumes_counters), names.MAX_COUNTER_SETS_PER_DEVICE, "entries", field)
    for index, entry in enumerate(device.consumes_counters):
        if not entry.counters:
            raise InputError("has no counters", field=f"{field}[{index}].counters")
        _at_most(
            len(entry.counters),
            names.MAX_COUNTERS_PER_SET,
            "counters",
            f"{field}[{index}].counters",
        )


def _check_taint(taint: DeviceTaint, field: str) -> None:
    domain, slash, _ = taint.key.partition("/")
    if slash:
        names.check_dns_subdomain(domain, f"{field}.key")
    if taint.effect not in _EFFECTS:
        raise InputError(
            f"{taint.effect!r} is no effect",
            field=f"{field}.effect",
            hint=f"use one of {', '.join(_EFFECTS)}",
        )


def _at_most(count: int, limit: int, what: str, field: str) -> None:
    if count > limit:
        raise InputError(f"has {count} {what}, at most {limit} are allowed", field=field)
