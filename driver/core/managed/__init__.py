# SPDX-License-Identifier: Apache-2.0
"""Managed mode: who gets which node and which devices, and who waits and why. Pure.

`ManagedState` follows the cluster and makes plans; docs/managed-core.md tells how. The controller
(gpudra.controller.managed) feeds it and carries plans out.
"""

from gpudra.driver.core.gangs.podview import claim_refs, pod_view
from gpudra.driver.core.gangs.types import ClaimRef, NodeRules, PodPlacement, PodView
from gpudra.driver.core.managed.facade import ManagedState
from gpudra.driver.core.managed.types import (
    ClaimPlacement,
    Eviction,
    JobPlacement,
    JobUndo,
    JobWaiting,
    Plan,
    PlanOptions,
    PodRef,
    WhatIf,
)

__all__ = [
    "ClaimPlacement",
    "ClaimRef",
    "Eviction",
    "JobPlacement",
    "JobUndo",
    "JobWaiting",
    "ManagedState",
    "NodeRules",
    "Plan",
    "PlanOptions",
    "PodPlacement",
    "PodRef",
    "PodView",
    "WhatIf",
    "claim_refs",
    "pod_view",
]
