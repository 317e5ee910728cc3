# SPDX-License-Identifier: Apache-2.0
"""What is kept of slices and claims to count them: little, since there are a hundred thousand devices.

Devices of one kind share one `Shape`: everything about a device but which one it is. Called by
gpudra.controller.accounting for each object that it sees.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import (
    ALL,
    Device,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceSlice,
)
from gpudra.driver.core.cel import CelDevice

WHOLE, MIG, SHARE, MONITOR = "gpu", "mig", "share", "monitor"
MEMORY, COMPUTE, PROCESSORS = "memory", "compute", "multiprocessors"
MEMORY_SLICE = "memory-slice-"
_BLOCKING = frozenset({"NoSchedule", "NoExecute"})
# What tells one device from its like. Selectors on these are judged by the first of a kind.
_IDENTITY = frozenset(
    {
        *("uuid", "parentUUID", "index", "pcieSwitch", "nvlinkDomain", "nvlinkIsland"),
        *("nvlinkPair", "nvlinkPeers", "pciBusID", "pcieRoot", "numaNode"),
    }
)
_MOST_SHAPES = 4096

Counters = Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A kind of device; compared by identity, since equal ones are one object.

    Attributes:
        form: gpu, mig, share or monitor.
        model: product name, or what kind of card it says it is.
        memory: in bytes.
        processors: multiprocessors of a part; 0: not known.
        counters: what it takes of its card.
        device: the first of this kind, for selectors.
    """

    form: str
    model: str
    memory: int
    processors: int
    counters: Counters
    device: CelDevice


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """One device: its name, its card, what kind it is, and whether taints keep claims off it."""

    name: str
    card: str
    shape: Shape
    tainted: bool


@dataclass(frozen=True, slots=True)
class SliceFact:
    """One slice.

    Attributes:
        name: of the object.
        pool: of the slice.
        generation: of the pool.
        count: how many slices the pool says it has.
        devices: monitors left out, since they take nothing.
        totals: counters of each card, by counter set; cards are found by the sets of their devices.
    """

    name: str
    pool: str
    generation: int
    count: int
    devices: tuple[DeviceFact, ...]
    totals: Mapping[str, Counters]


@dataclass(frozen=True, slots=True)
class Hold:
    """One device that a claim has; amounts only for shares.

    Attributes:
        pool: of the device.
        device: its name.
        device_class: that the request named; empty when it is not known.
        memory: bytes consumed of a share.
        compute: percent points consumed of a share.
    """

    pool: str
    device: str
    device_class: str
    memory: int = 0
    compute: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """One alternative of a request.

    Attributes:
        device_class: that it names.
        selectors: of the request itself.
        count: devices; for "all of a node", one.
        memory: bytes asked for of each device; 0: nothing.
        tolerant: it tolerates taints of some kind, so they are not held against it.
    """

    device_class: str
    selectors: tuple[str, ...]
    count: int
    memory: int
    tolerant: bool


@dataclass(frozen=True, slots=True)
class ClaimFact:
    """One claim.

    Attributes:
        key: ``namespace/name``.
        created: seconds since the epoch; 0: not known.
        allocated: when it was given its devices; 0: not told.
        holds: devices that it has; admin access left out.
        wishes: alternatives of each of its requests, while it waits; empty otherwise.
        waits: whether it has no allocation and is not being deleted.
    """

    key: str
    created: float
    allocated: float
    holds: tuple[Hold, ...]
    wishes: tuple[tuple[Wish, ...], ...]
    waits: bool


@dataclass
class Shapes:
    """The kinds of devices seen so far; bounded.

    Args:
        driver: whose devices.
    """

    driver: str
    _known: dict[object, Shape] = field(default_factory=dict)
    _raw: dict[object, Shape] = field(default_factory=dict)

    def slice_fact(self, found: ResourceSlice) -> SliceFact:
        """What is kept of a slice."""
        spec = found.spec
        devices = (self._device(device) for device in spec.devices)
        return SliceFact(
            name=found.metadata.name,
            pool=spec.pool.name,
            generation=spec.pool.generation,
            count=spec.pool.resource_slice_count,
            devices=tuple(one for one in devices if one.shape.form != MONITOR),
            totals={
                one.name: {name: counter.value.value for name, counter in one.counters.items()}
                for one in spec.shared_counters
            },
        )

    def raw_slice_fact(self, raw: Mapping[str, Any]) -> SliceFact:
        """As `slice_fact`, from the JSON of the API: only the first device of a kind is decoded.

        The command line and the controller read tens of thousands of devices of a few dozen kinds.
        """
        spec = raw["spec"]
        pool = spec["pool"]
        devices = (self._raw_device(one) for one in spec.get("devices") or ())
        return SliceFact(
            name=raw["metadata"]["name"],
            pool=pool["name"],
            generation=pool.get("generation", 0),
            count=pool.get("resourceSliceCount", 0),
            devices=tuple(one for one in devices if one.shape.form != MONITOR),
            totals={
                one["name"]: {
                    name: Quantity.parse(counter["value"]).value
                    for name, counter in (one.get("counters") or {}).items()
                }
                for one in spec.get("sharedCounters") or ()
            },
        )

    def _raw_device(self, raw: Mapping[str, Any]) -> DeviceFact:
        attributes, uuid, common = raw.get("attributes") or {}, "", []
        for name, value in attributes.items():
            last = name.rpartition("/")[2]
            if last not in _IDENTITY:
                common.append((name, str(value)))
            elif last == "parentUUID" or (last == "uuid" and not uuid):
                uuid = value.get("string", "")
        consumed = raw.get("consumesCounters") or ()
        key = (
            tuple(common),
            str(raw.get("capacity")),
            str([one.get("counters") for one in consumed]),
            raw.get("allowMultipleAllocations"),
        )
        shape = self._raw.get(key)
        if shape is None:
            if len(self._raw) >= _MOST_SHAPES:
                self._raw.clear()
            shape = self._raw[key] = self._device(Device.from_dict(dict(raw))).shape
        tainted = any(taint.get("effect") in _BLOCKING for taint in raw.get("taints") or ())
        card = consumed[0]["counterSet"] if consumed else str(uuid or raw["name"])
        return DeviceFact(raw["name"], card, shape, tainted)

    def _device(self, device: Device) -> DeviceFact:
        values = self._values(device)
        shape = self._shape(device, values)
        tainted = any(taint.effect in _BLOCKING for taint in device.taints)
        sets = [one.counter_set for one in device.consumes_counters]
        uuid = values.get("parentUUID") or values.get("uuid")
        return DeviceFact(
            device.name, sets[0] if sets else str(uuid or device.name), shape, tainted
        )

    def _values(self, device: Device) -> dict[str, object]:
        """Attributes by their last name: those that count have one meaning in any domain."""
        return {_last(key): v for key, v in device.attributes.items()}

    def _shape(self, device: Device, values: Mapping[str, object]) -> Shape:
        common = tuple(
            (key, value) for key, value in device.attributes.items() if _last(key) not in _IDENTITY
        )
        counters = _counters(device)
        capacity = tuple((name, one.value.value) for name, one in device.capacity.items())
        key = (common, capacity, tuple(counters.items()))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            amounts = dict(capacity)
            known = self._known[key] = Shape(
                form=str(values.get("type") or WHOLE),
                model=str(values.get("productName") or values.get("vendor") or "unknown"),
                memory=amounts.get(MEMORY, 0),
                processors=amounts.get(PROCESSORS, 0) or counters.get(PROCESSORS, 0),
                counters=counters,
                device=CelDevice.from_device(self.driver, replace(device, taints=())),
            )
        return known


def _counters(device: Device) -> dict[str, int]:
    return {
        name: counter.value.value
        for one in device.consumes_counters
        for name, counter in one.counters.items()
    }


def claim_fact(claim: ResourceClaim, driver: str) -> ClaimFact:
    """What is kept of a claim; holds of other drivers' devices are left out."""
    allocation = claim.status.allocation
    classes = _classes(claim.spec.devices.requests)
    results = allocation.devices.results if allocation else ()
    holds = tuple(
        Hold(
            pool=result.pool,
            device=result.device,
            device_class=classes.get(result.request, ""),
            memory=_amount(result.consumed_capacity, MEMORY),
            compute=_amount(result.consumed_capacity, COMPUTE),
        )
        for result in results
        if result.driver == driver and not result.admin_access
    )
    waits = allocation is None and not claim.metadata.deletion_timestamp
    told = allocation.allocation_timestamp if allocation else None
    return ClaimFact(
        key=claim.key,
        created=_seconds(claim.metadata.creation_timestamp),
        allocated=_seconds(told or ""),
        holds=holds,
        wishes=tuple(map(_wishes, claim.spec.devices.requests)) if waits else (),
        waits=waits,
    )


def _amount(amounts: Mapping[str, Quantity], wanted: str) -> int:
    """Capacities are named with or without the driver's domain."""
    return next((one.value for name, one in amounts.items() if _last(name) == wanted), 0)


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _classes(requests: Iterable[DeviceRequest]) -> dict[str, str]:
    """The class of each request, ``main`` or ``main/sub``."""
    found = {}
    for request in requests:
        if request.exactly is not None:
            found[request.name] = request.exactly.device_class_name
        for one in request.first_available:
            found[f"{request.name}/{one.name}"] = one.device_class_name
    return found


def _wishes(request: DeviceRequest) -> tuple[Wish, ...]:
    alternatives: Iterable[ExactDeviceRequest | DeviceSubRequest] = request.first_available
    if request.exactly is not None:
        alternatives = (request.exactly,)
    return tuple(
        Wish(
            device_class=one.device_class_name,
            selectors=tuple(each.cel.expression for each in one.selectors if each.cel),
            count=1 if one.allocation_mode == ALL else one.count or 1,
            memory=_amount(one.capacity.requests, MEMORY) if one.capacity else 0,
            tolerant=bool(one.tolerations),
        )
        for one in alternatives
        if not getattr(one, "admin_access", None)
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
