# SPDX-License-Identifier: Apache-2.0
"""From the configuration that decides for a device to what sharing has to know of it."""

from typing import TYPE_CHECKING

from gpudra.api.quantity import Quantity
from gpudra.driver.core.sharing.types import Ask, Backend

if TYPE_CHECKING:  # pydantic is loaded by whoever decoded a configuration, and by nobody else
    from gpudra.api.config.v1alpha1 import Config, MpsLimits

MIB = 2**20


def ask_of(config: "Config | None") -> Ask:
    """What a decoded configuration asks for; nothing if there is none."""
    if config is None:
        return Ask()
    sharing = config.sharing
    length = getattr(sharing, "time_slice", None)
    limits: MpsLimits | None = getattr(sharing, "mps", None)
    return Ask(
        isolation=Backend(sharing.isolation) if sharing.isolation else None,
        time_slice=str(length) if length else None,
        memory_mib=_mib(limits.pinned_memory_limit) if limits else None,
        memory_by_uuid={uuid: _mib(text) or 0 for uuid, text in limits.pinned_memory_limits.items()}
        if limits
        else {},
        compute=(limits.active_thread_percentage or 0) if limits else 0,
    )


def _mib(text: str | None) -> int | None:
    return None if text is None else Quantity.parse(text).as_integer() // MIB
