# SPDX-License-Identifier: Apache-2.0
"""What pods say about themselves in managed mode: conditions and Events.

A pod that waits has ``gpudra.io/Queued`` with the reason and its place in the queue; one that was
admitted has ``Admitted`` and ``Placed``. Places change all the time: a change of words alone is
written twice a minute at most, a change of reason soon. Writes of waiting pods give way to those
that place pods.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from gpudra.api.errors import ApiError, NotFoundError
from gpudra.controller.managed.feed import Feed
from gpudra.controller.managed.pods import ADMITTED, EVICTED, PLACED, QUEUED, PodRecord
from gpudra.controller.managed.writer import Writer
from gpudra.driver.core.managed import Eviction, JobWaiting, PodPlacement
from gpudra.driver.kube.clock import Clock, rfc3339
from gpudra.driver.kube.resources import PODS, Obj
from gpudra.driver.observability.logging import get_logger

# A place in the queue is told anew at most so often.
WORDS_SECONDS = 30.0
# Who is placed at once never waits in his own eyes: the first word comes after so long.
FIRST_SECONDS = 1.0
# Side by side: fewer than the writer allows, so that placing never waits for telling.
PARALLEL = 4
_MAX_MESSAGE = 1024
# Room is being made for it: it says so, and whose.
WAITS_FOR_VICTIMS = "WaitingForVictims"

log = get_logger(__name__)


class Events(Protocol):
    """What is needed of an event recorder."""

    def event(
        self,
        regarding: Obj,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's word
        reason: str,
        note: str,
        *,
        action: str = "",
    ) -> None:
        """Says something about an object; never blocks, never raises."""


@dataclass(frozen=True, slots=True)
class Word:
    """One condition as it should be."""

    status: bool
    reason: str
    message: str


class PodReporter:
    """Keeps the conditions of managed pods true.

    Args:
        writer: fenced.
        feed: knows the pods, and is told each answer.
        events: recorder.
        clock: for times and pauses.
    """

    def __init__(self, writer: Writer, feed: Feed, *, events: Events, clock: Clock) -> None:
        self._writer = writer
        self._feed = feed
        self._events = events
        self._clock = clock
        self._wanted: OrderedDict[tuple[str, str], Mapping[str, Word]] = OrderedDict()
        self._written_at: dict[str, float] = {}
        # What pods shall say that have said nothing yet.
        self._first: dict[str, Mapping[str, Word]] = {}
        self._wake = asyncio.Event()

    async def placed(self, record: PodRecord, pod: PodPlacement) -> None:
        """Says where a pod goes, right before its gate is lifted.

        The node is nominated, too: kube-scheduler then looks at it alone first, and counts the
        pod's requests there from now on (KEP-5278). Raises ApiError.
        """
        self._wanted.pop((record.key, pod.uid), None)
        words = {
            QUEUED: Word(False, "Admitted", "it has left the queue"),
            ADMITTED: Word(True, "Admitted", f"admitted by queue {record.view.queue}"),
            PLACED: Word(True, "Placed", f"its devices are on node {pod.node}"),
        }
        await self._write(record, words, nominated=pod.node)
        if QUEUED in record.said:
            # Who was placed at once has nothing to tell but what kube-scheduler tells right after.
            note = f"admitted by queue {record.view.queue}, placed on node {pod.node}"
            self._events.event(record.reference, "Normal", "Placed", note, action="Place")

    def waiting(self, jobs: Iterable[JobWaiting]) -> None:
        """What the waiting pods shall say; written by and by."""
        for job in jobs:
            word = {QUEUED: Word(True, job.reason, _words(job))}
            for pod in job.pods:
                self._want(f"{pod.namespace}/{pod.name}", pod.uid, word)

    def undone(self, key: str, uid: str, reason: str) -> None:
        """A pod whose placement was taken back while it still waited at its gate."""
        known = self._feed.pods.get(key, uid)
        if known is None:
            return
        self._events.event(
            known.value.reference, "Warning", "PlacementUndone", reason, action="Undo"
        )
        words = {
            QUEUED: Word(True, "PlacementUndone", reason),
            ADMITTED: Word(False, "PlacementUndone", reason),
            PLACED: Word(False, "PlacementUndone", reason),
        }
        self._want(key, uid, words)

    async def evicted(self, eviction: Eviction) -> None:
        """Says to a pod that it goes, and for whom, before it is asked to; it goes all the same."""
        pod = eviction.pod
        known = self._feed.pods.get(f"{pod.namespace}/{pod.name}", pod.uid)
        if known is None:
            return
        message = told(eviction)
        said = known.value.said.get(EVICTED)
        if said is not None and said.reason == eviction.reason:
            return
        self._events.event(
            known.value.reference, "Warning", eviction.reason, message, action="Evict"
        )
        try:
            await self._write(known.value, {EVICTED: Word(True, eviction.reason, message)})
        except NotFoundError:
            self._feed.pod_gone(known.value.key, pod.uid)
        except ApiError as error:
            log.info("cannot write a pod's conditions", pod=known.value.key, error=str(error))

    async def run(self) -> None:
        """Writes until cancelled.

        Raises:
            LeadershipLostError: another may lead by now.
        """
        async with asyncio.TaskGroup() as tasks:
            for number in range(PARALLEL):
                tasks.create_task(self._work(), name=f"pod conditions {number}")

    async def _work(self) -> None:
        while True:
            if not self._wanted:
                self._wake.clear()
                await self._wake.wait()
                continue
            (key, uid), words = self._wanted.popitem(last=False)
            known = self._feed.pods.get(key, uid)
            if known is None:
                self._written_at.pop(uid, None)
                continue
            news = _news(known.value, words)
            try:
                await self._write(known.value, words)
            except NotFoundError:
                self._feed.pod_gone(key, uid)
                continue
            except ApiError as error:
                log.info("cannot write a pod's conditions", pod=key, error=str(error))
                await self._clock.sleep(1.0)
                self._wanted.setdefault((key, uid), words)
                continue
            if news:
                self._events.event(
                    known.value.reference, "Normal", news, words[QUEUED].message, action="Queue"
                )

    def _want(self, key: str, uid: str, words: Mapping[str, Word]) -> None:
        known = self._feed.pods.get(key, uid)
        if known is not None and QUEUED in words and QUEUED not in known.value.said:
            if uid not in self._first:
                self._clock.call_later(FIRST_SECONDS, lambda: self._say_first(key, uid))
            self._first[uid] = words
            return
        if known is None or not self._is_due(known.value, words):
            self._wanted.pop((key, uid), None)
            return
        self._wanted[key, uid] = words
        self._wake.set()

    def _say_first(self, key: str, uid: str) -> None:
        """It still waits: now it says so."""
        words = self._first.pop(uid, None)
        known = self._feed.pods.get(key, uid)
        if words is not None and known is not None and known.value.view.gated:
            self._wanted[key, uid] = words
            self._wake.set()

    def _is_due(self, record: PodRecord, words: Mapping[str, Word]) -> bool:
        """Whether something of it is news that is worth a write now."""
        differs = False
        for kind, word in words.items():
            said = record.said.get(kind)
            if said is None:
                if word.status:
                    return True
                continue
            if (said.status == "True", said.reason) != (word.status, word.reason):
                return True
            differs = differs or said.message != word.message[:_MAX_MESSAGE]
        written = self._written_at.get(record.view.uid)
        return differs and (written is None or self._clock.monotonic() - written >= WORDS_SECONDS)

    async def _write(
        self, record: PodRecord, words: Mapping[str, Word], *, nominated: str = ""
    ) -> None:
        now = rfc3339(self._clock.now())
        status: Obj = {
            "conditions": [_condition(kind, word, record, now) for kind, word in words.items()]
        }
        if nominated:
            status["nominatedNodeName"] = nominated
        answer = await self._writer.patch(
            PODS,
            record.view.name,
            {"metadata": {"uid": record.view.uid}, "status": status},
            namespace=record.view.namespace,
            subresource="status",
            patch_type="strategic",
        )
        self._written_at[record.view.uid] = self._clock.monotonic()
        self._first.pop(record.view.uid, None)
        self._feed.answered_pod(answer)

    def tidy(self) -> None:
        """Forgets pods that are gone."""
        alive = {record.view.uid for record in self._feed.pods.values()}
        for uid in self._written_at.keys() - alive:
            del self._written_at[uid]


def told(eviction: Eviction) -> str:
    """For whom a pod goes, and why."""
    head = f"its devices go to {eviction.by}"
    return f"{head}: {eviction.message}" if eviction.message else head


def _news(record: PodRecord, words: Mapping[str, Word]) -> str:
    """Reason of the Event that goes with these words; empty: none does."""
    if QUEUED not in words:
        return ""
    said = record.said.get(QUEUED)
    reason = words[QUEUED].reason
    if reason == WAITS_FOR_VICTIMS and (said is None or said.reason != reason):
        return reason
    return "Queued" if said is None else ""


def _words(job: JobWaiting) -> str:
    place = f"place {job.position} in queue {job.queue}: " if job.position else ""
    return f"{place}{job.message}"


def _condition(kind: str, word: Word, record: PodRecord, now: str) -> Obj:
    said = record.said.get(kind)
    status = "True" if word.status else "False"
    since = said.since if said is not None and said.status == status and said.since else now
    return {
        "type": kind,
        "status": status,
        "reason": word.reason,
        "message": word.message[:_MAX_MESSAGE],
        "lastTransitionTime": since,
    }
