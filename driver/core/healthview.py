# SPDX-License-Identifier: Apache-2.0
"""What the health of cards means for each device: taints for the API, states for the kubelet. Pure.

A cause of a whole card counts for all of its devices. A cause of a MIG instance counts for the
device of that instance; while no reading shows the instance, for all MIG devices of the card, since
one of them it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpudra.api.names import MAX_TAINTS_PER_DEVICE
from gpudra.api.resource_v1 import EFFECT_NONE, DeviceTaint
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.health import (
    DRIVER_MISSING,
    LOST,
    UNMONITORED,
    Cause,
    HealthPolicy,
    HealthState,
)
from gpudra.driver.core.taints import SEVERITY, cause_taint, merged_taints

# Room for taints of other origin (managed nodes, a device plugin on the node).
_MAX_TAINTS = MAX_TAINTS_PER_DEVICE - 3
# The kubelet cuts at this many bytes; cutting here keeps whole characters.
MAX_MESSAGE_BYTES = 1024


class DeviceHealth(StrEnum):
    """As the kubelet knows it (``HealthStatus`` of dra-health)."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """One device's health and why."""

    health: DeviceHealth
    message: str = ""


def device_taints(
    state: HealthState, devices: Iterable[AllocatableDevice], policy: HealthPolicy, driver: str
) -> dict[str, tuple[DeviceTaint, ...]]:
    """Taints by name of the device; devices without any are absent.

    One taint per cause, the worst first, each with the greatest effect of those that name it. The
    least bad ones are left out where the API would not take all of them.
    """
    found = {}
    for device in devices:
        marks = merged_taints(
            cause_taint(driver, cause.key, value=cause.value, effect=_effect(cause, device, policy))
            for cause in _causes_of(state, device)
        )
        if marks:
            worst = sorted(marks, key=lambda mark: (-SEVERITY[mark.effect], mark.key))
            found[device.name] = tuple(worst[:_MAX_TAINTS])
    return found


def device_health(
    state: HealthState, devices: Iterable[AllocatableDevice], policy: HealthPolicy
) -> dict[str, HealthReport]:
    """Health by name of the device."""
    return {device.name: _report(_causes_of(state, device), policy) for device in devices}


def sick_cards(state: HealthState, policy: HealthPolicy) -> dict[str, str]:
    """Why, by key of the card, for cards that as a whole are not fit for new claims; sorted."""
    found = {}
    for gpu in sorted(state.cards):
        causes = [
            cause
            for cause in state.causes(gpu)
            if cause.gpu_instance_id is None and policy.effect(cause.key) != EFFECT_NONE
        ]
        if causes:
            found[gpu] = "; ".join(f"{cause.key} ({cause.message})" for cause in causes)
    return found


def _report(causes: tuple[Cause, ...], policy: HealthPolicy) -> HealthReport:
    message = "; ".join(f"{cause.key}: {cause.message or cause.key}" for cause in causes)
    message = message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    if any(
        cause.key not in (DRIVER_MISSING, UNMONITORED) and policy.effect(cause.key) != EFFECT_NONE
        for cause in causes
    ):
        return HealthReport(DeviceHealth.UNHEALTHY, message)
    if any(cause.key in (DRIVER_MISSING, UNMONITORED) for cause in causes):
        return HealthReport(DeviceHealth.UNKNOWN, message)
    return HealthReport(DeviceHealth.HEALTHY, message)


def _causes_of(state: HealthState, device: AllocatableDevice) -> tuple[Cause, ...]:
    return tuple(cause for cause in state.causes(device.gpu.key) if _concerns(cause, device))


def _concerns(cause: Cause, device: AllocatableDevice) -> bool:
    wanted = cause.gpu_instance_id
    if wanted is None:
        return True
    if device.kind is not DeviceKind.MIG:
        return False
    if device.instance is not None:
        return device.instance.gpu_instance_id == wanted
    instances = device.gpu.mig.instances if device.gpu.mig else None
    for one in instances or ():
        if one.gpu_instance_id == wanted:
            profile = device.profile.id if device.profile else None
            return (one.profile_id, one.placement) == (profile, device.placement)
    return not cause.confirmed


def _effect(cause: Cause, device: AllocatableDevice, policy: HealthPolicy) -> str:
    """A monitor is for looking at sick cards, so only a card that cannot be reached keeps it off."""
    if device.kind is DeviceKind.MONITOR and cause.key not in (LOST, DRIVER_MISSING):
        return EFFECT_NONE
    return policy.effect(cause.key)
