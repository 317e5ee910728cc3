# SPDX-License-Identifier: Apache-2.0
"""One job at a time: what it lacks, where it fits, what its queue says, and why it waits."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpudra.api.meta import NodeSelector
from gpudra.api.resource_v1 import AllocationResult, ResourceClaim
from gpudra.driver.core.allocator import Deadline
from gpudra.driver.core.gangs.affinity import Neighbours
from gpudra.driver.core.gangs.domains import Anchor, Clock, Wish, solve_within
from gpudra.driver.core.gangs.drained import Drained, KeepPod, drained_floor
from gpudra.driver.core.gangs.ground import Sketch
from gpudra.driver.core.gangs.jobs import Job
from gpudra.driver.core.gangs.kinds import Entry, Filter
from gpudra.driver.core.gangs.solver import Failed, Floor, Need
from gpudra.driver.core.gangs.types import Placed, PodPlacement, PodView
from gpudra.driver.core.managed.reasons import no_room
from gpudra.driver.core.managed.reserve import Reservations
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.managed.types import ClaimPlacement, JobPlacement, PodRef
from gpudra.driver.core.queueing import NOTHING, Amounts, Book, Verdict

_MODELS = 8  # other choices that are looked at when a queue may not use the best one


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a job cannot be placed now.

    Attributes:
        reason, message: see JobWaiting.
        capacity: room may come free: it is kept for the job, and others may be evicted for it.
    """

    reason: str
    message: str
    capacity: bool = False


@dataclass(slots=True)
class Extra:
    """Jobs and claims that do not exist, for what-if."""

    jobs: Sequence[Job] = ()
    claims: dict[str, ResourceClaim] = field(default_factory=dict)


class Placing:
    """The sketch of a plan, and the jobs that were put into it.

    Attributes:
        floor: everything that the plan has placed.
        given: allocations of the plan, by claim key.
    """

    def __init__(
        self,
        state: ManagedCluster,
        book: Book,
        now: float,
        deadline: Deadline | None,
        clock: Clock | None,
        extra: Extra,
    ) -> None:
        self._state, self._book, self._now = state, book, now
        self._deadline, self._clock, self._extra = deadline, clock, extra
        self.floor = Floor(state.board, Sketch(state.ground), deadline=deadline)
        self.given: dict[str, AllocationResult] = {}
        self._neighbours = Neighbours(state.ground)
        self._reservations = Reservations(state, now, self.solve, self._verdict)
        self._blocked: dict[Any, Trouble] = {}
        self._torn: set[str] = set()

    # --- claims -------------------------------------------------------------------------------

    def claim(self, key: str) -> ResourceClaim | None:
        """A claim, also one that is only asked about."""
        return self._extra.claims.get(key) or self._state.claims.get(key)

    def allocation(self, claim: ResourceClaim) -> AllocationResult | None:
        """What a claim is allocated, by this plan, in flight, or as stored."""
        found = self.given.get(claim.key) or self._state.allocation_of(claim.key)
        return found or claim.status.allocation

    # --- placing ------------------------------------------------------------------------------

    def place(self, job: Job) -> JobPlacement | Trouble:
        """Places a job, if its queue may and there is room.

        Raises:
            Refusal: a claim cannot be served anywhere as it is.
        """
        if job.reason:
            return Trouble(job.reason, job.message)
        if self._deadline is not None and self._deadline():
            return Trouble("OutOfTime", "the plan's time was up before its turn came")
        needs = self.needs(job.pods)
        if isinstance(needs, Trouble):
            return needs
        likeness = self.likeness(job, needs)
        known = self._blocked.get(likeness) if likeness else None
        if known is not None:
            return known
        found = self._try(job, needs)
        if isinstance(found, Trouble):
            if likeness and found.reason != "OutOfTime":
                self._blocked[likeness] = found
            return found
        return self._commit(job, *found)

    def repair(self, job: Job) -> JobPlacement | Trouble:
        """Places a pod whose allocation was taken back; its queue is charged already.

        Raises:
            Refusal: a claim cannot be served anywhere as it is.
        """
        needs = self.needs(job.pods)
        if isinstance(needs, Trouble):
            return needs
        self._torn.add(job.key)
        placed = self.solve(self.floor, needs, job, None)
        if isinstance(placed, Failed):
            return self._no_room(job, needs, placed)
        return replace(self._commit(job, placed, NOTHING), avoid=needs[0].pod.avoid)

    def likeness(self, job: Job, needs: Sequence[Need]) -> Any:
        """Equal for jobs of which one is blocked if another is; None: like no other.

        Within a plan room and quota only shrink, so what was blocked once stays blocked.
        """
        if len(needs) > 1 or job.group is not None or needs[0].particular:
            return None
        pod = needs[0].pod
        if pod.rules.together or self._neighbours.concern((pod,)):
            return None
        return job.queue, id(self._state.board.kind(pod, needs[0].own)), pod.max_runtime

    def needs(self, pods: Sequence[PodView]) -> list[Need] | Trouble:
        """What the pods still lack; in trouble when claims are missing."""
        users = Counter(key for pod in pods for key in {ref.key for ref in pod.claims})
        needs = []
        for pod in pods:
            own: list[ResourceClaim] = []
            shared: list[ResourceClaim] = []
            pins: list[NodeSelector] = []
            for ref in pod.claims:
                claim = self.claim(ref.key) if ref.key else None
                if claim is None or claim.metadata.deletion_timestamp:
                    return _missing(pod, ref.name, ref.key, claim)
                allocation = self.allocation(claim)
                if allocation is None:
                    (shared if users[ref.key] > 1 else own).append(claim)
                elif allocation.node_selector is not None:
                    pins.append(allocation.node_selector)
            needs.append(
                Need(self._wary(pod, [*own, *shared]), tuple(own), tuple(shared), tuple(pins))
            )
        return needs

    def _wary(self, pod: PodView, claims: Sequence[ResourceClaim]) -> PodView:
        """The pod, avoiding nodes on which one of its claims was given up."""
        cleared = self._state.cleared
        avoid = {node for one in claims for node in cleared.get(one.metadata.uid, ())}
        if avoid <= set(pod.avoid):
            return pod
        return replace(pod, avoid=tuple(sorted(avoid | set(pod.avoid))))

    def _try(self, job: Job, needs: Sequence[Need]) -> tuple[Sequence[Placed], Amounts] | Trouble:
        """Nodes and devices that the queue may use, on nodes that are not kept for others."""
        pods = [need.pod for need in needs]
        closed: set[str] = set()
        for _ in range(_MODELS):
            placed = self._passing(job, needs, pods, closed)
            if isinstance(placed, Failed):
                return self._no_room(job, needs, placed)
            amounts = self._amounts(needs, placed)
            verdict = self._book.verdict(job.queue, amounts)
            if verdict.ok:
                return placed, amounts
            if len(needs) > 1 or not self._dearer(needs[0], amounts, verdict, closed):
                return self._refused(job, amounts, verdict)
        return self._refused(job, amounts, verdict)

    def _passing(
        self, job: Job, needs: Sequence[Need], pods: Sequence[PodView], closed: set[str]
    ) -> tuple[Placed, ...] | Failed:
        """First where nothing is kept free; then beside jobs for which something is."""
        allowed = self._reservations.allowed(pods)
        found = self.solve(self.floor, needs, job, _both(allowed, closed))
        if not isinstance(found, Failed) or allowed is None:
            return found
        beside = self.solve(self.floor, needs, job, _both(None, closed))
        if not isinstance(beside, Failed) and self._reservations.beside(beside):
            return beside
        return found

    def _dearer(self, need: Need, amounts: Amounts, verdict: Verdict, closed: set[str]) -> bool:
        """Closes the nodes whose devices cost the same of what is short; False: no others are left."""
        kind = self._state.board.kind(need.pod, need.own)
        candidates = self.floor.candidates(kind)
        prices: dict[int, int] = {}
        others = False
        for _, name in candidates.all():
            entry = candidates.entry(name)
            if name in closed or not isinstance(entry, Entry) or entry.cell.view is None:
                continue
            price = prices.get(id(entry.choice))
            if price is None:
                found = self._state.board.allocations(need.own, entry.cell.view, entry.choice)
                pairs = zip(need.own, found, strict=True)
                total = Amounts.total(self._state.tariff.allocated(c, a) for c, a in pairs)
                price = prices[id(entry.choice)] = total.of(verdict.resource)
            if price >= amounts.of(verdict.resource):
                closed.add(name)
            else:
                others = True
        return others

    def solve(
        self,
        floor: Floor,
        needs: Sequence[Need],
        job: Job,
        allowed: Filter | None,
        keep: KeepPod | None = None,
    ) -> tuple[Placed, ...] | Failed:
        """Topology and affinity of the job included; with ``keep``, as if other pods had gone."""
        pods = [need.pod for need in needs]
        near = self._neighbours if keep is None else Neighbours(self._state.ground, keep)
        floor.apart = near.accepts if near.concern(pods) else None
        wish = Wish()
        if job.required or job.preferred:
            least, whole = self._state.tariff.least(
                [claim for need in needs for claim in (*need.own, *need.shared)]
            )
            wish = Wish(
                required=job.required,
                preferred=job.preferred,
                anchors=self._anchors(job),
                least_milli=least,
                whole=whole,
            )
        return solve_within(
            self._state.domains, floor, needs, wish, allowed=allowed, clock=self._clock
        )

    def _anchors(self, job: Job) -> tuple[Anchor, ...]:
        anchors = []
        for pod in job.beside:
            node = pod.node or self._state.planned_node(pod)
            claims = [claim for ref in pod.claims if (claim := self.claim(ref.key)) is not None]
            found = [one for claim in claims if (one := self.allocation(claim)) is not None]
            if node:
                anchors.append(Anchor(node, tuple(found)))
        return tuple(anchors)

    # --- no -----------------------------------------------------------------------------------

    def _refused(self, job: Job, amounts: Amounts, verdict: Verdict) -> Trouble:
        never = self._book.never(job.queue, amounts)
        if never is not None:
            return Trouble(never.reason, never.message)
        return Trouble(verdict.reason, verdict.message)

    def _no_room(self, job: Job, needs: Sequence[Need], failed: Failed) -> Trouble:
        if failed.late:
            return Trouble("OutOfTime", "no answer in the time given; it is tried again")
        board = self._state.board
        kind = board.kind(failed.need.pod, [*failed.need.own, *failed.need.shared])
        kept = self._reservations.kept
        reserved = ", ".join(one.job.key for one in kept)
        message = no_room(self._state, self.floor, kind, failed, len(needs), reserved)
        if job.required:
            keys = " and ".join(job.required)
            message = (
                f"no {keys} has room for the {len(needs)} pods together; "
                f"in the best one {failed.placed} had a place"
            )
        if not self._possible(job, needs):
            return Trouble("NeverPlaceable", f"would not fit if nothing else ran: {message}")
        if self._reservations.wants(job):
            refused = self._reservations.keep(job, needs, self.floor)
            if refused is not None:
                return Trouble(refused.reason, refused.message)
        return Trouble("NoRoom", message, capacity=True)

    def _possible(self, job: Job, needs: Sequence[Need]) -> bool:
        """Whether the job would fit if nothing ran but what belongs to nodes. Kept by likeness."""
        if job.beside or any(need.pins for need in needs):
            return True  # what stands already decides, and it may end
        state = self._state
        needs = [replace(one, pod=replace(one.pod, avoid=())) for one in needs]
        kinds = Counter(
            (state.board.kind(one.pod, [*one.own, *one.shared]).key, one.pod.rules.apart)
            for one in needs
        )
        sharing = frozenset(claim.key for one in needs for claim in one.shared)
        likeness = (frozenset(kinds.items()), job.required, sharing)
        version = (state.ground.structure, state.ground.lasting)
        known = state.possible.get(likeness)
        if known is None or known[0] != version:
            sketch = Drained(state.ground, _lasting, lambda _: False, able=True)
            floor = drained_floor(state.board, sketch, self._deadline)
            found = self.solve(floor, needs, job, None, _lasting)
            if isinstance(found, Failed) and found.late:
                return True
            if len(state.possible) > 1024:
                state.possible.clear()
            known = state.possible[likeness] = version, not isinstance(found, Failed)
        return known[1]

    # --- yes ----------------------------------------------------------------------------------

    def _verdict(self, job: Job, needs: Sequence[Need], placed: Sequence[Placed]) -> Verdict:
        if job.key in self._torn:
            return Verdict(True, queue=job.queue)  # it has been charged all the while
        return self._book.verdict(job.queue, self._amounts(needs, placed))

    def _amounts(self, needs: Sequence[Need], placed: Sequence[Placed]) -> Amounts:
        claims = {one.key: one for one in _claims(needs)}
        fresh = [
            self._state.tariff.allocated(claims[key], allocation)
            for one in placed
            for key, allocation in one.allocations.items()
        ]
        return Amounts.total((*fresh, *self._half_written(needs)))

    def _half_written(self, needs: Sequence[Need]) -> Iterator[Amounts]:
        """What a controller that was killed has allocated before it lifted a gate: nobody pays yet."""
        state = self._state
        for key in dict.fromkeys(ref.key for one in needs for ref in one.pod.claims):
            claim, allocation = state.claims.get(key), state.allocation_of(key)
            if claim is None or allocation is None or key in self.given:
                continue
            users = (state.pods[uid] for uid in state.users.get(key, ()))
            if not any(pod.placed or state.planned_node(pod) for pod in users):
                yield state.tariff.allocated(claim, allocation)

    def _commit(self, job: Job, placed: Sequence[Placed], amounts: Amounts) -> JobPlacement:
        claims: dict[str, ResourceClaim] = {}
        users: dict[str, list[PodRef]] = {}
        for one in placed:
            for key in dict.fromkeys(ref.key for ref in one.pod.claims):
                claim = self.claim(key)
                if claim is not None:
                    claims[key] = claim
                    users.setdefault(key, []).append(PodRef(one.pod.name, one.pod.uid))
        for one in placed:
            self.floor.commit(one, claims)
            self.given.update(one.allocations)
            self._neighbours.seat(one.pod, one.node)
        return JobPlacement(
            job.key, job.queue, amounts, self._written(claims, users), _pods(placed)
        )

    def _written(
        self, claims: Mapping[str, ResourceClaim], users: Mapping[str, list[PodRef]]
    ) -> tuple[ClaimPlacement, ...]:
        written = []
        for key, claim in claims.items():
            allocation = self.allocation(claim)
            assert allocation is not None
            meta = claim.metadata
            written.append(
                ClaimPlacement(meta.namespace, meta.name, meta.uid, allocation, tuple(users[key]))
            )
        return tuple(written)


def _pods(placed: Sequence[Placed]) -> tuple[PodPlacement, ...]:
    return tuple(
        PodPlacement(one.pod.namespace, one.pod.name, one.pod.uid, one.node) for one in placed
    )


def _claims(needs: Sequence[Need]) -> list[ResourceClaim]:
    """The claims of a job, shared ones once."""
    return list({c.key: c for need in needs for c in (*need.own, *need.shared)}.values())


def _lasting(pod: PodView) -> bool:
    return pod.lasting


def _both(allowed: Filter | None, closed: set[str]) -> Filter | None:
    if not closed:
        return allowed
    return lambda name: name not in closed and (allowed is None or allowed(name))


def _missing(pod: PodView, name: str, key: str, claim: ResourceClaim | None) -> Trouble:
    what = f"claim {key}" if key else f"the claim for spec.resourceClaims {name!r}"
    how = "does not exist yet" if claim is None else "is being deleted"
    return Trouble("WaitingForClaims", f"pod {pod.key}: {what} {how}")
