# SPDX-License-Identifier: Apache-2.0
"""What a plan does before new work: torn pods, and gangs that are below their minimum.

A pod is *torn* when its gate is gone and a claim of it has no allocation: kube-scheduler could not
bind it and gave the devices back. A gate cannot be put back, so the allocation is written anew.
"""

from gpudra.api.podgroup import PodGroup
from gpudra.driver.core.gangs.jobs import Job, group_key, standing
from gpudra.driver.core.gangs.types import PodPlacement, PodView
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.managed.types import JobUndo


def torn(state: ManagedCluster) -> list[Job]:
    """A job for each torn pod, the most important first."""
    found = []
    for pod in (state.pods[uid] for uid in state.unbound):
        if pod.deleting or not pod.claims:
            continue
        claims = [state.claims.get(ref.key) for ref in pod.claims]
        if any(one is not None and state.allocation_of(one.key) is None for one in claims):
            found.append(pod)
    return [
        _repair(state, pod)
        for pod in sorted(found, key=lambda pod: (-pod.priority, pod.created, pod.key))
    ]


def _repair(state: ManagedCluster, pod: PodView) -> Job:
    group = state.groups.get(pod.group) if pod.group else None
    beside: tuple[PodView, ...] = ()
    if pod.group:
        members = [state.pods[uid] for uid in sorted(state.members[group_key(pod.group)])]
        beside = tuple(
            one for one in members if one.placed and not one.deleting and one.uid != pod.uid
        )
    key = f"pod/{pod.key}"
    return Job(
        key=key,
        base=group_key(pod.group) if pod.group else key,
        queue=state.queue_of(pod),
        priority=pod.priority,
        created=pod.created,
        pods=(pod,),
        waiting=(pod,),
        beside=beside,
        group=group,
        required=group.spec.topology.required if group is not None else (),
    )


def broken(state: ManagedCluster, now: float) -> list[JobUndo]:
    """Gangs that have been below their minimum for too long, to be taken down whole.

    Since when is remembered by the state and not by any object: after a restart the time begins anew.
    """
    found = []
    for name, group in sorted(state.groups.items()):
        job = group_key(name)
        members = [state.pods[uid] for uid in sorted(state.members.get(job, ()))]
        holding = [pod for pod in members if pod.placed and not pod.deleting]
        up = [pod for pod in standing(members) if pod.ended or pod.node]
        short = group.spec.min_count - len(up)
        if not holding or (short <= 0 and not _role_short(group, up)):
            state.broken_since.pop(job, None)
            continue
        since = state.broken_since.setdefault(job, now)
        patience = group.spec.timeout or state.options.broken_seconds
        if now - since >= patience:
            found.append(_taken_down(job, holding, state, f"{len(up)} of {group.spec.min_count}"))
    return found


def _role_short(group: PodGroup, up: list[PodView]) -> bool:
    return any(
        sum(1 for pod in up if pod.role == role.name) < role.min_count for role in group.spec.roles
    )


def _taken_down(job: str, holding: list[PodView], state: ManagedCluster, count: str) -> JobUndo:
    uids = {pod.uid for pod in holding}
    keys = dict.fromkeys(ref.key for pod in holding for ref in pod.claims if ref.key)
    claims = tuple(key for key in keys if state.users.get(key, set()) <= uids)
    pods = tuple(PodPlacement(p.namespace, p.name, p.uid, p.node) for p in holding)
    message = f"{count} pods of the group run, and the others did not come in time"
    return JobUndo(job, claims, pods, "GangBroken", message)


def late(job: Job, now: float) -> str:
    """Why a gang that has not begun is given up; empty while it may wait."""
    if job.group is None or job.beside or job.group.spec.timeout is None:
        return ""
    waited = now - min(pod.created for pod in job.waiting)
    limit = job.group.spec.timeout
    if waited < limit:
        return ""
    return f"the group could not start within its timeout of {limit} s"
