# SPDX-License-Identifier: Apache-2.0
"""The same day in managed mode: shares, two lending queues, gangs. The plans are the controller's own.

A pod that is evicted is made anew by its owner and runs from the beginning. Jobs start and are
replaced at the ticks of the clock only, which costs this world a little.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpudra.api.podgroup import PodGroup
from gpudra.api.queue import Queue
from gpudra.api.resource_v1 import DeviceClass, ResourceClaim
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.forms import CardForms, DeviceKind, PublishPolicy
from gpudra.driver.core.managed import ClaimRef, JobPlacement, ManagedState, PodView
from tools.twoteams.measure import Measure
from tools.twoteams.workload import DAY, TEAMS, Work

Obj = dict[str, Any]
DRIVER = "gpu.gpudra.io"
PROFILE = "dgx-h100-8x80"
CARD_MEMORY_MIB = 81_559
TICK = 300.0
MIN_RUNTIME = "30m"
_POLICY = PublishPolicy(
    forms=CardForms(kinds=frozenset({DeviceKind.WHOLE, DeviceKind.SHARE})), managed=True
)
_ROOM = {"cpu": "192", "memory": "2Ti", "pods": "250"}


@dataclass(slots=True)
class _Running:
    work: Work
    start: float
    pods: list[PodView]


class Cluster:
    """The state, fed as the controller feeds it."""

    def __init__(self, nodes: int, cards_a_node: int) -> None:
        self.state = ManagedState(DRIVER)
        for kind in ("gpu", "share"):
            self.state.put_class(_class(kind))
        for team in TEAMS:
            half = str(nodes * cards_a_node // 2)
            spec = {"quota": {"gpus": half}, "reclaimMinRuntime": MIN_RUNTIME}
            self.state.put_queue(Queue.decode(_object("Queue", team, spec)))
        for number in range(nodes):
            name = f"node-{number:04d}"
            self.state.put_node(_node(name))
            for one in slices_of_hardware(PROFILE, driver=DRIVER, node_name=name, policy=_POLICY):
                self.state.put_slice(one)
        self._tries = 0

    def submit(self, work: Work, now: float) -> list[PodView]:
        """The job's pods wait at the gate."""
        self._tries += 1
        name = f"{work.name}-{self._tries}"
        group = f"{work.team}/{name}" if work.pods > 1 else ""
        if group:
            spec = {"minCount": work.pods}
            raw = _object("PodGroup", name, spec)
            raw["metadata"]["namespace"] = work.team
            self.state.put_group(PodGroup.decode(raw))
        pods = []
        for number in range(work.pods):
            own = f"{name}-{number}"
            self.state.put_claim(_claim(work, own))
            pods.append(
                PodView(
                    uid=own,
                    namespace=work.team,
                    name=own,
                    queue=work.team,
                    group=group,
                    created=now,
                    gated=True,
                    owner="Job/work",
                    cpu_milli=work.cpu_milli,
                    memory_bytes=work.memory_mib * 2**20,
                    claims=(ClaimRef("gpu", f"{work.team}/{own}"),),
                )
            )
            self.state.put_pod(pods[-1])
        return pods

    def start(self, placement: JobPlacement, now: float) -> None:
        """Claims are written, gates lifted, pods bound and started."""
        for one in placement.claims:
            claim = self.state.claims[one.key]
            status = replace(claim.status, allocation=one.allocation)
            self.state.put_claim(replace(claim, status=status))
        for each in placement.pods:
            before = self.state.pods[each.uid]
            self.state.put_pod(replace(before, gated=False, node=each.node, started=now))

    def end(self, pods: Sequence[PodView]) -> None:
        """The pods are gone, and what was theirs alone with them."""
        for pod in pods:
            self.state.remove_pod(pod.uid)
            for ref in pod.claims:
                self.state.remove_claim(ref.key)
        if pods and pods[0].group:
            self.state.remove_group(pods[0].group)


def run_managed(
    work: Sequence[Work],
    nodes: int,
    cards_a_node: int,
    progress: Callable[[float], None] = lambda _: None,
) -> Measure:
    """The day, tick by tick."""
    measure = Measure("managed", nodes * cards_a_node)
    day = _Day(Cluster(nodes, cards_a_node), measure)
    coming = deque(work)
    now = 0.0
    while now < DAY:
        while coming and coming[0].arrives <= now:
            day.submit(coming.popleft(), now)
        day.tick(now)
        progress(now / DAY)
        now += TICK
    measure.unserved += len(day.waiting) + len(coming)
    return measure


class _Day:
    def __init__(self, cluster: Cluster, measure: Measure) -> None:
        self.cluster, self.measure = cluster, measure
        self.waiting: dict[str, tuple[Work, list[PodView]]] = {}
        self.running: dict[str, _Running] = {}
        self._ends: list[tuple[float, str]] = []
        self._job_of: dict[str, str] = {}

    def submit(self, work: Work, now: float) -> None:
        pods = self.cluster.submit(work, now)
        job = f"group/{pods[0].group}" if pods[0].group else f"pod/{pods[0].key}"
        self.waiting[job] = work, pods
        for pod in pods:
            self._job_of[pod.uid] = job

    def tick(self, now: float) -> None:
        """Ends what has ended, and carries out one plan."""
        while self._ends and self._ends[0][0] <= now:
            _, job = heapq.heappop(self._ends)
            if job in self.running:
                self.cluster.end(self.running.pop(job).pods)
        for job, (work, pods) in list(self.waiting.items()):
            if work.leaves <= now:
                self.cluster.end(pods)
                del self.waiting[job]
                self.measure.unserved += 1
        plan = self.cluster.state.plan(now)
        for placement in plan.placements:
            work, pods = self.waiting.pop(placement.job)
            self.cluster.start(placement, now)
            self.running[placement.job] = _Running(work, now, pods)
            heapq.heappush(self._ends, (now + work.seconds, placement.job))
            self.measure.ran(work, now, now + work.seconds)
        for job in dict.fromkeys(self._job_of[one.pod.uid] for one in plan.evictions):
            found = self.running.pop(job, None)
            if found is not None:
                self.measure.stopped(found.work, found.start, found.start + found.work.seconds, now)
                self.cluster.end(found.pods)
                self.submit(found.work, now)


def _claim(work: Work, name: str) -> ResourceClaim:
    exactly: Obj = {"deviceClassName": f"{'gpu' if work.need == 1000 else 'share'}.gpudra.io"}
    if work.need < 1000:
        memory = CARD_MEMORY_MIB * work.need // 1000
        requests = {"memory": f"{max(1, memory)}Mi", "compute": str(-(-work.need // 10))}
        exactly["capacity"] = {"requests": requests}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    meta = {"name": name, "namespace": work.team, "uid": f"claim-{name}"}
    return ResourceClaim.from_dict({"metadata": meta, "spec": spec})


def _class(kind: str) -> DeviceClass:
    text = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    spec = {"selectors": [{"cel": {"expression": text}}]}
    return DeviceClass.from_dict({"metadata": {"name": f"{kind}.gpudra.io"}, "spec": spec})


def _object(kind: str, name: str, spec: Obj) -> Obj:
    head: Obj = {"apiVersion": "gpudra.io/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return {**head, "spec": spec}


def _node(name: str) -> Obj:
    labels = {"kubernetes.io/hostname": name, "gpudra.io/managed": "true"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": _ROOM, "conditions": [{"type": "Ready", "status": "True"}]},
    }
