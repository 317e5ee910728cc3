# SPDX-License-Identifier: Apache-2.0
"""The agent's health monitor: events and readings in, taints, stream and file out."""

import asyncio
import queue
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpudra.api.errors import HardwareError
from gpudra.driver.core.allocatable import AllocatableDevice, allocatable_devices
from gpudra.driver.core.health import Cause, HealthEvent, HealthKind, HealthPolicy
from gpudra.driver.core.healthview import MAX_MESSAGE_BYTES
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.kubelet_plugin.health_monitor import TIMEOUT_SECONDS, HealthMonitor
from gpudra.kubelet_plugin.health_service import HEARTBEAT_SECONDS, HealthService
from gpudra.kubelet_plugin.health_store import HEALTH_FILE, HealthStore
from gpudra.kubelet_plugin.proto import dra_health_v1_pb2 as pb

DRIVER = "gpu.gpudra.io"
CARDS = (Gpu(uuid="GPU-aaaaaaaa"), Gpu(uuid="GPU-bbbbbbbb"))
SICK, WELL = (device.name for device in allocatable_devices(Inventory(gpus=CARDS)))
XID = HealthEvent(gpu="GPU-aaaaaaaa", kind=HealthKind.XID, xid=79, message="XID 79")


class Lib:
    """Events that a test puts in; ends its wait at once when there are none."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[HealthEvent | HardwareError] = queue.SimpleQueue()

    def wait(self, timeout_seconds: float) -> tuple[HealthEvent, ...]:
        """See HealthLib."""
        found = self.events.get()
        if isinstance(found, HardwareError):
            raise found
        return (found,)


@dataclass
class World:
    """A monitor and everything around it."""

    folder: Path
    boot_id: str = "boot-1"
    clock: VirtualClock = field(default_factory=VirtualClock)
    inventory: Inventory | None = None
    taints: list[dict[str, list[str]]] = field(default_factory=list)
    causes: list[tuple[str, str]] = field(default_factory=list)
    wakes: int = 0

    def __post_init__(self) -> None:
        self.lib = Lib()
        self.monitor = HealthMonitor(
            self.lib,
            HealthStore(self.folder, self.boot_id),
            devices=self._devices,
            driver=DRIVER,
            clock=self.clock,
            on_taints=lambda found: self.taints.append(
                {
                    name: [f"{mark.key}:{mark.effect}" for mark in marks]
                    for name, marks in found.items()
                }
            ),
            on_cause=self._cause,
            wake=self._wake,
        )

    def _devices(self) -> dict[str, AllocatableDevice]:
        if self.inventory is None:
            raise HardwareError("not read yet")
        return {device.name: device for device in allocatable_devices(self.inventory)}

    def _cause(self, gpu: str, cause: Cause) -> None:
        self.causes.append((gpu, cause.key))

    def _wake(self) -> None:
        self.wakes += 1

    def read(self, *gpus: Gpu) -> None:
        """A look at these cards."""
        self.inventory = Inventory(gpus=gpus)
        self.monitor.read(self.inventory)

    async def hear(self, event: HealthEvent) -> None:
        """The thread hears of something."""
        before = (self.monitor.state, self.wakes)
        self.lib.events.put(event)
        async with asyncio.timeout(10):
            while (self.monitor.state, self.wakes) == before:  # noqa: ASYNC110 - a thread
                await asyncio.sleep(0.001)

    def health(self) -> dict[str, str]:
        """By name of the device."""
        return {name: str(one.health) for name, one in self.monitor.snapshot().devices.items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two well cards."""
    found = World(tmp_path)
    found.read(*CARDS)
    return found


async def test_an_event_becomes_a_taint_an_event_and_a_look(world: World) -> None:
    """At once; the other card is left alone, and nothing is told twice."""
    task = asyncio.create_task(world.monitor.run())
    await world.hear(XID)
    assert world.taints == [{SICK: ["gpu.gpudra.io/xid-79:NoSchedule"]}]
    assert world.causes == [("GPU-aaaaaaaa", "xid-79")]
    assert world.wakes == 1
    assert world.health() == {SICK: "Unhealthy", WELL: "Healthy"}
    await world.hear(XID)
    world.read(*CARDS)
    assert len(world.taints) == len(world.causes) == 1
    await world.hear(replace(XID, kind=HealthKind.RECOVERED, xid=None))
    assert world.taints[-1] == {}
    task.cancel()
    world.lib.events.put(XID)


async def test_trouble_with_listening_is_overcome(world: World) -> None:
    """After a pause the thread listens again."""
    task = asyncio.create_task(world.monitor.run())
    world.lib.events.put(HardwareError("driver reload"))
    await world.clock.until_sleeping()
    await world.clock.advance(1)
    await world.hear(XID)
    assert world.causes
    task.cancel()
    world.lib.events.put(XID)


def test_a_policy_counts_for_what_happened_before(world: World) -> None:
    """NoExecute for a card that is lost already."""
    world.read(replace(CARDS[0], lost=True), CARDS[1])
    world.monitor.set_policy(HealthPolicy(effects={"lost": "NoExecute"}))
    assert world.taints[-1] == {SICK: ["gpu.gpudra.io/lost:NoExecute"]}


def test_a_hiccup_of_the_driver_is_no_trouble_and_an_absence_is(world: World) -> None:
    """Two looks in vain taint everything; the next good one ends it."""
    assert world.monitor.trouble("no library") == 1
    assert world.taints == []
    world.monitor.trouble("no library")
    assert world.taints[-1] == {
        name: ["gpu.gpudra.io/driver-missing:NoSchedule"] for name in (SICK, WELL)
    }
    assert set(world.health().values()) == {"Unknown"}
    world.read(*CARDS)
    assert world.taints[-1] == {}


def test_a_card_that_left_is_reported_as_long_as_it_is_lost(world: World) -> None:
    """A pod may use it still; when it comes back it is well."""
    world.read(CARDS[1])
    assert world.health() == {SICK: "Unhealthy", WELL: "Healthy"}
    world.read(*CARDS)
    assert world.health() == {SICK: "Healthy", WELL: "Healthy"}


async def test_a_restart_remembers_and_a_boot_forgets(world: World, tmp_path: Path) -> None:
    """XIDs are told once; a boot resets the cards."""
    task = asyncio.create_task(world.monitor.run())
    await world.hear(XID)
    task.cancel()
    world.lib.events.put(XID)
    again = World(tmp_path)
    again.read(*CARDS)
    assert again.taints == [{SICK: ["gpu.gpudra.io/xid-79:NoSchedule"]}]
    booted = World(tmp_path, boot_id="boot-2")
    booted.read(*CARDS)
    assert booted.taints == []


def test_a_damaged_file_costs_nothing_but_itself(tmp_path: Path) -> None:
    """Readings show most of it again."""
    for content in (
        "",
        "[]",
        '{"version": 1}',
        '{"version": 1, "bootID": "boot-1", "cards": {"g": [1]}}',
    ):
        (tmp_path / HEALTH_FILE).write_text(content)
        found = World(tmp_path)
        found.read(*CARDS)
        assert found.taints == []


async def test_well_cards_are_written_nowhere(world: World, tmp_path: Path) -> None:
    """No file before there is something to keep."""
    world.read(*CARDS)
    assert not (tmp_path / HEALTH_FILE).exists()


async def test_what_is_too_old_is_unknown(world: World) -> None:
    """A monitor that hangs must not say Healthy for ever."""
    await world.clock.advance(TIMEOUT_SECONDS + 1)
    assert set(world.health().values()) == {"Unknown"}
    assert "have not been looked at" in world.monitor.snapshot().devices[WELL].message


# --- the stream ----------------------------------------------------------------------------------


async def test_the_stream_tells_all_at_once_on_change_and_now_and_then(world: World) -> None:
    """Every message is the full list, with the time at which it was known."""
    service = HealthService(world.monitor, pool="n1", clock=world.clock)
    stream = service.watch(pb.NodeWatchResourcesRequest())
    first = await anext(stream)
    assert {one.device.device_name: one.health for one in first.devices} == {
        SICK: pb.HEALTHY,
        WELL: pb.HEALTHY,
    }
    assert {one.device.pool_name for one in first.devices} == {"n1"}
    assert {one.health_check_timeout_seconds for one in first.devices} == {30}
    started = first.devices[0].last_updated_time
    following = asyncio.ensure_future(anext(stream))
    await settle()
    assert not following.done()
    world.read(CARDS[1])
    second = await following
    assert {one.device.device_name: one.health for one in second.devices}[SICK] == pb.UNHEALTHY
    beat = asyncio.ensure_future(anext(stream))
    await settle()
    await world.clock.advance(HEARTBEAT_SECONDS)
    assert (await beat).devices[0].last_updated_time == started
    service.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_ends_a_stream_that_waits(world: World) -> None:
    """Else the server could not stop."""
    service = HealthService(world.monitor, pool="n1", clock=world.clock)
    stream = service.watch(pb.NodeWatchResourcesRequest())
    await anext(stream)
    following = asyncio.ensure_future(anext(stream, None))
    await settle()
    service.close()
    assert await following is None


def test_a_message_fits_what_the_kubelet_takes(world: World) -> None:
    """Cut between characters, not inside one."""
    files = tuple(f"/dev/dri/é{number}" for number in range(200))
    world.read(replace(CARDS[0], health=replace(CARDS[0].health, missing_files=files)), CARDS[1])
    message = world.monitor.snapshot().devices[SICK].message
    assert MAX_MESSAGE_BYTES - 1 <= len(message.encode()) <= MAX_MESSAGE_BYTES
