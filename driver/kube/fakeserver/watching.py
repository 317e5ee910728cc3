# SPDX-License-Identifier: Apache-2.0
"""One watch of the fake server: replay, live events, bookmarks, time-out, and the trouble ordered.

Called by the HTTP front for each watch request; runs until the stream ends.
"""

import asyncio
from collections.abc import Mapping

import orjson
from aiohttp import web

from gpudra.driver.kube.clock import TimerHandle
from gpudra.driver.kube.errors import error_to_status
from gpudra.driver.kube.fakeserver.faults import WatchPlan
from gpudra.driver.kube.fakeserver.history import StoreEvent
from gpudra.driver.kube.fakeserver.objects import ObjectStore
from gpudra.driver.kube.fakeserver.selectors import Predicate
from gpudra.driver.kube.resources import Obj, Resource

# Between 30 and 60 minutes on a real server; nobody waits that long here.
_DEFAULT_TIMEOUT = 1800.0


class WatchStream:
    """A watch that has been accepted.

    Args:
        store: the state.
        resource: what is watched.
        namespace: None = all.
        predicate: the selectors.
        query: of the request.
        plan: how it shall go wrong.
        bookmark_interval: seconds between bookmarks.
    """

    def __init__(
        self,
        store: ObjectStore,
        resource: Resource,
        namespace: str | None,
        predicate: Predicate | None,
        query: Mapping[str, str],
        plan: WatchPlan,
        bookmark_interval: float,
    ) -> None:
        self._store = store
        self._resource = resource
        self._namespace = namespace
        self._predicate = predicate
        self._plan = plan
        self._interval = bookmark_interval
        self._bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        self._timeout = float(query.get("timeoutSeconds") or _DEFAULT_TIMEOUT)
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._sent = 0
        self._unsubscribe = store.subscribe(self._on_event)
        try:
            self._replay(query)
        except BaseException:
            self._unsubscribe()
            raise

    def end(self) -> None:
        """End the stream normally, after what is queued."""
        self._lines.put_nowait(None)

    async def run(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send until the time is over, the client goes, or the plan says otherwise."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        clock = self._store.clock
        timers = [clock.call_later(self._timeout, self.end)]
        try:
            await response.prepare(request)
            if self._plan.silent:
                timers[0].cancel()
                await self._until_gone()
                return response
            if self._bookmarks:
                timers.append(clock.call_later(self._interval, lambda: self._bookmark(timers)))
            await self._pump(request, response)
        finally:
            self._unsubscribe()
            for timer in timers:
                timer.cancel()
        return response

    async def _pump(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        while True:
            if self._plan.error_after == self._sent and self._plan.error is not None:
                await response.write(_line("ERROR", error_to_status(self._plan.error)))
                return
            if self._plan.cut_after == self._sent and not self._plan.half_line:
                _reset(request)
                return
            line = await self._lines.get()
            if line is None:
                return
            if self._plan.cut_after == self._sent:
                await response.write(line[: len(line) // 2])
                _reset(request)
                return
            await response.write(line)
            self._sent += 1

    async def _until_gone(self) -> None:
        while await self._lines.get() is not None:
            pass

    def _on_event(self, event: StoreEvent) -> None:
        if event.resource != self._resource:
            return
        if self._namespace and event.namespace != self._namespace:
            return
        seen = event.seen_through(self._predicate)
        if seen is not None:
            kind, stored = seen
            self._lines.put_nowait(_raw_line(kind, stored.data))

    def _replay(self, query: Mapping[str, str]) -> None:
        version = query.get("resourceVersion") or ""
        if version in ("", "0"):
            page = self._store.page(self._resource, self._namespace, self._predicate)
            for item in page.items:
                self._lines.put_nowait(_raw_line("ADDED", item.data))
            if query.get("sendInitialEvents") == "true":
                marks = {"k8s.io/initial-events-end": "true"}
                self._lines.put_nowait(self._bookmark_line(marks))
            return
        for event in self._store.events_since(self._resource, int(version)):
            self._on_event(event)

    def _bookmark(self, timers: list[TimerHandle]) -> None:
        self._lines.put_nowait(self._bookmark_line({}))
        clock = self._store.clock
        timers.append(clock.call_later(self._interval, lambda: self._bookmark(timers)))
        del timers[1:-1]

    def _bookmark_line(self, annotations: dict[str, str]) -> bytes:
        meta: Obj = {"resourceVersion": str(self._store.revision)}
        if annotations:
            meta["annotations"] = annotations
        resource = self._resource
        return _line(
            "BOOKMARK",
            {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta},
        )


def _raw_line(kind: str, data: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + data + b"}\n"


def _line(kind: str, obj: Obj) -> bytes:
    return _raw_line(kind, orjson.dumps(obj))


def _reset(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
