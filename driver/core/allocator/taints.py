# SPDX-License-Identifier: Apache-2.0
"""Taints of devices: which ones count, which ones a request tolerates, which ones rules add.

Source: ``DeviceTaint``, ``DeviceToleration`` and ``DeviceTaintRule`` in ``resource.k8s.io/v1``.
"""

from collections.abc import Iterable, Sequence

from gpudra.api.resource_v1 import (
    NO_EXECUTE,
    NO_SCHEDULE,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
)
from gpudra.driver.core.allocator.types import PoolKey


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether one toleration covers one taint. An empty effect or key covers all of them."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in {"", "Equal"}:
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def blocking_taint(
    taints: Iterable[DeviceTaint], tolerations: Sequence[DeviceToleration]
) -> DeviceTaint | None:
    """The first taint that keeps a request off. ``None`` and unknown effects keep nobody off."""
    for taint in taints:
        if taint.effect in {NO_SCHEDULE, NO_EXECUTE} and not any(
            tolerates(one, taint) for one in tolerations
        ):
            return taint
    return None


def rules_for_pool(rules: Iterable[DeviceTaintRule], pool: PoolKey) -> list[DeviceTaintRule]:
    """The rules that may touch devices of a pool.

    A rule without a selector touches nothing; one with an empty selector touches everything.
    """
    driver, name = pool
    chosen = []
    for rule in rules:
        selector = rule.spec.device_selector
        if selector is None:
            continue
        if selector.driver not in {None, driver} or selector.pool not in {None, name}:
            continue
        chosen.append(rule)
    return chosen


def rule_taints(rules: Iterable[DeviceTaintRule], device: str) -> tuple[DeviceTaint, ...]:
    """What the rules of a device's pool add to the taints in its slice."""
    return tuple(
        rule.spec.taint
        for rule in rules
        if rule.spec.device_selector is not None
        and rule.spec.device_selector.device in {None, device}
    )
