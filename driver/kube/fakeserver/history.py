# SPDX-License-Identifier: Apache-2.0
"""What changed since when: the watch cache of the fake server.

Holds the last events, answers "everything after version n" or 410, keeps the snapshots that the
pages of a list are cut from, and tells subscribers. Owned by the object store.
"""

import base64
import binascii
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import orjson

from gpudra.api.errors import ExpiredError, InvalidError
from gpudra.driver.kube.fakeserver.selectors import Predicate
from gpudra.driver.kube.resources import Obj, Resource

_SNAPSHOTS = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object. ``obj`` is shared and must not be changed."""

    obj: Obj
    data: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """One change.

    Attributes:
        type: ``ADDED``, ``MODIFIED`` or ``DELETED``.
        resource: the kind.
        revision: version of the store after the change.
        new: what is there now; of a deletion the last form, at the version of the deletion.
        old: what was there before; None for an addition.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    resource: Resource
    revision: int
    new: Stored
    old: Stored | None

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty for a cluster-scoped one."""
        return str(self.new.obj["metadata"].get("namespace") or "")

    def seen_through(self, predicate: Predicate | None) -> tuple[str, Stored] | None:
        """How a watch with selectors sees the change: an object may enter or leave its view."""
        if predicate is None:
            return self.type, self.new
        before = self.old is not None and predicate(self.old.obj)
        after = self.type != "DELETED" and predicate(self.new.obj)
        if before and after:
            return "MODIFIED", self.new
        if after:
            return "ADDED", self.new
        return ("DELETED", self.new) if before else None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    items: list[Stored]
    revision: int
    continue_token: str
    remaining: int


class History:
    """Events and snapshots.

    Args:
        limit: how many events are kept; older versions answer 410.
    """

    def __init__(self, limit: int) -> None:
        self._events: deque[StoreEvent] = deque(maxlen=limit)
        self._oldest = 0
        self._subscribers: dict[int, Callable[[StoreEvent], None]] = {}
        self._next_subscriber = 0
        self._snapshots: OrderedDict[str, tuple[list[Stored], int]] = OrderedDict()
        self._next_snapshot = 0

    def record(self, event: StoreEvent) -> None:
        """Keep an event and tell the subscribers, in the order they came."""
        if len(self._events) == self._events.maxlen:
            self._oldest = self._events[0].revision
        self._events.append(event)
        for callback in list(self._subscribers.values()):
            callback(event)

    def subscribe(self, callback: Callable[[StoreEvent], None]) -> Callable[[], None]:
        """Call ``callback`` with each change from now on; the result ends that."""
        number = self._next_subscriber
        self._next_subscriber += 1
        self._subscribers[number] = callback
        return lambda: void(self._subscribers.pop(number, None))

    def since(self, revision: int, resource: Resource) -> list[StoreEvent]:
        """Changes of a kind after a version. Raises ExpiredError when they are not kept any more."""
        if revision < self._oldest:
            raise ExpiredError(
                f"too old resource version: {revision} ({self._oldest})",
                status=410,
                reason="Expired",
            )
        found = []
        for event in reversed(self._events):
            if event.revision <= revision:
                break
            if event.resource == resource:
                found.append(event)
        found.reverse()
        return found

    def expire(self, revision: int) -> None:
        """Forget everything up to and including the version before ``revision``."""
        self._events.clear()
        self._snapshots.clear()
        self._oldest = revision

    def first_page(self, items: Iterable[Stored], revision: int, limit: int) -> Page:
        """The first page of a list; all of it when ``limit`` is 0."""
        listed = list(items)
        if not limit or len(listed) <= limit:
            return Page(listed, revision, "", 0)
        self._next_snapshot += 1
        name = str(self._next_snapshot)
        self._snapshots[name] = (listed, revision)
        while len(self._snapshots) > _SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return _cut(name, listed, revision, 0, limit)

    def next_page(self, token: str, limit: int) -> Page:
        """The page that a token names. Raises ExpiredError or InvalidError."""
        try:
            name, start = orjson.loads(base64.urlsafe_b64decode(token))
        except (binascii.Error, ValueError, TypeError) as error:
            raise InvalidError(
                f"continue key is not valid: {error}", status=400, reason="BadRequest"
            ) from error
        if name not in self._snapshots:
            raise ExpiredError(
                "The provided continue parameter is too old to display a consistent list result.",
                status=410,
                reason="Expired",
            )
        listed, revision = self._snapshots[name]
        return _cut(name, listed, revision, start, limit or len(listed))


def _cut(name: str, listed: list[Stored], revision: int, start: int, limit: int) -> Page:
    end = start + limit
    remaining = max(0, len(listed) - end)
    token = ""
    if remaining:
        token = base64.urlsafe_b64encode(orjson.dumps([name, end])).decode()
    return Page(listed[start:end], revision, token, remaining)


def void(_: object) -> None:
    """Drop a value where a callback must return nothing."""
