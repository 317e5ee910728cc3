# SPDX-License-Identifier: Apache-2.0
"""A cache of decoded objects: by name, by uid, and by named indexes.

Filled by a `Reflector` (or by a simulation), read by everybody else in the same event loop.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

IndexFunction = Callable[[T], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object with the metadata that the cache needs, whatever its decoded type is."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    value: T

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` for a cluster-scoped object."""
        return make_key(self.name, self.namespace)


def make_key(name: str, namespace: str = "") -> str:
    """Primary key of an object."""
    return f"{namespace}/{name}" if namespace else name


class Store(Generic[T]):
    """The cache.

    Index functions are called once for each object that is put; they must be pure. One that raises
    makes `put` raise and leaves the store as it was.

    Args:
        indexes: name of the index -> function from an object to its values.
    """

    def __init__(self, indexes: Mapping[str, IndexFunction[T]] | None = None) -> None:
        self._entries: dict[str, Entry[T]] = {}
        self._uids: dict[str, str] = {}
        self._functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, set[str]]] = {name: {} for name in self._functions}
        self._indexed: dict[str, dict[str, tuple[str, ...]]] = {}

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object of that name, or None."""
        entry = self._entries.get(make_key(name, namespace))
        return entry.value if entry is not None else None

    def entry(self, name: str, namespace: str = "") -> Entry[T] | None:
        """The object of that name with its metadata, or None."""
        return self._entries.get(make_key(name, namespace))

    def by_key(self, key: str) -> Entry[T] | None:
        """The entry of that primary key, or None."""
        return self._entries.get(key)

    def by_uid(self, uid: str) -> T | None:
        """The object with that uid, or None. A name that was used anew has another uid."""
        key = self._uids.get(uid)
        return self._entries[key].value if key is not None else None

    def by_index(self, index: str, value: str) -> list[T]:
        """Objects whose index function gave ``value``, ordered by key. KeyError: no such index."""
        keys = self._indexes[index].get(value, ())
        return [self._entries[key].value for key in sorted(keys)]

    def index_values(self, index: str) -> list[str]:
        """Values that occur in an index, ordered."""
        return sorted(self._indexes[index])

    def values(self) -> list[T]:
        """All objects, ordered by key."""
        return [self._entries[key].value for key in sorted(self._entries)]

    def entries(self) -> list[Entry[T]]:
        """All objects with their metadata, ordered by key."""
        return [self._entries[key] for key in sorted(self._entries)]

    def keys(self) -> list[str]:
        """All primary keys, ordered."""
        return sorted(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def put(self, entry: Entry[T]) -> Entry[T] | None:
        """Add or replace an object; returns the one that was there."""
        key = entry.key
        fresh = {name: tuple(fn(entry.value)) for name, fn in self._functions.items()}
        previous = self.remove(key)
        self._entries[key] = entry
        if entry.uid:
            self._uids[entry.uid] = key
        if fresh:
            self._indexed[key] = fresh
        for name, values in fresh.items():
            index = self._indexes[name]
            for value in values:
                index.setdefault(value, set()).add(key)
        return previous

    def remove(self, key: str) -> Entry[T] | None:
        """Take an object out; returns it, or None when it was not there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        if self._uids.get(entry.uid) == key:
            del self._uids[entry.uid]
        for name, values in self._indexed.pop(key, {}).items():
            index = self._indexes[name]
            for value in values:
                keys = index.get(value)
                if keys is None:
                    continue
                keys.discard(key)
                if not keys:
                    del index[value]
        return entry
