# SPDX-License-Identifier: Apache-2.0
"""Room for a blocked job by eviction, and the room kept for it until its victims are gone.

Where a job is blocked and `gpudra.driver.core.preemption` finds the least harm that helps, the job is
*nominated*: its placement is drawn into every following plan beside its victims, so that nobody
else gets what they leave behind, and it goes first once they are gone. Pods that are ending anyway
are counted on before anybody is evicted, so a controller that has just started evicts nobody
twice. Where nobody may be evicted, and if it is wanted, pods are moved that fit elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudra.driver.core.allocator import Refusal
from gpudra.driver.core.gangs.ground import with_allocation
from gpudra.driver.core.gangs.jobs import Job, names_of
from gpudra.driver.core.gangs.kinds import Filter
from gpudra.driver.core.gangs.solver import Failed, Floor, Need, solve
from gpudra.driver.core.gangs.types import Placed, PodPlacement, PodView
from gpudra.driver.core.managed.placing import Placing, Trouble
from gpudra.driver.core.managed.runners import node_of_pod, own_claims, runners
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.managed.types import Eviction, Nomination
from gpudra.driver.core.preemption import Found, Hunt, MoveRules, Rules, Runner
from gpudra.driver.core.queueing import Amounts, Book, Waiting

_CURABLE = {"OverLimit"}
"""Blocked by its own queue: one of higher priority may take from one of lower."""


class Taking:
    """All evictions of one plan.

    Args:
        state: the cluster.
        book: of the plan, as it is before anything is placed.
        placing: the plan's sketch.
        now: seconds since the epoch.
        nominations: of earlier plans, by job; renewed here.
    """

    def __init__(
        self,
        state: ManagedCluster,
        book: Book,
        placing: Placing,
        now: float,
        nominations: dict[str, Nomination],
    ) -> None:
        self._state, self._placing, self._now = state, placing, now
        self._book = book.copy()
        self._nominations = nominations
        self._hunt: Hunt | None = None
        self._moves: Hunt | None = None
        self._hopeless: set[object] = set()
        self._leaving: list[PodView] | None = None
        self.evictions: list[Eviction] = []
        self.waiting: dict[str, Trouble] = {}
        self.first: set[str] = set()

    # --- nominations --------------------------------------------------------------------------

    def renew(self, jobs: Mapping[str, Job]) -> None:
        """Keeps the room of nominated jobs; those whose victims are gone go first."""
        patience = self._state.options.nomination_seconds
        for key, one in list(self._nominations.items()):
            if key not in jobs or self._now - one.since > patience:
                del self._nominations[key]
        if not self._nominations:
            return
        beside = self._placing.floor.fork()
        for one in self._nominations.values():
            self._draw(one.placed, beside)
        for key, one in sorted(self._nominations.items()):
            pods = (self._state.pods.get(uid) for uid in one.victims)
            left = [pod for pod in pods if pod is not None and not pod.ended]
            done = not left and not self._still_allocated(one)
            if done or self._fits_by_now(jobs[key], beside):
                self.first.add(key)
                continue
            self._draw(one.placed)
            self.waiting[key] = _waits(left)
            # An eviction that was refused for the moment is asked for again.
            staying = {pod.uid for pod in left if not pod.deleting}
            self.evictions += [each for each in one.evictions if each.pod.uid in staying]

    def _fits_by_now(self, job: Job, beside: Floor) -> bool:
        """Whether room has come elsewhere, so that nobody has to go any more.

        Args:
            job: a nominated one.
            beside: the floor with the room of all nominated jobs drawn in, and of those that fit by
                now; is changed.
        """
        needs = self._placing.needs(job.pods)
        if isinstance(needs, Trouble):
            return False
        try:
            found = self._placing.solve(beside, needs, job, None)
        except Refusal:
            return False
        if isinstance(found, Failed):
            return False
        for one in found:
            self._draw([one], beside)
        return True

    def _still_allocated(self, one: Nomination) -> bool:
        """Whether a claim of the victims has not been given back yet."""
        for key, uid in one.claims:
            claim = self._state.claims.get(key)
            if claim is None or claim.metadata.uid != uid or claim.status.allocation is None:
                continue
            if not self._state.users.get(key):
                return True
        return False

    def _draw(self, placed: Sequence[Placed], floor: Floor | None = None) -> None:
        """Nobody gets what a nominated job is going to have."""
        floor = floor or self._placing.floor
        for one in placed:
            found = {key: self._placing.claim(key) for key in one.allocations}
            claims = {key: claim for key, claim in found.items() if claim is not None}
            if len(claims) == len(found):
                floor.commit(one, claims)

    def placed(self, job: str, queue: str, amounts: Amounts) -> None:
        """The plan has placed a job: for the queues it counts from now on."""
        self._book.charge(job, queue, amounts)
        self._nominations.pop(job, None)

    # --- making room --------------------------------------------------------------------------

    def make_room(self, job: Job, turn: Waiting, trouble: Trouble) -> Trouble:
        """Nominates a blocked job if evictions make it fit; what it waits for then."""
        if not (trouble.capacity or trouble.reason in _CURABLE):
            return trouble
        needs = self._placing.needs(job.pods)
        if isinstance(needs, Trouble):
            return trouble
        likeness = (self._placing.likeness(job, needs), turn.priority)
        if likeness[0] and likeness in self._hopeless:
            return trouble
        floor, leaving = self._without_leaving()
        if leaving and trouble.capacity:
            placed = self._placing.solve(floor, needs, job, None)
            if not isinstance(placed, Failed) and self._book.verdict(turn.queue, turn.amounts).ok:
                return self._nominate(job, turn, placed, (), _on(leaving, placed))
        solver = _Solve(self._placing, job)
        found = self._evicting(floor, needs, turn, solver)
        if found is None and trouble.capacity:
            found = self._moving(floor, needs, turn, solver)
        if found is None:
            self._hopeless.add(likeness)
            return trouble
        return self._nominate(
            job, turn, found.placed, self._told(found, turn), _on(leaving, found.placed), found
        )

    def _evicting(
        self, floor: Floor, needs: Sequence[Need], turn: Waiting, solver: "_Solve"
    ) -> Found | None:
        if not self._state.options.evictions:
            return None
        if self._hunt is None:
            rules = Rules(self._book, self._now)
            self._hunt = Hunt(rules, runners(self._state, self._going()), self._disruptions())
        return self._hunt.find(floor, needs, turn, solver=solver)

    def _moving(
        self, floor: Floor, needs: Sequence[Need], turn: Waiting, solver: "_Solve"
    ) -> Found | None:
        most = self._state.options.moves
        # One job at a time: what is moved for it has to be seen before more is moved.
        if not most or self._going():
            return None
        if self._moves is None:
            rules = MoveRules(self._book, self._now)
            self._moves = Hunt(rules, runners(self._state, self._going()), self._disruptions())

        def fits_elsewhere(rest: Floor, gone: Sequence[Runner], placed: tuple[Placed, ...]) -> bool:
            return len(gone) <= most and self._fits_elsewhere(rest, gone, placed, needs)

        return self._moves.find(floor, needs, turn, solver=solver, check=fits_elsewhere)

    def _fits_elsewhere(
        self,
        rest: Floor,
        gone: Sequence[Runner],
        placed: tuple[Placed, ...],
        needs: Sequence[Need],
    ) -> bool:
        """Whether everybody who is moved finds a place beside the job."""
        floor = rest.fork()
        floor.names = self._placing.floor.names
        claims = {one.key: one for need in needs for one in (*need.own, *need.shared)}
        for each in placed:
            floor.commit(each, claims)
        for one in gone:
            wanted = tuple(with_allocation(claim, None) for claim in one.claims)
            (pod, _), *_ = one.seats
            found = solve(floor, [Need(pod, wanted)])
            if isinstance(found, Failed):
                return False
            for each in found:
                floor.commit(each, {claim.key: claim for claim in wanted})
        return True

    def _going(self) -> frozenset[str]:
        return frozenset(uid for one in self._nominations.values() for uid in one.victims)

    def _disruptions(self) -> dict[str, int]:
        return {key: one.allowed for key, one in self._state.budgets.items()}

    def _told(self, found: Found, turn: Waiting) -> tuple[Eviction, ...]:
        """The evictions, with their reasons; the hunt takes note of them."""
        hunt = self._moves if self._moves is not None and _is_move(found) else self._hunt
        assert hunt is not None
        told = []
        for runner, cause in found.victims:
            message = hunt.rules.reason(turn, runner, cause)
            for pod, node in runner.seats:
                place = PodPlacement(pod.namespace, pod.name, pod.uid, node)
                told.append(
                    Eviction(place, runner.job, turn.job, cause.value, message, runner.amounts)
                )
        hunt.take(found)
        return tuple(told)

    def _nominate(
        self,
        job: Job,
        turn: Waiting,
        placed: tuple[Placed, ...],
        evictions: tuple[Eviction, ...],
        leaving: Sequence[PodView],
        found: Found | None = None,
    ) -> Trouble:
        victims = found.victims if found is not None else ()
        going = [pod for one, _ in victims for pod, _ in one.seats]
        claims = [claim for one, _ in victims for claim in one.claims]
        claims += own_claims(self._state, leaving)
        self._nominations[job.key] = Nomination(
            placed=placed,
            victims=tuple(pod.uid for pod in (*going, *leaving)),
            evictions=evictions,
            claims=tuple((claim.key, claim.metadata.uid) for claim in claims),
            since=self._now,
        )
        self.evictions += evictions
        self._book.charge(job.key, job.queue, turn.amounts)
        self._draw(placed)
        return _waits([*going, *leaving])

    def _without_leaving(self) -> tuple[Floor, list[PodView]]:
        """The plan's floor without pods that are being deleted; it is not to be changed."""
        state = self._state
        if self._leaving is None:
            pods = state.pods.values()
            self._leaving = [pod for pod in pods if pod.deleting and pod.uid in state.ground.seats]
        leaving = self._leaving
        if not leaving:
            return self._placing.floor, leaving
        floor = self._placing.floor.fork()
        for pod in leaving:
            floor.sketch.remove_pod(pod, node_of_pod(state, pod))
        for claim in own_claims(state, leaving):
            floor.sketch.remove_claim(claim)
        return floor, leaving


@dataclass(frozen=True, slots=True)
class _Solve:
    """Places the pods of one job, topology and affinity included."""

    placing: Placing
    job: Job

    def __call__(
        self, floor: Floor, needs: Sequence[Need], allowed: Filter | None
    ) -> tuple[Placed, ...] | Failed:
        return self.placing.solve(floor, needs, self.job, allowed)


def _is_move(found: Found) -> bool:
    return any(cause.value == "Moved" for _, cause in found.victims)


def _on(pods: Iterable[PodView], placed: Iterable[Placed]) -> list[PodView]:
    """Those on nodes that a placement uses."""
    nodes = {one.node for one in placed}
    return [pod for pod in pods if pod.node in nodes]


def _waits(pods: Sequence[PodView]) -> Trouble:
    if not pods:
        return Trouble("WaitingForVictims", "waits for claims that are being given back")
    what = f"{len(pods)} pods that end" if len(pods) > 1 else "a pod that ends"
    return Trouble("WaitingForVictims", f"gets the devices of {what}: {names_of(pods)}")
