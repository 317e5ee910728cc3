# SPDX-License-Identifier: Apache-2.0
"""Random histories of a small cluster in which devices are taken back, and what must hold in them.

Each plan that evicts somebody new is held against states that are built anew: without the victims the
preemptors fit, with them they do not. The rules are written down here from docs/preemption.md alone.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from gpudra.driver.core.managed import Eviction, JobPlacement, ManagedState, Plan, PodView
from gpudra.driver.core.managed.budgets import Budget, budget
from tests.support import managedscene as scene

NODES, CARDS = 2, 3
MIN_RUNTIME = 40
PATIENCE = 60.0
STEP = 5.0
# The minimum that a web service keeps.
WEB = 2


def queues() -> list[scene.Queue]:
    """Two that lend each other, and one with a guarantee."""
    runtime = f"{MIN_RUNTIME}s"
    return [
        scene.queue("a", quota={"gpus": 2}, reclaimMinRuntime=runtime),
        scene.queue("b", quota={"gpus": 2}, reclaimMinRuntime=runtime, preemptMinRuntime=runtime),
        scene.queue("c", quota={"gpus": 2}, guarantee={"gpus": 1}),
    ]


def cluster(**options: bool) -> ManagedState:
    """Empty."""
    state = scene.cluster(NODES, cards=CARDS, queues=queues(), share=True)
    state.options = replace(state.options, **options)  # type: ignore[arg-type]
    return state


@dataclass
class History:
    """One run.

    Attributes:
        evicted: uids of those who were told to go, with the time.
        waited: since when a job of one whole card, within the quota of its queue, waits.
    """

    seed: int
    now: float = 1000.0
    evicted: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.state = cluster()
        self._number = 0
        self._had = False

    # --- what happens ---------------------------------------------------------------------

    def step(self) -> None:
        """Something comes, something ends, a plan is made and carried out."""
        for _ in range(self.rng.randint(0, 2)):
            if len(self.state.pods) < 24:
                self._submit()
        self._end_some()
        self._put_budget()
        ready = {
            job
            for job, one in self.state.nominations.items()
            if all(uid not in self.state.pods for uid in one.victims)
        }
        allowed = {key: one.allowed for key, one in self.state.budgets.items()}
        self._had = bool(self.state.nominations)
        plan = self.state.plan(self.now)
        self._check(plan, allowed, ready)
        for placement in plan.placements:
            self._carry_out(placement)
        for one in plan.evictions:
            self._evict(one)
        self.now += STEP

    def _submit(self) -> None:
        self._number += 1
        name, queue = f"j{self._number}", self.rng.choice("aabbc")
        priority, app = self.rng.choice([0, 0, 5]), self.rng.choice(["", "", "web"])
        more = {"queue": queue, "priority": priority, "created": self.now}
        labels = {"app": app} if app else {}
        kind = self.rng.choice(["whole", "whole", "share", "share", "gang"])
        if kind == "gang":
            size = self.rng.randint(2, 3)
            self.state.put_group(scene.group(name, size))
            scene.submit(self.state, name, pods=size, group=f"default/{name}", **more)
        elif kind == "share":
            part = self.rng.choice([20, 40, 60])
            capacity = {"compute": str(part), "memory": f"{part * 700}Mi"}
            scene.submit(self.state, name, kind="share", capacity=capacity, labels=labels, **more)
        else:
            scene.submit(self.state, name, labels=labels, **more)

    def _end_some(self) -> None:
        for uid, since in list(self.evicted.items()):
            if uid not in self.state.pods:
                del self.evicted[uid]
            elif self.now - since >= self.rng.choice([0.0, STEP, 4 * STEP]):
                scene.finish(self.state, self.state.pods[uid])
        for pod in list(self.state.pods.values()):
            if pod.node and not pod.group and self.rng.random() < 0.02:
                scene.finish(self.state, pod)

    def _put_budget(self) -> None:
        alive = [
            pod
            for pod in self.state.pods.values()
            if pod.node and not pod.deleting and pod.labels.get("app") == "web"
        ]
        self.state.put_budget(web(max(0, len(alive) - WEB)))

    def _carry_out(self, placement: JobPlacement) -> None:
        scene.carry_out(self.state, placement)
        for one in placement.pods:
            self.state.put_pod(replace(self.state.pods[one.uid], started=self.now))
        self._count("placed")

    def _evict(self, one: Eviction) -> None:
        """Asked once; the pod ends by and by."""
        pod = self.state.pods[one.pod.uid]
        if one.pod.uid not in self.evicted:
            self.evicted[one.pod.uid] = self.now
            self._count(one.reason)
        self.state.put_pod(replace(pod, deleting=True))

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- what must hold -------------------------------------------------------------------

    def _check(self, plan: Plan, allowed: dict[str, int], ready: set[str]) -> None:
        placed = {one.job for one in plan.placements}
        for one in plan.waiting:
            # What has become the guarantee of others meanwhile is theirs.
            if one.reason != "GuaranteeOfOthers":
                assert one.job not in ready, f"its victims are gone, and it still waits: {one}"
        new = [one for one in plan.evictions if one.pod.uid not in self.evicted]
        for one in new:
            self._lawful(one)
        web_pods = [one for one in new if self.state.pods[one.pod.uid].labels.get("app") == "web"]
        assert len(web_pods) <= allowed.get("default/web", 0), "more than the budget allows"
        going = {one.pod.uid for one in new}
        for uid in going:
            pod = self.state.pods[uid]
            if pod.group:
                rest = {one.uid for one in self.state.pods.values() if one.group == pod.group}
                assert rest <= going, f"only a part of gang {pod.group}"
        if new:
            self._needed({one.by for one in new}, placed)

    def _lawful(self, one: Eviction) -> None:
        victim = self.state.pods[one.pod.uid]
        (by, *_) = members(self.state, one.by)
        ran = self.now - (self.now if victim.started is None else victim.started)
        if victim.queue == by.queue:
            assert one.reason == "Preempted"
            assert victim.priority < by.priority, f"{one} is not less important"
            assert victim.queue != "b" or ran >= MIN_RUNTIME
        else:
            assert one.reason == "Reclaimed"
            assert victim.queue == "c" or ran >= MIN_RUNTIME, f"{one} ran for {ran} s only"

    def _needed(self, jobs: Collection[str], placed: Collection[str]) -> None:
        """Each fits with all victims gone, beside what the plan placed; it does not fit without."""
        going = {uid for one in self.state.nominations.values() for uid in one.victims}
        kept = [pod for pod in self.state.pods.values() if pod.uid not in going and pod.node]
        wanted = set(self.state.nominations) | set(placed)
        after = self._like(kept, wanted).plan(self.now)
        fits = {one.job for one in after.placements}
        assert set(jobs) <= fits, f"{set(jobs) - fits} would not fit even without the victims"
        if self._had or len(self.state.nominations) > 1:
            return  # what is kept for the others cannot be drawn into a state of its own
        everybody = [pod for pod in self.state.pods.values() if pod.node]
        for job in jobs:
            waiting = {*self.state.gated, job, *placed}
            now = self._like(everybody, waiting).plan(self.now)
            assert job not in {one.job for one in now.placements}, f"{job} fits without evictions"

    def _like(self, running: Collection[PodView], waiting: Collection[str]) -> ManagedState:
        """A state of its own with these pods, which evicts nobody."""
        fresh = cluster(evictions=False)
        for group in self.state.groups.values():
            fresh.put_group(group)
        pods = [*running, *(pod for job in waiting for pod in members(self.state, job))]
        for pod in pods:
            for ref in pod.claims:
                fresh.put_claim(self.state.claims[ref.key])
            fresh.put_pod(pod)
        return fresh


def members(state: ManagedState, job: str) -> list[PodView]:
    """The waiting pods of a job."""
    kind, _, name = job.partition("/")
    if kind == "pod":
        return [pod for pod in state.pods.values() if pod.key == name]
    return [pod for pod in state.pods.values() if pod.group == name and pod.gated]


def web(allowed: int) -> Budget:
    """The budget of the web service."""
    return budget(
        {
            "metadata": {"namespace": "default", "name": "web", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": allowed, "observedGeneration": 1},
        }
    )


def run(seed: int, steps: int, told: Callable[[History], None] = lambda _: None) -> History:
    """One history. Raises AssertionError when a rule is broken."""
    history = History(seed)
    for _ in range(steps):
        history.step()
        told(history)
    return history
