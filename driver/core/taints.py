# SPDX-License-Identifier: Apache-2.0
"""Health of a card as device taints, one key per cause.

Keys are ``<driver>/<cause>``. A taint never carries a time: the server sets it, and
gpudra.driver.core.slicediff carries it over on every rewrite.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gpudra.api.resource_v1 import EFFECT_NONE, NO_EXECUTE, NO_SCHEDULE, DeviceTaint
from gpudra.driver.core.inventory import Gpu

LOST = "lost"
SEVERITY: Mapping[str, int] = MappingProxyType({EFFECT_NONE: 0, NO_SCHEDULE: 1, NO_EXECUTE: 2})
# Given out by gpudra's controller only; the stock scheduler keeps off.
MANAGED = "managed"
# A claim holds it, but policy or hardware do not offer it any more.
WITHDRAWN = "withdrawn"
# Somebody else has made MIG instances where it would lie.
FOREIGN_MIG = "foreign-mig"


def cause_taint(driver: str, cause: str, *, value: str = "", effect: str) -> DeviceTaint:
    """The taint of one cause."""
    return DeviceTaint(key=f"{driver}/{cause}", value=value, effect=effect)


def inventory_taints(gpu: Gpu, driver: str) -> tuple[DeviceTaint, ...]:
    """What the inventory alone says about a card: it is lost."""
    return (cause_taint(driver, LOST, effect=NO_SCHEDULE),) if gpu.lost else ()


def keeps_off(taint: DeviceTaint) -> bool:
    """Whether the taint forbids new allocations."""
    return taint.effect in (NO_SCHEDULE, NO_EXECUTE)


def merged_taints(*groups: Iterable[DeviceTaint]) -> tuple[DeviceTaint, ...]:
    """All taints, each key once with its greatest effect, in the order in which they came."""
    found: dict[str, DeviceTaint] = {}
    for group in groups:
        for taint in group:
            before = found.get(taint.key)
            if before is None or _severity(taint) > _severity(before):
                found[taint.key] = taint
    return tuple(found.values())


def _severity(taint: DeviceTaint) -> int:
    return SEVERITY.get(taint.effect, 0)
