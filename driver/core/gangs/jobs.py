# SPDX-License-Identifier: Apache-2.0
"""What is to be placed together: a pod of its own, or the minimum of a gang.

A gang that has not begun waits until enough pods exist; one that has begun and lost members is
*broken* and goes before everything newer; pods above the minimum follow one by one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpudra.api.podgroup import PodGroup
from gpudra.driver.core.gangs.types import PodView

EXTRA = "+"
LAST = 1e12
"""Added to the age of pods above a gang's minimum: in their queue they come after all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Pods that are placed together or not at all.

    Attributes:
        key: ``pod/NAMESPACE/NAME`` or ``group/NAMESPACE/NAME``; for a pod above the minimum
            followed by ``+POD``.
        base: the job that is charged: the key without the pod.
        pods: to place; empty when the job cannot be tried.
        beside: pods of the gang that have been placed.
        group: of the gang; None for a pod of its own.
        broken: the gang has begun and is below its minimum.
        reason, message: why it cannot be tried; empty when it can.
    """

    key: str
    base: str
    queue: str
    priority: int
    created: float
    pods: tuple[PodView, ...]
    waiting: tuple[PodView, ...]
    beside: tuple[PodView, ...] = ()
    group: PodGroup | None = None
    broken: bool = False
    reason: str = ""
    message: str = ""
    required: tuple[str, ...] = field(default=())
    preferred: tuple[str, ...] = field(default=())


def single_key(pod: PodView) -> str:
    """The job of a pod without a gang."""
    return f"pod/{pod.key}"


def group_key(group: str) -> str:
    """The job of a gang."""
    return f"group/{group}"


def job_key(pod: PodView) -> str:
    """The job that a pod belongs to."""
    return group_key(pod.group) if pod.group else single_key(pod)


def single_job(pod: PodView) -> Job:
    """The job of a pod without a gang."""
    key = single_key(pod)
    return Job(
        key=key,
        base=key,
        queue=pod.queue,
        priority=pod.priority,
        created=pod.created,
        pods=() if pod.problem else (pod,),
        waiting=(pod,),
        reason="InvalidPod" if pod.problem else "",
        message=pod.problem,
    )


def gang_jobs(name: str, members: Sequence[PodView], group: PodGroup | None) -> list[Job]:
    """What of a gang is to be placed: its minimum as one job, each further pod as another.

    Args:
        name: key of the gang.
        members: its managed pods, ended ones included.
        group: its PodGroup; None while there is none.
    """
    waiting = sorted((p for p in members if p.waits), key=_age)
    if not waiting:
        return []
    first = _frame(name, members, waiting, group)
    if first.reason or group is None:
        return [first]
    there = standing(members)
    chosen, short = _minimum(waiting, there, group)
    if short:
        what = "has lost members: " if there else ""
        message = f"the group {what}{short}"
        return [_with(first, (), "WaitingForGang", message)]
    jobs = []
    if chosen:
        jobs.append(_with(first, tuple(chosen)))
    taken = {pod.uid for pod in chosen}
    beside = first.beside
    rest = [pod for pod in waiting if pod.uid not in taken]
    return jobs + [_extra(first, pod, beside, bool(chosen)) for pod in rest]


def standing(members: Sequence[PodView]) -> list[PodView]:
    """The members that count towards the minimum: placed, or ended well."""
    return [p for p in members if (p.ended and not p.failed) or (p.placed and not p.deleting)]


def _age(pod: PodView) -> tuple[float, str]:
    return pod.created, pod.name


def _frame(
    name: str, members: Sequence[PodView], waiting: Sequence[PodView], group: PodGroup | None
) -> Job:
    """The job without its pods, and what is wrong with the gang as such."""
    placed = tuple(sorted((p for p in members if p.placed and not p.deleting), key=_age))
    queues = sorted({p.queue for p in members if not p.ended})
    queue, reason, message = waiting[0].queue, "", ""
    if group is None:
        reason, message = "WaitingForGang", f"PodGroup {name} does not exist"
    elif group.spec.queue is not None:
        queue = group.spec.queue
    elif len(queues) > 1:
        reason = "InvalidGroup"
        message = f"pods of one group name different queues: {', '.join(queues)}"
    wrong = [f"pod {p.key}: {p.problem}" for p in waiting if p.problem]
    if wrong and not reason:
        reason, message = "InvalidPod", "; ".join(wrong[:3])
    key = group_key(name)
    return Job(
        key=key,
        base=key,
        queue=queue,
        priority=max(p.priority for p in waiting),
        created=min(p.created for p in waiting),
        pods=(),
        waiting=tuple(waiting),
        beside=placed,
        group=group,
        broken=bool(placed),
        reason=reason,
        message=message,
        required=group.spec.topology.required if group else (),
        preferred=group.spec.topology.preferred if group else (),
    )


def _minimum(
    waiting: Sequence[PodView], there: Sequence[PodView], group: PodGroup
) -> tuple[list[PodView], str]:
    """The pods that are missing to the minimum, or what is short of it as a sentence."""
    spec = group.spec
    chosen: list[PodView] = []
    taken: set[str] = set()
    for role in spec.roles:
        have = sum(1 for p in there if p.role == role.name)
        own = [p for p in waiting if p.role == role.name]
        missing = max(0, role.min_count - have)
        if missing > len(own):
            count = have + len(own)
            return [], f"{count} of {role.min_count} pods of role {role.name} exist"
        chosen += own[:missing]
    taken.update(p.uid for p in chosen)
    missing = spec.min_count - len(there) - len(chosen)
    rest = [p for p in waiting if p.uid not in taken]
    if missing > len(rest):
        count = len(there) + len(chosen) + len(rest)
        return [], f"{count} of {spec.min_count} pods exist"
    return chosen + rest[: max(0, missing)], ""


def _with(job: Job, pods: tuple[PodView, ...], reason: str = "", message: str = "") -> Job:
    return Job(
        key=job.key,
        base=job.base,
        queue=job.queue,
        priority=job.priority,
        created=job.created,
        pods=pods,
        waiting=pods or job.waiting,
        beside=job.beside,
        group=job.group,
        broken=job.broken,
        reason=reason,
        message=message,
        required=job.required,
        preferred=job.preferred,
    )


def _extra(job: Job, pod: PodView, beside: tuple[PodView, ...], begins: bool) -> Job:
    """A pod above the minimum; while the minimum itself waits, it cannot be tried."""
    return Job(
        key=f"{job.base}{EXTRA}{pod.name}",
        base=job.base,
        queue=job.queue,
        priority=pod.priority,
        created=pod.created + LAST,
        pods=(pod,),
        waiting=(pod,),
        beside=beside,
        group=job.group,
        reason="WaitingForGang" if begins else "",
        message="the minimum of the group comes first" if begins else "",
        required=job.required,
        preferred=job.preferred,
    )


def names_of(pods: Iterable[PodView]) -> str:
    """Pods for people, not too many."""
    listed = [pod.key for pod in pods]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
