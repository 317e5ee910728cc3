# SPDX-License-Identifier: Apache-2.0
"""ManagedCluster: the cluster as managed mode sees it, following events one by one.

Fed by the controller's watches (gpudra.controller.managed). No I/O and no clock: times are given.
What a plan answers depends on the objects that are there, not on the way they came: a state that has
followed events for a week answers like a fresh one. The exceptions are said at their place:
placements in flight, and since when a gang has been broken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.podgroup import PodGroup
from gpudra.api.queue import Queue
from gpudra.api.resource_v1 import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from gpudra.driver.core.allocator import Refusal
from gpudra.driver.core.gangs.domains import Domains
from gpudra.driver.core.gangs.ground import Ground, with_allocation
from gpudra.driver.core.gangs.jobs import job_key, single_key
from gpudra.driver.core.gangs.kinds import Board
from gpudra.driver.core.gangs.noderoom import node_facts
from gpudra.driver.core.gangs.tolerant import tolerant
from gpudra.driver.core.gangs.types import PodView
from gpudra.driver.core.managed.budgets import Budget
from gpudra.driver.core.managed.charging import Tariff
from gpudra.driver.core.managed.demand import Demand
from gpudra.driver.core.managed.types import JobPlacement, Nomination, PlanOptions
from gpudra.driver.core.placement.types import PlacementError
from gpudra.driver.core.preemption import Runner
from gpudra.driver.core.queueing import Amounts, Book, QueueTree

DEFAULT_DRIVER = "gpu.gpudra.io"


@dataclass(slots=True)
class Flight:
    """A placement that is being written.

    Attributes:
        claims: allocations by claim key, of claims that the watch does not show allocated yet.
        pods: nodes by uid, of pods that the watch does not show without their gate yet.
        since: of the first plan that saw it; None before.
    """

    claims: dict[str, AllocationResult]
    pods: dict[str, str]
    since: float | None = None


@dataclass(slots=True)
class _Charges:
    """What is to be worked out again."""

    jobs: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)
    tree: bool = True
    structure: int = -1


class ManagedCluster:
    """Everything that a plan reads.

    Args:
        driver: whose devices are given out.
        options: see PlanOptions.

    Attributes:
        pods: managed pods by uid.
        claims: all claims by key, as managed mode allocates them.
        queues, groups: by name and by key.
        members: uids by job.
        gated: uids of the pods that can be placed, by job.
        unbound: uids of pods without gate and node.
        users: uids of managed pods by claim.
        cleared: nodes on which kube-scheduler gave up an allocation, by claim uid.
        flights: placements in flight, by job.
        domains: topology.
        possible: whether jobs of a likeness would fit into the empty cluster, and as of when.
        broken_since: first time that a plan saw a gang below its minimum.
        nominations: room that is being made, by job.
        budgets: PodDisruptionBudgets by key.
        runners: what may be evicted of a job, once worked out, until something about it changes.
    """

    def __init__(self, driver: str = DEFAULT_DRIVER, options: PlanOptions | None = None) -> None:
        self.driver = driver
        self.options = options or PlanOptions()
        self.ground = Ground(driver)
        self.tariff = Tariff(self.ground, driver)
        self.domains = Domains(self.ground)
        self.possible: dict[Any, tuple[tuple[int, int], bool]] = {}
        self.demand = Demand(self.options.weights)
        self.board = Board(self.ground, self.demand.potential(), self.options.node_label)
        self.pods: dict[str, PodView] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.queues: dict[str, Queue] = {}
        self.groups: dict[str, PodGroup] = {}
        self.members: dict[str, set[str]] = {}
        self.gated: dict[str, set[str]] = {}
        self.unbound: set[str] = set()
        self.users: dict[str, set[str]] = {}
        self.cleared: dict[str, tuple[str, ...]] = {}
        self.flights: dict[str, Flight] = {}
        self.broken_since: dict[str, float] = {}
        self.nominations: dict[str, Nomination] = {}
        self.budgets: dict[str, Budget] = {}
        self.runners: dict[str, tuple[Runner, ...]] = {}
        self._flying: dict[str, str] = {}
        self._book = Book()
        self._dirty = _Charges()

    # --- nodes and devices --------------------------------------------------------------------

    def put_node(self, raw: Mapping[str, Any]) -> None:
        """Adds or replaces a node.

        Raises:
            InputError: its allocatable amounts cannot be read; the node stays as it was.
        """
        self.ground.put_node(node_facts(raw))

    def remove_node(self, name: str) -> None:
        """Forgets a node."""
        self.ground.remove_node(name)

    def put_slice(self, one: ResourceSlice) -> None:
        """Adds or replaces a slice."""
        self.ground.put_slice(one)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        self.ground.remove_slice(name)

    def put_class(self, device_class: DeviceClass) -> None:
        """Adds or replaces a DeviceClass."""
        self.ground.put_class(device_class)

    def remove_class(self, name: str) -> None:
        """Forgets a DeviceClass."""
        self.ground.remove_class(name)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Adds or replaces a DeviceTaintRule."""
        self.ground.put_rule(rule)

    def remove_rule(self, name: str) -> None:
        """Forgets a DeviceTaintRule."""
        self.ground.remove_rule(name)

    # --- claims -------------------------------------------------------------------------------

    def put_claim(self, claim: ResourceClaim) -> None:
        """Adds or replaces a claim, whoever allocated it."""
        key = claim.key
        before = self.claims.get(key)
        if before is not None and before.metadata.uid != claim.metadata.uid:
            self.remove_claim(key)
            before = None
        claim = tolerant(claim, self.driver)
        self.claims[key] = claim
        flying = self._in_flight(key)
        if claim.status.allocation is not None:
            if flying is not None:
                self._landed(key)
            self.ground.index.put_claim(claim)
            self.cleared.pop(claim.metadata.uid, None)
        elif flying is not None:
            self.ground.index.put_claim(with_allocation(claim, flying))
        else:
            self._note_cleared(before, claim)
            self.ground.index.remove_claim(claim)
        self._claim_changed(key)

    def _note_cleared(self, before: ResourceClaim | None, claim: ResourceClaim) -> None:
        old = before.status.allocation if before is not None else None
        node = node_of(old) if old is not None else ""
        # While all of its pods have their gates, it was taken back by ourselves.
        lifted = any(self.pods[uid].placed for uid in self.users.get(claim.key, ()))
        if node and lifted:
            known = self.cleared.get(claim.metadata.uid, ())
            self.cleared[claim.metadata.uid] = tuple(sorted({*known, node}))

    def remove_claim(self, key: str) -> None:
        """Forgets a claim (``namespace/name``)."""
        claim = self.claims.pop(key, None)
        if claim is None:
            return
        self._landed(key)
        self.cleared.pop(claim.metadata.uid, None)
        self.ground.index.remove_claim(claim)
        self._claim_changed(key)

    def _claim_changed(self, key: str) -> None:
        for uid in sorted(self.users.get(key, ())):
            self._dirty.pods.add(uid)
            self._dirty.jobs.add(job_key(self.pods[uid]))
            self._seat(self.pods[uid])

    def _in_flight(self, key: str) -> AllocationResult | None:
        job = self._flying.get(key)
        return self.flights[job].claims.get(key) if job is not None else None

    def _landed(self, key: str) -> None:
        job = self._flying.pop(key, None)
        if job is not None:
            self.flights[job].claims.pop(key, None)
            self._end_flight(job)

    def _end_flight(self, job: str) -> None:
        flight = self.flights.get(job)
        if flight is not None and not flight.claims and not flight.pods:
            del self.flights[job]

    # --- pods ---------------------------------------------------------------------------------

    def put_pod(self, pod: PodView) -> None:
        """Adds or replaces a pod, managed or not."""
        before = self.pods.get(pod.uid)
        if before == pod:
            return
        if before is not None:
            self._forget_member(before)
        if pod.queue or pod.group:
            self.pods[pod.uid] = pod
            self.members.setdefault(job_key(pod), set()).add(pod.uid)
            if pod.waits:
                self.gated.setdefault(job_key(pod), set()).add(pod.uid)
            if pod.placed and not pod.node:
                self.unbound.add(pod.uid)
            if not pod.ended:
                for ref in filter(lambda one: one.key, pod.claims):
                    self.users.setdefault(ref.key, set()).add(pod.uid)
            self._dirty.pods.add(pod.uid)
            if not pod.gated or pod.ended or pod.deleting:
                self._boarded(pod)
        self._seat(pod)

    def remove_pod(self, uid: str) -> None:
        """Forgets a pod."""
        pod = self.pods.get(uid)
        if pod is not None:
            self._forget_member(pod)
            self._boarded(pod, gone=True)
            if job_key(pod) not in self.members:
                self.broken_since.pop(job_key(pod), None)
        self.ground.unseat(uid)

    def _boarded(self, pod: PodView, *, gone: bool = False) -> None:
        """The watch shows that the gate is gone, or that it does not matter any more."""
        for key in _flights_of(pod):
            flight = self.flights.get(key)
            if flight is not None and (gone or not pod.placed or pod.node):
                flight.pods.pop(pod.uid, None)
                self._end_flight(key)

    def _forget_member(self, pod: PodView) -> None:
        job = job_key(pod)
        del self.pods[pod.uid]
        uids = self.members[job]
        uids.discard(pod.uid)
        if not uids:
            del self.members[job]
        self.unbound.discard(pod.uid)
        gated = self.gated.get(job)
        if gated is not None:
            gated.discard(pod.uid)
            if not gated:
                del self.gated[job]
        for ref in pod.claims:
            users = self.users.get(ref.key)
            if users is not None:
                users.discard(pod.uid)
                if not users:
                    del self.users[ref.key]
        self.demand.remove(pod.uid)
        self._dirty.jobs.add(job)

    def _seat(self, pod: PodView) -> None:
        """Puts a pod where it takes room: where it is bound, or where it is about to be."""
        if pod.uid in self.pods:
            self._dirty.jobs.add(job_key(pod))
        node = "" if pod.ended else pod.node or self.planned_node(pod)
        if node:
            self.ground.seat(pod, node)
        else:
            self.ground.unseat(pod.uid)

    def planned_node(self, pod: PodView) -> str:
        """Where a pod that is not bound will go: as written, else as its claims say."""
        if not (pod.queue or pod.group):
            return ""
        for key in _flights_of(pod):
            flight = self.flights.get(key)
            if flight is not None and pod.uid in flight.pods:
                return flight.pods[pod.uid]
        if pod.gated:
            return ""
        for ref in pod.claims:
            claim = self.claims.get(ref.key)
            allocation = claim.status.allocation if claim is not None else None
            node = node_of(allocation) if allocation is not None else ""
            if node:
                return node
        return ""

    # --- queues and groups --------------------------------------------------------------------

    def put_queue(self, queue: Queue) -> None:
        """Adds or replaces a queue; one of which only the status is new changes nothing."""
        before = self.queues.get(queue.name)
        self.queues[queue.name] = queue
        self._dirty.tree |= before is None or before.spec != queue.spec

    def remove_queue(self, name: str) -> None:
        """Forgets a queue; what it uses stays charged to the cluster."""
        self.queues.pop(name, None)
        self._dirty.tree = True

    def put_group(self, group: PodGroup) -> None:
        """Adds or replaces a group; gangs of owners are put under ``namespace/Kind.name``."""
        self.groups[group.key] = group
        self._dirty.jobs.add(f"group/{group.key}")

    def remove_group(self, key: str) -> None:
        """Forgets a group."""
        self.groups.pop(key, None)
        self._dirty.jobs.add(f"group/{key}")

    # --- disruption budgets -------------------------------------------------------------------

    def put_budget(self, budget: Budget) -> None:
        """Adds or replaces a PodDisruptionBudget."""
        self.budgets[budget.key] = budget
        self.runners.clear()

    def remove_budget(self, key: str) -> None:
        """Forgets a PodDisruptionBudget (``namespace/name``)."""
        if self.budgets.pop(key, None) is not None:
            self.runners.clear()

    def budgets_of(self, pod: PodView) -> list[str]:
        """The budgets that count a pod."""
        return [key for key, one in self.budgets.items() if one.counts(pod)]

    # --- in flight ----------------------------------------------------------------------------

    def assume(self, placement: JobPlacement) -> None:
        """The placement is being written: it counts until the watch shows it, or `drop`."""
        job = placement.job
        self.drop(job)
        claims = {}
        for one in placement.claims:
            claim = self.claims.get(one.key)
            if claim is not None and claim.status.allocation is None:
                claims[one.key] = one.allocation
        pods = {one.uid: one.node for one in placement.pods if one.uid in self.pods}
        self.flights[job] = Flight(claims, pods)
        for key, allocation in claims.items():
            self._flying[key] = job
            self.ground.index.put_claim(with_allocation(self.claims[key], allocation))
            self._claim_changed(key)
        for uid in pods:
            self._seat(self.pods[uid])

    def drop(self, job: str) -> None:
        """The placement was not written, or was taken back."""
        flight = self.flights.pop(job, None)
        if flight is None:
            return
        for key in flight.claims:
            self._flying.pop(key, None)
            claim = self.claims.get(key)
            if claim is not None and claim.status.allocation is None:
                self.ground.index.remove_claim(claim)
            self._claim_changed(key)
        for uid in flight.pods:
            if uid in self.pods:
                self._seat(self.pods[uid])

    def allocation_of(self, key: str) -> AllocationResult | None:
        """What a claim is allocated, in flight included."""
        claim = self.claims.get(key)
        if claim is not None and claim.status.allocation is not None:
            return claim.status.allocation
        return self._in_flight(key)

    # --- charges ------------------------------------------------------------------------------

    @property
    def book(self) -> Book:
        """Who uses what, as of now. Treat as read only; copy it to try things."""
        self.refresh()
        return self._book

    def refresh(self) -> None:
        """Works out what changed since the last plan."""
        ground, dirty = self.ground, self._dirty
        ground.refresh()
        self.tariff.refresh()
        if dirty.tree:
            self._book.set_tree(QueueTree.of(self.queues.values()))
            dirty.tree = False
        if dirty.structure != ground.structure:
            self._book.capacity = self.tariff.capacity(self.options.node_label)
            dirty.structure = ground.structure
        for uid in sorted(dirty.pods):
            self._count_demand(uid)
        for job in sorted(dirty.jobs):
            self._charge(job)
            self.runners.pop(job, None)
        dirty.pods.clear()
        dirty.jobs.clear()
        self.board.set_potential(self.demand.potential())

    def _count_demand(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.ended or not pod.claims:
            self.demand.remove(uid)
            return
        claims = [self.claims[ref.key] for ref in pod.claims if ref.key in self.claims]
        try:
            plan = self.ground.plan(claims)
            asked = self.tariff.demand(plan, pod.cpu_milli, pod.memory_bytes)
        except (Refusal, PlacementError):
            self.demand.remove(uid)  # nobody can serve it, so nothing is kept free for its like
            return
        self.demand.put(uid, asked)

    def _charge(self, job: str) -> None:
        charged = self.charge_of(job)
        if charged is None:
            self._book.release(job)
        else:
            self._book.charge(job, *charged)

    def charge_of(self, job: str) -> tuple[str, Amounts] | None:
        """Queue and amounts that a job is charged now; None when nothing of it is placed."""
        holders = [
            pod
            for uid in sorted(self.members.get(job, ()))
            if not (pod := self.pods[uid]).ended and (pod.placed or self.planned_node(pod))
        ]
        if not holders:
            return None
        parts = []
        for key in dict.fromkeys(ref.key for pod in holders for ref in pod.claims):
            claim = self.claims.get(key)
            if claim is None or self._payer(key) != job:
                continue
            allocation = self.allocation_of(key)
            if allocation is not None:
                parts.append(self.tariff.allocated(claim, allocation))
            else:
                parts.append(self.estimate([claim]))
        return self.queue_of(holders[0]), Amounts.total(parts)

    def _payer(self, key: str) -> str:
        """The job that a claim is charged to: that of its oldest placed user."""
        users = [self.pods[uid] for uid in self.users.get(key, ())]
        if len(users) == 1:
            return job_key(users[0])
        holding = [pod for pod in users if pod.placed or self.planned_node(pod)]
        oldest = min(holding or users, key=lambda pod: (pod.created, pod.key))
        return job_key(oldest)

    def queue_of(self, pod: PodView) -> str:
        """The queue that a pod is charged to."""
        group = self.groups.get(pod.group) if pod.group else None
        return group.spec.queue or pod.queue if group is not None else pod.queue

    def estimate(self, claims: Sequence[ResourceClaim]) -> Amounts:
        """What claims will cost at most; nothing for those that nobody can serve."""
        try:
            return self.tariff.estimate(self.ground.plan(claims))
        except Refusal:
            return Amounts()


def _flights_of(pod: PodView) -> tuple[str, ...]:
    """Keys of the placements that may carry a pod: its gang's, as an extra, alone or as a repair."""
    job = job_key(pod)
    return job, f"{job}+{pod.name}", single_key(pod)


def node_of(allocation: AllocationResult) -> str:
    """The one node on which an allocation may be used; empty when it may be used on several."""
    selector = allocation.node_selector
    if selector is None or len(selector.node_selector_terms) != 1:
        return ""
    for one in selector.node_selector_terms[0].match_fields:
        if one.key == "metadata.name" and one.operator == "In" and len(one.values) == 1:
            return one.values[0]
    return ""
