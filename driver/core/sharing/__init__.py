# SPDX-License-Identifier: Apache-2.0
"""How the users of one device are kept apart: choice of a backend, limits, honest reports.

Pure; gpudra.kubelet_plugin.sharing carries it out. Used by the node agent only.
"""

from gpudra.driver.core.sharing.ask import ask_of
from gpudra.driver.core.sharing.consumers import Consumer, consumers_of
from gpudra.driver.core.sharing.plan import SharingPlan, broken_by, plan_sharing, replan
from gpudra.driver.core.sharing.reports import exclusive_report, sharing_report
from gpudra.driver.core.sharing.types import (
    Ask,
    Backend,
    IsolationReport,
    NodeSharing,
    Places,
    Preload,
    Sharing,
    is_sharing,
    sharings,
)

__all__ = [
    "Ask",
    "Backend",
    "Consumer",
    "IsolationReport",
    "NodeSharing",
    "Places",
    "Preload",
    "Sharing",
    "SharingPlan",
    "ask_of",
    "broken_by",
    "consumers_of",
    "exclusive_report",
    "is_sharing",
    "plan_sharing",
    "replan",
    "sharing_report",
    "sharings",
]
