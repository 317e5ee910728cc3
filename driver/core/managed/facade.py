# SPDX-License-Identifier: Apache-2.0
"""ManagedState: what the controller holds. Follows events and answers with plans."""

from collections.abc import Sequence
from dataclasses import replace

from gpudra.api.podgroup import PodGroup
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.allocator import Deadline
from gpudra.driver.core.gangs.domains import Clock
from gpudra.driver.core.gangs.types import PodView
from gpudra.driver.core.managed.demand import node_specs
from gpudra.driver.core.managed.planner import make_plan
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.managed.types import STEADY, Plan, WhatIf
from gpudra.driver.core.managed.whatif import what_if
from gpudra.driver.core.placement.calibrate import Goal, calibrated_weights
from gpudra.driver.core.placement.types import Weights


class ManagedState(ManagedCluster):
    """The cluster under managed mode, and what is to be done with it."""

    def plan(
        self, now: float, *, deadline: Deadline | None = None, clock: Clock | None = None
    ) -> Plan:
        """What to do now. The state is the same afterwards, but for what it remembers of its work.

        Args:
            now: seconds since the epoch.
            deadline: for the whole plan; jobs that were not looked at by then wait (OutOfTime).
            clock: makes the deadline of one search for one job (by the controller one second);
                None: a search ends by the number of its steps.
        """
        return make_plan(self, now, deadline=deadline, clock=clock)

    def calibrated(self) -> Weights:
        """The weights of the placement score that suit this cluster and its demand best.

        Pure but slow (5 to 15 s of one core: the policy simulates itself, docs/placement.md), so the
        controller asks aside from its loop, now and then, and gives the answer to `set_weights`.
        """
        self.refresh()
        nodes = node_specs(self.ground)
        if not nodes:
            return STEADY
        found = calibrated_weights(nodes, self.demand.mix(), Goal.STEADY)
        return replace(found, fresh=STEADY.fresh)

    def set_weights(self, weights: Weights) -> None:
        """Plans with other weights from now on."""
        self.demand.set_weights(weights)

    def what_if(
        self,
        pods: Sequence[PodView],
        claims: Sequence[ResourceClaim],
        group: PodGroup | None,
        now: float,
        *,
        deadline: Deadline | None = None,
        clock: Clock | None = None,
    ) -> WhatIf:
        """What would become of these pods if they were submitted now. Changes nothing.

        Args:
            pods: gated ones; those of a gang name ``group``.
            claims: that they use, unless they exist.
            group: their PodGroup, unless it exists.
            now: seconds since the epoch.
            deadline: as for `plan`.
            clock: as for `plan`.
        """
        return what_if(self, pods, claims, group, now, deadline=deadline, clock=clock)
