# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlice controller: one pool, kept in the API as it should be.

Run by the node agent for its own node, and by the cluster side for pools of a fabric. It watches
its own slices only, writes only differences, and rests without timers while nothing happens.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpudra.api.errors import ApiError, ConflictError, TooManyRequestsError
from gpudra.api.meta import OwnerReference
from gpudra.api.resource_v1 import Device, ResourceSlice
from gpudra.controller.resourceslices.reports import Reporter, ReportKind, SliceReport, kind_of
from gpudra.controller.resourceslices.view import SliceView
from gpudra.controller.resourceslices.writer import SliceWriter
from gpudra.driver.core.resourceslices import DesiredPool
from gpudra.driver.core.slicediff import SlicePlan, plan_slices
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock, SystemClock
from gpudra.driver.kube.reflector import Event, ListWatcher, Reflector, ReflectorError
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES
from gpudra.driver.kube.verbs import KubeApi
from gpudra.driver.observability.logging import KEY_ERROR, KEY_POOL, get_logger, operation
from gpudra.driver.observability.metrics import (
    REFLECTOR_ERRORS,
    REFLECTOR_OBJECTS,
    SLICE_DROPPED_FIELDS,
    SLICE_SYNCS,
    Metrics,
)

log = get_logger(__name__)

# After a round that wrote, so that somebody who deletes slices in a loop costs two writes a second
# at most; well below the two seconds in which a deleted slice must be back.
_SPACING_SECONDS = 0.5
# How often the kubelet's connection is asked for while it is not proven; trigger() is quicker.
_PAUSED_SECONDS = 1.0
_BACKOFF_BASE = 0.2
_BACKOFF_CAP = 30.0


class SliceClient(KubeApi, ListWatcher, Protocol):
    """What the controller needs of a KubeClient."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """How long to rest: at least so long whatever happens, at most so long without being woken."""

    at_least: float = 0.0
    at_most: float | None = None


class ResourceSliceController:
    """Keeps the slices of one pool.

    Args:
        client: of the API.
        driver: only slices of this driver are ours.
        pool_name: and of this pool.
        node_name: the pool's only node, which becomes the owner of the slices; None for a pool
            that several nodes reach.
        owner: owner of the slices of a pool without a node.
        connected: whether the kubelet's connection is proven. While it is not, nothing is written
            and nothing is deleted: the kubelet wipes the slices itself, and writing against it
            would be a fight.
        on_report: told what an admin should know, once per cause.
        metrics: counted there.
        clock: for delays.
        rng: for jitter.
    """

    def __init__(
        self,
        client: SliceClient,
        *,
        driver: str,
        pool_name: str,
        node_name: str | None = None,
        owner: OwnerReference | None = None,
        connected: Callable[[], bool] = lambda: True,
        on_report: Callable[[SliceReport], None] | None = None,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._driver = driver
        self._pool_name = pool_name
        self._node_name = node_name or ""
        self._owner = owner
        self._connected = connected
        self._on_report = on_report
        self._metrics = metrics
        self._clock: Clock = clock or SystemClock()
        self._log = log.bind(**{KEY_POOL: pool_name})
        selector = f"spec.driver={driver}" + (f",spec.nodeName={node_name}" if node_name else "")
        self._reflector = Reflector(
            client,
            RESOURCE_SLICES,
            ResourceSlice.from_dict,
            field_selector=selector,
            on_event=self._saw,
            on_error=self._reflector_failed,
            clock=self._clock,
            rng=rng,
        )
        self._view = SliceView(self._reflector.store, self._belongs, self._clock.monotonic)
        self._reporter = Reporter(pool_name, self._tell)
        self._writer = SliceWriter(client, self._view, self._reporter, metrics)
        self._backoff = Backoff(_BACKOFF_BASE, _BACKOFF_CAP, rng=rng)
        self._desired: DesiredPool | None = None
        self._floor = 1
        self._wake = asyncio.Event()
        self._synced = asyncio.Event()
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- for the owner --------------------------------------------------------------------

    def set_desired(self, pool: DesiredPool | None) -> None:
        """What the pool should be from now on; None (nothing known yet) touches nothing.

        Raises:
            ValueError: the pool is not the one of this controller.
        """
        if pool is not None:
            wanted = (self._driver, self._pool_name, self._node_name)
            if (pool.driver, pool.name, pool.node_name) != wanted:
                raise ValueError(f"pool {pool.name} of {pool.driver} is not {wanted}")
        if pool == self._desired:
            return
        self._desired = pool
        self._synced.clear()
        self._wake.set()

    def trigger(self) -> None:
        """Look again now, for example since the kubelet's connection became proven."""
        self._wake.set()

    @property
    def synced(self) -> bool:
        """Whether the API held the desired pool when it was looked at last."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return when the API holds the desired pool."""
        await self._synced.wait()

    async def wait_listed(self) -> None:
        """Return when it is known what the API holds."""
        await self._reflector.wait_synced()

    def listed(self) -> Mapping[str, Device]:
        """The pool's devices in the API, by name, as the newest slice that has them shows them.

        Slices of older generations count: while a pool is rewritten slice by slice, a device that
        waits for its turn is as allocatable as before.
        """
        slices = sorted(self._view.slices(), key=lambda one: one.spec.pool.generation)
        return {device.name: device for one in slices for device in one.spec.devices}

    async def run(self) -> None:
        """Keep the pool until cancelled or stopped. Slices stay when it ends."""
        if self._stopped.is_set():
            return
        self._task = asyncio.ensure_future(self._run())
        try:
            await self._task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._stopped.is_set() or (current is not None and current.cancelling()):
                raise
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def stop(self, *, delete: bool = False) -> None:
        """End ``run``. Slices stay, unless they are to be deleted (the driver is uninstalled).

        Raises:
            ApiError: a slice could not be deleted.
        """
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if delete:
            for one in self._view.slices():
                await self._writer.delete(one)

    # --- the loop -------------------------------------------------------------------------

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            await self._reflector.wait_synced()
            while True:
                self._wake.clear()
                await self._rest(await self._attempt())

    async def _rest(self, rest: _Rest) -> None:
        if rest.at_least > 0:
            await self._clock.sleep(rest.at_least)
        if rest.at_most is None:
            await self._wake.wait()
            return
        if rest.at_most <= 0:
            return
        timer = self._clock.call_later(rest.at_most, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _attempt(self) -> _Rest:
        desired = self._desired
        if desired is None:
            return _Rest()
        if not self._connected():
            self._synced.clear()
            return _Rest(at_most=_PAUSED_SECONDS)
        with operation("publish slices", **{KEY_POOL: self._pool_name}):
            try:
                wrote = await self._sync(desired)
            except ApiError as error:
                return self._failed(error)
        self._count("changed" if wrote else "unchanged")
        if desired is not self._desired:
            return _Rest(at_most=0.0)
        if not self._synced.is_set():
            # The server made something else of what we wrote: no loop, but no giving up either.
            return _Rest(at_least=self._backoff.next(), at_most=0.0)
        self._backoff.reset()
        self._reporter.well()
        return _Rest(_SPACING_SECONDS if wrote else 0.0, self._view.lagging())

    async def _sync(self, desired: DesiredPool) -> bool:
        """One round; returns whether it wrote."""
        plan = self._plan(desired)
        if not plan.empty or self._owner is None:
            # A new node of the same name has a new uid, and the old slices are going to be
            # collected: before every write the uid is read anew.
            await self._find_owner()
            plan = self._plan(desired)
        if not plan.empty:
            self._synced.clear()
            await self._writer.carry_out(plan)
            self._floor = plan.generation
            self._log.info(
                "slices_written",
                created=len(plan.creates),
                updated=len(plan.updates),
                deleted=len(plan.deletes),
                generation=plan.generation,
            )
        self._settle(desired, plan)
        return not plan.empty

    def _settle(self, desired: DesiredPool, plan: SlicePlan) -> None:
        if self._metrics is not None:
            self._metrics.set(SLICE_DROPPED_FIELDS, len(self._writer.dropped))
        if desired is not self._desired:
            return
        if plan.empty or self._plan(desired).empty:
            self._synced.set()
            return
        self._reporter.report(
            ReportKind.CHANGED_BY_SERVER,
            "the API server made something else of the slices that were written;"
            " is there an admission webhook or policy that changes them?",
        )

    def _plan(self, desired: DesiredPool) -> SlicePlan:
        return plan_slices(
            desired,
            self._view.slices(),
            owner=self._owner,
            dropped=self._writer.dropped,
            floor=self._floor,
        )

    async def _find_owner(self) -> None:
        if not self._node_name:
            return
        node = await self._client.get(NODES, self._node_name)
        self._owner = OwnerReference(
            api_version="v1",
            kind="Node",
            name=self._node_name,
            uid=str(node["metadata"]["uid"]),
            controller=True,
        )

    def _failed(self, error: ApiError) -> _Rest:
        self._count("error")
        self._synced.clear()
        if not isinstance(error, ConflictError) or self._backoff.attempts:
            # A first conflict is ordinary: somebody else wrote, we look again.
            self._reporter.report(kind_of(error), str(error), error)
        wished = error.retry_after if isinstance(error, TooManyRequestsError) else 0.0
        return _Rest(at_least=self._backoff.next(at_least=wished), at_most=0.0)

    # --- small things ---------------------------------------------------------------------

    def _belongs(self, one: ResourceSlice) -> bool:
        spec = one.spec
        return (spec.driver, spec.pool.name, spec.node_name) == (
            self._driver,
            self._pool_name,
            self._node_name,
        )

    def _saw(self, event: Event[ResourceSlice]) -> None:
        self._view.seen(event)
        if self._metrics is not None:
            held = len(self._reflector.store)
            self._metrics.set(REFLECTOR_OBJECTS, held, resource=RESOURCE_SLICES.plural)
        if self._belongs(event.object):
            self._wake.set()

    def _reflector_failed(self, error: ReflectorError) -> None:
        if self._metrics is not None:
            resource = RESOURCE_SLICES.plural
            self._metrics.inc(REFLECTOR_ERRORS, resource=resource, reason=error.kind)

    def _tell(self, report: SliceReport) -> None:
        self._log.warning(
            "slice_trouble",
            kind=str(report.kind),
            message=report.message,
            **({KEY_ERROR: str(report.error)} if report.error else {}),
        )
        if self._on_report is not None:
            self._on_report(report)

    def _count(self, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.inc(SLICE_SYNCS, outcome=outcome)
