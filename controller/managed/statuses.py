# SPDX-License-Identifier: Apache-2.0
"""Writes into Queues and PodGroups where they stand. Numbers move all the time, so not at once.

What is written is compared with what the object says already; nothing is remembered, so a new
leader writes nothing that the old one has written.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpudra.api.errors import ApiError, NotFoundError
from gpudra.api.podgroup import PodGroup
from gpudra.api.queue import Queue
from gpudra.controller.managed.conditions import told
from gpudra.controller.managed.feed import Feed
from gpudra.controller.managed.pasts import WRITE_SECONDS
from gpudra.controller.managed.planner import Planner
from gpudra.controller.managed.pods import PodRecord
from gpudra.controller.managed.writer import Writer
from gpudra.driver.core.managed import Eviction, JobWaiting, Plan
from gpudra.driver.core.queueing import QueueView
from gpudra.driver.kube.clock import Clock, rfc3339
from gpudra.driver.kube.resources import POD_GROUPS, QUEUES, Obj, Resource
from gpudra.driver.observability.logging import get_logger

# Between two rounds; a person who looks at `kubectl get queues` does not see the difference.
ROUND_SECONDS = 2.0
READY = "Ready"
_MAX_MESSAGE = 1024
PLACED = "Placed"
EVICTED = "Evicted"

log = get_logger(__name__)


class Statuses:
    """Keeps the status of Queues and PodGroups.

    Args:
        writer: fenced.
        feed: knows the objects and their pods.
        planner: knows the numbers.
        clock: for times and pauses.
    """

    def __init__(self, writer: Writer, feed: Feed, planner: Planner, *, clock: Clock) -> None:
        self._writer = writer
        self._feed = feed
        self._planner = planner
        self._clock = clock
        self._changed = asyncio.Event()
        self._waiting: tuple[JobWaiting, ...] = ()
        # The last evictions from each queue, until they were written down.
        self._taken: dict[str, dict[str, Eviction]] = {}

    def planned(self, plan: Plan) -> None:
        """Something may be another now."""
        self._waiting = plan.waiting
        for one in plan.evictions:
            known = self._feed.pods.get(f"{one.pod.namespace}/{one.pod.name}", one.pod.uid)
            if known is not None:
                self._taken.setdefault(known.value.view.queue, {})[one.pod.uid] = one
        self._changed.set()

    def job(self, key: str) -> JobWaiting | None:
        """A job that waited when the last plan was made."""
        return next((one for one in self._waiting if one.job == key), None)

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            LeadershipLostError: another instance may lead by now.
        """
        await self._feed.wait_synced()
        while True:
            await self._wait()
            self._changed.clear()
            await self.write()
            await self._clock.sleep(ROUND_SECONDS)

    async def _wait(self) -> None:
        """Until something changes; a past fades by itself, and is written down now and then."""
        kept = self._planner.pasts.kept
        timer = self._clock.call_later(WRITE_SECONDS, self._changed.set) if kept else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def write(self) -> None:
        """One round."""
        views = await self._planner.ask(lambda state: state.book.views())
        by_queue, by_group = _pods(self._feed.pods.values())
        waiting = Counter[str]()
        by_job = {}
        for job in self._waiting:
            waiting[job.queue] += len(job.pods)
            by_job[job.job] = job
        moment = self._clock.now()
        now = rfc3339(moment)
        taken, self._taken = self._taken, {}
        seen = {view.name: view for view in views}
        for queue in self._feed.queues.store.values():
            view = seen.get(queue.name)
            if view is not None:
                lost = tuple(taken.get(queue.name, {}).values())
                wanted = queue_status(
                    queue, view, by_queue[queue.name], waiting[queue.name], now, lost
                )
                wanted |= self._planner.pasts.status(
                    queue.status, view.history, moment.timestamp(), now
                )
                await self._patch(QUEUES, queue.name, "", queue.status, wanted)
        for group in self._feed.groups.store.values():
            wanted = group_status(group, by_group[group.key], by_job.get(group.key), now)
            meta = group.metadata
            await self._patch(POD_GROUPS, meta.name, meta.namespace, group.status, wanted)

    async def _patch(
        self, resource: Resource, name: str, namespace: str, have: Mapping[str, Any], wanted: Obj
    ) -> None:
        if all(have.get(key) == value for key, value in wanted.items()):
            return
        # A merge patch leaves keys of a map that it does not name: what is not used any more goes.
        body = {key: _replaced(have.get(key), value) for key, value in wanted.items()}
        try:
            await self._writer.patch(
                resource, name, {"status": body}, namespace=namespace or None, subresource="status"
            )
        except NotFoundError:
            return  # deleted meanwhile, which the watch is about to show
        except ApiError as error:
            log.warning("cannot write a status", kind=resource.kind, name=name, error=str(error))
            self._changed.set()


def queue_status(
    queue: Queue,
    view: QueueView,
    running: int,
    waiting: int,
    now: str,
    lost: Sequence[Eviction] = (),
) -> Obj:
    """The status of a queue as it should be.

    Args:
        queue: as it is.
        view: its numbers.
        running: pods that hold devices.
        waiting: pods that wait.
        now: as it is written.
        lost: pods of the queue that are evicted since the last time.
    """
    problem = view.problem
    ready = {
        "type": READY,
        "status": "False" if problem else "True",
        "reason": problem.reason if problem else "Ready",
        "message": problem.message if problem else "",
        "observedGeneration": queue.metadata.generation,
    }
    conditions = _with(queue.status, ready, now)
    if lost:
        others = [one for one in conditions if one.get("type") != EVICTED]
        conditions = [*others, _loss(lost, now)]
    return {
        "observedGeneration": queue.metadata.generation,
        "used": view.used.texts(),
        "borrowed": view.borrowed.texts(),
        "share": f"{view.share:.3f}",
        "running": running,
        "waiting": waiting,
        "conditions": conditions,
    }


def _loss(lost: Sequence[Eviction], now: str) -> Obj:
    """The condition that tells of the last time that pods of a queue had to go, and for whom."""
    last = lost[-1]
    names = sorted(one.pod.name for one in lost)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return {
        "type": EVICTED,
        "status": "True",
        "reason": last.reason,
        "message": f"pod {last.pod.namespace}/{names[0]}{more}: {told(last)}"[:_MAX_MESSAGE],
        "lastTransitionTime": now,
    }


def group_status(
    group: PodGroup, pods: Iterable[PodRecord], waiting: JobWaiting | None, now: str
) -> Obj:
    """The status of a group as it should be."""
    phases = Counter("Gated" if pod.view.gated else pod.phase for pod in pods)
    running = phases["Running"]
    placed = running + phases["Pending"] + phases["Succeeded"]
    reason, message = ("Placed", "") if placed >= group.spec.min_count else ("Waiting", "")
    if waiting is not None:
        reason, message = waiting.reason, waiting.message
    condition = {
        "type": PLACED,
        "status": "True" if placed >= group.spec.min_count else "False",
        "reason": reason,
        "message": message,
        "observedGeneration": group.metadata.generation,
    }
    return {
        "observedGeneration": group.metadata.generation,
        "phase": _phase(phases, group.spec.min_count),
        "running": running,
        "waiting": phases["Gated"],
        "conditions": _with(group.status, condition, now),
    }


def _phase(phases: Mapping[str, int], minimum: int) -> str:
    alive = phases["Running"] + phases["Pending"] + phases["Gated"]
    if not alive and phases["Failed"]:
        return "Failed"
    if not alive and phases["Succeeded"]:
        return "Finished"
    if phases["Running"] + phases["Succeeded"] >= minimum:
        return "Running"
    return "Placed" if phases["Running"] + phases["Pending"] >= minimum else "Pending"


def _pods(
    records: Iterable[PodRecord],
) -> tuple[Mapping[str, int], Mapping[str, list[PodRecord]]]:
    """How many pods hold devices by queue, and the pods by group."""
    by_queue, by_group = Counter[str](), defaultdict[str, list[PodRecord]](list)
    for record in records:
        view = record.view
        if view.queue and view.placed:
            by_queue[view.queue] += 1
        if view.group:
            by_group[view.group].append(record)
    return by_queue, by_group


def _with(status: Mapping[str, Any], condition: Obj, now: str) -> list[Obj]:
    """The conditions with ours; its time stays while it says the same."""
    known = [one for one in status.get("conditions") or () if isinstance(one, Mapping)]
    before = next((one for one in known if one.get("type") == condition["type"]), {})
    same = before.get("status") == condition["status"] and before.get("lastTransitionTime")
    condition["lastTransitionTime"] = before["lastTransitionTime"] if same else now
    others = [dict(one) for one in known if one.get("type") != condition["type"]]
    return [*others, condition]


def _replaced(have: Any, value: Any) -> Any:
    if isinstance(have, Mapping) and isinstance(value, dict):
        return {**{key: None for key in have if key not in value}, **value}
    return value
