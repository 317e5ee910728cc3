# SPDX-License-Identifier: Apache-2.0
"""Publishes the node's devices: from inventory to the pool that the slice controller keeps.

During a rolling update only one instance publishes, the one that holds ``publish.lock``; the
other takes over when it ends. Slices are written while the kubelet's connection is proven, since
the kubelet wipes them 30 s after it lost it, and stay when this process ends.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Protocol

from gpudra.api.errors import ApiError, InputError
from gpudra.api.resource_v1 import DeviceTaint
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.resourceslices import DesiredPool, ServerFeatures, build_pool
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.instance_lock import FileLock

LOCK_NAME = "publish.lock"
_POLL = 1.0
log = get_logger(__name__)


class SliceController(Protocol):
    """What is asked of the slice controller."""

    def set_desired(self, pool: DesiredPool | None) -> None:
        """The pool as it should be."""
        ...

    def trigger(self) -> None:
        """Look now."""
        ...

    async def run(self) -> None:
        """Keeps the pool, until cancelled."""
        ...

    async def wait_synced(self) -> None:
        """Returns once the API holds the desired pool."""
        ...


class Probe(Protocol):
    """Asks the API server which fields it keeps."""

    async def __call__(self) -> ServerFeatures:
        """Dry-run writes only. Raises ApiError."""
        ...


class Publisher:
    """Turns inventories into a pool and runs the slice controller.

    Args:
        controller: keeps the pool in the API.
        probe: asks the API server which fields it keeps.
        lock: held by the instance that publishes.
        driver: this driver's name.
        node_name: of this node; also the pool's name.
        clock: for pauses.
        rng: for their jitter.
    """

    def __init__(
        self,
        controller: SliceController,
        probe: Probe,
        lock: FileLock,
        *,
        driver: str,
        node_name: str,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._controller = controller
        self._probe = probe
        self._lock = lock
        self._driver = driver
        self._node_name = node_name
        self._clock = clock
        self._rng = rng
        self._features: ServerFeatures | None = None
        self._inventory: Inventory | None = None
        self._taints: Mapping[str, tuple[DeviceTaint, ...]] = {}
        self._problem: str | None = "nothing has been published yet"
        self._waits = False
        self._troubled = asyncio.Event()

    def problem(self) -> str | None:
        """For ``/readyz``: why this node's devices are not what they should be, if we know."""
        # An instance that waits for its turn is fine: the other one publishes.
        return None if self._waits else self._problem

    def inventory_changed(self, inventory: Inventory) -> None:
        """The hardware changed, or was read for the first time."""
        self._inventory = inventory
        self._update()

    def taints_changed(self, taints: Mapping[str, tuple[DeviceTaint, ...]]) -> None:
        """Devices became unwell, or well again: taints by name of the device."""
        self._taints = taints
        self._update()

    def connection_changed(self) -> None:
        """The kubelet registered the plugin, or refused it."""
        self._controller.trigger()

    def trouble(self, message: str) -> None:
        """The slice controller could not write; it goes on trying."""
        self._problem = message
        self._troubled.set()

    async def run(self) -> None:
        """Publishes from when it is this instance's turn, until cancelled."""
        await self._wait_for_turn()
        await self._learn_features()
        self._update()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run(), name="slice controller")
            tasks.create_task(self._watch_sync(), name="slice controller's state")

    async def _watch_sync(self) -> None:
        while True:
            await self._controller.wait_synced()
            if self._problem:
                log.info("the devices are published")
            self._problem = None
            await self._troubled.wait()
            self._troubled.clear()

    async def _wait_for_turn(self) -> None:
        while not self._lock.try_acquire():
            if not self._waits:
                log.info("another instance publishes; taking over when it ends")
            self._waits = True
            await self._clock.sleep(_POLL)
        self._waits = False

    async def _learn_features(self) -> None:
        backoff = Backoff(base=0.5, cap=30.0, rng=self._rng)
        while self._features is None:
            try:
                self._features = await self._probe()
            except ApiError as error:
                self._problem = f"the API server cannot be asked what it keeps: {error}"
                log.warning("cannot probe the API server, will try again", error=str(error))
                await self._clock.sleep(backoff.next())

    def _update(self) -> None:
        if self._features is None or self._inventory is None:
            return
        try:
            pool = build_pool(
                self._inventory,
                driver=self._driver,
                node_name=self._node_name,
                features=self._features,
                taints=self._taints,
            )
        except InputError as error:
            self._problem = f"the devices cannot be published: {error}"
            log.error("the devices cannot be published", error=str(error))  # noqa: TRY400
            return
        self._controller.set_desired(pool)
