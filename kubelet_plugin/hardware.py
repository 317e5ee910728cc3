# SPDX-License-Identifier: Apache-2.0
"""The node's cards as this process knows them now, behind the device library.

Library calls block and run in worker threads. Every two seconds a cheap look tells whether anything
changed; only then, and every few minutes, all is read. The last good inventory stays in force while
the library does not answer: prepared claims depend on it, and "nothing known" is not "no cards".
"""

import asyncio
import random
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

from gpudra.api.attributes import AttributeValue
from gpudra.api.errors import HardwareError, InputError
from gpudra.driver.core.allocatable import AllocatableDevice, allocatable_devices
from gpudra.driver.core.attributes import device_attributes
from gpudra.driver.core.forms import EVERYTHING, DeviceKind, PublishPolicy
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.prepare import PREPARABLE
from gpudra.driver.core.topology import Topology
from gpudra.driver.devicelib.open import Backend, Source, open_device_lib
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.options import Options

# A late driver, a new card and a lost one are noticed within five seconds; a look costs some 0.2 ms.
POLL_PERIOD = 2.0
# Everything is read again now and then: the look covers what changes often, not every reading.
DISCOVER_PERIOD = 300.0
_RETRY_CAP = 4.0
log = get_logger(__name__)


def open_lib(
    options: Options, state_dir: Path, on_call: Callable[[float, bool], object] | None = None
) -> DeviceLib:
    """The library that was asked for; see open_device_lib for its parts and what it raises."""
    return open_device_lib(
        Source(
            backend=Backend(options.device_lib.value),
            hardware=options.hardware,
            node_name=options.node_name,
            state_dir=state_dir,
            nvml_library=options.nvml_library,
            driver_root=options.driver_root,
            host_root=options.host_root,
        ),
        on_call,
    )


def ignore_trouble(_why: str) -> object:
    """For callers who do not care."""
    return None


class Hardware:
    """Inventory and devices, kept up to date.

    Args:
        lib: the device library.
        clock: for pauses.
        on_change: told every inventory that differs from the one before.
        on_read: told every inventory, changed or not: proof that the cards are looked after.
        on_trouble: told why the library does not answer, each time that it was asked in vain.
        kinds: the forms that cards may have here.
    """

    def __init__(
        self,
        lib: DeviceLib,
        *,
        clock: Clock,
        on_change: Callable[[Inventory], None],
        on_read: Callable[[Inventory], None] | None = None,
        on_trouble: Callable[[str], object] = ignore_trouble,
        kinds: frozenset[DeviceKind] = PREPARABLE,
    ) -> None:
        self.lib = lib
        self._clock = clock
        self._on_change = on_change
        self._on_read = on_read
        self._on_trouble = on_trouble
        self._print: Hashable = None
        self._read_at = 0.0
        self._wake = asyncio.Event()
        self._kinds = kinds
        self._policy = PublishPolicy()
        self._inventory: Inventory | None = None
        self._devices: Mapping[str, AllocatableDevice] = {}
        self._topology: Topology | None = None
        self._problem: str | None = "the GPUs have not been read yet"

    @property
    def devices(self) -> Mapping[str, AllocatableDevice]:
        """The node's devices by name, as last read.

        Raises:
            HardwareError: they have never been read; that is not the same as none.
        """
        if self._inventory is None:
            raise HardwareError(
                f"the GPUs of this node cannot be read yet: {self._problem}",
                hint="the kubelet will try again",
            )
        return self._devices

    def set_policy(self, policy: PublishPolicy) -> None:
        """The policy decides whether parts are made on demand or are there."""
        self._policy = policy
        if self._inventory is not None:
            self._devices = self._devices_of(self._inventory)

    def _devices_of(self, inventory: Inventory) -> dict[str, AllocatableDevice]:
        """Every device that a claim may have: a policy takes none away from those that hold it."""
        possible = allocatable_devices(inventory, EVERYTHING.within(self._kinds))
        offered = allocatable_devices(inventory, self._policy)
        return {device.name: device for device in (*possible, *offered)}

    @property
    def inventory(self) -> Inventory | None:
        """All cards, as last read; None before the first reading."""
        return self._inventory

    def attributes(self, device: AllocatableDevice) -> dict[str, AttributeValue]:
        """Of a device of this node, as they are published. May be called from any thread."""
        topology = self._topology
        if topology is None:
            topology = self._topology = Topology.of(self._inventory or Inventory())
        return device_attributes(device, topology)

    def problem(self) -> str | None:
        """For ``/readyz``."""
        return self._problem

    async def discover(self) -> bool:
        """Reads everything once; whether the library answered. Never raises."""
        if self._problem is not None and not await self._is_ready():
            return False
        try:
            # The look comes first: what changes while everything is read shows in the next look.
            look = await asyncio.to_thread(self.lib.fingerprint)
            inventory = await asyncio.to_thread(self.lib.discover)
            devices = self._devices_of(inventory)
        except (HardwareError, InputError) as error:
            self._failed(str(error))
            return False
        # A driver that is being replaced may answer and list no card: that is not "no cards".
        if not inventory.gpus and not await self._is_ready():
            return False
        self._problem = None
        self._print, self._read_at = look, self._clock.monotonic()
        changed = inventory != self._inventory
        if changed:
            self._inventory = inventory
            self._devices = devices
            self._topology = None
            self._tell(inventory)
        if self._on_read is not None:
            self._on_read(inventory)
        if changed:
            self._on_change(inventory)
        return True

    async def _is_ready(self) -> bool:
        readiness = await asyncio.to_thread(self.lib.readiness)
        if not readiness.ready:
            self._failed(f"{readiness.reason}: {readiness.message}")
        return readiness.ready

    async def poll(self) -> bool:
        """Looks, and reads everything if the look differs; whether the library answered."""
        due = self._clock.monotonic() - self._read_at >= DISCOVER_PERIOD
        if self._problem is not None or due or self._inventory is None:
            return await self.discover()
        try:
            look = await asyncio.to_thread(self.lib.fingerprint)
        except HardwareError as error:
            self._failed(str(error))
            return False
        if look != self._print:
            return await self.discover()
        if self._on_read is not None:
            self._on_read(self._inventory)
        return True

    def wake(self) -> None:
        """Look now: an event said that something happened."""
        self._wake.set()

    def _tell(self, inventory: Inventory) -> None:
        log.info("read the GPUs", gpus=len(inventory.gpus), library=self.lib.name)
        for problem in inventory.problems:
            log.warning(
                "a reading of a GPU failed",
                device=problem.gpu,
                reading=problem.reading,
                error=problem.message,
            )

    def _failed(self, why: str) -> None:
        if why != self._problem:
            log.warning("the GPUs cannot be read, will try again", error=why)
        self._problem = why
        self._on_trouble(why)

    async def run(self, rng: random.Random) -> None:
        """Looks again and again, sooner after a failure, until cancelled."""
        backoff = Backoff(base=1.0, cap=_RETRY_CAP, rng=rng)
        while True:
            if self._problem is None:
                backoff.reset()
                await self._pause(POLL_PERIOD)
            else:
                await self._pause(backoff.next())
            await self.poll()

    async def _pause(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()
