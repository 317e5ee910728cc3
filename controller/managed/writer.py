# SPDX-License-Identifier: Apache-2.0
"""The one way by which managed mode writes: bounded, fenced, and never longer than the lease lasts.

Used by everything in this package that changes an object of the API.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from gpudra.api.errors import UnavailableError
from gpudra.driver.kube.clock import Clock, within
from gpudra.driver.kube.resources import Obj, Resource
from gpudra.driver.kube.verbs import PatchBody, PatchType

# More writes at once only queue up inside the API server, and each takes longer then than it may.
PARALLEL = 8
# The lease lasts five seconds longer than its holder believes in it (gpudra.driver.kube.
# leaderelection): a write that was begun by a leader has ended before another one may lead.
WRITE_SECONDS = 4.0
MANAGER = "gpudra-controller"


class WriteApi(Protocol):
    """What is needed of the API client."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """See `KubeClient.get`."""

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: PatchBody,
        *,
        namespace: str | None = None,
        patch_type: PatchType = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> Obj:
        """See `KubeClient.patch`."""

    async def create_subresource(
        self,
        resource: Resource,
        name: str,
        subresource: str,
        obj: Obj,
        namespace: str | None = None,
    ) -> Obj:
        """See `KubeClient.create_subresource`."""


class Writer:
    """Writes as long as we lead.

    Args:
        client: connected.
        check: raises when we do not lead (any more); asked right before each write.
        clock: for time limits.
        parallel: how many writes may be under way at once.
    """

    def __init__(
        self,
        client: WriteApi,
        *,
        check: Callable[[], object],
        clock: Clock,
        parallel: int = PARALLEL,
    ) -> None:
        self._client = client
        self._check = check
        self._clock = clock
        self._slots = asyncio.Semaphore(parallel)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """An object as it is now. Raises ApiError."""
        return await self._client.get(resource, name, namespace)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        patch_type: PatchType = "merge",
    ) -> Obj:
        """Changes an object; its new form.

        Raises:
            LeadershipLostError: we do not lead.
            UnavailableError: no answer in time; it may have been done all the same.
            ApiError: refused.
        """
        async with self._slots:
            self._check()
            work = self._client.patch(
                resource,
                name,
                body,
                namespace=namespace,
                patch_type=patch_type,
                subresource=subresource,
                field_manager=MANAGER,
            )
            try:
                return await within(self._clock, WRITE_SECONDS, work)
            except TimeoutError as error:
                raise UnavailableError(str(error), obj=f"{resource.kind} {name}") from error

    async def post(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str
    ) -> Obj:
        """Creates a subresource, such as an eviction. Raises as `patch`."""
        async with self._slots:
            self._check()
            work = self._client.create_subresource(resource, name, subresource, body, namespace)
            try:
                return await within(self._clock, WRITE_SECONDS, work)
            except TimeoutError as error:
                raise UnavailableError(str(error), obj=f"{resource.kind} {name}") from error
