# SPDX-License-Identifier: Apache-2.0
"""Room for a blocked job by eviction, and the room kept for it until its victims are gone.

Where a job is blocked and `gpudra.driver.core.preemption` finds the least harm that helps, the job is
*nominated*: its placement is drawn into every following plan beside its victims, so that nobody
else gets what they leave behind, and it goes first once they are gone. Pods that are ending anyway
are counted on before anybody is evicted, so a controller that has just started evicts nobody
twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.gangs.jobs import EXTRA, Job, group_key
from gpudra.driver.core.gangs.kinds import Filter
from gpudra.driver.core.gangs.solver import Failed, Floor, Need
from gpudra.driver.core.gangs.types import Placed, PodPlacement, PodView
from gpudra.driver.core.managed.placing import Placing, Trouble
from gpudra.driver.core.managed.state import ManagedCluster, names_of
from gpudra.driver.core.managed.types import Eviction, Nomination
from gpudra.driver.core.preemption import Hunt, Rules, Runner
from gpudra.driver.core.queueing import Amounts, Book, Waiting

_CURABLE = {"OverLimit"}
"""Blocked by its own queue: one of higher priority may take from one of lower."""


class Taking:
    """All evictions of one plan.

    Args:
        state: the cluster; its nominations are renewed.
        book: of the plan, as it is before anything is placed.
        placing: the plan's sketch.
        now: seconds since the epoch.
        enabled: False plans without evicting anybody.
    """

    def __init__(
        self, state: ManagedCluster, book: Book, placing: Placing, now: float, *, enabled: bool
    ) -> None:
        self._state, self._placing, self._now = state, placing, now
        self._book = book.copy()
        self._hunt: Hunt | None = None
        self._enabled = enabled
        self._hopeless: set[object] = set()
        self._leaving: list[PodView] | None = None
        self.evictions: list[Eviction] = []
        self.waiting: dict[str, Trouble] = {}
        self.first: set[str] = set()

    # --- nominations --------------------------------------------------------------------------

    def renew(self, jobs: Mapping[str, Job]) -> None:
        """Keeps the room of nominated jobs; those whose victims are gone go first."""
        for key, one in sorted(self._state.nominations.items()):
            patience = self._state.options.nomination_seconds
            if key not in jobs or self._now - one.since > patience:
                del self._state.nominations[key]
                continue
            left = [self._state.pods[uid] for uid in one.victims if self._holds(uid)]
            if not left and not self._still_allocated(one):
                self.first.add(key)
                continue
            self._draw(one.placed)
            self.waiting[key] = _waits(left)
            self._evict_again(key, one, left)

    def _holds(self, uid: str) -> bool:
        pod = self._state.pods.get(uid)
        return pod is not None and not pod.ended

    def _still_allocated(self, one: Nomination) -> bool:
        """Whether a claim of the victims has not been given back yet."""
        for key, uid in one.claims:
            claim = self._state.claims.get(key)
            if claim is None or claim.metadata.uid != uid or claim.status.allocation is None:
                continue
            if not self._state.users.get(key):
                return True
        return False

    def _evict_again(self, job: str, one: Nomination, left: Iterable[PodView]) -> None:
        """An eviction that was refused for the moment is tried again."""
        for pod in left:
            if not pod.deleting and pod.uid in one.reasons:
                victim, reason = one.reasons[pod.uid]
                self.evictions.append(_eviction(pod, self._node(pod), victim, job, reason))

    def _node(self, pod: PodView) -> str:
        return self._state.ground.seats.get(pod.uid, (pod, pod.node))[1]

    def _draw(self, placed: Sequence[Placed]) -> None:
        """Nobody gets what a nominated job is going to have."""
        claims = self._state.claims
        known = [one for one in placed if all(key in claims for key in one.allocations)]
        for one in known:
            self._placing.floor.commit(one, claims)

    # --- victims ------------------------------------------------------------------------------

    def placed(self, job: str, queue: str, amounts: Amounts) -> None:
        """The plan has placed a job: for the queues it counts from now on."""
        self._book.charge(job, queue, amounts)
        self._state.nominations.pop(job, None)

    def make_room(self, job: Job, turn: Waiting, trouble: Trouble) -> Trouble:
        """Nominates a blocked job if evictions make it fit; what it waits for then."""
        if not self._enabled or not (trouble.capacity or trouble.reason in _CURABLE):
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
                return self._nominate(job, turn, placed, {}, _on(leaving, placed))
        found = self._hunts().find(floor, needs, turn, solver=self._solver(job))
        if found is None:
            self._hopeless.add(likeness)
            return trouble
        self._hunts().take(found)
        reasons = {
            pod.uid: (runner.job, cause.value)
            for runner, cause in found.victims
            for pod, _ in runner.seats
        }
        runners = [one for one, _ in found.victims]
        return self._nominate(job, turn, found.placed, reasons, _on(leaving, found.placed), runners)

    def _solver(self, job: Job) -> "_Solve":
        return _Solve(self._placing, job)

    def _nominate(
        self,
        job: Job,
        turn: Waiting,
        placed: tuple[Placed, ...],
        reasons: Mapping[str, tuple[str, str]],
        leaving: Sequence[PodView],
        runners: Sequence[Runner] = (),
    ) -> Trouble:
        going = [pod for one in runners for pod, _ in one.seats]
        for pod in going:
            victim, reason = reasons[pod.uid]
            self.evictions.append(_eviction(pod, self._node(pod), victim, job.key, reason))
        claims = [claim for one in runners for claim in one.claims]
        claims += [claim for pod in leaving for claim in self._own_claims({pod.uid}, (pod,))]
        self._state.nominations[job.key] = Nomination(
            placed=placed,
            victims=tuple(pod.uid for pod in (*going, *leaving)),
            reasons=dict(reasons),
            claims=tuple((claim.key, claim.metadata.uid) for claim in claims),
            since=self._now,
        )
        self._book.charge(job.key, job.queue, turn.amounts)
        self._draw(placed)
        return _waits([*going, *leaving])

    def _without_leaving(self) -> tuple[Floor, list[PodView]]:
        """The plan's floor without pods that are being deleted."""
        state = self._state
        floor = self._placing.floor.fork()
        leaving = [
            pod for pod in state.pods.values() if pod.deleting and pod.uid in state.ground.seats
        ]
        for pod in leaving:
            floor.sketch.remove_pod(pod, self._node(pod))
        for claim in self._own_claims({pod.uid for pod in leaving}, leaving):
            floor.sketch.remove_claim(claim)
        return floor, leaving

    def _own_claims(self, uids: set[str], pods: Iterable[PodView]) -> list[ResourceClaim]:
        """Allocated claims of the pods that nobody else uses."""
        state, found = self._state, {}
        for key in (ref.key for pod in pods for ref in pod.claims):
            claim = state.claims.get(key)
            if (
                claim is not None
                and claim.status.allocation is not None
                and state.users.get(key, set()) <= uids
            ):
                found[key] = claim
        return list(found.values())

    # --- runners ------------------------------------------------------------------------------

    def _hunts(self) -> Hunt:
        if self._hunt is None:
            rules = Rules(self._book, self._now)
            self._hunt = Hunt(rules, self._runners(), self._state.disruptions())
        return self._hunt

    def _runners(self) -> Iterator[Runner]:
        """Everything that runs, but for what has to go already."""
        known = self._state.runners
        going = {uid for one in self._state.nominations.values() for uid in one.victims}
        for base in sorted(self._state.members):
            found = known.get(base)
            if found is None:
                found = known[base] = tuple(self._runners_of(base))
            if not going or not any(pod.uid in going for one in found for pod, _ in one.seats):
                yield from found

    def _runners_of(self, base: str) -> Iterator[Runner]:
        """A gang goes as a whole; of one that may be disrupted singly, extras go alone."""
        seats = self._state.ground.seats
        pods = (self._state.pods[uid] for uid in sorted(self._state.members[base]))
        there = [pod for pod in pods if pod.placed and not pod.deleting and pod.uid in seats]
        if not there:
            return
        group = self._state.groups.get(there[0].group) if there[0].group else None
        if group is None or group.spec.disruption == "all":
            yield self._runner(base, there)
            return
        extras = _above_minimum(
            there, group.spec.min_count, {r.name: r.min_count for r in group.spec.roles}
        )
        if not extras:
            yield self._runner(base, there)
        for pod in extras:
            yield self._runner(f"{group_key(pod.group)}{EXTRA}{pod.name}", [pod])

    def _runner(self, job: str, pods: list[PodView]) -> Runner:
        state = self._state
        claims = self._own_claims({pod.uid for pod in pods}, pods)
        started = [pod.started for pod in pods]
        return Runner(
            job=job,
            queue=state.queue_of(pods[0]),
            priority=max(pod.priority for pod in pods),
            since=None if None in started else max(one for one in started if one is not None),
            seats=tuple((pod, self._node(pod)) for pod in pods),
            claims=tuple(claims),
            amounts=Amounts.total(
                state.tariff.allocated(one, one.status.allocation)
                for one in claims
                if one.status.allocation is not None
            ),
            budgets=tuple(key for pod in pods for key in state.budgets_of(pod)),
            fixed="belongs to its node" if any(pod.lasting for pod in pods) else "",
        )


@dataclass(frozen=True, slots=True)
class _Solve:
    """Places the pods of one job, topology and affinity included."""

    placing: Placing
    job: Job

    def __call__(
        self, floor: Floor, needs: Sequence[Need], allowed: Filter | None
    ) -> tuple[Placed, ...] | Failed:
        return self.placing.solve(floor, needs, self.job, allowed)


def _above_minimum(
    there: Sequence[PodView], minimum: int, roles: Mapping[str, int]
) -> list[PodView]:
    """Pods that a gang can do without, the newest first."""
    spare, left = len(there) - minimum, dict(roles)
    by_role = {role: sum(pod.role == role for pod in there) for role in roles}
    found = []
    for pod in sorted(there, key=lambda pod: (-pod.created, pod.key)):
        if spare <= 0:
            break
        if pod.role in left:
            if by_role[pod.role] <= left[pod.role]:
                continue
            by_role[pod.role] -= 1
        found.append(pod)
        spare -= 1
    return found


def _on(pods: Iterable[PodView], placed: Iterable[Placed]) -> list[PodView]:
    """Those on nodes that a placement uses."""
    nodes = {one.node for one in placed}
    return [pod for pod in pods if pod.node in nodes]


def _eviction(pod: PodView, node: str, victim: str, by: str, reason: str) -> Eviction:
    place = PodPlacement(pod.namespace, pod.name, pod.uid, node)
    return Eviction(place, victim, by, reason)


def _waits(pods: Sequence[PodView]) -> Trouble:
    what = names_of(pods) if pods else "claims that are being given back"
    count = f"{len(pods)} pods" if len(pods) > 1 else "pod"
    return Trouble(
        "WaitingForVictims",
        f"gets the devices of {count} that end: {what}" if pods else f"waits for {what}",
    )
