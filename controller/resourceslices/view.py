# SPDX-License-Identifier: Apache-2.0
"""What the API holds of a pool: the watched slices, corrected by our own latest writes.

A watch lags behind our writes; a plan made from it alone would write the same things again. So
the answers to our writes count until the watch has caught up with them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpudra.api.resource_v1 import ResourceSlice
from gpudra.driver.kube.reflector import Event, EventKind
from gpudra.driver.kube.store import Store

# A watch that has not shown a write by then has lost it: what it shows counts again.
_TRUST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Own:
    """Our last write of one name; ``slice`` is None for a deletion."""

    uid: str
    version: int
    slice: ResourceSlice | None
    until: float


class SliceView:
    """Slices of one pool by name.

    Args:
        store: of the reflector.
        belongs: whether a slice is one of the pool.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: Store[ResourceSlice],
        belongs: Callable[[ResourceSlice], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._belongs = belongs
        self._monotonic = monotonic
        self._own: dict[str, _Own] = {}

    def slices(self) -> tuple[ResourceSlice, ...]:
        """What the API holds, as far as we can know, by name."""
        now = self._monotonic()
        self._own = {name: own for name, own in self._own.items() if own.until > now}
        found = {one.metadata.name: one for one in self._store.values()}
        for name, own in self._own.items():
            if own.slice is None:
                found.pop(name, None)
            else:
                found[name] = own.slice
        return tuple(one for _, one in sorted(found.items()) if self._belongs(one))

    def lagging(self) -> float | None:
        """Seconds until a write counts as lost by the watch; None when it has caught up."""
        if not self._own:
            return None
        return max(0.0, min(own.until for own in self._own.values()) - self._monotonic())

    def wrote(self, one: ResourceSlice) -> None:
        """The answer to a create, an update or a get."""
        shown = self._store.entry(one.metadata.name)
        version = _version(one.metadata.resource_version)
        caught_up = shown is not None and (
            shown.uid == one.metadata.uid and _version(shown.resource_version) >= version
        )
        if caught_up:
            self._own.pop(one.metadata.name, None)
            return
        self._own[one.metadata.name] = self._entry(one.metadata.uid, version, one)

    def gone(self, name: str, uid: str) -> None:
        """The slice is deleted, by us or as an answer told."""
        if self._store.entry(name) is not None:
            self._own[name] = self._entry(uid, 0, None)
        else:
            self._own.pop(name, None)

    def seen(self, event: Event[ResourceSlice]) -> None:
        """The watch has shown something; forget the writes that it has caught up with."""
        metadata = event.object.metadata
        own = self._own.get(metadata.name)
        if own is None:
            return
        same = metadata.uid == own.uid
        if event.kind is EventKind.DELETE:
            # Deleting what came before our write says nothing about our write.
            caught_up = same
        elif own.slice is None:
            caught_up = not same
        else:
            caught_up = not same or _version(metadata.resource_version) >= own.version
        if caught_up:
            del self._own[metadata.name]

    def _entry(self, uid: str, version: int, one: ResourceSlice | None) -> _Own:
        return _Own(uid, version, one, self._monotonic() + _TRUST_SECONDS)


def _version(text: str) -> int:
    """Versions of one kind may be compared as numbers (KEP-5504)."""
    return int(text) if text.isdigit() else 0
