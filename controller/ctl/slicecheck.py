# SPDX-License-Identifier: Apache-2.0
"""Rules that the API server would have enforced, for slices and claims from files.

Called by ``objects``. Only what could mislead an answer is looked at; limits of size are not.
"""

from gpudra.api.errors import InputError
from gpudra.api.names import (
    check_dns_label,
    check_dns_subdomain,
    check_driver_name,
    check_pool_name,
    check_qualified_name,
)
from gpudra.api.resource_v1 import Device, ResourceClaim, ResourceSlice


def check_slice(one: ResourceSlice) -> None:
    """Names are names, and amounts are not negative.

    Raises:
        InputError: the first rule that is broken; the field is named.
    """
    spec = one.spec
    check_dns_subdomain(one.metadata.name, "metadata.name")
    check_driver_name(spec.driver, "spec.driver")
    check_pool_name(spec.pool.name, "spec.pool.name")
    for index, device in enumerate(spec.devices):
        place = f"spec.devices[{index}]"
        _check_device(device, place)
    for index, counter_set in enumerate(spec.shared_counters):
        place = f"spec.sharedCounters[{index}]"
        check_dns_label(counter_set.name, f"{place}.name")
        for name, counter in counter_set.counters.items():
            if counter.value.nanos < 0:
                raise InputError(
                    f"{counter.value} is negative", field=f"{place}.counters[{name}].value"
                )


def check_claim(one: ResourceClaim) -> None:
    """Names are names.

    Raises:
        InputError: the first one that is not; the field is named.
    """
    check_dns_subdomain(one.metadata.name, "metadata.name")
    for index, request in enumerate(one.spec.devices.requests):
        place = f"spec.devices.requests[{index}]"
        check_dns_label(request.name, f"{place}.name")
        for at, sub in enumerate(request.first_available):
            check_dns_label(sub.name, f"{place}.firstAvailable[{at}].name")


def _check_device(device: Device, place: str) -> None:
    check_dns_label(device.name, f"{place}.name")
    for name in device.attributes:
        check_qualified_name(name, f"{place}.attributes[{name}]")
    for name, capacity in device.capacity.items():
        field = f"{place}.capacity[{name}]"
        check_qualified_name(name, field)
        if capacity.value.nanos < 0:
            raise InputError(f"{capacity.value} is negative", field=f"{field}.value")
    for index, consumption in enumerate(device.consumes_counters):
        for name, counter in consumption.counters.items():
            if counter.value.nanos < 0:
                raise InputError(
                    f"{counter.value} is negative",
                    field=f"{place}.consumesCounters[{index}].counters[{name}].value",
                )
