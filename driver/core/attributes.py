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
from gpudra.api.resource_v1 import CapacityRange, CapacityRequestPolicy, DeviceCapacity
from gpudra.api.semver import Semver
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.forms import ONE
from gpudra.driver.core.topology import Topology

STANDARD = "resource.kubernetes.io"
PCIE_ROOT = f"{STANDARD}/pcieRoot"
PCI_BUS_ID = f"{STANDARD}/pciBusID"
NUMA_NODE = f"{STANDARD}/numaNode"
_MAX_NUMA_NODE = 1024  # KEP-6072: ids below 1024, never -1

EVERY = frozenset(DeviceKind)
CARDS = frozenset({DeviceKind.WHOLE, DeviceKind.SHARE, DeviceKind.MONITOR})
PARTS = frozenset({DeviceKind.MIG})
SHARES = frozenset({DeviceKind.SHARE})
_MIB = 1024 * 1024

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
    """One row of the table of capacities; ``read`` gives None where the device has none."""

    name: str
    kinds: frozenset[DeviceKind]
    when: str
    example: str
    since: str
    read: Callable[[AllocatableDevice], DeviceCapacity | None]


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


def _uuid(device: AllocatableDevice, _: Topology) -> str | None:
    if device.kind is DeviceKind.MIG:
        return _text(device.instance.uuid) if device.instance else None
    return _text(device.gpu.uuid)


def _oversubscription(device: AllocatableDevice, _: Topology) -> str | None:
    factor = device.memory_oversubscription
    return f"{factor.normalize():f}" if factor > ONE else None


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
        "the card has one; on a MIG device that of its instance, which one that is made on demand does not have yet",
        "GPU-2f9d6f9e-5a9c-5d0e-9f0c-6c1a2b3c4d5e",
        _uuid,
    ),
    _row(
        "parentUUID",
        "string",
        "the card has a uuid; that of the card of which the device is a part",
        "GPU-2f9d6f9e-5a9c-5d0e-9f0c-6c1a2b3c4d5e",
        lambda device, _: _text(device.gpu.uuid),
        kinds=PARTS,
    ),
    _row(
        "profile",
        "string",
        "always",
        "1g.10gb+me",
        lambda device, _: _text(device.profile.name) if device.profile else None,
        kinds=PARTS,
    ),
    _row(
        "profileId",
        "int",
        "always; the driver's number, since two profiles may have one name",
        "20",
        lambda device, _: device.profile.id if device.profile else None,
        kinds=PARTS,
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
        "isolation",
        "string",
        "always; parts of a card are kept apart by the hardware",
        "mig",
        lambda _device, _topology: "mig",
        kinds=PARTS,
    ),
    _row(
        "memoryOversubscription",
        "string",
        "the node's policy lets shares together reserve so many times the card's memory",
        "1.5",
        _oversubscription,
        kinds=SHARES,
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
        kinds=CARDS,
    ),
    _row(
        "nvlinkIsland",
        "string",
        "the card is in a set in which every card reaches every other in one hop",
        "4f1d0c2b9a8e7d66",
        lambda device, topology: topology.islands.get(device.gpu.key),
        kinds=CARDS,
    ),
    _row(
        "nvlinkPair",
        "string",
        "an NVLink bridge joins the card to exactly one other",
        "4f1d0c2b9a8e7d66",
        lambda device, topology: topology.pairs.get(device.gpu.key),
        kinds=CARDS,
    ),
    _row(
        "fabricCluster",
        "string",
        "the card is registered in a multi-node NVLink fabric",
        "a1b2c3d4-0000-4000-8000-00000000c001",
        _fabric_cluster,
        kinds=CARDS,
    ),
    _row(
        "fabricClique",
        "int",
        "the card is registered in a multi-node NVLink fabric",
        "4026",
        _fabric_clique,
        kinds=CARDS,
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

_SHARE_COMPUTE = DeviceCapacity(
    value=Quantity.of(100),
    request_policy=CapacityRequestPolicy(
        default=Quantity.of(0),
        valid_range=CapacityRange(min=Quantity.of(0), step=Quantity.of(1)),
    ),
)


def _memory(device: AllocatableDevice) -> DeviceCapacity | None:
    """Of the card; of a part that of its profile."""
    part = device.kind is DeviceKind.MIG
    source = device.profile if part else device.gpu
    size = source.memory_bytes if source else None
    return DeviceCapacity(value=Quantity.bytes(size)) if size else None


def _share_memory(device: AllocatableDevice) -> DeviceCapacity | None:
    """Rounded down to MiB; a claim that asks for nothing gets the whole card's.

    With oversubscription there is more to reserve than the card has, but not for one claim.
    """
    size = (device.gpu.memory_bytes or 0) // _MIB
    if not size:
        return None
    total = int(size * device.memory_oversubscription)
    card = Quantity.bytes(size * _MIB)
    return DeviceCapacity(
        value=Quantity.bytes(total * _MIB),
        request_policy=CapacityRequestPolicy(
            default=card,
            valid_range=CapacityRange(
                min=Quantity.bytes(_MIB),
                max=card if total > size else None,
                step=Quantity.bytes(_MIB),
            ),
        ),
    )


def _engine(field: str) -> Callable[[AllocatableDevice], DeviceCapacity | None]:
    def read(device: AllocatableDevice) -> DeviceCapacity | None:
        amount = getattr(device.profile.engines, field) if device.profile else None
        return None if amount is None else DeviceCapacity(value=Quantity.of(amount))

    return read


def _engine_row(name: str, field: str, example: str) -> CapacitySpec:
    return CapacitySpec(
        name=name,
        kinds=PARTS,
        when="the driver tells it",
        example=example,
        since="0.1",
        read=_engine(field),
    )


CAPACITIES: tuple[CapacitySpec, ...] = (
    CapacitySpec(
        name="memory",
        kinds=frozenset({DeviceKind.WHOLE, DeviceKind.MIG}),
        when="the card tells it",
        example="81559Mi",
        since="0.1",
        read=_memory,
    ),
    CapacitySpec(
        name="memory",
        kinds=SHARES,
        when="the card tells it; whole MiB are reserved, everything if the claim does not say",
        example="81559Mi",
        since="0.1",
        read=_share_memory,
    ),
    CapacitySpec(
        name="compute",
        kinds=SHARES,
        when="always; percent points are reserved, none if the claim does not say",
        example="100",
        since="0.1",
        read=lambda _: _SHARE_COMPUTE,
    ),
    _engine_row("multiprocessors", "multiprocessors", "16"),
    _engine_row("copyEngines", "copy_engines", "1"),
    _engine_row("decoders", "decoders", "1"),
    _engine_row("encoders", "encoders", "0"),
    _engine_row("jpegEngines", "jpeg_engines", "1"),
    _engine_row("ofaEngines", "ofa_engines", "0"),
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
    """All capacities of a device; those of its declaration belong to the whole card."""
    values: dict[str, DeviceCapacity] = {}
    for spec in CAPACITIES:
        if device.kind in spec.kinds:
            amount = spec.read(device)
            if amount is not None:
                values[spec.name] = amount
    if device.kind is DeviceKind.WHOLE:
        for name, declared in device.gpu.capacity.items():
            values[name] = DeviceCapacity(value=declared)
    return values
