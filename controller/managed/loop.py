# SPDX-License-Identifier: Apache-2.0
"""Managed mode as one task: watch, plan, carry out, tell; for as long as this instance leads.

Started by `gpudra.controller.app` where the kinds Queue and PodGroup are served. Plans are made one
after the other, while writes of earlier ones are still under way: what was planned counts as used
until the watch shows it, or until it was taken back.
"""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from gpudra.controller.managed.conditions import Events, PodReporter
from gpudra.controller.managed.execute import Executor, Outcome
from gpudra.controller.managed.feed import Feed, FeedApi
from gpudra.controller.managed.pasts import Pasts
from gpudra.controller.managed.planner import Blocking, Planner
from gpudra.controller.managed.statuses import Statuses
from gpudra.controller.managed.writer import WriteApi, Writer
from gpudra.driver.core.managed import Eviction, JobPlacement, JobUndo, Plan, PlanOptions
from gpudra.driver.kube.backoff import delay_for
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.leaderelection import LeadershipLostError
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.logging import get_logger, operation
from gpudra.driver.observability.metrics import Metrics

# Changes that come one after the other are planned for together.
SETTLE_SECONDS = 0.05
# While so many jobs wait for their writes, another plan would only make the line longer.
BUSY_JOBS = 16
BUSY_SECONDS = 0.25
# Planning takes no more than this part of the time while everything changes.
PLAN_SHARE = 0.5
# While pods wait, time alone may change the answer: a gang's time-out, a promised end.
TICK_SECONDS = 5.0

log = get_logger(__name__)


class ManagedApi(FeedApi, WriteApi, Protocol):
    """What managed mode needs of the API client."""


class ManagedMode:
    """The whole of it.

    Args:
        client: lists, watches and writes.
        driver: whose devices are given out.
        check: raises when we do not lead; asked before each write.
        metrics: of the process.
        events: recorder.
        clock: for everything that waits.
        rng: for jitter.
        options: how to plan.
        blocking: where plans are made; None: in threads.
        half_life: seconds after which past use counts half; 0: it does not count.
    """

    def __init__(
        self,
        client: ManagedApi,
        *,
        driver: str,
        check: Callable[[], object],
        metrics: Metrics,
        events: Events,
        clock: Clock,
        rng: random.Random,
        options: PlanOptions | None = None,
        blocking: Blocking | None = None,
        half_life: float = 0.0,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._wake = asyncio.Event()
        self.feed = Feed(client, on_change=self._wake.set, metrics=metrics, clock=clock, rng=rng)
        self.writer = Writer(client, check=check, clock=clock)
        self.pods = PodReporter(self.writer, self.feed, events=events, clock=clock)
        self.planner = Planner(
            driver,
            # What was planned counts until it was carried out or taken back, however long it takes.
            replace(options or PlanOptions(), flight_seconds=math.inf),
            self.feed,
            clock=clock,
            blocking=blocking or asyncio.to_thread,
            pasts=Pasts(half_life),
        )
        self.statuses = Statuses(self.writer, self.feed, self.planner, clock=clock)
        self._executor = Executor(
            self.writer, self.feed, before_gate=self.pods.placed, clock=clock, rng=rng
        )
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self.plans = 0

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LeadershipLostError: another instance may lead by now.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.feed.run(), name="managed feed")
            tasks.create_task(self.pods.run(), name="managed pod conditions")
            tasks.create_task(self.statuses.run(), name="managed statuses")
            tasks.create_task(self._plan_for_ever(tasks), name="managed plans")

    @property
    def idle(self) -> bool:
        """Whether it has seen everything, nothing is under way, and nothing new is known."""
        return self.feed.has_synced and not self._running and not self.feed.pending

    async def _plan_for_ever(self, tasks: asyncio.TaskGroup) -> None:
        await self.feed.wait_synced()
        log.info("managed mode has seen the cluster", pods=len(self.feed.pods))
        while True:
            self._wake.clear()
            started = self._clock.monotonic()
            with operation("managed plan"):
                plan = await self.planner.plan(frozenset(self._running))
                took = self._clock.monotonic() - started
                self._started(plan, took)
                self._carry_out(plan, tasks)
            await self._rest(bool(plan.waiting))
            settle = BUSY_SECONDS if len(self._running) > BUSY_JOBS else SETTLE_SECONDS
            await self._clock.sleep(max(settle, took * (1 - PLAN_SHARE) / PLAN_SHARE))

    async def _rest(self, waiting: bool) -> None:
        """Until something changes; while pods wait, a few seconds at most."""
        timer = self._clock.call_later(TICK_SECONDS, self._wake.set) if waiting else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _started(self, plan: Plan, took: float) -> None:
        self.plans += 1
        self._metrics.observe(m.MANAGED_PLAN_SECONDS, took)
        self._metrics.set(m.MANAGED_WAITING, sum(len(job.pods) for job in plan.waiting))
        self.feed.count()
        self.pods.tidy()
        if plan.placements or plan.undo or plan.repairs or plan.evictions:
            log.debug(
                "planned",
                placements=len(plan.placements),
                repairs=len(plan.repairs),
                undo=len(plan.undo),
                evictions=len(plan.evictions),
                waiting=len(plan.waiting),
                seconds=round(took, 3),
            )

    def _carry_out(self, plan: Plan, tasks: asyncio.TaskGroup) -> None:
        for undo in plan.undo:
            if undo.job not in self._running:
                self._start(undo.job, self._undo(undo), tasks)
        for repair in plan.repairs:
            if repair.job not in self._running:
                self._start(repair.job, self._place(repair, repair=True), tasks)
        for placement in plan.placements:
            if placement.job not in self._running:
                self._start(placement.job, self._place(placement), tasks)
        for eviction in plan.evictions:
            job = f"eviction/{eviction.pod.uid}"
            if job not in self._running:
                self._start(job, self._evict(eviction), tasks)
        self.pods.waiting(plan.waiting)
        self.statuses.planned(plan)

    def _start(self, job: str, work: Coroutine[Any, Any, None], tasks: asyncio.TaskGroup) -> None:
        task = tasks.create_task(work, name=f"managed job {job}")
        self._running[job] = task
        task.add_done_callback(lambda _: self._ended(job))

    def _ended(self, job: str) -> None:
        self._running.pop(job, None)
        self._wake.set()

    async def _place(self, placement: JobPlacement, *, repair: bool = False) -> None:
        started = self._clock.monotonic()
        try:
            outcome = await self._executor.place(placement)
        except LeadershipLostError:
            raise
        except Exception:
            log.exception("placing failed", job=placement.job)
            outcome = Outcome(problem="an error of the controller, see its log")
        if outcome.problem:
            await self._give_up(placement, outcome.problem)
            return
        self._failures.pop(placement.job, None)
        if repair or len(outcome.lifted) < len(placement.pods):
            # What is written is known by now; the next plan goes on from there.
            self.feed.request(f"job {placement.job}", lambda state: state.drop(placement.job))
        self._metrics.observe(m.MANAGED_PLACE_SECONDS, self._clock.monotonic() - started)
        self._metrics.inc(m.MANAGED_PLACEMENTS, outcome="placed")
        log.info(
            "placed",
            job=placement.job,
            queue=placement.queue,
            nodes=sorted({pod.node for pod in placement.pods}),
        )

    async def _give_up(self, placement: JobPlacement, problem: str) -> None:
        """Nothing of it is left in the API; the devices count as free again after a pause."""
        self._metrics.inc(m.MANAGED_PLACEMENTS, outcome="undone")
        for pod in placement.pods:
            self.pods.undone(f"{pod.namespace}/{pod.name}", pod.uid, problem)
        count = self._failures.get(placement.job, 0)
        self._failures[placement.job] = count + 1
        if count:
            await self._clock.sleep(delay_for(count, base=0.2, cap=30.0, rng=self._rng))
        self.feed.request(f"job {placement.job}", lambda state: state.drop(placement.job))

    async def _evict(self, eviction: Eviction) -> None:
        """A pod goes for another; the plan keeps what it leaves for that one."""
        pod = eviction.pod
        if self.feed.is_going(f"{pod.namespace}/{pod.name}", pod.uid):
            return
        log.info("evicting", pod=f"{pod.namespace}/{pod.name}", by=eviction.by, why=eviction.reason)
        await self.pods.evicted(eviction)
        gone = await self._executor.evict(pod)
        self._metrics.inc(m.MANAGED_EVICTIONS, outcome="evicted" if gone else "refused")

    async def _undo(self, undo: JobUndo) -> None:
        log.info("taking a job back", job=undo.job, reason=undo.reason)
        await self._executor.undo(undo)
        self._metrics.inc(m.MANAGED_PLACEMENTS, outcome="undone")
        for pod in undo.pods:
            self.pods.undone(f"{pod.namespace}/{pod.name}", pod.uid, undo.reason)
