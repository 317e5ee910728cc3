# SPDX-License-Identifier: Apache-2.0
"""NVIDIA cards through NVML: the only place that imports pynvml.

A driver may come late, be replaced, or lose a card: each discovery starts NVML if it does not run,
and an answer that says "no driver behind this library" makes the next one load it anew.
"""

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import pynvml

from gpudra.api.errors import DeviceGoneError, HardwareError
from gpudra.driver.core.edits import ContainerEdits, merge
from gpudra.driver.core.inventory import Gpu, Inventory, ReadingProblem
from gpudra.driver.devicelib.nvml.driverfiles import DriverFiles
from gpudra.driver.devicelib.nvml.driverroot import LIBRARY_FOLDERS, DriverRoot
from gpudra.driver.devicelib.nvml.fingerprint import card_fingerprint
from gpudra.driver.devicelib.nvml.health import NvmlHealth
from gpudra.driver.devicelib.nvml.partitions import NvmlPartitions
from gpudra.driver.devicelib.nvml.readings import read_gpu
from gpudra.driver.devicelib.nvml.session import Asker, OnCall, Session, is_gone
from gpudra.driver.devicelib.nvml.tuning import NvmlTuning
from gpudra.driver.devicelib.nvml.usage import NvmlUsage
from gpudra.driver.devicelib.pci import PciTree
from gpudra.driver.devicelib.protocol import Readiness

_LIBRARY_NAME = "libnvidia-ml.so.1"
_NVIDIA = 0x10DE
_DISPLAY_CLASS = 0x03
# A thread that waits for health events is inside the library for half a second at most.
_UNLOAD_SECONDS = 2.0


class NvmlLib:
    """DeviceLib on NVML.

    Args:
        library: path of ``libnvidia-ml.so.1``; None looks below ``driver_root``, then asks the linker.
        driver_root: host path of the driver's files: ``/``, or a driver container's root.
        host_root: the host's root as this process sees it.
        on_call: told of every call into NVML: seconds, and whether it answered.
    """

    name = "nvml"

    def __init__(
        self,
        *,
        library: Path | None = None,
        driver_root: str = "/",
        host_root: Path = Path("/"),
        on_call: OnCall | None = None,
    ) -> None:
        self._root = driver_root
        self._host = host_root
        self._seen = seen = host_root / driver_root.strip("/")
        self._session = Session(library or _find_library(seen), on_call)
        self._tree = PciTree(host_root)
        self._files = DriverFiles(host_root=host_root, dev_root=driver_root)
        self._known: dict[str, Gpu] = {}
        self._bus: frozenset[str] | None = None
        self.partitions = NvmlPartitions(self._session, self._files)
        self.tuning = NvmlTuning(self._session, seen / "usr/bin/nvidia-smi")
        self.health = NvmlHealth(self._session)
        self.usage = NvmlUsage(self._session)

    def readiness(self) -> Readiness:
        """Whether the driver answers and shows the cards that the PCI bus has. Never raises."""
        try:
            inventory = self.discover()
        except HardwareError as error:
            return Readiness(
                ready=False, reason="DriverMissing", message=str(error), driver_root=self._root
            )
        if not inventory.gpus:
            on_bus = self._tree.addresses(_NVIDIA, (_DISPLAY_CLASS,))
            # A driver that is just being installed answers, and shows no card yet.
            reason, message = ("NoDevices", "the driver shows no card")
            if on_bus:
                reason, message = (
                    "DevicesNotBound",
                    f"the PCI bus has {', '.join(on_bus)}; the driver shows none of them",
                )
            return Readiness(ready=False, reason=reason, message=message, driver_root=self._root)
        if all(gpu.health.missing_files for gpu in inventory.gpus):
            missing = sorted({path for gpu in inventory.gpus for path in gpu.health.missing_files})
            text = f"no card has its device files: {', '.join(missing)} not there"
            return Readiness(
                ready=False, reason="SelfTestFailed", message=text, driver_root=self._root
            )
        return Readiness(
            ready=True,
            reason="DriverReady",
            message=f"{len(inventory.gpus)} GPUs",
            driver_root=self._root,
        )

    def discover(self) -> Inventory:
        """Every card that NVML lists, and those that it lists as lost with their last readings.

        Raises:
            HardwareError: NVML as a whole does not answer.
        """
        with self._session.using():
            return self._discover()

    def _discover(self) -> Inventory:
        self._session.start()
        problems: list[ReadingProblem] = []
        node = Asker("")
        with self._session.calling("NVML"):
            count = pynvml.nvmlDeviceGetCount()
        driver = node.text("driverVersion", pynvml.nvmlSystemGetDriverVersion)
        cuda = node.ask("cudaDriverVersion", pynvml.nvmlSystemGetCudaDriverVersion_v2)
        found: dict[str, Gpu] = {}
        lost = 0
        for index in range(count):
            try:
                gpu = self._read(index, problems, driver=driver, cuda=cuda)
            except DeviceGoneError:
                lost += 1
                continue
            if gpu is not None:
                found[gpu.key] = gpu
        answering = [self._with_files(gpu) for gpu in found.values()]
        gpus = (*answering, *self._missing(found, lost))
        self._known = {gpu.key: gpu for gpu in gpus}
        inventory = Inventory(gpus=gpus, problems=(*node.problems, *problems))
        self.health.watch(inventory)
        return inventory

    def fingerprint(self) -> Hashable:
        """See DeviceLib. About ten calls a card.

        A card that was plugged in shows on the PCI bus first; NVML lists it after its next start.
        """
        bus = self._tree.names()
        if self._bus is not None and bus != self._bus:
            self._session.stop()
            self._session.wait_unloaded(_UNLOAD_SECONDS)
        self._bus = bus
        self._session.start()
        with self._session.calling("NVML"):
            cards = tuple(card_fingerprint(one) for one in range(pynvml.nvmlDeviceGetCount()))
        files = tuple(self._files.missing(gpu.minor) for gpu in self._known.values())
        return (self._session.generation, bus, cards, files)

    def common_edits(self) -> ContainerEdits:
        """The driver's control nodes, libraries, programs and sockets."""
        self._session.start()
        with self._session.calling("NVML"):
            version = pynvml.nvmlSystemGetDriverVersion()
        text = version.decode("ascii", "replace") if isinstance(version, bytes) else version
        root = DriverRoot(root=self._root, seen=self._seen, host=self._host, version=text)
        return merge((self._files.common(), root.edits()))

    def gpu_edits(self, gpu: str) -> ContainerEdits:
        """The card's device node."""
        handle = self._session.handle(gpu)
        with self._session.calling(f"minor number of GPU {gpu}"):
            minor = pynvml.nvmlDeviceGetMinorNumber(handle)
        return self._files.gpu(minor)

    def close(self) -> None:
        """Ends NVML; a wait for health events returns."""
        self.health.close()
        self._session.stop()
        self._session.wait_unloaded(_UNLOAD_SECONDS)

    def _read(
        self, index: int, problems: list[ReadingProblem], *, driver: str | None, cuda: int | None
    ) -> Gpu | None:
        """One card; None where it does not even tell its uuid.

        Raises:
            DeviceGoneError: it is lost.
        """
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            asker = Asker(uuid.decode("ascii", "replace") if isinstance(uuid, bytes) else uuid)
            self._session.remember(asker.gpu, handle)
            gpu = read_gpu(handle, asker, self._tree, index, driver=driver, cuda=cuda)
        except pynvml.NVMLError as error:
            if is_gone(error):
                raise DeviceGoneError(f"NVML says: {error}", obj=f"GPU at index {index}") from error
            self._session.restart_after(error)
            problems.append(
                ReadingProblem(gpu=f"index {index}", reading="uuid", message=str(error))
            )
            return None
        problems += asker.problems
        return gpu

    def _with_files(self, gpu: Gpu) -> Gpu:
        missing = self._files.missing(gpu.minor)
        if not missing:
            return gpu
        return replace(gpu, health=replace(gpu.health, missing_files=missing))

    def _missing(self, found: dict[str, Gpu], lost: int) -> list[Gpu]:
        """Cards known before that NVML lists as lost: it does not say which, so all that miss.

        A card that NVML does not list at all was unplugged and is simply not there.
        """
        if not lost:
            return []
        gone = [gpu for key, gpu in self._known.items() if key not in found]
        for gpu in gone:
            self._session.forget(gpu.key)
        return [_as_lost(gpu) for gpu in gone]


def _as_lost(gpu: Gpu) -> Gpu:

    return replace(gpu, lost=True)


def _find_library(root: Path) -> Path | None:
    """The library below a driver root other than ``/``; the linker knows the host's own."""
    if root == Path("/"):
        return None
    for folder in LIBRARY_FOLDERS:
        if (root / folder / _LIBRARY_NAME).exists():
            return root / folder / _LIBRARY_NAME
    return root / LIBRARY_FOLDERS[0] / _LIBRARY_NAME
