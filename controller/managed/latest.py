# SPDX-License-Identifier: Apache-2.0
"""The newest known form of each object, from the watch and from the answers to our own writes.

A write's answer is known before the watch tells of it, and the watch may tell of older forms
afterwards. Whoever plans on the older one gives a device out twice; so a form never replaces a
newer one, and an object that the watch has seen go never comes back. Used by the feed.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# Answers that arrive after the object's end are at most as old as a request may last.
_REMEMBERED = 20_000


def version_number(text: str) -> int | None:
    """A resourceVersion as a number; None where the server's are none.

    They may be compared when they are decimal numbers: KEP-5504.
    """
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """One form of an object.

    Attributes:
        uid: of the object.
        version: its resourceVersion.
        value: decoded.
    """

    uid: str
    version: str
    value: T


class Latest(Generic[T]):
    """Objects of one kind by ``namespace/name``."""

    def __init__(self) -> None:
        self._forms: dict[str, Form[T]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        # Keys whose form is an answer that the watch has not reached yet.
        self._ahead: set[str] = set()

    def __len__(self) -> int:
        return len(self._forms)

    def values(self) -> Iterator[T]:
        """What is known of every object."""
        return (form.value for form in self._forms.values())

    def get(self, key: str, uid: str = "") -> Form[T] | None:
        """The newest form; None when there is none, or none with this uid."""
        found = self._forms.get(key)
        return None if found is None or (uid and found.uid != uid) else found

    def seen(self, key: str, form: Form[T]) -> bool:
        """Takes what the watch tells; False when an answer of ours is newer.

        What the watch itself told before never stands in the way: a server that was restored from a
        backup has older versions than it had yesterday.
        """
        if form.uid in self._gone:
            return False
        known = self.get(key, form.uid)
        if known is not None and key in self._ahead:
            if _is_newer(known, form):
                return False
            self._ahead.discard(key)
            if known.version == form.version:
                return False
        self._ahead.discard(key)
        self._forms[key] = form
        return True

    def answered(self, key: str, form: Form[T]) -> bool:
        """Takes the answer to a write or a read of ours; False when it is no news."""
        if form.uid in self._gone:
            return False
        known = self._forms.get(key)
        if known is not None and known.uid == form.uid and not _is_newer(form, known):
            return False
        self._forms[key] = form
        self._ahead.add(key)
        return True

    def remove(self, key: str, uid: str) -> bool:
        """The object is gone for good; False when another one has its name already."""
        self._gone[uid] = None
        self._gone.move_to_end(uid)
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        known = self._forms.get(key)
        if known is None or known.uid != uid:
            return False
        del self._forms[key]
        self._ahead.discard(key)
        return True


def _is_newer(form: Form[T], known: Form[T]) -> bool:
    if form.version == known.version:
        return False
    new, old = version_number(form.version), version_number(known.version)
    return new is None or old is None or new > old
