# SPDX-License-Identifier: Apache-2.0
"""A node whose cards can be parted and shared, for the state machine: simulated, or fake NVML."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudra.driver.core.allocatable import DeviceKind, allocatable_devices
from gpudra.driver.core.forms import EVERYTHING
from gpudra.driver.core.inventory import MigInstance
from gpudra.driver.core.sharing import Backend
from gpudra.driver.devicelib.nvml import NvmlLib
from gpudra.driver.devicelib.protocol import ComputeMode, DeviceLib, PartitionLib, TimeSlice
from gpudra.driver.devicelib.simulated import open_simulated
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.sharing import MpsLaunch
from gpudra.kubelet_plugin.sharing.hami_core import HOOKS
from gpudra.kubelet_plugin.sharing.launch import MARK
from gpudra.kubelet_plugin.sharing.processes import end, marked
from tests.fakemps import installed
from tests.fakenvml.machine import FakeMachine
from tests.support.plugin import DRIVER, Instance, Node, claim_object, uid
from tests.support.tuning import FakeTuning

HARDWARE = "dgx-h100-8x80"


class Tuned:
    """A DeviceLib with settings in memory; everything else is the library's."""

    def __init__(self, lib: DeviceLib) -> None:
        self._lib = lib
        self.tuning = FakeTuning()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


@dataclass(frozen=True)
class Hardware:
    """A library, and the machine behind it if it is NVML."""

    lib: Any
    machine: FakeMachine | None = None


@contextmanager
def hardware(name: str, folder: Path, cards: str = HARDWARE) -> Iterator[Hardware]:
    """``simulated`` or ``nvml``, in a folder."""
    if name == "simulated":
        lib: DeviceLib = open_simulated(cards, state_dir=folder / "hw", node_name="node-a")
        yield Hardware(Tuned(lib))
        lib.close()
        return
    machine = FakeMachine(cards, folder / "machine")
    before = os.environ.get("FAKENVML_STATE")
    os.environ["FAKENVML_STATE"] = str(machine.state)
    nvml = NvmlLib(library=machine.library, driver_root=str(machine.root), host_root=machine.root)
    try:
        yield Hardware(Tuned(nvml), machine)
    finally:
        nvml.close()
        if before is None:
            del os.environ["FAKENVML_STATE"]
        else:
            os.environ["FAKENVML_STATE"] = before


class FormsNode(Node):
    """What outlives a process, with a node's worth of forms.

    ``card(n)`` and ``device(n, form)`` name things of the nth card in published order.
    """

    def __init__(self, folder: Path, lib: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.lib = lib
        self.tuning: FakeTuning = lib.tuning
        self.policy = EVERYTHING
        self.look()
        self.cards = [one.gpu.key for one in self.devices.values() if one.kind is DeviceKind.WHOLE]
        self._started: list[Instance] = []

    async def start(self, **options: Any) -> Instance:
        """A new process of the plugin, ready for calls."""
        self._started.append(await super().start(**options))
        return self._started[-1]

    def has_mps(self) -> None:
        """From now on there is a control program, the stand-in."""
        self.mps = MpsLaunch(
            program=str(installed(self.folder / "bin")),
            own_shm=False,
            start_seconds=30,
            answer_seconds=30,
            stop_seconds=30,
        )

    def daemons(self) -> tuple[int, ...]:
        """Processes of MPS on this node, servers included."""
        found = (marked(MARK, str(path)) for path in self.run_dir.glob(f"{Backend.MPS}/*"))
        return tuple(pid for pids in found for pid in pids)

    def end(self) -> None:
        """Nothing of the node runs any more; no process of Python may be forgotten with a child."""
        end(self.daemons(), signal.SIGKILL, 30)
        for instance in self._started:
            for daemon in instance.backends._by_name[Backend.MPS]._daemons.values():  # type: ignore[attr-defined]
                if daemon._child is not None:
                    daemon._child.wait(30)

    def look(self) -> None:
        """Reads the hardware anew, as the agent does every few seconds."""
        inventory = self.lib.discover()
        found = (
            *allocatable_devices(inventory, EVERYTHING),
            *allocatable_devices(inventory, self.policy),
        )
        self.devices = {one.name: one for one in found}

    @property
    def partitions(self) -> PartitionLib:
        """MIG, to look at it and to meddle with it."""
        found: PartitionLib = self.lib.partitions
        return found

    def device(self, number: int, form: str = "gpu") -> str:
        """``gpu``, ``share``, ``monitor``, or ``1g10gb-0``: a profile's word and its place."""
        whole = [one.name for one in self.devices.values() if one.kind is DeviceKind.WHOLE][number]
        words = {"gpu": whole, "share": f"{whole}-share", "monitor": f"{whole}-monitor"}
        return words.get(form, f"{whole}-mig-{form}")

    def claim(self, number: int, *devices: Any, config: tuple[Any, ...] = ()) -> ClaimRef:
        """A claim in the API, named by its number."""
        return self.api.put(claim_object(uid(number), f"c{number}", *devices, config=config))

    def share(self, card: int, memory: str = "10Gi", share_id: int = 1) -> dict[str, Any]:
        """One result with a share."""
        return {
            "device": self.device(card, "share"),
            "shareID": uid(share_id),
            "consumedCapacity": {"memory": memory, "compute": "0"},
        }

    def instances(self) -> dict[int, list[MigInstance]]:
        """What exists, by number of the card; cards without are left out."""
        found = {n: list(self.partitions.mig_instances(key)) for n, key in enumerate(self.cards)}
        return {number: there for number, there in found.items() if there}

    def picture(self) -> dict[str, Any]:
        """Everything that claims can change, but for what records and CDI files say."""
        return {
            "instances": self.instances(),
            "modes": [self.partitions.mig_mode(key) for key in self.cards],
            "slices": {
                key: one for key, one in self.tuning.slices.items() if one is not TimeSlice.DEFAULT
            },
            "compute modes": {
                key: one for key, one in self.tuning.modes.items() if one is not ComputeMode.DEFAULT
            },
            "daemons": self.daemons(),
            "files": self.cdi_files(),
            "runtime": sorted(str(path) for path in self.run_dir.glob("*/*")),
            "temporary": [path.name for path in self.state_dir.glob(".*")],
        }

    def reset(self) -> None:
        """A reboot: no MIG on any card, settings as the driver has them, no files in memory."""
        for key in self.cards:
            for one in self.partitions.mig_instances(key):
                self.partitions.destroy_mig_instance(key, one.gpu_instance_id)
            self.partitions.set_mig_mode(key, enabled=False)
        end(self.daemons(), signal.SIGKILL, 30)
        self.tuning.slices.clear()
        self.tuning.modes.clear()
        for path in self.cdi_dir.iterdir():
            path.unlink()


def isolation(backend: str, kind: str = "ShareConfig", **sharing: Any) -> dict[str, Any]:
    """One entry of ``allocation.devices.config`` that asks for a backend."""
    parameters = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": kind,
        "sharing": {"isolation": backend, **sharing},
    }
    opaque = {"driver": DRIVER, "parameters": parameters}
    return {"source": "FromClaim", "requests": [], "opaque": opaque}


def decoy_library(folder: Path) -> Path:
    """A library that shows the hooks of HAMi-core and does nothing."""
    source, made = folder / "decoy.c", folder / "libvgpu.so"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in HOOKS))
    command = ["gcc", "-shared", "-fPIC", "-fno-builtin", "-o", made, source]
    subprocess.run(command, check=True)
    return made
