# SPDX-License-Identifier: Apache-2.0
"""The kind ``Hardware``: a node's GPUs as a file, for tests, local clusters, benches and demos.

One file describes boards (models with their MIG table), the GPUs of one node with their place in
the PCIe tree, NVLinks, fabric, and faults that happen while time goes by. Boards of the shipped
catalogue can be named without being described. Read by gpudra.driver.devicelib.simulated; as JSON
it drives the fake NVML library of the tests.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity

API_VERSION = "gpudra.io/v1alpha1"
KIND = "Hardware"
CATALOG_KIND = "HardwareCatalog"

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_PLACEMENTS = re.compile(r"(?P<starts>[0-9]+(?:[-,][0-9]+)*):(?P<size>[1-9][0-9]*)")


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
    )


def _bytes(value: object) -> object:
    """``80Gi`` or a number of bytes."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return value
    try:
        amount = Quantity.parse(value)
    except InputError as error:
        raise ValueError(str(error)) from error
    if amount.sign() <= 0 or not amount.is_integer():
        raise ValueError(f"{value!r} is not a positive whole number of bytes")
    return amount.as_integer()


def _bus_id(value: object) -> object:
    if isinstance(value, str):
        if not _BUS_ID.fullmatch(value.lower()):
            raise ValueError(f"{value!r} is not a PCI address such as 0000:1b:00.0")
        return value.lower()
    return value


Bytes = Annotated[
    int, BeforeValidator(_bytes), PlainSerializer(lambda value: str(Quantity.bytes(value)))
]
BusId = Annotated[str, BeforeValidator(_bus_id)]
Count = Annotated[int, Field(ge=0)]


class PlacementRange(_Model):
    """Places of one profile, written ``0-6:1`` or ``0,2,4:2``: starts and size in memory slices."""

    # Not strict: what the validator below hands on is a Python list, not JSON any more.
    starts: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
    size: Annotated[int, Field(ge=1)]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        found = _PLACEMENTS.fullmatch(value)
        if found is None:
            raise ValueError(f"{value!r} is not STARTS:SIZE such as 0-6:1 or 0,2,4:2")
        starts: list[int] = []
        for part in found["starts"].split(","):
            first, _, last = part.partition("-")
            starts.extend(range(int(first), int(last or first) + 1))
        return {"starts": starts, "size": int(found["size"])}


class EnginesSpec(_Model):
    """Engines of a card or of one instance. A missing one is not told by the driver."""

    multiprocessors: Count | None = None
    copy_engines: Count | None = None
    decoders: Count | None = None
    encoders: Count | None = None
    jpeg_engines: Count | None = None
    ofa_engines: Count | None = None


class MigProfileSpec(_Model):
    """One row of a MIG table (``nvidia-smi mig -lgip`` and ``-lgipp``)."""

    id: Count
    name: Annotated[str, Field(pattern=r"^[1-9]g\.[0-9]+gb([+-][a-z.]+)?$")]
    slices: Annotated[int, Field(ge=1)]
    memory: Bytes
    engines: EnginesSpec = EnginesSpec()
    max: Annotated[int, Field(ge=1)]
    placements: PlacementRange


class MigSpec(_Model):
    """MIG of a board.

    ``needs_reset``: the mode switches with a reset of the card only (Ampere).
    """

    needs_reset: bool = False
    compute_slices: Annotated[int, Field(ge=1, le=16)]
    memory_slices: Annotated[int, Field(ge=1, le=16)]
    profiles: tuple[MigProfileSpec, ...]

    @model_validator(mode="after")
    def _inside_the_card(self) -> Self:
        seen: set[int] = set()
        for profile in self.profiles:
            if profile.id in seen:
                raise ValueError(f"profile id {profile.id} comes twice")
            seen.add(profile.id)
            if profile.slices > self.compute_slices:
                raise ValueError(
                    f"profile {profile.name} has {profile.slices} compute slices,"
                    f" the card {self.compute_slices}"
                )
            for start in profile.placements.starts:
                if start + profile.placements.size > self.memory_slices:
                    raise ValueError(
                        f"placement {start}:{profile.placements.size} of {profile.name}"
                        f" is outside the card's {self.memory_slices} memory slices"
                    )
        return self


class NvLinkSpec(_Model):
    """NVLinks of a board."""

    links: Annotated[int, Field(ge=1, le=36)]  # NVML_NVLINK_MAX_LINKS
    version: Annotated[int, Field(ge=1)]


class PciIds(_Model):
    """PCI ids of a board."""

    vendor_id: Annotated[int, Field(ge=0, le=0xFFFF)]
    device_id: Annotated[int, Field(ge=0, le=0xFFFF)]
    subsystem_id: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None


class Board(_Model):
    """A model of card. Without ``memory`` the card reports none (unified memory)."""

    product_name: str
    vendor: str = "nvidia"
    brand: str | None = None
    architecture: str | None = None
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")] | None = None
    pci: PciIds
    memory: Bytes | None = None
    unified_memory: bool = False
    addressing_mode: Literal["None", "HMM", "ATS"] | None = None
    engines: EnginesSpec = EnginesSpec()
    nvlink: NvLinkSpec | None = None
    mig: MigSpec | None = None


class PciPlace(_Model):
    """Where a card sits: its address and the bridges above it, root port first.

    ``root`` is made of the first bridge's (or the card's own) bus if it is not given.
    """

    bus_id: BusId
    bridges: tuple[BusId, ...] = ()
    root: Annotated[str, Field(pattern=r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")] | None = None


class MigInstanceSpec(_Model):
    """An instance that exists when the machine starts."""

    profile: Count
    start: Count
    foreign: bool = False


class MigState(_Model):
    """MIG of one card at start."""

    enabled: bool = False
    instances: tuple[MigInstanceSpec, ...] = ()


class Reading(StrEnum):
    """Readings that a file can make fail; the names are those of the attributes."""

    INDEX = "index"
    PRODUCT_NAME = "productName"
    BRAND = "brand"
    ARCHITECTURE = "architecture"
    SERIAL = "serial"
    DRIVER_VERSION = "driverVersion"
    CUDA_DRIVER_VERSION = "cudaDriverVersion"
    CUDA_COMPUTE_CAPABILITY = "cudaComputeCapability"
    ADDRESSING_MODE = "addressingMode"
    MEMORY = "memory"
    NUMA_NODE = "numaNode"
    MIG = "mig"
    FABRIC = "fabric"


class Unreadable(StrEnum):
    """Why a reading fails."""

    NOT_SUPPORTED = "notSupported"
    NO_PERMISSION = "noPermission"
    NOT_TEXT = "notText"


class GpuSpec(_Model):
    """One card of the node.

    Attributes:
        board: of ``spec.boards`` or of the shipped catalogue.
        uuid: if it is not given it is made of the file's name, the place in the list and the name
            of the node, so that two nodes with the same profile have different cards, and one
            node always the same.
        unreadable: readings that fail, and why.
        slow_milliseconds: how long each call that concerns this card takes.
    """

    board: str
    uuid: Annotated[str, Field(min_length=1, max_length=80)] | None = None
    serial: str | None = None
    minor: Count | None = None
    pci: PciPlace
    numa_node: int | None = None
    mig: MigState = MigState()
    unreadable: Mapping[Reading, Unreadable] = Field(default_factory=dict)
    slow_milliseconds: Count = 0


class BridgeSpec(_Model):
    """A direct NVLink connection between two cards (by place in the list)."""

    between: tuple[Count, Count]
    links: Annotated[int, Field(ge=1)]


class NvLinkLayout(_Model):
    """How the cards are linked.

    ``switches`` are addresses of NVSwitches, over which each card's links are spread in turn; an
    empty list with ``switched`` true means switches outside the node (NVL72).
    """

    switched: bool = False
    switches: tuple[BusId, ...] = ()
    bridges: tuple[BridgeSpec, ...] = ()


class FabricSpec(_Model):
    """Registration with the fabric manager; ``status`` 0 is success."""

    state: Literal["notSupported", "notStarted", "inProgress", "completed"]
    status: int | None = None
    cluster_uuid: (
        Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")] | None
    ) = None
    clique_id: Count | None = None


class NumaNode(_Model):
    """A NUMA node: its CPUs (``0-55,112-167``) and distances to all nodes."""

    id: Count
    cpus: str
    distances: tuple[Count, ...] = ()


class FaultKind(StrEnum):
    """What happens to a card."""

    XID = "xid"
    ECC_UNCORRECTED = "eccUncorrected"
    LOST = "lost"
    RECOVERED = "recovered"
    UNMONITORED = "unmonitored"


class Fault(_Model):
    """Something that happens ``after_seconds`` from the start of the process that reads the file.

    RECOVERED ends the fault of that ``xid``, or all faults of the card; it also brings a lost card
    back.
    """

    gpu: Count | str
    kind: FaultKind
    xid: Count | None = None
    after_seconds: Annotated[float, Field(ge=0)] = 0.0
    gpu_instance_id: Count | None = None
    message: str = ""

    @model_validator(mode="after")
    def _xid_has_a_number(self) -> Self:
        if self.kind is FaultKind.XID and self.xid is None:
            raise ValueError("an xid fault needs the number xid")
        return self


class DriverSpec(_Model):
    """The driver of the node; it is there ``ready_after_seconds`` from the start."""

    version: str = "580.126.20"
    cuda: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]$")] = "13.0"
    root: str = "/"
    ready_after_seconds: Annotated[float, Field(ge=0)] = 0.0


class HardwareSpec(_Model):
    """A node."""

    driver: DriverSpec = DriverSpec()
    boards: Mapping[str, Board] = Field(default_factory=dict)
    gpus: tuple[GpuSpec, ...]
    nvlink: NvLinkLayout = NvLinkLayout()
    fabric: FabricSpec | None = None
    numa: tuple[NumaNode, ...] = ()
    faults: tuple[Fault, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        count = len(self.gpus)
        addresses = [gpu.pci.bus_id for gpu in self.gpus]
        uuids = [gpu.uuid for gpu in self.gpus if gpu.uuid]
        for values, what in ((addresses, "PCI address"), (uuids, "uuid")):
            double = next((value for value in values if values.count(value) > 1), None)
            if double:
                raise ValueError(f"{what} {double} belongs to two cards")
        for bridge in self.nvlink.bridges:
            if max(bridge.between) >= count or bridge.between[0] == bridge.between[1]:
                raise ValueError(f"bridge {list(bridge.between)} does not join two of the cards")
        for fault in self.faults:
            if isinstance(fault.gpu, int) and fault.gpu >= count:
                raise ValueError(f"fault of card {fault.gpu}, but there are {count} cards")
        return self


class Metadata(_Model):
    """Name of the file's content."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]


class Hardware(_Model):
    """The file."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["Hardware"]
    metadata: Metadata
    spec: HardwareSpec


class HardwareCatalog(_Model):
    """Boards that every Hardware file may name."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["HardwareCatalog"]
    boards: Mapping[str, Board]
