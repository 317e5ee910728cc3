# SPDX-License-Identifier: Apache-2.0
"""Which backend keeps the users of a device apart: the claim's, else the node's, else the strongest.

What was asked for and cannot be had is refused by name; nothing weaker is taken instead.
"""

from collections.abc import Mapping

from gpudra.api.errors import ClaimError
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.inventory import NVIDIA
from gpudra.driver.core.sharing.types import ASKED_ONLY, Ask, Backend, NodeSharing

# The first architecture whose MPS server limits each client (Volta).
_MPS_CAPABILITY = (7, 0)


def choose(
    ask: Ask,
    node: NodeSharing,
    device: AllocatableDevice,
    *,
    unfit: Mapping[Backend, str],
    obj: str,
) -> Backend | None:
    """The backend of one device, None for a device that is not shared.

    Args:
        ask: what the claim's configuration says.
        node: what the node can do and allows.
        device: a whole card or a MIG device is shared only if the claim asks for it.
        unfit: what speaks against a backend for this claim.
        obj: for messages, the claim.

    Raises:
        ClaimError: the backend that was asked for is not allowed, not available or does not fit;
            or none does.
    """
    if ask.isolation is None and device.kind is not DeviceKind.SHARE:
        return None
    reasons = {backend: reason(backend, node, device, unfit) for backend in Backend}
    if ask.isolation is not None:
        return _asked(ask.isolation, reasons, device, obj, "the claim asks for")
    if node.default is not None:
        return _asked(node.default, reasons, device, obj, "the node's policy asks for")
    for backend in Backend:
        if backend not in ASKED_ONLY and not reasons[backend]:
            return backend
    told = "; ".join(f"{one}: {reasons[one]}" for one in Backend if one not in ASKED_ONLY)
    raise ClaimError(
        f"nothing on this node keeps the users of device {device.name} apart ({told})",
        obj=obj,
        hint="set sharing.isolation to none in a ShareConfig if that is wanted",
    )


def _asked(
    backend: Backend,
    reasons: Mapping[Backend, str],
    device: AllocatableDevice,
    obj: str,
    who: str,
) -> Backend:
    if reasons[backend]:
        usable = ", ".join(one for one in Backend if not reasons[one])
        raise ClaimError(
            f"{who} isolation {backend} of device {device.name}, which cannot be had: "
            f"{reasons[backend]}",
            obj=obj,
            hint=f"it could be one of: {usable}" if usable else "",
        )
    return backend


def reason(
    backend: Backend,
    node: NodeSharing,
    device: AllocatableDevice,
    unfit: Mapping[Backend, str],
) -> str:
    """Why a backend cannot be used for a device; nothing if it can."""
    if backend not in node.allowed:
        return "the node's policy does not allow it"
    missing = node.backends.get(backend, "this node has no such backend")
    return missing or _of_device(backend, device) or unfit.get(backend, "")


def _of_device(backend: Backend, device: AllocatableDevice) -> str:
    gpu = device.gpu
    if backend is Backend.NONE:
        return ""
    if gpu.vendor != NVIDIA:
        return f"it is for cards of {NVIDIA}, this one is of {gpu.vendor}"
    if backend is Backend.HAMI_CORE and device.kind is not DeviceKind.SHARE:
        return "it limits shares, this device is given as a whole"
    if backend is Backend.TIME_SLICE and device.kind is DeviceKind.MIG:
        return "a MIG device has no time slices of its own"
    old = gpu.compute_capability is not None and gpu.compute_capability < _MPS_CAPABILITY
    if backend is Backend.MPS and old:
        return "cards before Volta cannot limit single clients"
    return ""
