# SPDX-License-Identifier: Apache-2.0
"""Publishes the node's devices: from inventory to the pool that the slice controller keeps.

During a rolling update only one instance publishes, the one that holds ``publish.lock``; the
other takes over when it ends. Slices are written while the kubelet's connection is proven, since
the kubelet wipes them 30 s after it lost it, and stay when this process ends.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from gpudra.api.errors import ApiError, InputError
from gpudra.api.resource_v1 import Device, DeviceTaint
from gpudra.driver.core.forms import PublishPolicy
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.resourceslices import DesiredPool, ServerFeatures, build_pool
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.holders import Holders
from gpudra.kubelet_plugin.instance_lock import FileLock
from gpudra.kubelet_plugin.withdrawal import Withdrawals

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

    async def wait_listed(self) -> None:
        """Returns once it is known what the API holds."""
        ...

    def listed(self) -> Mapping[str, Device]:
        """The pool's devices in the API, by name."""
        ...


class Probe(Protocol):
    """Asks the API server which fields it keeps."""

    async def __call__(self) -> ServerFeatures:
        """Dry-run writes only. Raises ApiError."""
        ...


class Publisher:
    """Turns inventory, policy and health into a pool and runs the slice controller.

    Args:
        controller: keeps the pool in the API.
        probe: asks the API server which fields it keeps.
        lock: held by the instance that publishes.
        holders: who holds devices.
        driver: this driver's name.
        node_name: of this node; also the pool's name.
        clock: for pauses.
        rng: for their jitter.
        policy: what to publish; None: nothing until ``policy_changed`` told.
        withheld: why nothing may be published at first; see ``withhold``.
        on_pool: told each pool that is to be published.
    """

    def __init__(
        self,
        controller: SliceController,
        probe: Probe,
        lock: FileLock,
        holders: Holders,
        *,
        driver: str,
        node_name: str,
        clock: Clock,
        rng: random.Random,
        policy: PublishPolicy | None = None,
        withheld: str | None = None,
        on_pool: Callable[[DesiredPool], object] | None = None,
    ) -> None:
        self._controller = controller
        self._probe = probe
        self._lock = lock
        self._driver = driver
        self._node_name = node_name
        self._clock = clock
        self._rng = rng
        self._holders = holders
        self._withdrawals = Withdrawals(holders, driver=driver, clock=clock, rng=rng)
        self._policy = policy
        self._withheld = withheld
        self._on_pool = on_pool
        self._judged = withheld is None
        self._wake = asyncio.Event()
        self._pool: DesiredPool | None = None
        self._told: tuple[str, ...] = ()
        self._features: ServerFeatures | None = None
        self._inventory: Inventory | None = None
        self._taints: Mapping[str, tuple[DeviceTaint, ...]] = {}
        self._problem: str | None = "nothing has been published yet"
        self._waits = False
        self._troubled = asyncio.Event()

    def problem(self) -> str | None:
        """For ``/readyz``: why this node's devices are not what they should be, if we know."""
        # An instance that waits for its turn is fine: the other one publishes. One that must not
        # publish is where it should be, too: an update of all agents must not stop at its node.
        idle = self._waits or (self._judged and self._withheld is not None)
        return None if idle else self._problem

    def inventory_changed(self, inventory: Inventory) -> None:
        """The hardware changed, or was read for the first time."""
        self._inventory = inventory
        self._wake.set()

    def policy_changed(self, policy: PublishPolicy) -> None:
        """The node's policy changed, or is known for the first time."""
        self._policy = policy
        self._wake.set()

    def taints_changed(self, taints: Mapping[str, tuple[DeviceTaint, ...]]) -> None:
        """Devices became unwell, or well again: taints by name of the device."""
        self._taints = taints
        self._wake.set()

    def withhold(self, why: str | None) -> None:
        """Why nothing may be published; None: it may.

        What was published before is taken back, but for devices that claims hold.
        """
        changed = why != self._withheld
        self._withheld, self._judged = why, True
        if changed:
            self._wake.set()

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
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run(), name="slice controller")
            tasks.create_task(self._watch_sync(), name="slice controller's state")
            tasks.create_task(self._publish_for_ever(), name="publish")

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

    async def _publish_for_ever(self) -> None:
        # What is listed now may be allocated, so it must be known before anything is taken away.
        await self._controller.wait_listed()
        while True:
            self._wake.clear()
            rest = await self._publish()
            if rest is None:
                await self._wake.wait()
                continue
            timer = self._clock.call_later(rest, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    async def _publish(self) -> float | None:
        """One look at everything; returns after how many seconds to look again at the latest."""
        inventory, features, policy = self._inventory, self._features, self._policy
        if inventory is None or features is None or policy is None:
            return None
        if self._withheld is not None:
            if not (self._judged and self._controller.listed()):
                return None
            policy = replace(policy, excluded=frozenset(gpu.key for gpu in inventory.gpus))

        def built(kept: Mapping[str, Device]) -> DesiredPool:
            return build_pool(
                inventory,
                driver=self._driver,
                node_name=self._node_name,
                features=features,
                policy=policy,
                taints=self._taints,
                own_mig=self._holders.own_mig(inventory),
                kept=kept,
            )

        try:
            pool = built({})
            offered = {device.name for device in pool.devices}
            vanishing = {name: one for name, one in self._known().items() if name not in offered}
            kept = await self._withdrawals.kept(vanishing, taints_kept=features.device_taints)
            if kept:
                pool = built(kept)
        except InputError as error:
            self._problem = f"the devices cannot be published: {error}"
            log.error("the devices cannot be published", error=str(error))  # noqa: TRY400
            return None
        self._tell(pool.problems)
        if pool != self._pool:
            self._pool = pool
            if self._on_pool is not None:
                self._on_pool(pool)
            self._controller.set_desired(pool)
        return self._withdrawals.rest

    def _known(self) -> Mapping[str, Device]:
        """What the API lists, and what it is about to list again.

        While slices are rewritten one by one, a device may move to a later one and be in none for a
        moment. It must not be taken for gone then; nor does its taint count before it is seen.
        """
        wanted = self._pool.devices if self._pool is not None else ()
        unseen = {device.name: replace(device, taints=()) for device in wanted}
        return {**unseen, **self._controller.listed()}

    def _tell(self, problems: tuple[str, ...]) -> None:
        if problems != self._told:
            for problem in problems:
                log.warning("left out", problem=problem)
        self._told = problems
