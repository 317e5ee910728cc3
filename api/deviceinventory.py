# SPDX-License-Identifier: Apache-2.0
"""The kind ``DeviceInventory``: cards that no library of ours can read, as an admin declares them.

With ``--device-lib declared --hardware FILE`` any accelerator comes under the same classes and
claims. Read by gpudra.driver.devicelib.declared; described for people in docs/vendors.md.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from gpudra.api.errors import InputError
from gpudra.api.names import check_dns_label
from gpudra.api.quantity import Quantity
from gpudra.api.semver import Semver

API_VERSION = "gpudra.io/v1alpha1"
KIND = "DeviceInventory"
MAX_DEVICES = 64

_BUS_ID = r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$"
_PATH = r"^/[^\x00]*$"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Said by the driver about every device; a declaration that says otherwise would lie.
_RESERVED = frozenset({"type", "vendor", "uuid", "parentUUID", "index"})


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        arbitrary_types_allowed=True,
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=False,
    )


def _quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return value
    try:
        amount = Quantity.parse(value)
    except InputError as error:
        raise ValueError(str(error)) from error
    if amount.sign() < 0:
        raise ValueError(f"{value!r} is negative")
    return amount


def _positive(value: object) -> object:
    amount = _quantity(value)
    if isinstance(amount, Quantity) and amount.sign() == 0:
        raise ValueError(f"{value!r} is not positive")
    return amount


def _version(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return Semver.parse(value)
    except InputError as error:
        raise ValueError(str(error)) from error


def _label(value: object) -> object:
    if isinstance(value, str):
        try:
            check_dns_label(value, "name")
        except InputError as error:
            raise ValueError(error.what) from error
    return value


Amount = Annotated[Quantity, BeforeValidator(_quantity)]
PositiveAmount = Annotated[Quantity, BeforeValidator(_positive)]
AbsolutePath = Annotated[str, Field(pattern=_PATH, max_length=4096)]
Name = Annotated[str, BeforeValidator(_label)]


class VersionValue(_Model):
    """An attribute that is a semantic version: ``{version: 1.2.3}``."""

    version: Annotated[Semver, BeforeValidator(_version)]


AttributeText = Annotated[str, Field(min_length=1, max_length=64)]
AttributeSpec = bool | int | AttributeText | VersionValue


class DeviceNodeSpec(_Model):
    """A device file of a container."""

    path: AbsolutePath
    host_path: AbsolutePath | None = None
    permissions: Annotated[str, Field(pattern=r"^r?w?m?$")] = "rw"


class MountSpec(_Model):
    """A file or folder of the host."""

    host_path: AbsolutePath
    container_path: AbsolutePath | None = None
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "rbind", "rprivate")


def _node(value: object) -> object:
    """A path alone will do."""
    return {"path": value} if isinstance(value, str) else value


DeviceNodes = tuple[Annotated[DeviceNodeSpec, BeforeValidator(_node)], ...]


class EditsSpec(_Model):
    """What a container needs."""

    env: Mapping[str, str] = Field(default_factory=dict)
    device_nodes: DeviceNodes = ()
    mounts: tuple[MountSpec, ...] = ()

    @model_validator(mode="after")
    def _names(self) -> Self:
        wrong = [name for name in self.env if not _ENV.fullmatch(name)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no name of a variable")
        return self


class PciSpec(_Model):
    """Where the card sits; bridges, root and NUMA node are read from sysfs."""

    bus_id: Annotated[str, Field(pattern=_BUS_ID)]


class DeviceSpec(EditsSpec):
    """One card.

    Attributes:
        name: of the device; unique on the node, and the same for ever.
        uuid: where the card has one; then the device is named after it.
        link_domain: cards of one node that say the same reach each other over the vendor's
            interconnect; becomes ``nvlinkDomain``.
    """

    name: Name
    uuid: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    product_name: AttributeText | None = None
    architecture: AttributeText | None = None
    memory: PositiveAmount | None = None
    numa_node: Annotated[int, Field(ge=0, lt=1024)] | None = None
    pci: PciSpec | None = None
    link_domain: AttributeText | None = None
    attributes: Mapping[str, AttributeSpec] = Field(default_factory=dict)
    capacity: Mapping[str, Amount] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _words(self) -> Self:
        for name in (*self.attributes, *self.capacity):
            if not _IDENTIFIER.fullmatch(name):
                raise ValueError(f"{name!r} is no name of an attribute or capacity")
        reserved = sorted(_RESERVED & self.attributes.keys())
        if reserved:
            raise ValueError(f"attribute {reserved[0]} is not for declaring")
        if "memory" in self.capacity:
            raise ValueError("capacity memory is the field memory")
        return self


class DriverSpec(_Model):
    """The vendor's driver.

    Attributes:
        version: as the vendor writes it.
        ready_files: the node counts as ready when all of these exist.
    """

    version: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    ready_files: tuple[AbsolutePath, ...] = ()


class InventorySpec(_Model):
    """All cards of a node."""

    vendor: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    driver: DriverSpec = Field(default_factory=DriverSpec)
    common: EditsSpec = Field(default_factory=EditsSpec)
    devices: Annotated[tuple[DeviceSpec, ...], Field(min_length=1, max_length=MAX_DEVICES)]


class MetadataSpec(_Model):
    """Name of the declaration, for messages."""

    name: Annotated[str, Field(min_length=1)]


class DeviceInventory(_Model):
    """The document."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["DeviceInventory"]
    metadata: MetadataSpec
    spec: InventorySpec
