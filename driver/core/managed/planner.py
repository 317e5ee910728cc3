# SPDX-License-Identifier: Apache-2.0
"""One plan: repairs, gangs to take down, then the waiting jobs in the order of their queues.

A plan works on a sketch of the cluster and a copy of the book; both are thrown away. Whatever is
wrong with one pod, claim, group or queue is said about that one, and the others go on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpudra.api.errors import GpudraError
from gpudra.api.meta import NodeSelector
from gpudra.api.resource_v1 import AllocationResult, ResourceClaim
from gpudra.driver.core.allocator import Deadline, Refusal
from gpudra.driver.core.gangs.ground import Sketch
from gpudra.driver.core.gangs.jobs import Job, gang_jobs, single_job
from gpudra.driver.core.gangs.solver import Failed, Floor, Need, solve
from gpudra.driver.core.gangs.types import Placed, PodPlacement, PodView
from gpudra.driver.core.managed.state import ManagedCluster, node_of
from gpudra.driver.core.managed.types import (
    ClaimPlacement,
    JobPlacement,
    JobUndo,
    JobWaiting,
    Plan,
    PodRef,
)
from gpudra.driver.core.queueing import NOTHING, Amounts, Waiting, order

_BUGS = (GpudraError, Refusal, ArithmeticError, LookupError, TypeError, ValueError)
"""What one job's content can raise where it breaks a rule nobody thought of: the job waits."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a job cannot be placed now.

    Attributes:
        capacity: room may come free, so it may be kept for the job.
    """

    reason: str
    message: str
    capacity: bool = False


@dataclass(slots=True)
class Extra:
    """Pods, claims and a group that do not exist, for what-if."""

    jobs: Sequence[Job] = ()
    claims: dict[str, ResourceClaim] = field(default_factory=dict)


def make_plan(
    state: ManagedCluster,
    now: float,
    *,
    deadline: Deadline | None = None,
    extra: Extra | None = None,
) -> Plan:
    """See ManagedState.plan; ``extra`` jobs are planned along with those that exist."""
    return Round(state, now, deadline, extra or Extra()).run()


class Round:
    """One plan in the making."""

    def __init__(
        self, state: ManagedCluster, now: float, deadline: Deadline | None, extra: Extra
    ) -> None:
        self.state, self.now, self.deadline, self.extra = state, now, deadline, extra
        self._expire_flights()
        self.book = state.book.copy()
        self.floor = Floor(state.board, Sketch(state.ground), deadline=deadline)
        self.given: dict[str, AllocationResult] = {}
        self.placements: list[JobPlacement] = []
        self.waiting: list[JobWaiting] = []
        self.blocked: dict[object, Trouble] = {}

    def _expire_flights(self) -> None:
        """The one thing that time alone does: a write that nobody ever saw is forgotten."""
        state = self.state
        for job, flight in list(state.flights.items()):
            if flight.since is None:
                flight.since = self.now
            elif self.now - flight.since > state.options.flight_seconds:
                state.drop(job)

    def run(self) -> Plan:
        """The plan."""
        repairs = self._repairs()
        undo, down = self._undo()
        jobs = {job.key: job for job in self._jobs() if job.base not in down}
        queue = order(self.book, [self._waiting(job) for job in jobs.values()])
        for one, problem in queue.refused:
            self._wait(jobs[one.job], queue.positions, Trouble(problem.reason, problem.message))
        while (turn := queue.next()) is not None:
            job = jobs[turn.job]
            found = self._guarded(job)
            if isinstance(found, JobPlacement):
                self.placements.append(found)
                queue.placed(job.key, found.amounts)
            else:
                queue.blocked(job.key)
                self._wait(job, queue.positions, found)
        return Plan(
            repairs=tuple(repairs),
            undo=tuple(undo),
            placements=tuple(self.placements),
            waiting=tuple(self.waiting),
        )

    # --- jobs ---------------------------------------------------------------------------------

    def _jobs(self) -> Iterable[Job]:
        state = self.state
        for key in sorted(state.members):
            members = [state.pods[uid] for uid in sorted(state.members[key])]
            flying = self._flying(key)
            members = [
                replace(pod, gated=False) if pod.uid in flying and pod.gated else pod
                for pod in members
            ]
            if not any(pod.waits for pod in members):
                continue
            if not key.startswith("group/"):
                yield from (single_job(pod) for pod in members if pod.waits)
                continue
            name = key.partition("/")[2]
            yield from gang_jobs(name, members, state.groups.get(name))
        yield from self.extra.jobs

    def _flying(self, key: str) -> set[str]:
        """Pods of a job whose gates are being lifted."""
        found: set[str] = set()
        for job, flight in self.state.flights.items():
            if job.partition("+")[0] == key:
                found |= flight.pods.keys()
        return found

    def _waiting(self, job: Job) -> Waiting:
        """How the job stands in its queue."""
        claims = [
            claim
            for key in dict.fromkeys(ref.key for pod in job.pods for ref in pod.claims)
            if (claim := self._claim(key)) is not None and self._allocation(claim) is None
        ]
        amounts = self.state.estimate(claims) if claims else NOTHING
        return Waiting(job.key, job.queue, job.priority, job.created, amounts, job.broken)

    def _claim(self, key: str) -> ResourceClaim | None:
        return self.extra.claims.get(key) or self.state.claims.get(key)

    def _allocation(self, claim: ResourceClaim) -> AllocationResult | None:
        found = self.given.get(claim.key) or self.state.allocation_of(claim.key)
        return found or claim.status.allocation

    def _wait(self, job: Job, positions: dict[str, int], trouble: Trouble) -> None:
        pods = tuple(PodPlacement(p.namespace, p.name, p.uid, "") for p in job.waiting)
        position = positions.get(job.key, 0)
        self.waiting.append(
            JobWaiting(job.key, pods, job.queue, position, trouble.reason, trouble.message)
        )

    # --- one job ------------------------------------------------------------------------------

    def _guarded(self, job: Job) -> JobPlacement | Trouble:
        try:
            return self._try(job)
        except Refusal as refusal:
            return Trouble("InvalidClaim", refusal.message)
        except _BUGS as error:
            return Trouble("InvalidPod", f"cannot be planned: {error!r}")

    def _try(self, job: Job) -> JobPlacement | Trouble:
        if job.reason:
            return Trouble(job.reason, job.message)
        if self.deadline is not None and self.deadline():
            return Trouble("OutOfTime", "the plan's time was up before its turn came")
        needs = self._needs(job.pods)
        if isinstance(needs, Trouble):
            return needs
        placed = solve(self.floor, needs)
        if isinstance(placed, Failed):
            return self._no_room(job, needs, placed)
        return self._admit(job, needs, placed)

    def _needs(self, pods: Sequence[PodView]) -> list[Need] | Trouble:
        """What the pods still lack; in trouble when claims are missing."""
        users: dict[str, int] = {}
        for pod in pods:
            for key in {ref.key for ref in pod.claims}:
                users[key] = users.get(key, 0) + 1
        needs = []
        for pod in pods:
            own: list[ResourceClaim] = []
            shared: list[ResourceClaim] = []
            pins: list[NodeSelector] = []
            for ref in pod.claims:
                claim = self._claim(ref.key) if ref.key else None
                if claim is None or claim.metadata.deletion_timestamp:
                    what = f"claim {ref.key}" if ref.key else f"the claim for {ref.name}"
                    state = "does not exist yet" if claim is None else "is being deleted"
                    return Trouble("WaitingForClaims", f"pod {pod.key}: {what} {state}")
                allocation = self._allocation(claim)
                if allocation is None:
                    (shared if users[ref.key] > 1 else own).append(claim)
                elif allocation.node_selector is not None:
                    pins.append(allocation.node_selector)
            avoid = {*pod.avoid, *(n for c in own + shared for n in self._cleared(c))}
            if avoid != set(pod.avoid):
                pod = replace(pod, avoid=tuple(sorted(avoid)))  # noqa: PLW2901
            needs.append(Need(pod, tuple(own), tuple(shared), tuple(pins)))
        return needs

    def _cleared(self, claim: ResourceClaim) -> tuple[str, ...]:
        return self.state.cleared.get(claim.metadata.uid, ())

    def _no_room(self, job: Job, needs: Sequence[Need], failed: Failed) -> Trouble:
        if failed.late:
            return Trouble("OutOfTime", "no answer in the time given; it is tried again")
        del needs
        what = f"no node for pod {failed.need.pod.key}"
        if len(job.pods) > 1:
            what += f", after {failed.placed} of {len(job.pods)} pods"
        return Trouble("NoRoom", what, capacity=True)

    def _admit(
        self, job: Job, needs: Sequence[Need], placed: Sequence[Placed]
    ) -> JobPlacement | Trouble:
        """Asks the queue with exact amounts, and takes note of what is placed."""
        claims = {one.key: one for need in needs for one in (*need.own, *need.shared)}
        amounts = Amounts.total(
            self.state.tariff.allocated(claims[key], allocation)
            for one in placed
            for key, allocation in one.allocations.items()
        )
        verdict = self.book.verdict(job.queue, amounts)
        if not verdict.ok:
            return Trouble(verdict.reason, verdict.message)
        return self._commit(job.key, job.queue, amounts, placed)

    def _commit(
        self, job: str, queue: str, amounts: Amounts, placed: Sequence[Placed]
    ) -> JobPlacement:
        claims = {
            key: claim
            for one in placed
            for ref in one.pod.claims
            if (key := ref.key) and (claim := self._claim(key)) is not None
        }
        for one in placed:
            self.floor.commit(one, claims)
            self.given.update(one.allocations)
        users: dict[str, list[PodRef]] = {}
        for one in placed:
            for key in dict.fromkeys(ref.key for ref in one.pod.claims):
                users.setdefault(key, []).append(PodRef(one.pod.name, one.pod.uid))
        written = []
        for key, claim in claims.items():
            allocation = self._allocation(claim)
            assert allocation is not None
            meta = claim.metadata
            written.append(
                ClaimPlacement(meta.namespace, meta.name, meta.uid, allocation, tuple(users[key]))
            )
        pods = tuple(
            PodPlacement(one.pod.namespace, one.pod.name, one.pod.uid, one.node) for one in placed
        )
        return JobPlacement(job, queue, amounts, tuple(written), pods)

    # --- repairs and gangs to take down -------------------------------------------------------

    def _repairs(self) -> list[JobPlacement]:
        """Pods without gate, node and allocation: kube-scheduler could not bind them."""
        found = []
        for pod in self._torn():
            job = Job(
                key=f"pod/{pod.key}",
                base=f"pod/{pod.key}",
                queue=self.state.queue_of(pod),
                priority=pod.priority,
                created=pod.created,
                pods=(pod,),
                waiting=(pod,),
            )
            result = self._guarded_repair(job)
            if isinstance(result, JobPlacement):
                found.append(result)
            else:
                self._wait(job, {}, result)
        return found

    def _torn(self) -> list[PodView]:
        state = self.state
        torn = []
        for pod in state.pods.values():
            if not pod.placed or pod.node or pod.deleting or not pod.claims:
                continue
            keys = [ref.key for ref in pod.claims]
            claims = [claim for key in keys if (claim := state.claims.get(key)) is not None]
            if len(claims) == len(keys) and any(self._allocation(one) is None for one in claims):
                torn.append(pod)
        return sorted(torn, key=lambda pod: (-pod.priority, pod.created, pod.key))

    def _guarded_repair(self, job: Job) -> JobPlacement | Trouble:
        try:
            needs = self._needs(job.pods)
            if isinstance(needs, Trouble):
                return needs
            placed = solve(self.floor, needs)
            if isinstance(placed, Failed):
                return self._no_room(job, needs, placed)
            found = self._commit(job.key, job.queue, NOTHING, placed)
            return replace(found, avoid=needs[0].pod.avoid)
        except Refusal as refusal:
            return Trouble("InvalidClaim", refusal.message)
        except _BUGS as error:
            return Trouble("InvalidPod", f"cannot be planned: {error!r}")

    def _undo(self) -> tuple[list[JobUndo], set[str]]:
        return [], set()


Accept = Callable[[str], bool]
_ = node_of
