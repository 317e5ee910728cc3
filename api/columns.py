# SPDX-License-Identifier: Apache-2.0
"""The devices of a slice by column: what slices have in common gets one number.

Thousands of slices repeat each other in all but names and serial numbers. Every attribute of a
slice's devices is a column here, and equal columns have equal numbers, so that two slices are
compared by a few integers instead of device by device. Made when a slice is decoded; used by the
allocator (``gpudra.driver.core.allocator.records``).

Numbers are never used twice. The tables behind them are bounded and may be cleared at any time: then
equal columns get other numbers from there on, which costs time and never correctness.
"""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

_LIMIT = 200_000
_FRESH = itertools.count(1)
_NUMBERS: dict[Hashable, int] = {}
_NANOS = attrgetter("value.nanos")
_ABSENT = ("absent",)
_ORDINARY = frozenset({str, int, bool})


class SliceColumns:
    """One slice by column, and the little else that the reader of many slices needs of each.

    Args:
        one: a ``ResourceSlice``.

    Attributes:
        key: driver and pool name.
        place: the node, if the slice is for one.
        name: of the slice.
        generation, count: of the pool, as the slice has them.
        plain: the slice is for one node and does nothing unusual: no fields that the API types do not
            know, not both devices and counters, no name twice. What is said below is complete for
            plain slices only.
        alone: it is plain, has no counters, and says that the pool has no other slice.
        names: by device name, its place as a bit: 1, 2, 4 and so on.
        first, last: the least and the greatest device name, in the order of texts.
        body: equal for slices whose devices differ only in names, attributes and in how the counter
            sets are called.
        attributes: the number of each attribute's column, by attribute name as written.
        uses: names of the counter sets that devices take from, in order of appearance.
        counters: equal for slices whose counter sets differ only in name.
        sets: names of the counter sets, in order.
    """

    __slots__ = (
        "alone", "attributes", "body", "count", "counters", "first", "generation", "key", "last",
        "name", "names", "place", "plain", "sets", "uses",
    )  # fmt: skip

    def __init__(self, one: Any) -> None:
        spec = one.spec
        devices, counter_sets = spec.devices, spec.shared_counters
        self.key: tuple[str, str] = (spec.driver, spec.pool.name)
        self.place: str = spec.node_name
        self.name: str = one.metadata.name
        self.generation: int = spec.pool.generation
        self.count: int = spec.pool.resource_slice_count
        self.names: dict[str, int] = {device.name: 1 << at for at, device in enumerate(devices)}
        self.first, self.last = (min(self.names), max(self.names)) if devices else ("", "")
        self.sets: tuple[str, ...] = tuple([one.name for one in counter_sets])
        self.plain = bool(
            spec.node_name
            and not spec.extra
            and not (devices and counter_sets)
            and len(self.names) == len(devices)
            and len(set(self.sets)) == len(self.sets)
        )
        uses: dict[str, int] = {}
        self.body = _number(("body", *[_body(one, uses) for one in devices]))
        self.uses = tuple(uses)
        self.attributes = _attributes([one.attributes for one in devices])
        self.counters = _number(("counters", *[_counters(one.counters) for one in counter_sets]))
        self.alone = self.plain and self.count == 1 and not self.uses and not self.sets


Held = tuple[tuple[tuple[str, str], tuple[str, ...]], ...]
"""Devices by driver and pool."""


def held_alone(results: Sequence[Any]) -> Held | None:
    """The devices that a claim has for itself; None if it has shares, or a device twice.

    Args:
        results: of its allocation; administrative access holds nothing.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for one in results:
        if one.admin_access:
            continue
        if one.share_id is not None:
            return None
        found.setdefault((one.driver, one.pool), []).append(one.device)
    if any(len(set(devices)) < len(devices) for devices in found.values()):
        return None
    return tuple((key, tuple(devices)) for key, devices in found.items())


def _number(content: Hashable) -> int:
    found = _NUMBERS.get(content)
    if found is None:
        if len(_NUMBERS) >= _LIMIT:
            _NUMBERS.clear()
        found = _NUMBERS[content] = next(_FRESH)
    return found


def _counters(counters: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*counters, *map(_NANOS, counters.values()))


def _body(device: Any, uses: dict[str, int]) -> int:
    """A number for everything of a device but name, attributes and names of counter sets."""
    taken = [
        (
            uses.setdefault(one.counter_set, len(uses)),
            one.compatibility_groups,
            _counters(one.counters),
        )
        for one in device.consumes_counters
    ]
    capacity = [
        (name, one.value.nanos, one.request_policy and repr(one.request_policy))
        for name, one in device.capacity.items()
    ]
    return _number(("device", tuple(taken), tuple(capacity), _rest(device)))


def _rest(device: Any) -> tuple[Any, ...]:
    """What few devices have."""
    if not (device.taints or device.allow_multiple_allocations or device.binding_conditions):
        return ()
    taints = tuple((one.key, one.value, one.effect) for one in device.taints)
    return taints, device.allow_multiple_allocations, device.binding_conditions


def _attributes(tables: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    if not tables:
        return {}
    names = tuple(tables[0])
    if len(names) > 1 and all(len(one) == len(names) for one in tables):
        try:
            columns = zip(*map(itemgetter(*names), tables), strict=True)
        except KeyError:  # as many, but others
            columns = None
        if columns is not None:
            return {name: _column(own) for name, own in zip(names, columns, strict=True)}
    every = dict.fromkeys(name for one in tables for name in one)
    return {name: _column(tuple(one.get(name, _ABSENT) for one in tables)) for name in every}


def _column(values: tuple[Any, ...]) -> int:
    # 1 equals true, so types belong to the content; lists and unknown forms go by their text.
    types = tuple(map(type, values))
    if _ORDINARY.issuperset(types):
        return _number((values, types))
    return _number((types, tuple([_shown(one) for one in values])))


def _shown(value: Any) -> Any:
    return value if isinstance(value, str | int) else str(getattr(value, "text", value))
