# SPDX-License-Identifier: Apache-2.0
"""Publishing is withheld until the node has been looked at, and beside a device plugin."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpudra.api.resource_v1 import Device
from gpudra.driver.core.allocatable import allocatable_devices
from gpudra.driver.core.forms import PublishPolicy
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.core.resourceslices import ALL_FEATURES, DesiredPool, ServerFeatures
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.kubelet_plugin.holders import Holders
from gpudra.kubelet_plugin.instance_lock import FileLock
from gpudra.kubelet_plugin.publisher import Publisher
from tests.support.plugin import NODE, FakeClaims, claim_object, uid

DRIVER = "gpu.example.com"
INVENTORY = Inventory(gpus=(Gpu(uuid="GPU-aaaaaaaa"), Gpu(uuid="GPU-bbbbbbbb")))
ONE, OTHER = (device.name for device in allocatable_devices(INVENTORY))


class Controller:
    """Takes what it is given for what the API holds."""

    def __init__(self) -> None:
        self.pool: DesiredPool | None = None
        self.synced = asyncio.Event()

    def set_desired(self, pool: DesiredPool | None) -> None:
        """At once."""
        self.pool = pool

    def trigger(self) -> None:
        """Nothing to do."""

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()

    async def wait_synced(self) -> None:
        """When the test says so."""
        await self.synced.wait()

    async def wait_listed(self) -> None:
        """Always known."""

    def listed(self) -> dict[str, Device]:
        """As set last."""
        return {device.name: device for device in self.pool.devices} if self.pool else {}


class World:
    """A publisher that waits for the node, with its cards and policy known."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.controller, self.claims = VirtualClock(), Controller(), FakeClaims()
        self.publisher = Publisher(
            self.controller,
            self._probe,
            FileLock(folder / "publish.lock"),
            Holders(self.claims, dict, driver=DRIVER, pool=NODE),
            driver=DRIVER,
            node_name=NODE,
            clock=self.clock,
            rng=random.Random(1),
            policy=PublishPolicy(),
            withheld="not looked at yet",
        )
        self.publisher.inventory_changed(INVENTORY)

    async def _probe(self) -> ServerFeatures:
        return ALL_FEATURES

    @property
    def published(self) -> dict[str, list[str]] | None:
        """Keys of taints by device; None: nothing was ever published."""
        if self.controller.pool is None:
            return None
        return {
            device.name: [mark.key for mark in device.taints]
            for device in self.controller.pool.devices
        }


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """It runs."""
    found = World(tmp_path)
    task = asyncio.create_task(found.publisher.run())
    await settle()
    yield found
    task.cancel()


async def test_nothing_is_published_before_the_node_was_looked_at(world: World) -> None:
    """Not ready either, since that is a matter of moments."""
    assert world.published is None
    assert world.publisher.problem()
    world.publisher.withhold(None)
    await settle()
    assert world.published == {ONE: [], OTHER: []}


async def test_beside_a_device_plugin_nothing_is_published_at_all(world: World) -> None:
    """Not even an empty pool; and the agent counts as ready, so that updates go on."""
    world.publisher.withhold("a device plugin is there")
    await settle()
    assert world.published is None
    assert world.publisher.problem() is None


async def test_a_device_plugin_that_comes_later_gets_what_no_claim_holds(world: World) -> None:
    """The device in use stays listed and tainted; all come back when the plugin goes."""
    world.publisher.withhold(None)
    await settle()
    world.claims.put(claim_object(uid(1), "a", ONE))
    world.publisher.withhold("a device plugin is there")
    await settle()
    # Schedulers get the time to see the taint before the claims are listed.
    assert world.published == {name: [f"{DRIVER}/withdrawn"] for name in (ONE, OTHER)}
    for _ in range(75):
        await world.clock.advance(1)
    assert world.published == {ONE: [f"{DRIVER}/withdrawn"]}
    world.publisher.withhold(None)
    await settle()
    assert world.published == {ONE: [], OTHER: []}
