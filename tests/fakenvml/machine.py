# SPDX-License-Identifier: Apache-2.0
"""A whole pretended machine from a Hardware file: NVML's state, sysfs, device and capability nodes.

Run ``python -m tests.fakenvml.machine dgx-h100-8x80 FOLDER`` for one to play with; it prints the
variables to set. Tests use FakeMachine.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pynvml

from gpudra.driver.core.inventory import Gpu, LinkPeer, MigInfo, MigProfile
from gpudra.driver.devicelib.simulated.catalog import load_hardware
from gpudra.driver.devicelib.simulated.model import build_inventory

HERE = Path(__file__).parent
MIB = 2**20
# The numbers that callers ask for profiles with (nvml.h, NVML_GPU_INSTANCE_PROFILE_*), by compute
# slices; a second and third profile of one width have numbers of their own.
_QUERIES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
_MEDIA_QUERIES = {1: 7, 2: 8}
_DOUBLE_MEMORY_QUERY = 9
_GI_IDS = range(15)
_ARCHITECTURES = {
    "Turing": pynvml.NVML_DEVICE_ARCH_TURING,
    "Ampere": pynvml.NVML_DEVICE_ARCH_AMPERE,
    "Ada Lovelace": pynvml.NVML_DEVICE_ARCH_ADA,
    "Hopper": pynvml.NVML_DEVICE_ARCH_HOPPER,
    "Blackwell": pynvml.NVML_DEVICE_ARCH_BLACKWELL,
}
_BRANDS = {
    "Nvidia": pynvml.NVML_BRAND_NVIDIA,
    "Tesla": pynvml.NVML_BRAND_TESLA,
    "GeForce": pynvml.NVML_BRAND_GEFORCE,
    "QuadroRTX": pynvml.NVML_BRAND_QUADRO_RTX,
    "NvidiaRTX": pynvml.NVML_BRAND_NVIDIA_RTX,
}
_ADDRESSING = {"None": 0, "HMM": 1, "ATS": 2}
_PEERS = {LinkPeer.GPU: 0, LinkPeer.CPU: 1, LinkPeer.SWITCH: 2, LinkPeer.UNKNOWN: 255}
_FABRIC = {"notSupported": 0, "notStarted": 1, "inProgress": 2, "completed": 3}


def build(out: Path | None = None) -> Path:
    """Builds the library and its control program; returns their folder."""
    folder = out or HERE.parents[1] / ".cache/fakenvml"
    subprocess.run(["make", "-s", "-C", HERE, f"OUT={folder}"], check=True)
    return folder


class FakeMachine:
    """One machine in a folder.

    Attributes:
        library: to load as NVML.
        root: stands for the host's ``/``: sys, dev and proc of the driver.
        state: the shared file; FAKENVML_STATE must name it in every process that loads the library.
    """

    def __init__(self, hardware: str, folder: Path, *, node_name: str = "node-1") -> None:
        built = build()
        self.library = built / "libnvidia-ml.so.1"
        self.root = folder / "root"
        self.state = folder / "state"
        self._program = built / "fakenvml-ctl"
        self.inventory = build_inventory(load_hardware(hardware), node_name=node_name)
        folder.mkdir(parents=True, exist_ok=True)
        description = folder / "machine.json"
        description.write_text(json.dumps(describe(self.inventory.gpus), indent=1))
        self.ctl("init", description)
        write_host(self.inventory.gpus, self.root)
        _link_to_itself(self.root)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to see this machine."""
        return {"FAKENVML_STATE": str(self.state), "GPUDRA_NVML_LIBRARY": str(self.library)}

    def ctl(self, *words: object) -> str:
        """Runs the control program; see ctl.c for its commands."""
        command = [str(self._program), str(self.state), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def dump(self) -> dict[str, Any]:
        """What exists now."""
        return json.loads(self.ctl("dump"))  # type: ignore[no-any-return]


def describe(gpus: Iterable[Gpu]) -> dict[str, Any]:
    """The JSON that the control program's ``init`` reads (load.c)."""
    cards = [_card(gpu) for gpu in gpus]
    first = next(iter(gpus))
    return {"driverVersion": first.driver_version, "cudaVersion": first.cuda_version, "gpus": cards}


def _card(gpu: Gpu) -> dict[str, Any]:
    assert gpu.pci is not None
    major, minor = gpu.compute_capability or (0, 0)
    return {
        "uuid": gpu.uuid,
        "name": gpu.product_name or "",
        "serial": gpu.serial or "",
        "minor": gpu.minor,
        "brand": _BRANDS.get(gpu.brand or "", 0),
        "architecture": _ARCHITECTURES.get(gpu.architecture or "", 0xFFFF),
        "ccMajor": major,
        "ccMinor": minor,
        "memoryBytes": gpu.memory_bytes,
        "addressingMode": _ADDRESSING.get(gpu.addressing_mode or "", 255),
        "busId": gpu.pci.bus_id,
        "pciDeviceId": (gpu.pci.device_id or 0) << 16 | (gpu.pci.vendor_id or 0),
        "pciSubsystemId": gpu.pci.subsystem_id or 0,
        "numaNode": -1 if gpu.numa_node is None else gpu.numa_node,
        "links": [
            {
                "active": link.active,
                "version": link.version,
                "remoteType": _PEERS[link.peer],
                "remoteBusId": link.peer_bus_id,
            }
            for link in gpu.nvlinks
        ],
        "fabric": gpu.fabric
        and {
            "clusterUuid": (gpu.fabric.cluster_uuid or "").replace("-", ""),
            "clique": gpu.fabric.clique_id,
            "state": _FABRIC[gpu.fabric.state],
            "status": gpu.fabric.status or 0,
        },
        "mig": gpu.mig and _mig(gpu, gpu.mig),
    }


def _engines(gpu: Gpu, mig: MigInfo) -> dict[str, int]:
    """The card's totals; an engine that the board does not state is what the widest profile has."""

    def total(name: str) -> int:
        stated = getattr(gpu.engines, name)
        widest = max((getattr(one.engines, name) or 0 for one in mig.profiles), default=0)
        return stated if stated is not None else widest

    return {
        "sm": total("multiprocessors"),
        "ce": total("copy_engines"),
        "dec": total("decoders"),
        "enc": total("encoders"),
        "jpeg": total("jpeg_engines"),
        "ofa": total("ofa_engines"),
    }


def _mig(gpu: Gpu, mig: MigInfo) -> dict[str, Any]:
    return {
        "enabled": mig.enabled,
        "needsReset": mig.needs_reset,
        "computeSlices": mig.compute_slices,
        "memorySlices": mig.memory_slices,
        **_engines(gpu, mig),
        "profiles": [_profile(one, mig) for one in mig.profiles],
    }


def _query(profile: MigProfile, mig: MigInfo) -> int:
    if profile.name.endswith("+me"):
        return _MEDIA_QUERIES[profile.compute_slices]
    narrower = [
        one
        for one in mig.profiles
        if one.compute_slices == profile.compute_slices
        and not one.name.endswith("+me")
        and (one.memory_bytes or 0) < (profile.memory_bytes or 0)
    ]
    return _DOUBLE_MEMORY_QUERY if narrower else _QUERIES[profile.compute_slices]


def _profile(profile: MigProfile, mig: MigInfo) -> dict[str, Any]:
    engines = profile.engines
    return {
        "query": _query(profile, mig),
        "id": profile.id,
        "name": f"MIG {profile.name}",
        "slices": profile.compute_slices,
        "instances": profile.max_instances,
        "memoryMb": (profile.memory_bytes or 0) // MIB,
        "sm": engines.multiprocessors or 0,
        "ce": engines.copy_engines or 0,
        "dec": engines.decoders or 0,
        "enc": engines.encoders or 0,
        "jpeg": engines.jpeg_engines or 0,
        "ofa": engines.ofa_engines or 0,
        "placements": [{"start": at.start, "size": at.size} for at in profile.placements],
    }


# --- the host around the cards -----------------------------------------------------------------


def write_host(gpus: Iterable[Gpu], root: Path) -> None:
    """Sysfs' PCI tree, the driver's device nodes, and the capability files of MIG, below ``root``."""
    shutil.rmtree(root, ignore_errors=True)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        _touch(root / "dev" / name)
    for gpu in gpus:
        _write_pci(gpu, root / "sys/devices", devices)
        _touch(root / "dev" / f"nvidia{gpu.minor}")
        if gpu.mig is not None:
            _write_capabilities(gpu.minor or 0, root)


def _write_pci(gpu: Gpu, tree: Path, devices: Path) -> None:
    assert gpu.pci is not None
    folder = tree / (gpu.pci.root or "pci0000:00")
    for address in (*(gpu.pci.bridges or ()), gpu.pci.bus_id):
        folder = folder / address
        folder.mkdir(parents=True, exist_ok=True)
        link = devices / address
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(folder, devices))
    numa = -1 if gpu.numa_node is None else gpu.numa_node
    (folder / "numa_node").write_text(f"{numa}\n")
    (folder / "vendor").write_text(f"{gpu.pci.vendor_id or 0:#06x}\n")
    (folder / "device").write_text(f"{gpu.pci.device_id or 0:#06x}\n")
    (folder / "class").write_text("0x030200\n")


def _write_capabilities(minor: int, root: Path) -> None:
    """The driver makes these as instances come; having all of them from the start does no harm."""
    for what, cap in (("config", 1), ("monitor", 2)):
        _write_capability(root, f"mig/{what}", cap)
    for number, gi in enumerate(_GI_IDS):
        cap = 3 + (minor * len(_GI_IDS) + number) * 2
        base = f"gpu{minor}/mig/gi{gi}"
        _write_capability(root, f"{base}/access", cap)
        _write_capability(root, f"{base}/ci0/access", cap + 1)


def _write_capability(root: Path, name: str, minor: int) -> None:
    path = root / "proc/driver/nvidia/capabilities" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    _touch(root / f"dev/nvidia-caps/nvidia-cap{minor}")


def _link_to_itself(root: Path) -> None:
    """Lets ``root`` be the host's root and the driver's root at once.

    A process that takes it for ``/`` finds the driver at the path by which everybody knows it.
    """
    inside = root / str(root.absolute()).lstrip("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.symlink_to(root.absolute())


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


if __name__ == "__main__":
    machine = FakeMachine(sys.argv[1], Path(sys.argv[2]).resolve())
    for variable, text in machine.environment.items():
        print(f"export {variable}={text}")
    print(f"export GPUDRA_HOST_ROOT={machine.root}")
