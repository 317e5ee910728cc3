# SPDX-License-Identifier: Apache-2.0
"""What-if: the plan that would be made if some more pods were waiting. Nothing is kept."""

from collections.abc import Sequence

from gpudra.api.podgroup import PodGroup
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.allocator import Deadline
from gpudra.driver.core.gangs.domains import Clock
from gpudra.driver.core.gangs.jobs import gang_jobs, single_job
from gpudra.driver.core.gangs.tolerant import tolerant
from gpudra.driver.core.gangs.types import PodView
from gpudra.driver.core.managed.placing import Extra
from gpudra.driver.core.managed.planner import make_plan
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.managed.types import WhatIf


def what_if(
    state: ManagedCluster,
    pods: Sequence[PodView],
    claims: Sequence[ResourceClaim],
    group: PodGroup | None,
    now: float,
    *,
    deadline: Deadline | None = None,
    clock: Clock | None = None,
) -> WhatIf:
    """See ManagedState.what_if; of several jobs the first one is told."""
    if not pods:
        return WhatIf(reason="InvalidPod", message="no pod is asked about")
    first = pods[0]
    for pod in pods:
        if not pod.waits:
            message = (
                f"pod {pod.key} has no scheduling gate gpudra.io/admission, so nothing would wait"
            )
            return WhatIf(reason="InvalidPod", message=message)
    if first.group:
        known = group or state.groups.get(first.group)
        jobs = gang_jobs(first.group, pods, known)
    else:
        jobs = [single_job(pod) for pod in pods]
    extra = Extra(jobs, {claim.key: tolerant(claim, state.driver) for claim in claims})
    plan = make_plan(state, now, deadline=deadline, clock=clock, extra=extra)
    job = jobs[0].key
    for placement in plan.placements:
        if placement.job == job:
            return WhatIf(placement=placement, queue=placement.queue, amounts=placement.amounts)
    for waiting in plan.waiting:
        if waiting.job == job:
            return WhatIf(
                reason=waiting.reason,
                message=waiting.message,
                queue=waiting.queue,
                position=waiting.position,
                victims=tuple(one for one in plan.evictions if one.by == job),
            )
    return WhatIf(reason="OutOfTime", message="no answer in the time given")
