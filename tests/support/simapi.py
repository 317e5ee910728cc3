# SPDX-License-Identifier: Apache-2.0
"""An API client in virtual time, whose requests take time, fail, and succeed without saying so.

Over the fake server's `ObjectStore`. What it does wrong is drawn from a seeded generator, so the
same seed gives the same run. A write reaches the store even if its caller has died meanwhile, as it
would through a network.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import TooManyRequestsError, UnavailableError
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import ObjectStore, StoreEvent
from gpudra.driver.kube.resources import Obj, Resource
from gpudra.driver.kube.verbs import ListPage, ListResult
from gpudra.driver.kube.watch import WatchEvent


@dataclass
class Weather:
    """How the network and the server are now. All parts are probabilities, times in seconds.

    Attributes:
        latency: longest time of half a request (there, or back).
        lost_before: the request never arrives.
        lost_after: it is carried out, and the answer is lost.
        busy: refused with 429.
        lag: longest delay of a watch event.
        away: nothing is answered at all.
    """

    latency: float = 0.005
    lost_before: float = 0.0
    lost_after: float = 0.0
    busy: float = 0.0
    lag: float = 0.01
    away: bool = False


class SimApi:
    """One client's connection; a new one for each process that is started.

    Args:
        objects: the state.
        clock: virtual.
        rng: for what goes wrong.
        weather: may be changed while it runs.
    """

    def __init__(
        self, objects: ObjectStore, clock: VirtualClock, rng: random.Random, weather: Weather
    ) -> None:
        self.objects = objects
        self.weather = weather
        self._clock = clock
        self._rng = rng
        self._streams: list[_Stream] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._unsubscribe = objects.subscribe(self._changed)

    def close(self) -> None:
        """The process that uses it is gone."""
        self._unsubscribe()
        self.cut_watches()

    def cut_watches(self) -> None:
        """All watches break off."""
        for stream in self._streams:
            stream.cut()

    async def api_resources(self, group: str, version: str) -> list[Obj]:
        """Everything is served."""
        await self._travel()
        known = [kind.resource for kind in self.objects.kinds.all()]
        return [
            {"name": one.plural, "kind": one.kind}
            for one in known
            if (one.group, one.version) == (group, version)
        ]

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """See `KubeClient.get`."""
        return await self._request(lambda: self.objects.get(resource, name, namespace or ""))

    async def list(
        self, resource: Resource, namespace: str | None = None, **selectors: Any
    ) -> ListResult:
        """See `KubeClient.list`."""

        def work() -> ListResult:
            items = self.objects.list(resource, namespace, **selectors)
            return ListResult(items, str(self.objects.revision))

        return await self._request(work)

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        **_: Any,
    ) -> ListPage:
        """See `KubeClient.list_page`; one page has everything."""
        found = await self.list(
            resource, namespace, field_selector=field_selector, label_selector=label_selector
        )
        return ListPage(found.items, found.resource_version, "", None)

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, **_: Any
    ) -> Obj:
        """See `KubeClient.create`."""
        if namespace:
            obj = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
        return await self._request(lambda: self.objects.create(resource, obj), write=True)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        patch_type: str = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        **_: Any,
    ) -> Obj:
        """See `KubeClient.patch`."""
        return await self._request(
            lambda: self.objects.patch(
                resource,
                name,
                body,
                namespace=namespace or "",
                patch_type=patch_type,
                subresource=subresource or "",
                field_manager=field_manager or "",
            ),
            write=True,
        )

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, **options: Any
    ) -> Obj:
        """See `KubeClient.delete`."""
        uid = options.get("uid")
        return await self._request(
            lambda: self.objects.delete(resource, name, namespace or "", uid=uid), write=True
        )

    async def create_subresource(
        self,
        resource: Resource,
        name: str,
        subresource: str,
        obj: Obj,
        namespace: str | None = None,
    ) -> Obj:
        """An eviction deletes the pod; disruption budgets are not simulated here."""
        assert subresource == "eviction", subresource
        uid = ((obj.get("deleteOptions") or {}).get("preconditions") or {}).get("uid")
        return await self._request(
            lambda: self.objects.delete(resource, name, namespace or "", uid=uid), write=True
        )

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        field_selector: str = "",
        label_selector: str = "",
        **_: Any,
    ) -> AsyncIterator[WatchEvent]:
        """See `KubeClient.watch`; events come late, but in order."""
        await self._travel()
        predicate = self.objects.predicate(resource, field_selector, label_selector)
        stream = _Stream(resource)
        for event in self.objects.events_since(resource, int(resource_version)):
            stream.queue.put_nowait(event)
        self._streams.append(stream)
        try:
            while True:
                found = await stream.queue.get()
                if found is None:
                    raise UnavailableError("the connection broke")
                if self.weather.lag:
                    await self._clock.sleep(self._rng.uniform(0, self.weather.lag))
                seen = found.seen_through(predicate)
                if seen is not None:
                    yield WatchEvent(seen[0], seen[1].obj)
        finally:
            self._streams.remove(stream)

    async def _request(self, work: Callable[[], Any], *, write: bool = False) -> Any:
        task = asyncio.ensure_future(self._served(work, write))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have died

    async def _served(self, work: Callable[[], Any], write: bool) -> Any:
        await self._travel()
        if self._rng.random() < self.weather.busy:
            raise TooManyRequestsError("too many requests", retry_after=1.0)
        answer = work()
        if write and self._rng.random() < self.weather.lost_after:
            await self._clock.sleep(self._rng.uniform(0, 3.0))
            raise UnavailableError("the answer was lost")
        await self._clock.sleep(self._rng.uniform(0, self.weather.latency))
        return answer

    async def _travel(self) -> None:
        await self._clock.sleep(self._rng.uniform(0, self.weather.latency))
        if self.weather.away or self._rng.random() < self.weather.lost_before:
            raise UnavailableError("connection refused")

    def _changed(self, event: StoreEvent) -> None:
        for stream in self._streams:
            if stream.resource == event.resource:
                stream.queue.put_nowait(event)


class _Stream:
    """One open watch."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.queue: asyncio.Queue[StoreEvent | None] = asyncio.Queue()

    def cut(self) -> None:
        self.queue.put_nowait(None)
