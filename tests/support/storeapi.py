# SPDX-License-Identifier: Apache-2.0
"""`StoreApi`: the verbs of `KubeClient` straight on an `ObjectStore`, without a socket.

For tests on virtual time, where real I/O would not move with the clock. Trouble is injected with
the fake server's `Faults`; what was written is in ``writes``.
"""

import asyncio
from typing import Any

from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.fakeserver import Faults, ObjectStore
from gpudra.driver.kube.resources import Obj, Resource
from gpudra.driver.kube.verbs import ListResult


class StoreApi:
    """A `KubeApi` in the same process.

    Attributes:
        objects: the state.
        faults: trouble on request.
        writes: verb, plural and name of each write that was asked for.
    """

    def __init__(self, clock: Clock) -> None:
        self.objects = ObjectStore(clock)
        self.faults = Faults()
        self.writes: list[tuple[str, str, str]] = []
        self._clock = clock

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """See `KubeApi.get`."""
        await self._turn("get", resource)
        return self.objects.get(resource, name, namespace or "")

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
    ) -> ListResult:
        """See `KubeApi.list`."""
        await self._turn("list", resource)
        items = self.objects.list(
            resource, namespace, field_selector=field_selector, label_selector=label_selector
        )
        return ListResult(items, str(self.objects.revision))

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, **options: Any
    ) -> Obj:
        """See `KubeApi.create`."""
        self.writes.append(("create", resource.plural, obj["metadata"].get("name", "")))
        await self._turn("create", resource)
        if namespace:
            obj = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
        return self.objects.create(resource, obj, dry_run=options.get("dry_run", False))

    async def update(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        """See `KubeApi.update`."""
        self.writes.append(("update", resource.plural, obj["metadata"]["name"]))
        await self._turn("update", resource)
        options = {key: value or "" for key, value in options.items() if key != "dry_run"}
        return self.objects.update(resource, obj, **options)

    async def patch(self, resource: Resource, name: str, body: Any, **options: Any) -> Obj:
        """See `KubeApi.patch`."""
        self.writes.append(("patch", resource.plural, name))
        await self._turn("patch", resource)
        options = {key: value for key, value in options.items() if value is not None}
        return self.objects.patch(resource, name, body, **options)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, **options: Any
    ) -> Obj:
        """See `KubeApi.delete`."""
        self.writes.append(("delete", resource.plural, name))
        await self._turn("delete", resource)
        return self.objects.delete(resource, name, namespace or "", **options)

    async def _turn(self, verb: str, resource: Resource) -> None:
        """What a request over the network does to its caller: others run, and it may fail."""
        await asyncio.sleep(0)
        seconds = self.faults.latency(verb, resource.plural)
        if seconds:
            await self._clock.sleep(seconds)
        error = self.faults.failure(verb, resource.plural)
        if error is not None:
            raise error
