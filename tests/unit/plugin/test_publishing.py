# SPDX-License-Identifier: Apache-2.0
"""Hardware, publisher and registration: what the agent knows, shows and says."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import HardwareError, UnavailableError
from gpudra.api.resource_v1 import Device
from gpudra.driver.core.forms import DeviceKind, PublishPolicy
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.core.resourceslices import DesiredPool, ServerFeatures
from gpudra.driver.devicelib.protocol import Readiness
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.kubelet_plugin.hardware import Hardware
from gpudra.kubelet_plugin.holders import Holders
from gpudra.kubelet_plugin.instance_lock import FileLock
from gpudra.kubelet_plugin.proto import pluginregistration_pb2 as pb
from gpudra.kubelet_plugin.publisher import Publisher
from gpudra.kubelet_plugin.registration import Registered, RegistrationService
from tests.support.logs import Captured
from tests.support.plugin import FakeClaims

CARD = Gpu(uuid="GPU-00000000-0000-4000-8000-000000000000", minor=0)


class Lib:
    """A library that answers what it is told."""

    name = "fake"

    def __init__(self) -> None:
        self.ready = True
        self.answer: Inventory | HardwareError = Inventory(gpus=(CARD,))

    def fingerprint(self) -> object:
        """Changes with the answer."""
        return self.discover()

    def readiness(self) -> Readiness:
        """Whether the driver is there."""
        return Readiness(ready=self.ready, reason="DriverMissing", message="no driver")

    def discover(self) -> Inventory:
        """The cards."""
        if isinstance(self.answer, HardwareError):
            raise self.answer
        return self.answer


class Controller:
    """The slice controller as the publisher sees it."""

    def __init__(self) -> None:
        self.pools: list[DesiredPool | None] = []
        self.triggers = 0
        self.runs = 0
        self.synced = asyncio.Event()

    def set_desired(self, pool: DesiredPool | None) -> None:
        """Kept."""
        self.pools.append(pool)

    def trigger(self) -> None:
        """Counted."""
        self.triggers += 1

    async def run(self) -> None:
        """Until cancelled."""
        self.runs += 1
        await asyncio.Event().wait()

    async def wait_synced(self) -> None:
        """When the test says so."""
        await self.synced.wait()

    async def wait_listed(self) -> None:
        """At once."""

    def listed(self) -> dict[str, Device]:
        """What was asked for last."""
        pool = self.pools[-1] if self.pools else None
        return {device.name: device for device in pool.devices} if pool else {}


def hardware(lib: Any, seen: list[Inventory], clock: VirtualClock | None = None) -> Hardware:
    """Hardware over a library."""
    return Hardware(
        lib,
        clock=clock or VirtualClock(),
        on_change=seen.append,
        kinds=frozenset({DeviceKind.WHOLE}),
    )


async def test_unread_hardware_is_not_the_same_as_no_cards() -> None:
    """Before the first answer nothing is known, and whoever asks is told to wait."""
    lib, seen = Lib(), list[Inventory]()
    lib.ready = False
    found = hardware(lib, seen)
    assert not await found.discover()
    assert found.problem() == "DriverMissing: no driver"
    with pytest.raises(HardwareError, match="cannot be read yet: DriverMissing"):
        _ = found.devices
    lib.ready = True
    assert await found.discover()
    assert len(found.devices) == 1
    assert found.problem() is None


async def test_the_last_good_inventory_stays_while_the_library_is_silent(logs: Captured) -> None:
    """Prepared claims depend on it; the trouble is told once, not each time."""
    lib, seen = Lib(), list[Inventory]()
    found = hardware(lib, seen)
    await found.discover()
    lib.answer = HardwareError("driver is being replaced")
    for _ in range(3):
        assert not await found.discover()
    assert len(found.devices) == 1
    assert logs.event("the GPUs cannot be read, will try again")
    assert "being replaced" in str(found.problem())
    assert len(seen) == 1


async def test_only_changes_are_told() -> None:
    """Unchanged hardware means zero writes."""
    lib, seen = Lib(), list[Inventory]()
    found = hardware(lib, seen)
    await found.discover()
    await found.discover()
    assert len(seen) == 1
    lib.answer = Inventory(gpus=())
    await found.discover()
    assert len(seen) == 2


async def test_a_late_driver_is_noticed_within_seconds() -> None:
    """Without a restart: the node is looked at again soon, and goes on being looked at."""
    clock = VirtualClock()
    lib, seen = Lib(), list[Inventory]()
    lib.ready = False
    found = hardware(lib, seen, clock)
    await found.discover()
    task = asyncio.create_task(found.run(random.Random(1)))
    await clock.until_sleeping()
    assert clock.pending()[0] <= 1.0
    lib.ready = True
    await clock.advance(1.0)
    while not seen:  # noqa: ASYNC110 - a worker thread reads
        await asyncio.sleep(0.001)
    await clock.until_sleeping()
    assert clock.pending()[0] <= 5
    task.cancel()


def publisher(folder: Path, controller: Controller, probe: Any, clock: VirtualClock) -> Publisher:
    """A publisher of node-a."""
    return Publisher(
        controller,
        probe,
        FileLock(folder / "publish.lock"),
        Holders(FakeClaims(), dict, driver="gpu.gpudra.io", pool="node-a"),
        driver="gpu.gpudra.io",
        node_name="node-a",
        clock=clock,
        rng=random.Random(1),
        policy=PublishPolicy(),
    )


async def features() -> ServerFeatures:
    """An old server."""
    return ServerFeatures()


async def test_devices_are_published_when_hardware_and_server_are_known(tmp_path: Path) -> None:
    """Ready only when the API holds them, and not while it does not."""
    clock, controller = VirtualClock(), Controller()
    found = publisher(tmp_path, controller, features, clock)
    found.inventory_changed(Inventory(gpus=(CARD,)))
    assert controller.pools == []
    task = asyncio.create_task(found.run())
    await settle()
    (pool,) = controller.pools
    assert pool is not None
    assert (pool.name, pool.node_name, len(pool.slices)) == ("node-a", "node-a", 1)
    assert found.problem() == "nothing has been published yet"
    controller.synced.set()
    await settle()
    assert found.problem() is None
    controller.synced.clear()
    found.trouble("slice refused")
    assert found.problem() == "slice refused"
    await settle()
    controller.synced.set()
    await settle()
    assert found.problem() is None
    task.cancel()


async def test_a_server_that_cannot_be_probed_is_asked_again(tmp_path: Path) -> None:
    """Nothing is published on a guess."""
    clock, controller = VirtualClock(), Controller()
    asked = 0

    async def probe() -> ServerFeatures:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise UnavailableError("no connection")
        return ServerFeatures()

    found = publisher(tmp_path, controller, probe, clock)
    found.inventory_changed(Inventory(gpus=(CARD,)))
    task = asyncio.create_task(found.run())
    await settle()
    assert "cannot be asked what it keeps" in str(found.problem())
    await clock.advance(5)
    assert (asked, controller.runs) == (3, 1)
    task.cancel()


async def test_one_instance_publishes_and_the_other_takes_over(tmp_path: Path) -> None:
    """The one that waits is ready: it does its part."""
    clock = VirtualClock()
    other = FileLock(tmp_path / "publish.lock")
    assert other.try_acquire()
    controller = Controller()
    found = publisher(tmp_path, controller, features, clock)
    task = asyncio.create_task(found.run())
    await clock.advance(5)
    assert controller.runs == 0
    assert found.problem() is None
    other.close()
    await clock.advance(1)
    assert controller.runs == 1
    task.cancel()


async def test_registration_says_who_we_are_and_hears_how_it_went(logs: Captured) -> None:
    """GetInfo, then the kubelet's verdict; a refusal is an error for an admin."""
    heard: list[Registered] = []
    service = RegistrationService("gpu.gpudra.io", "/x/dra.sock", on_change=heard.append)
    info = await service.get_info(pb.InfoRequest())
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.gpudra.io", "/x/dra.sock")
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    assert service.problem() == "the kubelet has not registered the plugin yet"
    await service.notify(pb.RegistrationStatus(plugin_registered=False, error="bad version"))
    assert "bad version" in str(service.problem())
    assert logs.event("the kubelet refused to register the plugin")["level"] == "error"
    await service.notify(pb.RegistrationStatus(plugin_registered=True))
    assert service.problem() is None
    assert [one.ok for one in heard] == [False, True]
