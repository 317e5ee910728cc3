# SPDX-License-Identifier: Apache-2.0
"""A KubeClient without sockets over the fake server's ObjectStore, for tests in virtual time.

The watch can be held back, so that a test decides when the reader learns of a write; failures are
queued per verb.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.errors import ApiError, UnavailableError
from gpudra.driver.kube.fakeserver import ObjectStore, StoreEvent
from gpudra.driver.kube.resources import Obj, Resource
from gpudra.driver.kube.verbs import ListPage, ListResult
from gpudra.driver.kube.watch import WatchEvent


@dataclass
class StoreClient:
    """One client.

    Attributes:
        objects: the state.
        calls: ``(verb, plural, name)`` of every request; dry runs have the verb ``dry-create``.
        failures: errors that the next requests of a verb (``*`` = any) get, in order.
        away: every request fails as if nothing listened.
    """

    objects: ObjectStore
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    failures: dict[str, list[ApiError]] = field(default_factory=dict)
    away: bool = False
    _held: bool = False
    _queues: list[asyncio.Queue[StoreEvent | None]] = field(default_factory=list)
    _waiting: list[StoreEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objects.subscribe(self._changed)

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Verb and name of every real write, in order."""
        verbs = ("create", "update", "patch", "delete")
        return [(verb, name) for verb, _, name in self.calls if verb in verbs]

    def forget(self) -> None:
        """Forget the calls so far."""
        self.calls.clear()

    def fail(self, verb: str, *errors: ApiError) -> None:
        """Let the next requests of this verb fail."""
        self.failures.setdefault(verb, []).extend(errors)

    def hold_watch(self) -> None:
        """Events reach no watch until ``release_watch``."""
        self._held = True

    def release_watch(self) -> None:
        """Deliver what was held back."""
        self._held = False
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._deliver(event)

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, **_: Any
    ) -> Obj:
        self._ask("get", resource, name)
        return self.objects.get(resource, name, namespace or "")

    async def list(
        self, resource: Resource, namespace: str | None = None, **selectors: Any
    ) -> ListResult:
        self._ask("list", resource, "")
        items = self.objects.list(resource, namespace, **selectors)
        return ListResult(items, str(self.objects.revision))

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        **_: Any,
    ) -> ListPage:
        found = await self.list(
            resource, namespace, field_selector=field_selector, label_selector=label_selector
        )
        return ListPage(found.items, found.resource_version, "", None)

    async def create(
        self,
        resource: Resource,
        obj: Obj,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        **_: Any,
    ) -> Obj:
        self._ask("dry-create" if dry_run else "create", resource, obj["metadata"]["name"])
        return self.objects.create(resource, obj, dry_run=dry_run)

    async def update(self, resource: Resource, obj: Obj, **_: Any) -> Obj:
        self._ask("update", resource, obj["metadata"]["name"])
        return self.objects.update(resource, obj)

    async def patch(self, resource: Resource, name: str, body: Any, **_: Any) -> Obj:
        self._ask("patch", resource, name)
        return self.objects.patch(resource, name, body)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        **_: Any,
    ) -> Obj:
        self._ask("delete", resource, name)
        return self.objects.delete(resource, name, namespace or "", uid=uid)

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
        self._ask("watch", resource, "")
        predicate = self.objects.predicate(resource, field_selector, label_selector)
        queue: asyncio.Queue[StoreEvent | None] = asyncio.Queue()
        for event in self.objects.events_since(resource, int(resource_version)):
            queue.put_nowait(event)
        self._queues.append(queue)
        try:
            while (found := await queue.get()) is not None:
                if found.resource != resource:
                    continue
                seen = found.seen_through(predicate)
                if seen is not None:
                    yield WatchEvent(seen[0], seen[1].obj)
            raise UnavailableError("the connection broke")
        finally:
            self._queues.remove(queue)

    def _ask(self, verb: str, resource: Resource, name: str) -> None:
        self.calls.append((verb, resource.plural, name))
        if self.away:
            raise UnavailableError("connection refused")
        for key in (verb, "*"):
            if self.failures.get(key):
                raise self.failures[key].pop(0)

    def _changed(self, event: StoreEvent) -> None:
        if self._held:
            self._waiting.append(event)
        else:
            self._deliver(event)

    def _deliver(self, event: StoreEvent) -> None:
        for queue in self._queues:
            queue.put_nowait(event)

    def cut_watches(self) -> None:
        """End every watch with an error."""
        for queue in self._queues:
            queue.put_nowait(None)
