# SPDX-License-Identifier: Apache-2.0
"""What the hardware of one node said, as plain frozen values.

Backends in gpudra.driver.devicelib fill an Inventory; everything in gpudra.driver.core reads it.
Every reading is optional: ``None`` means that the card did not answer that question, and costs
the attribute that is made of it, nothing else. A reading that went wrong in a way that an admin
should know of is listed in ``Inventory.problems``.

Sizes are bytes, PCI addresses are ``dddd:bb:dd.f`` in lower case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from gpudra.api.attributes import AttributeValue
from gpudra.api.quantity import Quantity

NVIDIA = "nvidia"
_NOTHING: Mapping[str, AttributeValue] = MappingProxyType({})
_NO_CAPACITY: Mapping[str, Quantity] = MappingProxyType({})


class LinkPeer(StrEnum):
    """What is at the other end of an NVLink (``nvmlDeviceGetNvLinkRemoteDeviceType``)."""

    GPU = "gpu"
    SWITCH = "switch"
    CPU = "cpu"
    UNKNOWN = "unknown"


class FabricState(StrEnum):
    """How far the registration with the fabric manager got (``nvmlGpuFabricState_t``)."""

    NOT_SUPPORTED = "notSupported"
    NOT_STARTED = "notStarted"
    IN_PROGRESS = "inProgress"
    COMPLETED = "completed"


class RecoveryAction(StrEnum):
    """What the driver says must be done about a card (NVML field 230)."""

    NONE = "none"
    GPU_RESET = "gpuReset"
    NODE_REBOOT = "nodeReboot"
    DRAIN_P2P = "drainP2P"
    DRAIN_AND_RESET = "drainAndReset"
    RECOVER_IMEX_DOMAIN = "recoverImexDomain"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciInfo:
    """Where a card sits.

    Attributes:
        bus_id: the card itself.
        bridges: the bridges above it from the root port down, as sysfs nests them: root port,
            then upstream and downstream port of each switch. None: the tree could not be read.
        root: ``pci0000:15``, the root complex as sysfs names it.
        vendor_id: for example 0x10de.
        device_id: for example 0x2330.
        subsystem_id: subsystem device and vendor as NVML packs them.
    """

    bus_id: str
    bridges: tuple[str, ...] | None = None
    root: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    subsystem_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """One NVLink of a card; ``peer_bus_id`` is a GPU's or an NVSwitch's address."""

    index: int
    active: bool
    peer: LinkPeer = LinkPeer.UNKNOWN
    peer_bus_id: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricInfo:
    """Multi-node NVLink registration. ``status`` is 0 (success) or an NVML error code."""

    state: FabricState
    status: int | None = None
    cluster_uuid: str | None = None
    clique_id: int | None = None
    health_mask: int | None = None

    @property
    def usable(self) -> bool:
        """Whether cluster and clique mean something: completed, successful, cluster not zero."""
        return (
            self.state is FabricState.COMPLETED
            and self.status == 0
            and bool(self.cluster_uuid)
            and bool((self.cluster_uuid or "").strip("0-"))
            and self.clique_id is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Placement:
    """Where an instance lies: ``size`` memory slices from ``start``."""

    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What a MIG instance, or a whole card, has to compute with. None: not told."""

    multiprocessors: int | None = None
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One kind of GPU instance that a card offers.

    Attributes:
        id: the driver's profile id; profiles are told apart by it, never by name.
        name: ``1g.10gb+me``.
        compute_slices: of the card's ``MigInfo.compute_slices``.
        memory_bytes: of one instance.
        engines: of one instance.
        max_instances: how many fit an empty card.
        placements: every legal place, ascending.
    """

    id: int
    name: str
    compute_slices: int
    memory_bytes: int | None = None
    engines: Engines = field(default_factory=Engines)
    max_instances: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A GPU instance with its (one) compute instance, as it exists now."""

    uuid: str | None
    profile_id: int
    gpu_instance_id: int
    compute_instance_id: int | None
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInfo:
    """MIG of one card. A card without MIG has none of this.

    Attributes:
        enabled: the mode now.
        pending: the mode after the next reset.
        needs_reset: switching the mode takes a reset of the card (Ampere).
        compute_slices: 7 on big boards, 4 on A30.
        memory_slices: 8 on big boards, 4 on A30.
        profiles: ascending by id; empty where the card offers none.
        instances: None where they could not be read.
    """

    enabled: bool
    pending: bool | None = None
    needs_reset: bool = False
    compute_slices: int = 0
    memory_slices: int = 0
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[MigInstance, ...] | None = ()

    def profile(self, profile_id: int) -> MigProfile | None:
        """The profile of that id."""
        return next((one for one in self.profiles if one.id == profile_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReadings:
    """What a card says about itself; the events come through HealthLib.

    Attributes:
        missing_files: device files that a container would need and that are not there.
    """

    recovery_action: RecoveryAction | None = None
    ecc_enabled: bool | None = None
    uncorrected_ecc: int | None = None
    remap_pending: bool | None = None
    missing_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card.

    Attributes:
        uuid: as the driver writes it (``GPU-…``); None for cards that have none.
        declared_name: device name from the declaration, for cards without uuid.
        vendor: ``nvidia``, ``amd``, …
        index: place in the driver's list at this moment; not an identity.
        minor: number of ``/dev/nvidia<minor>``.
        driver_version: text as the driver gives it, ``595.58.03``.
        cuda_version: 1000 * major + 10 * minor, as NVML packs it.
        compute_capability: (9, 0).
        memory_bytes: None where the driver does not tell (unified memory).
        unified_memory: the card shares the host's memory and has none of its own.
        numa_node: None where there is none or the kernel says -1.
        lost: the card was there and does not answer any more; its other readings are the last
            ones known.
        attributes: further attributes of declared cards, by unqualified or qualified name.
        capacity: further capacities of declared cards.
    """

    uuid: str | None = None
    declared_name: str | None = None
    vendor: str = NVIDIA
    index: int | None = None
    minor: int | None = None
    product_name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    serial: str | None = None
    driver_version: str | None = None
    cuda_version: int | None = None
    compute_capability: tuple[int, int] | None = None
    addressing_mode: str | None = None
    memory_bytes: int | None = None
    unified_memory: bool | None = None
    engines: Engines = field(default_factory=Engines)
    pci: PciInfo | None = None
    numa_node: int | None = None
    nvlinks: tuple[NvLink, ...] = ()
    fabric: FabricInfo | None = None
    mig: MigInfo | None = None
    health: HealthReadings = field(default_factory=HealthReadings)
    lost: bool = False
    attributes: Mapping[str, AttributeValue] = field(default_factory=lambda: _NOTHING)
    capacity: Mapping[str, Quantity] = field(default_factory=lambda: _NO_CAPACITY)

    @property
    def key(self) -> str:
        """The identity of the card: its uuid, else its declared name, else its address."""
        address = self.pci.bus_id if self.pci else ""
        return self.uuid or self.declared_name or address


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProblem:
    """A reading that failed in a way worth a warning (NotSupported is not).

    Attributes:
        gpu: key or address of the card; empty for the node as a whole.
        reading: what was asked, ``productName``.
        message: what came instead.
    """

    gpu: str
    reading: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All cards of one node, in the order of the backend, and what went wrong reading them."""

    gpus: tuple[Gpu, ...] = ()
    problems: tuple[ReadingProblem, ...] = ()

    def gpu(self, key: str) -> Gpu | None:
        """The card of that key (uuid or declared name)."""
        return next((gpu for gpu in self.gpus if gpu.key == key), None)
