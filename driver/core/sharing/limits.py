# SPDX-License-Identifier: Apache-2.0
"""How much memory and compute one claim may use of a device, from what it reserved."""

from dataclasses import replace

from gpudra.api.errors import ClaimError
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import DeviceRequestAllocationResult
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.sharing.types import Sharing

MIB = 2**20
ALL = 100
MEMORY, COMPUTE = "memory", "compute"


def limits_of(
    obj: str, result: DeviceRequestAllocationResult, device: AllocatableDevice
) -> tuple[int | None, int]:
    """Memory in MiB (None: no limit) and compute in per cent (0: no limit).

    Only shares are limited; a whole device that several containers use is not.

    Raises:
        ClaimError: no or no whole MiB of memory, more than the card has, or per cent out of range.
    """
    if device.kind is not DeviceKind.SHARE:
        return None, 0
    where = f"request {result.request} takes"
    memory = _amount(result, MEMORY)
    if memory is None or memory.nanos <= 0:
        amount = "no memory" if memory is None else f"{memory} of memory"
        raise ClaimError(
            f"{where} {amount} of device {result.device}",
            obj=obj,
            hint="ask for 1Mi or more: a limit of 0 would be none",
        )
    size, rest = divmod(memory.nanos, MIB * 10**9)
    if rest:
        raise ClaimError(
            f"{where} {memory} of memory, which is no whole number of MiB",
            obj=obj,
            hint="write it in Mi or Gi",
        )
    total = device.gpu.memory_bytes
    if total is not None and size * MIB > total:
        raise ClaimError(
            f"{where} {memory} of memory, device {result.device} has {total // MIB}Mi", obj=obj
        )
    return size, _compute(obj, where, result)


def _compute(obj: str, where: str, result: DeviceRequestAllocationResult) -> int:
    compute = _amount(result, COMPUTE)
    if compute is None:
        return 0
    value, rest = divmod(compute.nanos, 10**9)
    if rest or not 0 <= value <= ALL:
        raise ClaimError(
            f"{where} {compute} of compute",
            obj=obj,
            hint="compute is in whole per cent of the card, from 0 (no limit) to 100",
        )
    return value


def _amount(result: DeviceRequestAllocationResult, name: str) -> Quantity | None:
    """A capacity by its name, with or without the driver's domain."""
    found = result.consumed_capacity
    return found.get(name, found.get(f"{result.driver}/{name}"))


def together(obj: str, left: Sharing, right: Sharing, device: AllocatableDevice) -> Sharing:
    """Two shares of one device in one claim: a container that sees both may use the sum.

    Raises:
        ClaimError: they want different backends, or more than the card.
    """
    if (left.backend, left.time_slice) != (right.backend, right.time_slice):
        raise ClaimError(
            f"device {left.device} is to be shared by {left.backend} and by {right.backend}",
            obj=obj,
            hint="give all requests for shares one isolation",
        )
    if left.memory_mib is None or right.memory_mib is None:
        return left
    memory = left.memory_mib + right.memory_mib
    total = device.gpu.memory_bytes
    if total is not None and memory * MIB > total:
        raise ClaimError(
            f"takes {memory}Mi of device {left.device}, which has {total // MIB}Mi", obj=obj
        )
    # A share without a limit on compute lifts it for the sum.
    compute = min(ALL, left.compute + right.compute) if left.compute and right.compute else 0
    return replace(left, memory_mib=memory, compute=compute)
