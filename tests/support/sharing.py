# SPDX-License-Identifier: Apache-2.0
"""Claims for shares, the devices they hold, and the containers that use them."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core import cdi, prepare
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.inventory import Gpu, PciInfo
from gpudra.driver.core.sharing import Ask, Backend, Consumer, NodeSharing, Places
from tests.support.plugin import DRIVER, claim_object, uid

GIB = 2**30
EVERYTHING = NodeSharing(
    backends=dict.fromkeys(Backend, ""),
    places=Places(runtime_dir="/run/gpudra", hami_library="/opt/libvgpu.so"),
)


def card(number: int, **fields: Any) -> Gpu:
    """A card of 80 GiB. Bus addresses fall while the numbers rise."""
    values: dict[str, Any] = {
        "uuid": f"GPU-{number}",
        "minor": number,
        "memory_bytes": 80 * GIB,
        "compute_capability": (9, 0),
        "pci": PciInfo(bus_id=f"0000:{0xF0 - number:02x}:00.0"),
    }
    return Gpu(**(values | fields))


def device(number: int, kind: DeviceKind = DeviceKind.SHARE, **fields: Any) -> AllocatableDevice:
    """A device of a card, named ``gpu-0-share``."""
    return AllocatableDevice(name=f"gpu-{number}-{kind}", kind=kind, gpu=card(number, **fields))


def share(
    number: int = 0,
    memory: str | None = "10Gi",
    compute: str | None = "0",
    *,
    request: str = "gpu",
    share_id: int = 1,
    kind: DeviceKind = DeviceKind.SHARE,
) -> Mapping[str, Any]:
    """One result of a claim."""
    amounts = {"memory": memory, "compute": compute}
    return {
        "request": request,
        "device": f"gpu-{number}-{kind}",
        "shareID": uid(share_id),
        "consumedCapacity": {name: value for name, value in amounts.items() if value is not None},
    }


def allocation(*results: Mapping[str, Any], number: int = 1) -> prepare.ClaimAllocation:
    """This driver's part of claim ``claim-<number>``."""
    claim = claim_object(uid(number), f"claim-{number}", *results)
    return prepare.allocation_of(ResourceClaim.from_dict(claim), DRIVER)


def parts_of(
    claim: prepare.ClaimAllocation, devices: Iterable[AllocatableDevice]
) -> dict[str, AllocatableDevice]:
    """Devices by CDI name, as a plan has them."""
    by_name = {one.name: one for one in devices}
    return {
        cdi.device_name(claim.uid, one.device, one.share_id): by_name[one.device]
        for one in claim.results
    }


def asking(
    parts: Iterable[str], isolation: Backend, time_slice: str | None = None
) -> dict[str, Ask]:
    """The same configuration for every device."""
    return dict.fromkeys(parts, Ask(isolation=isolation, time_slice=time_slice))


def consumer(
    container: str = "main",
    *,
    pod: str = "pod-1",
    uses: Mapping[str, Iterable[str]] | None = None,
    init: bool = False,
    shared_pids: bool = False,
) -> Consumer:
    """A container; without ``uses`` it sees claim-1 as a whole."""
    return Consumer(
        pod=pod,
        container=container,
        init=init,
        shared_pids=shared_pids,
        uses={claim: frozenset(seen) for claim, seen in (uses or {"claim-1": ()}).items()},
    )
