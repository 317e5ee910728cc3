# SPDX-License-Identifier: Apache-2.0
"""The taint that keeps the stock scheduler off the devices of managed nodes, and claims that stand it."""

from dataclasses import replace

from gpudra.api.resource_v1 import (
    NO_SCHEDULE,
    DeviceRequest,
    DeviceToleration,
    ResourceClaim,
)


def tolerant(claim: ResourceClaim, driver: str) -> ResourceClaim:
    """The claim as managed mode allocates it: it stands the taint that keeps others off."""
    stands = DeviceToleration(key=f"{driver}/managed", operator="Exists", effect=NO_SCHEDULE)
    requests = tuple(_tolerant(one, stands) for one in claim.spec.devices.requests)
    devices = replace(claim.spec.devices, requests=requests)
    return replace(claim, spec=replace(claim.spec, devices=devices))


def _tolerant(request: DeviceRequest, stands: DeviceToleration) -> DeviceRequest:
    if request.exactly is not None:
        own = _added(request.exactly.tolerations, stands)
        return replace(request, exactly=replace(request.exactly, tolerations=own))
    listed = tuple(
        replace(one, tolerations=_added(one.tolerations, stands)) for one in request.first_available
    )
    return replace(request, first_available=listed)


def _added(
    tolerations: tuple[DeviceToleration, ...], stands: DeviceToleration
) -> tuple[DeviceToleration, ...]:
    if any(one.key == stands.key and one.operator == stands.operator for one in tolerations):
        return tolerations
    return (*tolerations, stands)
