# SPDX-License-Identifier: Apache-2.0
"""Room kept free for blocked jobs, so that small ones never starve a large one.

The first job of each queue that is blocked for want of room gets the nodes on which it will fit
soonest. Others pass it elsewhere, or there if they end before, or if it would fit beside them.

Why nobody starves: nothing that may outlast the reservation is put onto its nodes, so what is in
the way there only ends. Another plan may choose other nodes, but only such on which less is in the
way. (EASY backfilling keeps start times by run times that are promised; where no run time is known,
the number of pods in the way takes the place of time.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpudra.driver.core.allocator import Refusal
from gpudra.driver.core.gangs.drained import Drained, KeepPod, drained_floor
from gpudra.driver.core.gangs.jobs import Job, job_key
from gpudra.driver.core.gangs.kinds import Filter
from gpudra.driver.core.gangs.solver import Failed, Floor, Need
from gpudra.driver.core.gangs.types import Placed, PodView
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.queueing import Verdict

May = Callable[[Job, Sequence[Need], Sequence[Placed]], Verdict]
"""What the queue of a job says to what was found for it."""


class Solve(Protocol):
    """Placing.solve."""

    def __call__(
        self,
        floor: Floor,
        needs: Sequence[Need],
        job: Job,
        allowed: Filter | None,
        keep: KeepPod | None = None,
    ) -> tuple[Placed, ...] | Failed:
        """See Placing.solve."""


_PROBES = 5  # how exactly the time of the start is worked out: in 2**5 parts of what is known


@dataclass(slots=True)
class Reservation:
    """Room that is kept for a job.

    Attributes:
        job: for which.
        needs: its pods.
        nodes: on which it will start.
        placed: how, as far as can be seen now.
        until: when it will start by the promised run times; None: nobody knows.
        future: the cluster at that time, with everything that has been let pass; None without a time.
    """

    job: Job
    needs: Sequence[Need]
    nodes: frozenset[str]
    placed: Sequence[Placed]
    until: float | None = None
    future: Floor | None = None

    def passes(self, pods: Sequence[PodView], now: float) -> bool:
        """Whether pods that begin now have ended when the job starts."""
        if self.until is None:
            return False
        return all(
            pod.max_runtime is not None and now + pod.max_runtime <= self.until for pod in pods
        )


class Reservations:
    """All that is kept free in one plan."""

    def __init__(self, state: ManagedCluster, now: float, solve: Solve, may: May) -> None:
        self._state, self._now, self._solve, self._may = state, now, solve, may
        self.kept: list[Reservation] = []
        self._queues: set[str] = set()

    def wants(self, job: Job) -> bool:
        """Whether room may be kept for a blocked job: the first of its queue."""
        return job.queue not in self._queues and len(self.kept) < self._state.options.reservations

    def allowed(self, pods: Sequence[PodView]) -> Filter | None:
        """Nodes that pods may take without a closer look; None: all."""
        closed = [one.nodes for one in self.kept if not one.passes(pods, self._now)]
        if not closed:
            return None
        return lambda name: not any(name in nodes for nodes in closed)

    def beside(self, placed: Sequence[Placed]) -> bool:
        """Whether every job fits at its time although these pods stay; then they are taken note of."""
        futures: list[tuple[Reservation, Floor]] = []
        for one in self.kept:
            if one.passes([each.pod for each in placed], self._now):
                continue
            if not any(each.node in one.nodes for each in placed):
                continue
            if one.future is None:
                return False
            future = self._with(one.future, placed)
            if isinstance(self._solve(future, one.needs, one.job, one.nodes.__contains__), Failed):
                return False
            futures.append((one, future))
        for one, future in futures:
            one.future = future
        return True

    def _with(self, floor: Floor, placed: Sequence[Placed]) -> Floor:
        future = floor.fork()
        known = self._state.claims
        for one in placed:
            future.commit(one, {key: known[key] for key in one.allocations if key in known})
        return future

    # --- making one ---------------------------------------------------------------------------

    def keep(self, job: Job, needs: Sequence[Need], floor: Floor) -> Verdict | None:
        """Keeps the nodes free on which a job will fit soonest, if there will be any.

        Returns:
            What its queue says if it may not use even these: then nothing is kept.
        """
        try:
            found = self._by_time(job, needs, floor) or self._by_number(job, needs, floor)
        except Refusal:
            return None  # the claims themselves are at fault; that has been said
        if found is not None:
            verdict = self._may(job, needs, found.placed)
            if not verdict.ok:
                return verdict
            self.kept.append(found)
        self._queues.add(job.queue)
        return None

    def _open(self) -> Filter | None:
        """Nodes that nobody has reserved."""
        taken = [one.nodes for one in self.kept]
        return (lambda name: not any(name in nodes for nodes in taken)) if taken else None

    def _by_time(self, job: Job, needs: Sequence[Need], floor: Floor) -> Reservation | None:
        """The first time, by promised run times, at which the job fits."""
        ends = self._ends(job)
        if not ends:
            return None
        times = sorted({end for end, _ in ends})
        low, high = 0, len(times) - 1
        best = self._at(times[high], ends, job, needs, floor)
        for _ in range(_PROBES):
            if best is None or low >= high:
                break
            middle = (low + high) // 2
            found = self._at(times[middle], ends, job, needs, floor)
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        return best

    def _ends(self, job: Job) -> list[tuple[float, PodView]]:
        state = self._state
        found = []
        for pod in state.pods.values():
            if pod.ended or not pod.node or pod.max_runtime is None or job_key(pod) == job.base:
                continue
            end = (pod.created if pod.started is None else pod.started) + pod.max_runtime
            if end > self._now:
                found.append((end, pod))
        return sorted(found, key=lambda one: (one[0], one[1].key))

    def _at(
        self,
        time: float,
        ends: Sequence[tuple[float, PodView]],
        job: Job,
        needs: Sequence[Need],
        floor: Floor,
    ) -> Reservation | None:
        future = floor.fork()
        gone = {pod.uid: pod for end, pod in ends if end <= time}
        for pod in gone.values():
            future.sketch.remove_pod(pod, pod.node)
            for ref in pod.claims:
                claim = self._state.claims.get(ref.key)
                if claim is not None and self._state.users.get(ref.key, set()) <= gone.keys():
                    future.sketch.remove_claim(claim)
        placed = self._solve(future, needs, job, self._open())
        if isinstance(placed, Failed):
            return None
        nodes = frozenset(one.node for one in placed)
        return Reservation(job, needs, nodes, placed, time, future)

    def _by_number(self, job: Job, needs: Sequence[Need], floor: Floor) -> Reservation | None:
        """The nodes with the fewest pods of managed mode in the way."""
        state, ground = self._state, self._state.ground

        def stays(pod: PodView) -> bool:
            return pod.uid not in state.pods or job_key(pod) == job.base

        def kept(key: str) -> bool:
            users = state.users.get(key)
            if not users:
                return True
            return any(job_key(state.pods[uid]) == job.base for uid in users)

        def price(name: str) -> float:
            here = floor.sketch.seated.get(name, 0)
            return float(here + sum(1 for p in ground.on_node(name).values() if not stays(p)))

        drained = drained_floor(floor.board, Drained(ground, stays, kept), floor.deadline, price)
        placed = self._solve(drained, needs, job, self._open(), stays)
        if isinstance(placed, Failed):
            return None
        return Reservation(job, needs, frozenset(one.node for one in placed), placed)
