# SPDX-License-Identifier: Apache-2.0
"""Values while an expression runs, where plain Python has no fitting type.

=============  =======================================================
CEL            Python
=============  =======================================================
bool, int,     ``bool``, ``int`` (checked to 64 bits), ``float``,
double, string ``str``, ``bytes``, ``None``
bytes, null
uint           ``Uint``
list           ``tuple``
map            ``MapValue``; ``dict`` with string keys inside a device
duration       ``Duration``
timestamp      ``Timestamp``
optional       ``Optional``
type           ``TypeValue``
=============  =======================================================
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from gpudra.api.quantity import Quantity
from gpudra.api.semver import Semver
from gpudra.driver.core.cel.errors import CelEvaluationError

INT_MAX = 2**63 - 1
INT_MIN = -(2**63)
UINT_MAX = 2**64 - 1

# Whatever an expression can hold; the checker and the guards of the library know more.
Value = Any


class Uint(int):
    """An unsigned 64-bit number; arithmetic must wrap its results again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A signed span of time in nanoseconds, within 64 bits."""

    nanos: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A moment: nanoseconds since 1970 UTC, and the zone it was written in (seconds east)."""

    nanos: int
    zone: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and self.nanos == other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What ``type(x)`` gives."""

    name: str


class Optional:
    """A value that may be absent (CEL ``optional_type``)."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value = None, *, present: bool = True) -> None:
        self.value = value
        self.present = present

    def __repr__(self) -> str:
        return f"optional.of({self.value!r})" if self.present else "optional.none()"


NONE: Final = Optional(present=False)

_KeyTag = tuple[str, object]


# Go cannot hash these. As keys, or in a test of literals, they end an evaluation upstream by a
# panic, which && and || do not absorb.
UNHASHABLE: set[type] = {bytes, Semver}


def unhashable(value: Value) -> CelEvaluationError:
    """The error of a value that is used as a key and cannot be one."""
    return CelEvaluationError(f"a {type_name(value)} cannot be a key", hint="use a string")


def _canonical(key: Value) -> object:
    """A dictionary key that keeps apart what Python would take for equal (True, 1, 1u, 1.0)."""
    kind = type(key)
    if kind is str or kind is int:
        return key
    if kind is bool:
        return ("bool", key)
    if kind is Uint:
        return ("uint", int(key))
    if kind is float:
        return ("double", key)
    if kind in UNHASHABLE:
        raise unhashable(key)
    return (kind.__name__, id(key))


class MapValue:
    """A map made inside an expression. Keys keep their type; order is that of insertion."""

    __slots__ = ("_entries",)

    def __init__(self, pairs: Iterable[tuple[Value, Value]] = ()) -> None:
        self._entries: dict[object, tuple[Value, Value]] = {}
        for key, value in pairs:
            self._entries[_canonical(key)] = (key, value)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Value]:
        return (key for key, _ in self._entries.values())

    def items(self) -> Iterable[tuple[Value, Value]]:
        """Keys and values."""
        return self._entries.values()

    def insert(self, key: Value, value: Value) -> None:
        """Adds an entry while a loop builds the map; replaces an equal key silently."""
        self._entries[_canonical(key)] = (key, value)

    def discard(self, key: Value) -> None:
        """Removes a key if it is there."""
        self._entries.pop(_canonical(key), None)

    def find(self, key: Value) -> tuple[bool, Value]:
        """Whether a key is there, and its value. Numbers match across types."""
        if not self._entries:
            return False, None
        found = self._entries.get(_canonical(key))
        if found is None and isinstance(key, int | float) and not isinstance(key, bool):
            found = self._across(key)
        return (True, found[1]) if found is not None else (False, None)

    def _across(self, key: Value) -> tuple[Value, Value] | None:
        if isinstance(key, float):
            if not key.is_integer():
                return None
            whole = int(key)
            return self._entries.get(whole) or self._entries.get(("uint", whole))
        whole = int(key)
        return self._entries.get(whole if isinstance(key, Uint) else ("uint", whole))


class DomainMap:
    """``device.attributes`` and ``device.capacity``: any absent domain reads as an empty map.

    Only look-ups do so; ``in``, ``size`` and loops see the domains that exist.
    """

    __slots__ = ("domains",)

    def __init__(self, domains: dict[str, dict[str, Value]]) -> None:
        self.domains = domains


_EMPTY: dict[str, Value] = {}
MAPS = (dict, MapValue, DomainMap)


def map_find(holder: Value, key: Value) -> tuple[bool, Value]:
    """Look-up as indexing and field selection do it."""
    if type(holder) is MapValue:
        return holder.find(key)
    if type(key) is not str:
        return (True, _EMPTY) if type(holder) is DomainMap else (False, None)
    if type(holder) is DomainMap:
        return True, holder.domains.get(key, _EMPTY)
    return (True, holder[key]) if key in holder else (False, None)


def map_has(holder: Value, key: Value) -> bool:
    """Membership as ``in`` sees it."""
    if type(holder) is MapValue:
        return holder.find(key)[0]
    return type(key) is str and key in (holder.domains if type(holder) is DomainMap else holder)


def map_items(holder: Value) -> Iterable[tuple[Value, Value]]:
    """Keys and values of any map."""
    items: Iterable[tuple[Value, Value]] = (
        holder.domains.items() if type(holder) is DomainMap else holder.items()
    )
    return items


def map_size(holder: Value) -> int:
    """Number of keys of any map."""
    return len(holder.domains if type(holder) is DomainMap else holder)


_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    tuple: "list",
    dict: "map",
    MapValue: "map",
    DomainMap: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Optional: "optional_type",
    TypeValue: "type",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
}


def register_type(python: type, name: str) -> None:
    """Makes a library's value type known to ``type()``; called while modules load."""
    _NAMES[python] = name


def type_name(value: Value) -> str:
    """The CEL name of a value's type."""
    return _NAMES.get(type(value), type(value).__name__)
