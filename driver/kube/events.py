# SPDX-License-Identifier: Apache-2.0
"""Events on objects (``events.k8s.io/v1``): what users see in ``kubectl describe``.

`EventRecorder.event` never blocks and never raises: telling must not break the work. Repetitions
become one Event with a growing series, floods of differing notes are folded. Used by the agent, the
slice controller and the cluster side.
"""

import asyncio
import random
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import structlog

from gpudra.api.errors import ApiError, NotFoundError
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock, SystemClock, rfc3339_micro
from gpudra.driver.kube.resources import EVENTS, Obj
from gpudra.driver.kube.verbs import KubeApi

log = structlog.get_logger(__name__)

EventType = Literal["Normal", "Warning"]

# A repetition within this time continues the series (client-go ends a series after six minutes).
SERIES_SECONDS = 360.0
# How often the count of a running series is written.
SERIES_WRITE_SECONDS = 30.0
# This many different notes for one object, type and reason within the time; further ones fold.
FOLD_NOTES = 10
FOLD_SECONDS = 600.0
# Limits of the API: pkg/apis/core/validation/events.go.
MAX_NOTE_BYTES = 1024
MAX_WORD = 128
_MAX_SERIES = 4096
_MAX_TRIES = 12
_FOLDED = "(combined from similar events) "

_Subject = tuple[str, ...]


@dataclass(slots=True)
class _Series:
    """One Event on the server, or one that will be.

    Attributes:
        body: the Event as created.
        count: how often it happened.
        written: the count that the server knows; 0 = not created yet.
        last: when it happened last.
        last_at: the same on the monotonic clock.
        due: when it may be written next, monotonic.
        tries: failed writes in a row.
    """

    body: Obj
    count: int
    written: int
    last: datetime
    last_at: float
    due: float
    tries: int = 0


class EventRecorder:
    """Tells about objects.

    Args:
        client: creates and patches Events.
        controller: ``reportingController``, for example the driver's name.
        instance: ``reportingInstance``, for example the node's or pod's name.
        clock: for times and pauses.
        rng: for names and jitter.
    """

    def __init__(
        self,
        client: KubeApi,
        *,
        controller: str,
        instance: str,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance[:MAX_WORD]
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - names need no secrecy
        self._backoff = Backoff(1.0, 60.0, rng=self._rng)
        self._series: OrderedDict[_Subject, _Series] = OrderedDict()
        self._waiting: OrderedDict[_Subject, _Series] = OrderedDict()
        self._notes: OrderedDict[_Subject, dict[str, float]] = OrderedDict()
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()

    def event(
        self,
        regarding: Obj,
        type: EventType,  # noqa: A002 - the name of the field
        reason: str,
        note: str,
        *,
        action: str = "",
        related: Obj | None = None,
    ) -> None:
        """Tell something about an object.

        Args:
            regarding: the object, raw or as an ObjectReference.
            type: ``Normal`` or ``Warning``.
            reason: one word in UpperCamelCase, for machines.
            note: for people; cut at 1024 bytes.
            action: what was done or failed, one word; default: the reason.
            related: a second object.
        """
        try:
            self._tell(regarding, type, reason, note, action or reason, related)
        except Exception as error:  # noqa: BLE001 - telling must not break the work
            log.warning("event_not_recorded", reason=reason, note=note, error=str(error))

    async def run(self) -> None:
        """Send for ever; cancel to stop. What waits then is lost unless `flush` is called."""
        while True:
            self._wake.clear()
            await self._write(self._due())
            pause = self._pause()
            if pause is None:
                await self._wake.wait()
            elif pause > 0:
                await self._sleep(pause)

    async def flush(self) -> None:
        """Try once to send everything that waits, due or not."""
        await self._write(list(self._waiting))

    def _tell(
        self,
        regarding: Obj,
        kind: EventType,
        reason: str,
        note: str,
        action: str,
        related: Obj | None,
    ) -> None:
        reference = _reference(regarding)
        subject = (*_identity(reference), kind, reason)
        note = self._folded(subject, _cut(note))
        key = (*subject, action, note, *(_identity(_reference(related)) if related else ()))
        now, at = self._clock.now(), self._clock.monotonic()
        known = self._series.get(key)
        if known is not None and at - known.last_at <= SERIES_SECONDS:
            known.count += 1
            known.last, known.last_at = now, at
            self._series.move_to_end(key)
            self._waiting.setdefault(key, known)
            self._wake.set()
            return
        body = self._body(reference, kind, reason, note, action, now)
        if related:
            body["related"] = _reference(related)
        series = _Series(body, 1, 0, now, at, at)
        self._series[key] = self._waiting[key] = series
        self._series.move_to_end(key)
        self._trim()
        self._wake.set()

    def _folded(self, subject: _Subject, note: str) -> str:
        """The note, or the folded one when this subject has had too many different ones."""
        at = self._clock.monotonic()
        recent = {
            text: seen
            for text, seen in self._notes.get(subject, {}).items()
            if at - seen <= FOLD_SECONDS
        }
        folded = next((text for text in recent if text.startswith(_FOLDED)), None)
        if note not in recent and len(recent) >= FOLD_NOTES:
            note = folded or _cut(_FOLDED + note)
        recent[note] = at
        self._notes[subject] = recent
        self._notes.move_to_end(subject)
        return note

    def _body(
        self, reference: Obj, kind: str, reason: str, note: str, action: str, now: datetime
    ) -> Obj:
        # Cluster-scoped objects have their events in the namespace "default".
        namespace = reference.get("namespace") or "default"
        suffix = f"{self._rng.getrandbits(64):016x}"
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": f"{reference['name'][:200]}.{suffix}", "namespace": namespace},
            "eventTime": rfc3339_micro(now),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": action[:MAX_WORD],
            "reason": reason[:MAX_WORD],
            "regarding": reference,
            "note": note,
            "type": kind,
        }

    def _trim(self) -> None:
        while len(self._series) > _MAX_SERIES:
            key, _ = self._series.popitem(last=False)
            if self._waiting.pop(key, None) is not None:
                log.warning("event_dropped", why="too many are waiting", reason=key[-1])
        while len(self._notes) > _MAX_SERIES:
            self._notes.popitem(last=False)

    def _due(self) -> list[_Subject]:
        at = self._clock.monotonic()
        return [key for key, series in self._waiting.items() if series.due <= at]

    def _pause(self) -> float | None:
        """Seconds until the next write is due; None = nothing waits."""
        if not self._waiting:
            return None
        return min(series.due for series in self._waiting.values()) - self._clock.monotonic()

    async def _sleep(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _write(self, keys: list[_Subject]) -> None:
        async with self._writing:
            for key in keys:
                series = self._waiting.pop(key, None)
                if series is not None:
                    await self._write_one(key, series)

    async def _write_one(self, key: _Subject, series: _Series) -> None:
        count = series.count
        try:
            await self._send(series, count)
        except ApiError as error:
            self._failed(key, series, error)
            return
        except asyncio.CancelledError:
            self._waiting.setdefault(key, series)
            raise
        self._backoff.reset()
        series.written, series.tries = count, 0
        series.due = self._clock.monotonic() + SERIES_WRITE_SECONDS
        if series.count > count:
            self._waiting.setdefault(key, series)

    async def _send(self, series: _Series, count: int) -> None:
        observed = {"count": count, "lastObservedTime": rfc3339_micro(series.last)}
        meta = series.body["metadata"]
        if series.written:
            try:
                await self._client.patch(
                    EVENTS, meta["name"], {"series": observed}, namespace=meta["namespace"]
                )
            except NotFoundError:
                series.written = 0  # events live for an hour; begin a new one
            else:
                return
        body = dict(series.body)
        if count > 1:
            body["series"] = observed
        await self._client.create(EVENTS, body, meta["namespace"])

    def _failed(self, key: _Subject, series: _Series, error: ApiError) -> None:
        series.tries += 1
        # A namespace that is being deleted refuses new objects: nobody will miss the event.
        if not error.retryable or series.tries >= _MAX_TRIES:
            log.warning("event_not_written", note=series.body["note"], error=str(error))
            self._series.pop(key, None)
            return
        series.due = self._clock.monotonic() + self._backoff.next()
        self._waiting.setdefault(key, series)
        log.info("event_delayed", reason=series.body["reason"], error=str(error))


def _reference(obj: Obj) -> Obj:
    """The ObjectReference of a raw object; a reference stays what it is."""
    meta = obj.get("metadata") or obj
    fields = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "namespace": meta.get("namespace"),
        "name": meta["name"],
        "uid": meta.get("uid"),
    }
    return {key: value for key, value in fields.items() if value}


def _identity(reference: Obj) -> _Subject:
    return tuple(str(reference.get(key, "")) for key in ("kind", "namespace", "name", "uid"))


def _cut(note: str) -> str:
    """At most 1024 bytes, whole characters."""
    raw = note.encode()
    if len(raw) <= MAX_NOTE_BYTES:
        return note
    return raw[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
