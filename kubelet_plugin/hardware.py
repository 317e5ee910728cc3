# SPDX-License-Identifier: Apache-2.0
"""The node's cards as this process knows them now, behind the device library.

Library calls block and run in worker threads. The last good inventory stays in force while the
library does not answer: prepared claims depend on it, and "nothing known" is not "no cards".
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from gpudra.api.errors import HardwareError, InputError
from gpudra.driver.core.allocatable import AllocatableDevice, allocatable_devices
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.options import DeviceLibName, Options

# Cards come and go seldom, and events tell about trouble: this only catches what events miss.
DISCOVER_PERIOD = 300.0
log = get_logger(__name__)


def open_lib(options: Options, state_dir: Path) -> DeviceLib:
    """The library that was asked for. Imports are lazy: none of them is small.

    Raises:
        InputError: an unknown profile or a malformed Hardware file.
        HardwareError: the library cannot be loaded.
    """
    if options.device_lib is DeviceLibName.SIMULATED:
        from gpudra.driver.devicelib.simulated import open_simulated  # noqa: PLC0415

        return open_simulated(options.hardware, state_dir=state_dir, node_name=options.node_name)
    from gpudra.driver.devicelib.nvml import NvmlLib  # noqa: PLC0415

    return NvmlLib(driver_root=options.driver_root)


class Hardware:
    """Inventory and devices, kept up to date.

    Args:
        lib: the device library.
        clock: for pauses.
        on_change: told every inventory that differs from the one before.
    """

    def __init__(
        self, lib: DeviceLib, *, clock: Clock, on_change: Callable[[Inventory], None]
    ) -> None:
        self.lib = lib
        self._clock = clock
        self._on_change = on_change
        self._inventory: Inventory | None = None
        self._devices: Mapping[str, AllocatableDevice] = {}
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

    def problem(self) -> str | None:
        """For ``/readyz``."""
        return self._problem

    async def discover(self) -> bool:
        """Reads everything once; whether the library answered. Never raises."""
        readiness = await asyncio.to_thread(self.lib.readiness)
        if not readiness.ready:
            self._failed(f"{readiness.reason}: {readiness.message}")
            return False
        try:
            inventory = await asyncio.to_thread(self.lib.discover)
            devices = {device.name: device for device in allocatable_devices(inventory)}
        except (HardwareError, InputError) as error:
            self._failed(str(error))
            return False
        self._problem = None
        if inventory != self._inventory:
            self._inventory = inventory
            self._devices = devices
            self._tell(inventory)
            self._on_change(inventory)
        return True

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

    async def run(self, rng: random.Random) -> None:
        """Discovers again and again, soon after a failure, until cancelled."""
        backoff = Backoff(base=1.0, cap=60.0, rng=rng)
        while True:
            if self._problem is None:
                backoff.reset()
                await self._clock.sleep(DISCOVER_PERIOD)
            else:
                await self._clock.sleep(backoff.next())
            await self.discover()
