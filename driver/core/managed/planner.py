# SPDX-License-Identifier: Apache-2.0
"""One plan: repairs, gangs to take down, then the waiting jobs in the order of their queues.

A plan works on a sketch of the cluster and a copy of the book; both are thrown away. Whatever is
wrong with one pod, claim, group or queue is said about that one, and the others go on.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gpudra.api.errors import GpudraError
from gpudra.api.resource_v1 import AllocationResult, ResourceClaim
from gpudra.driver.core.allocator import Deadline, Refusal
from gpudra.driver.core.gangs.domains import Clock
from gpudra.driver.core.gangs.jobs import Job, gang_jobs, single_job
from gpudra.driver.core.gangs.types import PodPlacement
from gpudra.driver.core.managed import upkeep
from gpudra.driver.core.managed.placing import Extra, Placing, Trouble
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.managed.taking import Taking
from gpudra.driver.core.managed.types import Eviction, JobPlacement, JobWaiting, Nomination, Plan
from gpudra.driver.core.queueing import NOTHING, Waiting, order

_FAULTS = (GpudraError, ArithmeticError, LookupError, TypeError, ValueError)
"""What one job's content can raise where it breaks a rule that nobody checks: the job waits."""


def make_plan(
    state: ManagedCluster,
    now: float,
    *,
    deadline: Deadline | None = None,
    clock: Clock | None = None,
    extra: Extra | None = None,
) -> Plan:
    """See ManagedState.plan; ``extra`` jobs are planned along with those that exist."""
    return Round(state, now, deadline, clock, extra or Extra()).run()


class Round:
    """One plan in the making."""

    def __init__(
        self,
        state: ManagedCluster,
        now: float,
        deadline: Deadline | None,
        clock: Clock | None,
        extra: Extra,
    ) -> None:
        self._state, self._now, self._deadline, self._extra = state, now, deadline, extra
        self._expire_flights()
        self._book = state.book.copy()
        self._placing = Placing(state, self._book, now, deadline, clock, extra)
        self._waiting: list[JobWaiting] = []

    def _expire_flights(self) -> None:
        """The one thing that time alone does: a write that nobody ever saw is forgotten."""
        state = self._state
        for job, flight in list(state.flights.items()):
            if flight.since is None:
                flight.since = self._now
            elif self._now - flight.since > state.options.flight_seconds:
                state.drop(job)

    def run(self) -> Plan:
        """The plan."""
        undo = upkeep.broken(self._state, self._now)
        down = {one.job for one in undo}
        repairs = list(self._repairs(down))
        placements, evictions = self._placements(
            {job.key: job for job in self._jobs() if job.base not in down}
        )
        return Plan(
            repairs=tuple(repairs),
            undo=tuple(undo),
            placements=tuple(placements),
            evictions=tuple(evictions),
            waiting=tuple(self._waiting),
        )

    def _placements(self, jobs: dict[str, Job]) -> tuple[list[JobPlacement], list[Eviction]]:
        """All jobs in turn. A blocked one may be given victims (gpudra.driver.core.preemption)."""
        found: list[JobPlacement] = []
        # What is only asked about changes nothing for those who wait.
        known = self._state.nominations
        nominations = dict(known) if self._extra.jobs else known
        taking = Taking(self._state, self._book, self._placing, self._now, nominations)
        taking.renew(jobs)
        standings = [self._standing(job, first=job.key in taking.first) for job in jobs.values()]
        queue = order(self._book, standings)
        for one, problem in queue.refused:
            self._wait(jobs[one.job], queue.positions, Trouble(problem.reason, problem.message))
        while (turn := queue.next()) is not None:
            job = jobs[turn.job]
            answer = taking.waiting.get(job.key) or self._guarded(self._placing.place, job)
            if isinstance(answer, JobPlacement) and _intrudes(answer, nominations, taking.first):
                answer = Trouble(
                    "Reserved", "the card that it would share is being freed for another"
                )
            if isinstance(answer, JobPlacement):
                found.append(answer)
                # What members that are there cost stays charged beside it.
                before = self._book.charged(job.key) or NOTHING
                queue.placed(job.key, before + answer.amounts)
                taking.placed(job.key, job.queue, answer.amounts)
                continue
            if job.key not in taking.waiting:
                answer = taking.make_room(job, turn, answer)
            queue.blocked(job.key)
            self._wait(job, queue.positions, answer)
        return found, taking.evictions

    def _repairs(self, down: set[str]) -> Iterable[JobPlacement]:
        for job in upkeep.torn(self._state):
            if job.base in down:
                continue
            answer = self._guarded(self._placing.repair, job)
            if isinstance(answer, JobPlacement):
                yield answer
            else:
                self._wait(job, {}, answer)

    def _guarded(
        self, what: Callable[[Job], JobPlacement | Trouble], job: Job
    ) -> JobPlacement | Trouble:
        try:
            return what(job)
        except Refusal as refusal:
            return Trouble("InvalidClaim", refusal.message)
        except _FAULTS as error:
            return Trouble("InvalidPod", f"cannot be planned: {error!r}")

    # --- jobs ---------------------------------------------------------------------------------

    def _jobs(self) -> Iterable[Job]:
        for key in sorted(self._state.gated):
            yield from self._jobs_of(key)
        yield from self._extra.jobs

    def _jobs_of(self, key: str) -> Iterable[Job]:
        """The jobs of a pod or a gang; pods whose gates are being lifted count as placed."""
        state = self._state
        members = [state.pods[uid] for uid in sorted(state.members[key])]
        members = [
            replace(pod, gated=False) if pod.gated and state.planned_node(pod) else pod
            for pod in members
        ]
        if key.startswith("group/"):
            name = key.partition("/")[2]
            for job in gang_jobs(name, members, state.groups.get(name)):
                what = upkeep.late(job, self._now)
                if what:
                    yield replace(job, reason="TimedOut", message=what)
                elif job.key != key and key in state.flights:
                    # What is being written may fail; an extra would then stand alone.
                    wait = "the minimum of the group is being placed"
                    yield replace(job, reason="WaitingForGang", message=wait)
                else:
                    yield job
        else:
            yield from (single_job(pod) for pod in members if pod.waits)

    def _standing(self, job: Job, *, first: bool = False) -> Waiting:
        """How the job stands in its queue."""
        claims: list[ResourceClaim] = []
        for key in dict.fromkeys(ref.key for pod in job.pods for ref in pod.claims):
            claim = self._placing.claim(key)
            if claim is not None and self._placing.allocation(claim) is None:
                claims.append(claim)
        amounts = self._state.estimate(claims) if claims else NOTHING
        first = first or job.broken
        return Waiting(job.key, job.queue, job.priority, job.created, amounts, first)

    def _wait(self, job: Job, positions: dict[str, int], trouble: Trouble) -> None:
        pods = tuple(PodPlacement(p.namespace, p.name, p.uid, "") for p in job.waiting)
        place = positions.get(job.key, 0)
        self._waiting.append(
            JobWaiting(job.key, pods, job.queue, place, trouble.reason, trouble.message)
        )


def _intrudes(found: JobPlacement, nominations: Mapping[str, Nomination], freed: set[str]) -> bool:
    """Whether a share would be put on a card that is promised to another, and not free yet.

    What is promised is drawn beside what still holds the card. A share device that is in use pays no
    counters again, so the drawing alone would let further shares on a card that is held whole.
    """
    promised = {
        card
        for job, one in nominations.items()
        if job != found.job and job not in freed
        for placed in one.placed
        for allocation in placed.allocations.values()
        for card, _ in _cards(allocation)
    }
    return bool(promised) and any(
        shared and card in promised
        for claim in found.claims
        for card, shared in _cards(claim.allocation)
    )


def _cards(allocation: AllocationResult) -> Iterable[tuple[tuple[str, str, str], bool]]:
    """The card of each device (see gpudra.driver.core.allocatable for the names), and whether shared."""
    for one in allocation.devices.results:
        name = one.device.partition("-mig-")[0].removesuffix("-share")
        yield (one.driver, one.pool, name), one.share_id is not None
