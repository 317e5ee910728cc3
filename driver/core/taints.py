# SPDX-License-Identifier: Apache-2.0
"""Health of a card as device taints, one key per cause.

Keys are ``<driver>/<cause>``. A taint never carries a time: the server sets it, and
gpudra.driver.core.slicediff carries it over on every rewrite.
"""

from gpudra.api.resource_v1 import NO_EXECUTE, NO_SCHEDULE, DeviceTaint
from gpudra.driver.core.inventory import Gpu

LOST = "lost"


def cause_taint(driver: str, cause: str, *, value: str = "", effect: str) -> DeviceTaint:
    """The taint of one cause."""
    return DeviceTaint(key=f"{driver}/{cause}", value=value, effect=effect)


def inventory_taints(gpu: Gpu, driver: str) -> tuple[DeviceTaint, ...]:
    """What the inventory alone says about a card: it is lost."""
    return (cause_taint(driver, LOST, effect=NO_SCHEDULE),) if gpu.lost else ()


def keeps_off(taint: DeviceTaint) -> bool:
    """Whether the taint forbids new allocations."""
    return taint.effect in (NO_SCHEDULE, NO_EXECUTE)
