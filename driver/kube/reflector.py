# SPDX-License-Identifier: Apache-2.0
"""List and watch: keeps a `Store` equal to what the API server holds, and tells each difference.

Written by ourselves because the client library's informer has no back-off, no paging, no bookmarks
and no difference upon a new list. Used by the agent, the slice controller and the cluster side; each runs
`Reflector.run` as one task for ever.

The rules that it keeps:

* A version is sent to the server only if the server gave it.
* 410, in whatever form, means: forget the version, list again, tell the difference.
* Objects are the same only if their uid is the same.
* An object that cannot be decoded costs only itself: its last good form stays.
* A stream that ended normally is opened again at the last version seen; one that broke off, after
  a jittered, growing delay.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import structlog

from gpudra.api.errors import ApiError, ExpiredError, InvalidError, TooManyRequestsError
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock, SystemClock
from gpudra.driver.kube.resources import Obj, Resource, object_key
from gpudra.driver.kube.store import Entry, IndexFunction, Store
from gpudra.driver.kube.verbs import ListPage
from gpudra.driver.kube.watch import WatchEvent

T = TypeVar("T")

log = structlog.get_logger(__name__)


class EventKind(StrEnum):
    """What happened to an object."""

    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One difference; ``old`` is None for an addition, ``new`` for a deletion."""

    kind: EventKind
    old: T | None
    new: T | None

    @property
    def object(self) -> T:
        """The object as it is, or was last."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


EventHandler = Callable[[Event[T]], None]


@dataclass(frozen=True, slots=True)
class ReflectorError:
    """Something went wrong, told once per kind until it works again.

    Attributes:
        kind: groups equal troubles: ``list``, ``watch``, ``decode`` or ``handler`` and a class.
        message: for a person.
        error: the cause.
    """

    kind: str
    message: str
    error: Exception


class ListWatcher(Protocol):
    """What a reflector needs of `KubeClient`."""

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 500,
        continue_token: str = "",
    ) -> ListPage:
        """See `KubeClient.list_page`."""

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: float = 300,
        read_deadline: float | None = None,
    ) -> AsyncIterator[WatchEvent]:
        """See `KubeClient.watch`."""


@dataclass(frozen=True, slots=True)
class ReflectorOptions:
    """How a reflector behaves; times in seconds.

    Attributes:
        page_limit: objects a page.
        watch_timeout: longest life of one watch; the real one is drawn from [half, whole], so that
            thousands of watches do not end together.
        read_deadline: None = the client's own (a grace period above the watch's time-out).
        backoff_base: first delay after a failure.
        backoff_cap: longest delay after failures.
    """

    page_limit: int = 500
    watch_timeout: float = 300.0
    read_deadline: float | None = None
    backoff_base: float = 0.2
    backoff_cap: float = 30.0


# A watch that ends sooner than this without a word is treated like a failure: no busy loop.
_SHORT_WATCH_SECONDS = 1.0
# Refusals of this many watches in a row cast doubt on the version itself. Answers that only speak
# of the server's own state do not count: else a restart of it would make every agent list.
_WATCH_ERRORS_BEFORE_LIST = 3
_SERVER_STATE = frozenset({0, 429, 502, 503, 504})
_PAGED_TRIES = 3
# A living server sends bookmarks. One restored from a backup is silent on a watch from a version
# that lies in its future (seen on 1.37.2), so this many silent watches in a row end in a list.
_SILENT_WATCHES_BEFORE_LIST = 3
# One 410 is ordinary and the new list follows at once; the next within this time is slowed down.
_EXPIRY_MEMORY_SECONDS = 60.0


class Reflector(Generic[T]):
    """One collection, mirrored.

    Args:
        client: lists and watches.
        resource: the kind.
        decode: from a raw object to ours; runs once for each version of an object. May raise.
        namespace: None = all.
        field_selector: as for kubectl.
        label_selector: as for kubectl.
        indexes: see `Store`.
        on_event: told each difference after the store has changed. Plain and quick; an exception
            costs only that call.
        on_error: told once per kind of trouble until the next success; logged in any case.
        options: limits and delays.
        clock: for delays.
        rng: for jitter.
    """

    def __init__(
        self,
        client: ListWatcher,
        resource: Resource,
        decode: Callable[[Obj], T],
        *,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        on_event: EventHandler[T] | None = None,
        on_error: Callable[[ReflectorError], None] | None = None,
        options: ReflectorOptions | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.resource = resource
        self.store: Store[T] = Store(indexes)
        self.resource_version = ""
        self._client = client
        self._decode = decode
        self._namespace = namespace
        self._selectors = {"field_selector": field_selector, "label_selector": label_selector}
        self._handlers: list[EventHandler[T]] = [on_event] if on_event else []
        self._on_error = on_error
        self._options = options or ReflectorOptions()
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy
        self._backoffs = {what: self._new_backoff() for what in ("list", "watch", "expired")}
        self._expired_at = float("-inf")
        self._synced = asyncio.Event()
        self._undecodable: dict[str, str] = {}
        self._reported: set[str] = set()
        self._watch_errors = 0
        self._silent_watches = 0
        self._log = log.bind(resource=resource.plural)

    @property
    def has_synced(self) -> bool:
        """Whether the store has held a complete list at least once."""
        return self._synced.is_set()

    @property
    def undecodable(self) -> Mapping[str, str]:
        """Key -> why, for objects whose present form cannot be used."""
        return MappingProxyType(self._undecodable)

    async def wait_synced(self) -> None:
        """Return when the store has held a complete list once."""
        await self._synced.wait()

    def add_handler(self, on_event: EventHandler[T]) -> None:
        """Tell one more; it first hears of everything in the store as additions."""
        self._handlers.append(on_event)
        for value in self.store.values():
            self._call(on_event, Event(EventKind.ADD, None, value))

    async def run(self) -> None:
        """Mirror for ever. Ends only by cancellation; no error of the server ends it."""
        while True:
            delay = await self._step()
            if delay > 0:
                await self._clock.sleep(delay)

    async def _step(self) -> float:
        """One list or one watch; returns how long to wait before the next."""
        if not self.resource_version:
            try:
                await self._list()
            except ApiError as error:
                return self._failed("list", error)
            self._works("list", "handler")
            return 0.0
        return await self._watch()

    async def _list(self) -> None:
        for tries_left in reversed(range(_PAGED_TRIES)):
            # Lists that expire again and again are taken in one piece in the end.
            limit = self._options.page_limit if tries_left else 0
            try:
                found, version = await self._collect(limit)
            except ExpiredError as error:
                if not tries_left:
                    raise
                self._log.info("list_expired", error=str(error))
                continue
            self._replace(found)
            self.resource_version = version
            self._synced.set()
            return

    async def _collect(self, limit: int) -> tuple[dict[str, "_Listed[T]"], str]:
        """All pages, decoded page by page, so that at most one page is held raw."""
        found: dict[str, _Listed[T]] = {}
        version = token = ""
        while True:
            page = await self._client.list_page(
                self.resource,
                self._namespace,
                limit=limit,
                continue_token=token,
                **self._selectors,
            )
            for raw in page.items:
                key = _key_of(raw)
                if key is not None:
                    found[key] = self._listed(key, raw)
            version = version or page.resource_version
            token = page.continue_token
            if not token:
                return found, version

    def _listed(self, key: str, raw: Obj) -> "_Listed[T]":
        uid, version = _identity(raw)
        known = self.store.by_key(key)
        if known is not None and known.uid == uid and known.resource_version == version != "":
            self._undecodable.pop(key, None)
            return _Listed(uid, known)
        return _Listed(uid, self._decoded(key, raw))

    def _replace(self, found: dict[str, "_Listed[T]"]) -> None:
        """Make the store equal to a list and tell the difference: deletions first."""
        for key in [entry.key for entry in self.store.entries()]:
            known, listed = self.store.by_key(key), found.get(key)
            if known is not None and (listed is None or listed.uid != known.uid):
                self._drop(key)
        for key in set(self._undecodable) - found.keys():
            del self._undecodable[key]
        for listed in found.values():
            if listed.entry is not None:
                self._put(listed.entry)

    async def _watch(self) -> float:
        started = self._clock.monotonic()
        timeout = self._options.watch_timeout * (0.5 + 0.5 * self._rng.random())
        heard = lasting = False
        failure: ApiError | None = None
        try:
            async for event in self._client.watch(
                self.resource,
                self._namespace,
                resource_version=self.resource_version,
                timeout_seconds=timeout,
                read_deadline=self._options.read_deadline,
                **self._selectors,
            ):
                heard = True
                self._apply(event)
                if not lasting and self._lasts(started):
                    lasting = True
                    self._works("watch")
        except ApiError as error:
            failure = error
        if (failure is None and heard) or self._lasts(started):
            self._works("watch")
        self._count_silence(heard=heard, lasted=self._lasts(started))
        if isinstance(failure, ExpiredError):
            return self._expired(failure)
        if failure is not None:
            return self._watch_failed(failure)
        return 0.0 if heard or self._lasts(started) else self._backoffs["watch"].next()

    def _count_silence(self, *, heard: bool, lasted: bool) -> None:
        if heard:
            self._silent_watches = 0
        elif lasted:
            self._silent_watches += 1
        if self._silent_watches >= _SILENT_WATCHES_BEFORE_LIST:
            self._silent_watches = 0
            self.resource_version = ""

    def _lasts(self, started: float) -> bool:
        return self._clock.monotonic() - started >= _SHORT_WATCH_SECONDS

    def _expired(self, error: ExpiredError) -> float:
        self._log.info("watch_expired", error=str(error), version=self.resource_version)
        self.resource_version = ""
        now, backoff = self._clock.monotonic(), self._backoffs["expired"]
        first = now - self._expired_at > _EXPIRY_MEMORY_SECONDS
        self._expired_at = now
        if first:
            backoff.reset()
        delay = backoff.next()
        return 0.0 if first else delay

    def _watch_failed(self, error: ApiError) -> float:
        self._watch_errors += error.status not in _SERVER_STATE
        doubtful = isinstance(error, InvalidError) or error.reason == "ResourceVersionTooLarge"
        if doubtful or self._watch_errors >= _WATCH_ERRORS_BEFORE_LIST:
            self.resource_version = ""
            self._watch_errors = 0
        return self._failed("watch", error)

    def _apply(self, event: WatchEvent) -> None:
        raw = event.object
        version = _identity(raw)[1]
        if event.type != "BOOKMARK":
            key = _key_of(raw)
            if key is not None:
                self._apply_object(event.type, key, raw)
        if version:
            self.resource_version = version

    def _apply_object(self, kind: str, key: str, raw: Obj) -> None:
        uid, version = _identity(raw)
        known = self.store.by_key(key)
        if kind == "DELETED":
            self._undecodable.pop(key, None)
            self._drop(key)
            return
        if known is not None and known.uid != uid:
            self._drop(key)
            known = None
        if known is not None and known.resource_version == version != "":
            return
        entry = self._decoded(key, raw)
        if entry is not None:
            self._put(entry)

    def _decoded(self, key: str, raw: Obj) -> Entry[T] | None:
        try:
            value = self._decode(raw)
        except Exception as error:  # noqa: BLE001 - whatever decode raises costs this object only
            self._refuse(key, error)
            return None
        self._undecodable.pop(key, None)
        meta = raw["metadata"]
        uid, version = _identity(raw)
        return Entry(meta.get("namespace") or "", meta["name"], uid, version, value)

    def _refuse(self, key: str, error: Exception) -> None:
        """Remember why an object cannot be used; told anew only when the reason changes."""
        reason = str(error) or type(error).__name__
        if self._undecodable.get(key) == reason:
            return
        self._undecodable[key] = reason
        message = f"{self.resource.kind} {key} cannot be used: {reason}"
        self._tell_trouble(ReflectorError(f"decode:{type(error).__name__}", message, error))

    def _put(self, entry: Entry[T]) -> None:
        known = self.store.by_key(entry.key)
        if known is entry:
            return
        try:
            self.store.put(entry)
        except Exception as error:  # noqa: BLE001 - an index function met an object it cannot read
            self._refuse(entry.key, error)
            return
        kind = EventKind.ADD if known is None else EventKind.UPDATE
        self._tell(Event(kind, known.value if known is not None else None, entry.value))

    def _drop(self, key: str) -> None:
        gone = self.store.remove(key)
        if gone is not None:
            self._tell(Event(EventKind.DELETE, gone.value, None))

    def _tell(self, event: Event[T]) -> None:
        for handler in self._handlers:
            self._call(handler, event)

    def _call(self, handler: EventHandler[T], event: Event[T]) -> None:
        try:
            handler(event)
        except Exception as error:  # noqa: BLE001 - one handler must not end the mirror
            self._report("handler", error, f"handler of {self.resource.plural}: {error!r}")

    def _failed(self, what: str, error: ApiError) -> float:
        self._report(what, error, f"{what} {self.resource.plural}: {error.what}")
        at_least = error.retry_after if isinstance(error, TooManyRequestsError) else 0.0
        return self._backoffs[what].next(at_least)

    def _works(self, *what: str) -> None:
        for name in what:
            if name in self._backoffs:
                self._backoffs[name].reset()
        if "watch" in what:
            self._watch_errors = 0
        back = {kind for kind in self._reported if kind.split(":")[0] in what}
        if back:
            self._reported -= back
            self._log.info("works_again", was=sorted(back))

    def _new_backoff(self) -> Backoff:
        return Backoff(self._options.backoff_base, self._options.backoff_cap, rng=self._rng)

    def _report(self, what: str, error: Exception, message: str) -> None:
        status = f"{error.status}" if isinstance(error, ApiError) else ""
        kind = f"{what}:{type(error).__name__}{status}"
        if kind in self._reported:
            return
        self._reported.add(kind)
        self._tell_trouble(ReflectorError(kind, message, error))

    def _tell_trouble(self, trouble: ReflectorError) -> None:
        self._log.warning("reflector_trouble", kind=trouble.kind, error=trouble.message)
        if self._on_error is not None:
            self._on_error(trouble)


@dataclass(frozen=True, slots=True)
class _Listed(Generic[T]):
    """An object of a list: its uid, and its entry unless it could not be decoded."""

    uid: str
    entry: Entry[T] | None


def _identity(raw: Obj) -> tuple[str, str]:
    meta = raw.get("metadata") or {}
    return str(meta.get("uid") or ""), str(meta.get("resourceVersion") or "")


def _key_of(raw: Obj) -> str | None:
    meta = raw.get("metadata")
    return object_key(raw) if isinstance(meta, dict) and meta.get("name") else None
