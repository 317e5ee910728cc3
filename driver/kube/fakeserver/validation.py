# SPDX-License-Identifier: Apache-2.0
"""The refusals of the API server that our programs must never meet, or must live with. Pure.

Limits and immutability of ``resource.k8s.io/v1`` (types.go and validation.go of Kubernetes 1.37),
not the whole of its validation.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from gpudra.driver.kube.resources import Obj

Cause: TypeAlias = tuple[str, str]
# new object, old object or None -> pairs of field and message
Validator = Callable[[Obj, Obj | None], list[Cause]]

MAX_DEVICES = 128
MAX_DEVICES_WITH_TAINTS_OR_COUNTERS = 64
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
MAX_CONSUMED_SETS = 2
MAX_TAINTS = 16
MAX_RESERVATIONS = 256
MAX_RESULTS = 32

_IMMUTABLE = "field is immutable"
_LIST_TYPES = ("ints", "bools", "strings", "versions")


def validate_slice(new: Obj, old: Obj | None) -> list[Cause]:
    """Limits and immutable fields of a ResourceSlice."""
    spec = new.get("spec") or {}
    causes = list(_slice_placement(spec))
    devices, counters = spec.get("devices") or [], spec.get("sharedCounters") or []
    if devices and counters:
        causes.append(("spec", "only one of `sharedCounters` or `devices` is allowed"))
    causes += _slice_devices(devices)
    causes += _slice_counters(counters)
    if old is not None:
        causes += _slice_changes(spec, old.get("spec") or {})
    return causes


def _slice_placement(spec: Obj) -> Iterator[Cause]:
    pool = spec.get("pool") or {}
    if not spec.get("driver"):
        yield "spec.driver", "Required value"
    if not pool.get("name"):
        yield "spec.pool.name", "Required value"
    if (pool.get("resourceSliceCount") or 0) <= 0:
        yield "spec.pool.resourceSliceCount", "must be greater than zero"
    if (pool.get("generation") or 0) < 0:
        yield "spec.pool.generation", "must be greater than or equal to zero"
    places = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    if sum(bool(spec.get(place)) for place in places) != 1:
        yield "spec", f"exactly one of {', '.join(places)} is required"


def _slice_devices(devices: list[Obj]) -> Iterator[Cause]:
    limit = MAX_DEVICES
    if any(_is_costly(device) for device in devices):
        limit = MAX_DEVICES_WITH_TAINTS_OR_COUNTERS
    if len(devices) > limit:
        yield "spec.devices", f"Too many: {len(devices)}: must have at most {limit} items"
    names: set[str] = set()
    for at, device in enumerate(devices):
        name, field = str(device.get("name") or ""), f"spec.devices[{at}]"
        if not name:
            yield f"{field}.name", "Required value"
        elif name in names:
            yield f"{field}.name", f"Duplicate value: {name!r}"
        names.add(name)
        yield from _device(device, field)


def _device(device: Obj, field: str) -> Iterator[Cause]:
    total = len(device.get("attributes") or {}) + len(device.get("capacity") or {})
    if total > MAX_ATTRIBUTES_AND_CAPACITIES:
        limit = MAX_ATTRIBUTES_AND_CAPACITIES
        yield field, f"Too many attributes and capacities: {total}: at most {limit}"
    for name, limit in (("taints", MAX_TAINTS), ("consumesCounters", MAX_CONSUMED_SETS)):
        count = len(device.get(name) or ())
        if count > limit:
            yield f"{field}.{name}", f"Too many: {count}: must have at most {limit} items"


def _is_costly(device: Obj) -> bool:
    attributes = device.get("attributes") or {}
    return bool(
        device.get("taints")
        or device.get("consumesCounters")
        or any(kind in value for value in attributes.values() for kind in _LIST_TYPES)
    )


def _slice_counters(counters: list[Obj]) -> Iterator[Cause]:
    if len(counters) > MAX_COUNTER_SETS:
        yield (
            "spec.sharedCounters",
            f"Too many: {len(counters)}: must have at most {MAX_COUNTER_SETS} items",
        )
    for at, counter_set in enumerate(counters):
        count = len(counter_set.get("counters") or {})
        if not 0 < count <= MAX_COUNTERS:
            field = f"spec.sharedCounters[{at}].counters"
            yield field, f"{count} counters: must have 1 to {MAX_COUNTERS}"


def _slice_changes(spec: Obj, before: Obj) -> Iterator[Cause]:
    if spec.get("driver") != before.get("driver"):
        yield "spec.driver", _IMMUTABLE
    if (spec.get("pool") or {}).get("name") != (before.get("pool") or {}).get("name"):
        yield "spec.pool.name", _IMMUTABLE
    if spec.get("nodeName") != before.get("nodeName"):
        yield "spec.nodeName", _IMMUTABLE


def validate_claim(new: Obj, old: Obj | None) -> list[Cause]:
    """Immutable spec and allocation of a ResourceClaim, and the limits of its status."""
    causes: list[Cause] = []
    status = new.get("status") or {}
    allocation, reserved = status.get("allocation"), status.get("reservedFor") or []
    if allocation is None and reserved:
        causes.append(("status.reservedFor", "may not be specified when `allocated` is not set"))
    if len(reserved) > MAX_RESERVATIONS:
        causes.append(("status.reservedFor", f"must have at most {MAX_RESERVATIONS} items"))
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    if len(results) > MAX_RESULTS:
        causes.append(
            ("status.allocation.devices.results", f"must have at most {MAX_RESULTS} items")
        )
    causes += _status_devices(status, results)
    if old is not None:
        causes += _claim_changes(new, old)
    return causes


def _status_devices(status: Obj, results: list[Obj]) -> Iterator[Cause]:
    keys = ("driver", "pool", "device", "shareID")
    allocated = {tuple(result.get(key) for key in keys) for result in results}
    for at, device in enumerate(status.get("devices") or ()):
        if tuple(device.get(key) for key in keys) not in allocated:
            yield f"status.devices[{at}]", "must be an allocated device in the claim"


def _claim_changes(new: Obj, old: Obj) -> Iterator[Cause]:
    if new.get("spec") != old.get("spec"):
        yield "spec", _IMMUTABLE
    before = old.get("status") or {}
    status = new.get("status") or {}
    allocation = status.get("allocation")
    if before.get("allocation") is not None and allocation not in (None, before["allocation"]):
        yield "status.allocation", _IMMUTABLE
    if (new.get("metadata") or {}).get("deletionTimestamp"):
        known = {item.get("uid") for item in before.get("reservedFor") or ()}
        if any(item.get("uid") not in known for item in status.get("reservedFor") or ()):
            yield "status.reservedFor", "no new reservations while the claim is being deleted"


def validate_template(new: Obj, old: Obj | None) -> list[Cause]:
    """A ResourceClaimTemplate's spec never changes."""
    changed = old is not None and new.get("spec") != old.get("spec")
    return [("spec", _IMMUTABLE)] if changed else []
