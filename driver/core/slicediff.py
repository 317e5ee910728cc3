# SPDX-License-Identifier: Apache-2.0
"""Desired pool against what the API holds: the fewest writes that lead from one to the other.

Readers of a pool (the scheduler's allocator) look only at the slices of the highest generation,
and wait while there are not ``resourceSliceCount`` of them. Hence:

* a change that readers may see alone, in one slice, is written in place, same generation;
* everything else raises the generation and rewrites all slices: until the last one is written
  the pool is incomplete and nobody allocates from it, so the change is atomic in effect;
* slices that are too many are deleted last: with their old generation nobody reads them;
* a slice that merely went missing is created again as it was, same generation.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.codec import ApiObject, camel
from gpudra.api.meta import OwnerReference
from gpudra.api.resource_v1 import Device, DeviceTaint, ResourceSlice
from gpudra.driver.core.resourceslices import DesiredPool, DesiredSlice, resource_slices

# One entry per class of the API, made on first use.
_FIELDS: dict[type[ApiObject], tuple[tuple[str, str], ...]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """What to do, in this order: updates, creates, deletes.

    Attributes:
        updates: with the name, uid and resourceVersion of the slice that is replaced.
        creates: without.
        deletes: slices of this pool that are not wanted (any more).
        generation: that of the pool afterwards.
    """

    updates: tuple[ResourceSlice, ...] = ()
    creates: tuple[ResourceSlice, ...] = ()
    deletes: tuple[ResourceSlice, ...] = ()
    generation: int = 1

    @property
    def empty(self) -> bool:
        """Whether the API holds the desired pool already."""
        return not (self.updates or self.creates or self.deletes)


def plan_slices(
    desired: DesiredPool,
    actual: Sequence[ResourceSlice],
    *,
    owner: OwnerReference | None = None,
    dropped: Collection[str] = (),
    floor: int = 1,
) -> SlicePlan:
    """The plan for one pool.

    Args:
        desired: as it should be.
        actual: the slices of the API of this driver and this pool, in any order; others are
            ignored, so that a wrong caller cannot delete foreign slices.
        owner: the object that the slices belong to, or None for none.
        dropped: field paths that the server does not keep (see ``dropped_fields``); they are left
            out of the comparison.
        floor: the lowest generation to use: the last one that this process wrote, so that a pool
            whose slices were all deleted comes back as it was.

    Returns:
        The plan. Same input, same plan; carried out, a second plan is empty.
    """
    ours = {
        one.metadata.name: one
        for one in actual
        if one.spec.driver == desired.driver
        and one.spec.pool.name == desired.name
        and one.spec.node_name == desired.node_name
    }
    newest = max((one.spec.pool.generation for one in ours.values()), default=0)
    keep = not _needs_generation(desired, ours, newest, dropped)
    generation = max(floor, newest if keep else newest + 1)
    updates, creates = [], []
    for one in resource_slices(desired, generation=generation):
        wanted = _owned(one, owner)
        found = ours.get(wanted.metadata.name)
        if found is None:
            creates.append(wanted)
        elif not _same(wanted, found, dropped):
            updates.append(_replacing(wanted, found))
    names = {one.name for one in desired.slices}
    return SlicePlan(
        updates=tuple(updates),
        creates=tuple(creates),
        deletes=tuple(one for name, one in sorted(ours.items()) if name not in names),
        generation=generation,
    )


def _needs_generation(
    desired: DesiredPool,
    ours: Mapping[str, ResourceSlice],
    newest: int,
    dropped: Collection[str],
) -> bool:
    """Whether readers could see a mixture if the writes went into the present generation."""
    current = {name: one for name, one in ours.items() if one.spec.pool.generation == newest}
    wanted = {one.name: one for one in desired.slices}
    count = len(wanted)
    if any(
        one.spec.pool.resource_slice_count != count
        for name, one in current.items()
        if name in wanted
    ):
        return True
    changed = [
        name
        for name, one in current.items()
        if name in wanted and not _same_structure(wanted[name], one, dropped)
    ]
    complete = all(name in current for name in wanted)
    if any(name not in wanted for name in current):
        # Too many slices of this generation: deleting them is enough only if all else is right.
        return bool(changed) or not complete
    # A complete pool may change by one write, not by two. In a pool with gaps readers wait; but a
    # slice that another writer puts back meanwhile would complete it half-way, so only an
    # unchanged pool is filled up in place.
    return len(changed) > 1 if complete else bool(changed)


def _same_structure(wanted: DesiredSlice, found: ResourceSlice, dropped: Collection[str]) -> bool:
    """Same devices, counters and consumption: what must fit together across slices.

    Attributes, capacities and taints concern their own device only.
    """
    if len(wanted.devices) != len(found.spec.devices):
        return False
    if not _equal(
        wanted.shared_counters, found.spec.shared_counters, "spec.sharedCounters", dropped
    ):
        return False
    path = "spec.devices[*].consumesCounters"
    return all(
        one.name == other.name
        and _equal(one.consumes_counters, other.consumes_counters, path, dropped)
        for one, other in zip(wanted.devices, found.spec.devices, strict=True)
    )


def _owned(wanted: ResourceSlice, owner: OwnerReference | None) -> ResourceSlice:
    if owner is None:
        return wanted
    metadata = dataclasses.replace(wanted.metadata, owner_references=(owner,))
    return dataclasses.replace(wanted, metadata=metadata)


def _same(wanted: ResourceSlice, found: ResourceSlice, dropped: Collection[str]) -> bool:
    owners = "metadata.ownerReferences"
    return (
        not found.metadata.deletion_timestamp
        and _equal(
            wanted.metadata.owner_references, found.metadata.owner_references, owners, dropped
        )
        and _equal(wanted.spec, found.spec, "spec", dropped)
    )


def _replacing(wanted: ResourceSlice, found: ResourceSlice) -> ResourceSlice:
    """The wanted content under the identity of the found object, times of taints carried over."""
    metadata = dataclasses.replace(
        found.metadata, owner_references=wanted.metadata.owner_references
    )
    before = {device.name: device for device in found.spec.devices}
    devices = tuple(_carry_times(one, before.get(one.name)) for one in wanted.spec.devices)
    return dataclasses.replace(
        wanted, metadata=metadata, spec=dataclasses.replace(wanted.spec, devices=devices)
    )


def _carry_times(wanted: Device, before: Device | None) -> Device:
    """A taint that stays keeps the time since when it is there."""
    if before is None or not wanted.taints:
        return wanted
    times = {(one.key, one.value, one.effect): one.time_added for one in before.taints}
    taints = tuple(
        dataclasses.replace(one, time_added=times.get((one.key, one.value, one.effect), ""))
        if not one.time_added
        else one
        for one in wanted.taints
    )
    return dataclasses.replace(wanted, taints=taints)


def dropped_fields(sent: ResourceSlice, kept: ResourceSlice) -> frozenset[str]:
    """Paths of fields that were sent and came back unset, ``spec.devices[*].taints``.

    List indexes and map keys are written ``*``, so that a field is one path however often it
    occurs. Only the outermost field of what was dropped is named.
    """
    gone = set_fields(sent) - set_fields(kept)
    return frozenset(path for path in gone if not any(outer in gone for outer in _outer(path)))


def set_fields(one: ResourceSlice) -> frozenset[str]:
    """Paths of all fields of the spec that hold something."""
    found: set[str] = set()
    _collect(one.spec, "spec", found)
    return frozenset(found)


def _collect(value: Any, path: str, found: set[str]) -> None:
    if value is None or value is False or value in ("", (), {}):
        return
    found.add(path)
    if isinstance(value, ApiObject):
        for name, inner in _fields(type(value)):
            _collect(getattr(value, name), f"{path}.{inner}", found)
    elif isinstance(value, tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            _collect(item, f"{path}[*]", found)


def _outer(path: str) -> list[str]:
    return [path[:place] for place, char in enumerate(path) if place and char in ".["]


def _fields(cls: type[ApiObject]) -> tuple[tuple[str, str], ...]:
    """Name of every field in Python and in JSON; ``extra`` is left out."""
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = tuple(
            (one.name, one.metadata.get("json", camel(one.name)))
            for one in dataclasses.fields(cls)
            if one.name != "extra"
        )
    return found


def _equal(wanted: Any, found: Any, path: str, dropped: Collection[str]) -> bool:
    """Equality of what we know; fields that only the server knows do not count."""
    if path in dropped or wanted == found:
        return True
    if isinstance(wanted, DeviceTaint) and isinstance(found, DeviceTaint) and not wanted.time_added:
        # Set by the server.
        found = dataclasses.replace(found, time_added="")
    if isinstance(wanted, ApiObject):
        return type(wanted) is type(found) and all(
            _equal(getattr(wanted, name), getattr(found, name), f"{path}.{inner}", dropped)
            for name, inner in _fields(type(wanted))
        )
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        return len(wanted) == len(found) and all(
            _equal(one, other, f"{path}[*]", dropped)
            for one, other in zip(wanted, found, strict=True)
        )
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return wanted.keys() == found.keys() and all(
            _equal(one, found[key], f"{path}[*]", dropped) for key, one in wanted.items()
        )
    return bool(wanted == found)
