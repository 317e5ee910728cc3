# SPDX-License-Identifier: Apache-2.0
"""The simulated backend: a DeviceLib over a Hardware file."""

import time
from collections.abc import Callable, Hashable
from pathlib import Path

from gpudra.api.errors import DeviceGoneError, HardwareError
from gpudra.api.hardware import Fault, Hardware
from gpudra.driver.core.edits import ContainerEdits, DeviceNode
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.devicelib.protocol import (
    HealthEvent,
    HealthLib,
    PartitionLib,
    Readiness,
    TuningLib,
    UsageLib,
)
from gpudra.driver.devicelib.simulated.catalog import load_hardware
from gpudra.driver.devicelib.simulated.devicenodes import CONTROL_NODES, DeviceNodes
from gpudra.driver.devicelib.simulated.mig import SimulatedPartitions
from gpudra.driver.devicelib.simulated.model import build_inventory, minor
from gpudra.driver.devicelib.simulated.state import HardwareState


class SimulatedLib:
    """A node's cards as a Hardware file describes them.

    Args:
        hardware: with its boards filled in (``load_hardware``).
        state_dir: folder for device files, MIG state and thrown-in faults.
        node_name: salt of the uuids that the file does not give.
        monotonic: seconds; faults happen by this clock.
        pause: waits that many seconds, for cards that answer slowly.
    """

    name = "simulated"

    def __init__(
        self,
        hardware: Hardware,
        *,
        state_dir: Path,
        node_name: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._hardware = hardware
        self._node_name = node_name
        self._pause = pause
        self._state = HardwareState(hardware, node_name, state_dir, monotonic)
        self._nodes = DeviceNodes(state_dir / "dev")
        self._partitions = SimulatedPartitions(hardware, self._state, self._nodes)

    @property
    def partitions(self) -> PartitionLib | None:
        """MIG, where a board of the file has it."""
        has_mig = any(board.mig for board in self._hardware.spec.boards.values())
        return self._partitions if has_mig else None

    @property
    def tuning(self) -> TuningLib | None:
        """Not simulated: settings without a workload have no effect that anybody could see."""
        return None

    @property
    def health(self) -> HealthLib | None:
        """The faults of the file, and those thrown in."""
        return self

    @property
    def usage(self) -> UsageLib | None:
        """Not simulated: nothing runs on these cards."""
        return None

    def readiness(self) -> Readiness:
        """See DeviceLib."""
        driver = self._hardware.spec.driver
        if self._state.elapsed() < driver.ready_after_seconds:
            return Readiness(
                ready=False,
                reason="DriverMissing",
                message=f"the simulated driver comes {driver.ready_after_seconds:g} s after start",
                driver_root=driver.root,
            )
        return Readiness(
            ready=True,
            reason="DriverReady",
            message=f"simulated driver {driver.version}",
            driver_root=driver.root,
        )

    def discover(self) -> Inventory:
        """See DeviceLib."""
        found = self.readiness()
        if not found.ready:
            raise HardwareError(found.message, obj="simulated hardware", hint="wait for the driver")
        slowest = sum(gpu.slow_milliseconds for gpu in self._hardware.spec.gpus)
        if slowest:
            self._pause(slowest / 1000)
        return build_inventory(
            self._hardware, node_name=self._node_name, states=self._state.cards()
        )

    def fingerprint(self) -> Hashable:
        """See DeviceLib."""
        found = self.readiness()
        if not found.ready:
            raise HardwareError(found.message, obj="simulated hardware", hint="wait for the driver")
        return tuple(self._state.cards().items())

    def common_edits(self) -> ContainerEdits:
        """See DeviceLib."""
        return ContainerEdits(device_nodes=tuple(self._node(name) for name in CONTROL_NODES))

    def gpu_edits(self, gpu: str) -> ContainerEdits:
        """See DeviceLib."""
        if self._state.card(gpu).lost:
            raise DeviceGoneError("has fallen off the bus", obj=f"GPU {gpu}")
        number = minor(self._hardware, self._state.keys.index(gpu))
        return ContainerEdits(device_nodes=(self._node(f"nvidia{number}"),))

    def wait(self, timeout_seconds: float) -> tuple[HealthEvent, ...]:
        """See HealthLib."""
        return self._state.wait(timeout_seconds)

    def inject(self, fault: Fault) -> None:
        """Lets a fault happen now; for tests."""
        self._state.inject(fault)

    def close(self) -> None:
        """See DeviceLib."""
        self._state.close()

    def _node(self, name: str) -> DeviceNode:
        return DeviceNode(path=f"/dev/{name}", host_path=str(self._nodes.make(name)))


def open_simulated(source: str, *, state_dir: Path, node_name: str = "") -> SimulatedLib:
    """The backend for a shipped profile or a Hardware file.

    Args:
        source: name of a profile or path of a file.
        state_dir: see SimulatedLib; created when first needed.
        node_name: one node keeps its uuids for ever, two nodes never share any.

    Raises:
        InputError: no such profile or file, or it is wrong.
        StateError: the state folder holds damaged MIG state.
    """
    return SimulatedLib(load_hardware(source), state_dir=state_dir, node_name=node_name)
