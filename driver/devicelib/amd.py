# SPDX-License-Identifier: Apache-2.0
"""AMD cards from what the amdgpu driver shows in sysfs; no library is needed.

Sources: Linux, Documentation/gpu/amdgpu (driver-misc.rst: product_name, unique_id, serial_number,
mem_info_vram_total; xgmi.rst: xgmi_hive_info; ras.rst: ras/umc_err_count) and the properties of
/sys/class/kfd/kfd/topology (drivers/gpu/drm/amd/amdkfd/kfd_topology.c).

Each PCI function is one card. Compute partitions (CPX and the like) are not told apart: a card in
such a mode is published as a whole, with the nodes of its first partition.
"""

import contextlib
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpudra.api.errors import DeviceGoneError, HardwareError, InputError
from gpudra.driver.core.edits import ContainerEdits, DeviceNode
from gpudra.driver.core.inventory import (
    Gpu,
    HealthReadings,
    Inventory,
    LinkPeer,
    NvLink,
    PciInfo,
    ReadingProblem,
)
from gpudra.driver.devicelib.pci import PciTree
from gpudra.driver.devicelib.protocol import Readiness

AMD = "amd"
_VENDOR_ID = 0x1002
# Display controllers, and processing accelerators as Instinct cards call themselves.
_CLASSES = (0x03, 0x12)
_KFD = "/dev/kfd"
_XGMI_LINK = 11  # HSA_IOLINKTYPE_XGMI
_UNCORRECTED = re.compile(r"^ue:\s*(\d+)", re.MULTILINE)
# For kernels whose product_name is empty: that of the board's FRU, which not every board has.
_PRODUCTS: Mapping[int, str] = {
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A5: "AMD Instinct MI325X",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """One GPU in the compute driver's topology."""

    number: int
    properties: Mapping[str, int]
    links: tuple[int, ...] = ()


@dataclass(slots=True)
class _Kfd:
    """All of the topology, by PCI address and by number."""

    by_address: dict[str, KfdNode] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)


class AmdLib:
    """DeviceLib on sysfs.

    Args:
        host_root: the host's root as this process sees it.
    """

    name = "amd"
    partitions = None
    tuning = None
    health = None
    usage = None

    def __init__(self, *, host_root: Path = Path("/")) -> None:
        self._host = host_root
        self._tree = PciTree(host_root)
        self._devices = host_root / "sys/bus/pci/devices"
        self._module = host_root / "sys/module/amdgpu"
        self._topology = host_root / "sys/class/kfd/kfd/topology/nodes"
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._on_bus: tuple[frozenset[str], tuple[str, ...]] = (frozenset(), ())

    def readiness(self) -> Readiness:
        """Whether amdgpu is loaded, drives cards, and the compute driver's node is there."""
        try:
            inventory = self.discover()
        except HardwareError as error:
            return Readiness(ready=False, reason="DriverMissing", message=str(error))
        if not inventory.gpus:
            on_bus = self._addresses()
            if not on_bus:
                return Readiness(ready=False, reason="NoDevices", message="the PCI bus has no card")
            text = f"amdgpu drives none of {', '.join(on_bus)}"
            return Readiness(ready=False, reason="DevicesNotBound", message=text)
        if not self._exists(_KFD):
            return Readiness(ready=False, reason="SelfTestFailed", message=f"{_KFD} does not exist")
        return Readiness(ready=True, reason="DriverReady", message=f"{len(inventory.gpus)} GPUs")

    def discover(self) -> Inventory:
        """Every card that amdgpu drives, ascending by address.

        Raises:
            HardwareError: the driver is not loaded.
        """
        if not self._module.is_dir():
            raise HardwareError(
                "the kernel module is not loaded", obj="amdgpu", hint="install AMD's driver"
            )
        version = _text(self._module / "version")
        kfd = self._read_kfd()
        problems: list[ReadingProblem] = []
        gpus: list[Gpu] = []
        nodes: dict[str, tuple[str, ...]] = {}
        for address in self._addresses():
            if not (self._devices / address / "drm").is_dir():
                text = "the card is on the bus, and amdgpu does not drive it"
                problems.append(ReadingProblem(gpu=address, reading="drm", message=text))
                continue
            gpu = self._read(len(gpus), address, kfd, version)
            nodes[gpu.key] = self._drm_nodes(address)
            gpus.append(gpu)
        self._nodes = nodes
        return Inventory(gpus=_linked(gpus, kfd, self._hives(gpus)), problems=tuple(problems))

    def fingerprint(self) -> Hashable:
        """See DeviceLib: the bus, who drives its cards, their errors and device files."""
        if not self._module.is_dir():
            raise HardwareError("the kernel module is not loaded", obj="amdgpu")
        cards = tuple(
            (
                address,
                self._drm_nodes(address),
                self._uncorrected(address),
                self._missing(self._drm_nodes(address)),
            )
            for address in self._addresses()
        )
        return (self._on_bus[0], cards)

    def common_edits(self) -> ContainerEdits:
        """The compute driver's node."""
        return self._edits((_KFD,))

    def gpu_edits(self, gpu: str) -> ContainerEdits:
        """The card's own nodes."""
        nodes = self._nodes.get(gpu)
        if nodes is None:
            raise InputError("is no card that was found here", obj=f"GPU {gpu}")
        missing = self._missing(nodes)
        if missing:
            raise DeviceGoneError(f"{', '.join(missing)} is gone", obj=f"GPU {gpu}")
        return self._edits(nodes)

    def close(self) -> None:
        """Nothing is held."""

    def _addresses(self) -> tuple[str, ...]:
        """Our cards on the bus; hundreds of files are read again only when devices came or went."""
        names = self._tree.names()
        if names != self._on_bus[0]:
            self._on_bus = (names, self._tree.addresses(_VENDOR_ID, _CLASSES))
        return self._on_bus[1]

    # --- readings -------------------------------------------------------------------------------

    def _read(self, index: int, address: str, kfd: _Kfd, version: str | None) -> Gpu:
        device = self._devices / address
        node = self._tree.node(address)
        unique = _text(device / "unique_id")
        found = kfd.by_address.get(address)
        product = _text(device / "product_name") or _PRODUCTS.get(_number(device / "device") or 0)
        errors = self._uncorrected(address)
        return Gpu(
            # Some boards have none; then the address has to do, and says so by its look.
            uuid=f"GPU-{unique.lower().removeprefix('0x')}" if unique and unique.strip("0x") else None,
            vendor=AMD,
            index=index,
            product_name=product,
            architecture=_architecture(found),
            serial=_text(device / "serial_number"),
            driver_version=version,
            memory_bytes=_number(device / "mem_info_vram_total") or None,
            pci=PciInfo(
                bus_id=address,
                bridges=node.bridges,
                root=node.root,
                vendor_id=_VENDOR_ID,
                device_id=_number(device / "device"),
                subsystem_id=_number(device / "subsystem_device"),
            ),
            numa_node=node.numa_node,
            health=HealthReadings(
                uncorrected_ecc=errors,
                ecc_enabled=None if errors is None else True,
                missing_files=self._missing(self._drm_nodes(address)),
            ),
        )  # fmt: skip

    def _uncorrected(self, address: str) -> int | None:
        match = _UNCORRECTED.search(_text(self._devices / address / "ras/umc_err_count") or "")
        return int(match[1]) if match else None

    def _hives(self, gpus: list[Gpu]) -> dict[str, str]:
        """Address → hive; cards outside any hive are absent."""
        found = {}
        for gpu in gpus:
            if gpu.pci is None:
                continue
            info = self._devices / gpu.pci.bus_id / "xgmi_hive_info"
            hive = _text(info / "xgmi_hive_id")
            if hive and hive.strip("0x"):
                found[gpu.pci.bus_id] = hive
        return found

    def _drm_nodes(self, address: str) -> tuple[str, ...]:
        """``/dev/dri/card1`` and ``/dev/dri/renderD129``."""
        try:
            names = sorted(path.name for path in (self._devices / address / "drm").iterdir())
        except OSError:
            return ()
        return tuple(f"/dev/dri/{name}" for name in names if name.startswith(("card", "renderD")))

    def _read_kfd(self) -> _Kfd:
        found = _Kfd()
        with contextlib.suppress(OSError):
            for folder in sorted(self._topology.iterdir()):
                properties = _properties(folder / "properties")
                # CPUs are nodes as well: they have no SIMD units.
                if folder.name.isdigit() and properties.get("simd_count"):
                    node = KfdNode(
                        number=int(folder.name), properties=properties, links=_xgmi_links(folder)
                    )
                    address = _kfd_address(properties)
                    found.by_address[address] = node
                    found.addresses[node.number] = address
        return found

    # --- files ----------------------------------------------------------------------------------

    def _exists(self, path: str) -> bool:
        return (self._host / path.lstrip("/")).exists()

    def _missing(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in (*nodes, _KFD) if not self._exists(path))

    def _edits(self, nodes: tuple[str, ...]) -> ContainerEdits:
        """Nodes, and the groups that own them: containers that are not root may open them so."""
        gids = []
        for path in nodes:
            with contextlib.suppress(OSError):
                gids.append((self._host / path.lstrip("/")).stat().st_gid)
        return ContainerEdits(
            device_nodes=tuple(DeviceNode(path=path) for path in nodes),
            additional_gids=tuple(dict.fromkeys(gid for gid in gids if gid)),
        )


def _linked(gpus: list[Gpu], kfd: _Kfd, hives: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The cards with their XGMI links.

    The compute driver lists links one by one; where it does not, the members of a hive reach each
    other, which is what a hive is.
    """
    found = []
    for gpu in gpus:
        address = gpu.pci.bus_id if gpu.pci else ""
        node = kfd.by_address.get(address)
        peers = (
            [kfd.addresses[number] for number in node.links if number in kfd.addresses]
            if node
            else []
        )
        if not peers and address in hives:
            peers = [
                other
                for other, hive in hives.items()
                if hive == hives[address] and other != address
            ]
        links = tuple(
            NvLink(index=number, active=True, peer=LinkPeer.GPU, peer_bus_id=peer)
            for number, peer in enumerate(sorted(peers))
        )
        found.append(replace(gpu, nvlinks=links))
    return tuple(found)  # fmt: skip


def _architecture(node: KfdNode | None) -> str | None:
    """``gfx942`` from 90402: major, minor and stepping, the last two in hexadecimal."""
    version = node.properties.get("gfx_target_version", 0) if node else 0
    if not version:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _kfd_address(properties: Mapping[str, int]) -> str:
    """``location_id`` packs bus, device and function as PCI does."""
    place = properties.get("location_id", 0)
    domain = properties.get("domain", 0)
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _xgmi_links(folder: Path) -> tuple[int, ...]:
    """Numbers of the nodes at the other ends."""
    found = []
    with contextlib.suppress(OSError):
        for link in sorted((folder / "io_links").iterdir()):
            properties = _properties(link / "properties")
            if properties.get("type") == _XGMI_LINK and "node_to" in properties:
                found.append(properties["node_to"])
    return tuple(found)


def _properties(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    found = {}
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.strip().lstrip("-").isdigit():
            found[name] = int(value)
    return found


def _text(path: Path) -> str | None:
    """A file's content; None where it is not there, cannot be read, or says nothing."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\x00 \n") or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "", 0)
    except ValueError:
        return None
