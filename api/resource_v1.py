# SPDX-License-Identifier: Apache-2.0
"""``resource.k8s.io/v1``: slices, devices, classes, claims, taint rules.

Shapes only; field names are those of the API in snake_case, so the API reference is the
documentation of each field. What differs from the wire:

* an attribute is a plain Python value (gpudra.api.attributes);
* defaults that the API server fills in (``allocationMode: ExactCount``, ``count: 1``) are filled
  in when read, so files and live objects read alike;
* equal strings and values share one object, since forty thousand devices repeat a few hundred
  (measured in tests/bench/bench_objects.py).
"""

from collections.abc import Mapping
from dataclasses import field

from gpudra.api.attributes import AttributeValue, decode_attributes, encode_attributes
from gpudra.api.codec import (
    ApiObject,
    Json,
    api_type,
    mapping_field,
)
from gpudra.api.columns import Held, SliceColumns, held_alone
from gpudra.api.meta import NodeSelector, ObjectMeta
from gpudra.api.quantity import Quantity

GROUP = "resource.k8s.io"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_NAME_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
EXTENDED_RESOURCE_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"

EXACT_COUNT = "ExactCount"
ALL = "All"
EFFECT_NONE = "None"
NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
FROM_CLASS = "FromClass"
FROM_CLAIM = "FromClaim"


def _always(value: str) -> str:
    """A field that is written even when it holds its default."""
    return field(default=value, metadata={"always": True})


# --- ResourceSlice -------------------------------------------------------------------------


@api_type
class Counter(ApiObject):
    """One countable thing of a counter set."""

    value: Quantity


@api_type
class CounterSet(ApiObject):
    """What the devices of a card share; visible to the whole pool."""

    name: str
    counters: Mapping[str, Counter] = mapping_field()


@api_type
class CounterConsumption(ApiObject):
    """What one device takes from a counter set."""

    counter_set: str
    counters: Mapping[str, Counter] = mapping_field()
    compatibility_groups: tuple[str, ...] = ()


@api_type
class CapacityRange(ApiObject):
    """Allowed requests: from ``min`` to ``max`` in steps of ``step``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


@api_type
class CapacityRequestPolicy(ApiObject):
    """How a request for a share of a capacity is rounded (KEP-5075)."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


@api_type
class DeviceCapacity(ApiObject):
    """An amount that a device has."""

    value: Quantity
    request_policy: CapacityRequestPolicy | None = None


@api_type
class DeviceTaint(ApiObject):
    """Keeps claims off a device unless they tolerate it."""

    key: str
    value: str = ""
    effect: str
    time_added: str = ""


@api_type
class Device(ApiObject):
    """One allocatable device."""

    name: str
    attributes: Mapping[str, AttributeValue] = mapping_field(
        decode=decode_attributes, encode=encode_attributes
    )
    capacity: Mapping[str, DeviceCapacity] = mapping_field()
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


@api_type
class ResourcePool(ApiObject):
    """Which pool a slice belongs to, and how many slices of this generation there are."""

    name: str
    generation: int = field(default=0, metadata={"always": True})
    resource_slice_count: int = field(default=0, metadata={"always": True})


@api_type
class ResourceSliceSpec(ApiObject):
    """Devices or counter sets of one pool, and the nodes that reach them."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    partition_type_attribute: str | None = None


class _WithColumns(ApiObject):
    """Room for what ResourceSlice remembers: it is no field, so copies start without it.

    Attributes:
        columns: the devices by column; made when decoded, or else when first asked for.
    """

    __slots__ = ("columns",)

    columns: SliceColumns

    def __getattr__(self, name: str) -> SliceColumns:
        # Python comes here only while the slot is empty.
        if name != "columns":
            raise AttributeError(name)
        found = SliceColumns(self)
        object.__setattr__(self, "columns", found)
        return found

    def after_decoding(self) -> None:
        """Called by the decoder: a slice from a server is going to be asked about."""
        object.__setattr__(self, "columns", SliceColumns(self))


@api_type
class ResourceSlice(_WithColumns):
    """A part of a pool, as published by a driver."""

    api_version: str = _always(API_VERSION)
    kind: str = _always("ResourceSlice")
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: ResourceSliceSpec


# --- DeviceClass and ResourceClaim ----------------------------------------------------------


@api_type
class CELSelector(ApiObject):
    """An expression over ``device``."""

    expression: str


@api_type
class DeviceSelector(ApiObject):
    """Today always a CEL expression."""

    cel: CELSelector | None = None


@api_type
class OpaqueConfig(ApiObject):
    """Parameters that only the named driver understands."""

    driver: str
    parameters: Json = None


@api_type
class DeviceClassConfig(ApiObject):
    """Configuration that a class brings along."""

    opaque: OpaqueConfig | None = None


@api_type
class DeviceClassSpec(ApiObject):
    """What a class selects and configures."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfig, ...] = ()
    extended_resource_name: str | None = None


@api_type
class DeviceClass(ApiObject):
    """A kind of device that admins offer."""

    api_version: str = _always(API_VERSION)
    kind: str = _always("DeviceClass")
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: DeviceClassSpec = field(default_factory=DeviceClassSpec)


@api_type
class DeviceToleration(ApiObject):
    """Lets a request use tainted devices. Operators: Equal (default), Exists."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


@api_type
class CapacityRequirements(ApiObject):
    """Amounts that a request asks of each of its devices."""

    requests: Mapping[str, Quantity] = mapping_field()


@api_type
class DerivedAttribute(ApiObject):
    """An attribute computed from others by an expression (alpha in 1.37)."""

    name: str
    expression: str


@api_type
class ExactDeviceRequest(ApiObject):
    """Devices of one class."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DerivedAttribute, ...] = ()


@api_type
class DeviceSubRequest(ApiObject):
    """One alternative of a prioritised list."""

    name: str
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DerivedAttribute, ...] = ()


@api_type
class DeviceRequest(ApiObject):
    """One request of a claim: exactly one of ``exactly`` and ``first_available``."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


@api_type
class DeviceConstraint(ApiObject):
    """A condition over the devices of several requests."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


@api_type
class DeviceClaimConfig(ApiObject):
    """Configuration from the claim, for the named requests or for all."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


@api_type
class DeviceClaim(ApiObject):
    """What a claim asks for."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfig, ...] = ()


@api_type
class ResourceClaimSpec(ApiObject):
    """Immutable once created."""

    devices: DeviceClaim = field(default_factory=DeviceClaim)


@api_type
class DeviceRequestAllocationResult(ApiObject):
    """One device given to a request (``main`` or ``main/sub``)."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = None
    consumed_capacity: Mapping[str, Quantity] = mapping_field()
    skip_node_operations: tuple[str, ...] = ()

    @property
    def base_request(self) -> str:
        """The request without the name of the chosen alternative, as the kubelet wants it."""
        return self.request.partition("/")[0]


@api_type
class DeviceAllocationConfiguration(ApiObject):
    """Configuration that goes with an allocation; classes come before claims."""

    source: str
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


@api_type
class DeviceAllocationResult(ApiObject):
    """All devices and configuration of an allocated claim."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


@api_type
class AllocationResult(ApiObject):
    """The answer to a claim. No results at all is legal."""

    devices: DeviceAllocationResult = field(default_factory=DeviceAllocationResult)
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


@api_type
class ConsumerReference(ApiObject):
    """Who may use an allocated claim: pods, or a pod group."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


@api_type
class AllocatedDeviceStatus(ApiObject):
    """What a driver reports about a device of a claim."""

    driver: str
    pool: str
    device: str
    share_id: str | None = None
    conditions: tuple[Json, ...] = ()
    data: Json = None
    network_data: Json = None


@api_type
class ResourceClaimStatus(ApiObject):
    """Where a claim stands."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class _WithHeld(ApiObject):
    """Room for what ResourceClaim remembers, as _WithColumns for slices.

    Attributes:
        held: devices that the claim has for itself; None if it has other holds too.
    """

    __slots__ = ("held",)

    held: Held | None
    status: "ResourceClaimStatus"

    def __getattr__(self, name: str) -> Held | None:
        if name != "held":
            raise AttributeError(name)
        self.after_decoding()
        return self.held

    def after_decoding(self) -> None:
        """Called by the decoder."""
        allocation = self.status.allocation
        found = () if allocation is None else held_alone(allocation.devices.results)
        object.__setattr__(self, "held", found)


@api_type
class ResourceClaim(_WithHeld):
    """A wish for devices, and once allocated the devices."""

    api_version: str = _always(API_VERSION)
    kind: str = _always("ResourceClaim")
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: ResourceClaimSpec = field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = field(default_factory=ResourceClaimStatus)

    @property
    def key(self) -> str:
        """``namespace/name``, as people name it."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


# --- DeviceTaintRule ------------------------------------------------------------------------


@api_type
class DeviceTaintSelector(ApiObject):
    """All fields that are set must match; none set means every device."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


@api_type
class DeviceTaintRuleSpec(ApiObject):
    """A taint for the selected devices. No selector at all selects nothing."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint


@api_type
class DeviceTaintRule(ApiObject):
    """An admin's taint on devices."""

    api_version: str = _always(API_VERSION)
    kind: str = _always("DeviceTaintRule")
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: DeviceTaintRuleSpec
