# SPDX-License-Identifier: Apache-2.0
"""Which configuration decides for a device of a claim. Pure; called by gpudra.driver.core.prepare.

Precedence: class, then claim; within each what names the request beats what names none; later
beats earlier. Configuration without requests applies to the devices of its own type only, so that
one claim can configure GPUs and MIG devices; naming a request of another type is an error.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpudra.api.errors import ClaimError, InputError
from gpudra.api.resource_v1 import DeviceAllocationConfiguration, DeviceRequestAllocationResult
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind

if TYPE_CHECKING:  # pydantic is loaded by a claim that carries configuration, and by no other
    from gpudra.api.config.v1alpha1 import Config

_KIND_OF_CONFIG = {
    "GpuConfig": DeviceKind.WHOLE,
    "MigConfig": DeviceKind.MIG,
    "ShareConfig": DeviceKind.SHARE,
}


def deciding_config(
    label: str,
    configs: Sequence[DeviceAllocationConfiguration],
    result: DeviceRequestAllocationResult,
    device: AllocatableDevice,
    *,
    stored: bool = False,
) -> "Config | None":
    """The configuration of one device; None if nothing configures it.

    Args:
        label: how messages name the claim.
        configs: opaque parameters for this driver.
        result: names the request.
        device: what was allocated.
        stored: the claim was accepted before, so unknown fields are dropped.

    Raises:
        ClaimError: invalid parameters, or parameters of another type for this request.
    """
    if not configs:
        return None
    # pydantic costs 10 MB and 0.1 s: a node whose claims carry no configuration never loads it.
    from gpudra.api.config import v1alpha1  # noqa: PLC0415

    decode = v1alpha1.decode_stored if stored else v1alpha1.decode_user
    chosen = None
    for config in _by_precedence(configs, result):
        try:
            decoded = decode(config.opaque.parameters if config.opaque else None)
        except InputError as error:
            raise ClaimError(
                f"configuration of request {result.request} is invalid: {error}", obj=label
            ) from error
        if _KIND_OF_CONFIG[decoded.kind] is device.kind:
            chosen = decoded
        elif config.requests:
            raise ClaimError(
                f"{decoded.kind} names request {result.request}, whose device {result.device} is "
                f"of type {device.kind}",
                obj=label,
            )
    return chosen


def _by_precedence(
    configs: Iterable[DeviceAllocationConfiguration], result: DeviceRequestAllocationResult
) -> list[DeviceAllocationConfiguration]:
    """Those that apply to a result, the deciding one last."""
    names = {result.request, result.base_request}
    fitting = [one for one in configs if not one.requests or names & set(one.requests)]
    return sorted(fitting, key=lambda one: (one.source != "FromClass", bool(one.requests)))
