# SPDX-License-Identifier: Apache-2.0
"""Attributes and capacities of devices: one table, from which the slices and the docs are made.

Names without a domain belong to the driver that publishes them (``gpu.gpudra.io`` by default);
claims write ``device.attributes["gpu.gpudra.io"].productName``. ``resource.kubernetes.io/…`` are
the standard ones of ``k8s.io/dynamic-resource-allocation/deviceattribute``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpudra.api.attributes import AttributeValue
from gpudra.api.errors import InputError
from gpudra.api.names import MAX_ATTRIBUTE_VALUE_LENGTH
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import DeviceCapacity
from gpudra.api.semver import Semver
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.topology import Topology

STANDARD = "resource.kubernetes.io"
PCIE_ROOT = f"{STANDARD}/pcieRoot"
PCI_BUS_ID = f"{STANDARD}/pciBusID"
NUMA_NODE = f"{STANDARD}/numaNode"
_MAX_NUMA_NODE = 1024  # KEP-6072: ids below 1024, never -1

EVERY = frozenset(DeviceKind)
CARDS = frozenset({DeviceKind.WHOLE, DeviceKind.SHARE, DeviceKind.MONITOR})

Read = Callable[[AllocatableDevice, Topology], AttributeValue | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeSpec:
    """One row of the table.

    Attributes:
        name: as published.
        type: ``string``, ``int``, ``bool`` or ``version``.
        kinds: the forms of device that carry it.
        when: in words, when it is there.
        example: a value, as text.
        since: first version of gpudra that publishes it.
        read: the value for a device; None leaves the attribute out.
    """

    name: str
    type: str
    kinds: frozenset[DeviceKind]
    when: str
    example: str
    since: str
    read: Read


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySpec:
    """One row of the table of capacities."""

    name: str
    kinds: frozenset[DeviceKind]
    when: str
    example: str
    since: str
    read: Callable[[AllocatableDevice], Quantity | None]


def _text(value: str | None) -> str | None:
    """Cut to what the API takes (64 bytes), never inside a character; empty means not known."""
    if not value:
        return None
    return value.encode()[:MAX_ATTRIBUTE_VALUE_LENGTH].decode(errors="ignore")


def version_of(text: str | None) -> Semver | None:
    """A driver's version text as a semantic version.

    NVIDIA writes ``595.58.03`` (leading zero), others write two or four numbers. The first three
    count; what is missing is 0. The text itself goes into driverVersionFull.
    """
    if not text:
        return None
    try:
        return Semver.normalize(".".join(text.strip().split(".")[:3]))
    except InputError:
        return None


def _cuda_version(packed: int | None) -> Semver | None:
    if packed is None or packed < 0:
        return None
    return Semver.normalize(f"{packed // 1000}.{packed % 1000 // 10}.0")


def _capability(device: AllocatableDevice, _: Topology) -> Semver | None:
    pair = device.gpu.compute_capability
    return Semver.normalize(f"{pair[0]}.{pair[1]}.0") if pair else None


def _numa_node(device: AllocatableDevice, _: Topology) -> int | None:
    node = device.gpu.numa_node
    return node if node is not None and 0 <= node < _MAX_NUMA_NODE else None


def _mig_capable(device: AllocatableDevice, _: Topology) -> bool:
    return device.gpu.mig is not None and bool(device.gpu.mig.profiles)


def _fabric_cluster(device: AllocatableDevice, _: Topology) -> str | None:
    fabric = device.gpu.fabric
    return fabric.cluster_uuid if fabric and fabric.usable else None


def _fabric_clique(device: AllocatableDevice, _: Topology) -> int | None:
    fabric = device.gpu.fabric
    return fabric.clique_id if fabric and fabric.usable else None


def _row(
    name: str,
    type_: str,
    when: str,
    example: str,
    read: Read,
    *,
    kinds: frozenset[DeviceKind] = EVERY,
    since: str = "0.1",
) -> AttributeSpec:
    return AttributeSpec(
        name=name, type=type_, kinds=kinds, when=when, example=example, since=since, read=read
    )


ATTRIBUTES: tuple[AttributeSpec, ...] = (
    _row("type", "string", "always", "gpu", lambda device, _: str(device.kind)),
    _row(
        "uuid",
        "string",
        "the card has one",
        "GPU-2f9d6f9e-5a9c-5d0e-9f0c-6c1a2b3c4d5e",
        lambda device, _: _text(device.gpu.uuid),
        kinds=CARDS,
    ),
    _row(
        "index",
        "int",
        "the driver numbers its cards; changes when cards come and go, so never an identity",
        "0",
        lambda device, _: device.gpu.index,
    ),
    _row(
        "productName",
        "string",
        "the card tells it",
        "NVIDIA H100 80GB HBM3",
        lambda device, _: _text(device.gpu.product_name),
    ),
    _row(
        "brand", "string", "the card tells it", "Nvidia", lambda device, _: _text(device.gpu.brand)
    ),
    _row(
        "architecture",
        "string",
        "the card tells it",
        "Hopper",
        lambda device, _: _text(device.gpu.architecture),
    ),
    _row("vendor", "string", "always", "nvidia", lambda device, _: _text(device.gpu.vendor)),
    _row("cudaComputeCapability", "version", "the card tells it", "9.0.0", _capability),
    _row(
        "driverVersion",
        "version",
        "the driver tells it; the first three numbers, without leading zeros",
        "595.58.3",
        lambda device, _: version_of(device.gpu.driver_version),
    ),
    _row(
        "driverVersionFull",
        "string",
        "the driver tells it; the text as it is",
        "595.58.03",
        lambda device, _: _text(device.gpu.driver_version),
    ),
    _row(
        "cudaDriverVersion",
        "version",
        "the driver tells it",
        "13.2.0",
        lambda device, _: _cuda_version(device.gpu.cuda_version),
    ),
    _row(
        "migCapable",
        "bool",
        "always; true where the card offers MIG profiles",
        "true",
        _mig_capable,
        kinds=frozenset({DeviceKind.WHOLE}),
    ),
    _row(
        "unifiedMemory",
        "bool",
        "the card shares the host's memory and reports none of its own",
        "true",
        lambda device, _: device.gpu.unified_memory or None,
    ),
    _row(
        "addressingMode",
        "string",
        "the driver tells it",
        "ATS",
        lambda device, _: _text(device.gpu.addressing_mode),
    ),
    _row(
        "pcieSwitch",
        "string",
        "the card is behind a PCIe switch; address of the upstream port of the nearest one that it shares with another card, else of the nearest",
        "0000:16:00.0",
        lambda device, topology: topology.switches.get(device.gpu.key),
    ),
    _row(
        "nvlinkDomain",
        "string",
        "NVLink reaches another card; one text for all that reach each other",
        "4f1d0c2b9a8e7d66",
        lambda device, topology: topology.domains.get(device.gpu.key),
    ),
    _row(
        "nvlinkIsland",
        "string",
        "the card is in a set in which every card reaches every other in one hop",
        "4f1d0c2b9a8e7d66",
        lambda device, topology: topology.islands.get(device.gpu.key),
    ),
    _row(
        "nvlinkPair",
        "string",
        "an NVLink bridge joins the card to exactly one other",
        "4f1d0c2b9a8e7d66",
        lambda device, topology: topology.pairs.get(device.gpu.key),
    ),
    _row(
        "fabricCluster",
        "string",
        "the card is registered in a multi-node NVLink fabric",
        "a1b2c3d4-0000-4000-8000-00000000c001",
        _fabric_cluster,
    ),
    _row(
        "fabricClique",
        "int",
        "the card is registered in a multi-node NVLink fabric",
        "4026",
        _fabric_clique,
    ),
    _row(
        PCI_BUS_ID,
        "string",
        "the card has a PCI address",
        "0000:1b:00.0",
        lambda device, _: device.gpu.pci.bus_id if device.gpu.pci else None,
    ),
    _row(
        PCIE_ROOT,
        "string",
        "the PCIe tree can be read",
        "pci0000:15",
        lambda device, _: device.gpu.pci.root if device.gpu.pci else None,
    ),
    _row(NUMA_NODE, "int", "the kernel knows it (not -1)", "0", _numa_node),
)

CAPACITIES: tuple[CapacitySpec, ...] = (
    CapacitySpec(
        name="memory",
        kinds=frozenset({DeviceKind.WHOLE}),
        when="the card tells it",
        example="81559Mi",
        since="0.1",
        read=lambda device: (
            Quantity.bytes(device.gpu.memory_bytes) if device.gpu.memory_bytes else None
        ),
    ),
)


def device_attributes(device: AllocatableDevice, topology: Topology) -> dict[str, AttributeValue]:
    """All attributes of a device. Those that the declaration of a card adds come last and win."""
    values: dict[str, AttributeValue] = {}
    for spec in ATTRIBUTES:
        if device.kind in spec.kinds:
            value = spec.read(device, topology)
            if value is not None:
                values[spec.name] = value
    return {**values, **device.gpu.attributes}


def device_capacity(device: AllocatableDevice) -> dict[str, DeviceCapacity]:
    """All capacities of a device."""
    values: dict[str, DeviceCapacity] = {}
    for spec in CAPACITIES:
        if device.kind in spec.kinds:
            amount = spec.read(device)
            if amount is not None:
                values[spec.name] = DeviceCapacity(value=amount)
    for name, amount in device.gpu.capacity.items():
        values[name] = DeviceCapacity(value=amount)
    return values
