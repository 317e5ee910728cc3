# SPDX-License-Identifier: Apache-2.0
"""What may change in a write, and when a write is refused for its identity. Pure.

The rules of the API server's registry: preconditions on version and uid, fields that only the
server sets, status and the rest kept apart. Used by the object store.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from gpudra.api.errors import ConflictError, InvalidError
from gpudra.driver.kube.fakeserver.history import Stored
from gpudra.driver.kube.fakeserver.schema import Kind
from gpudra.driver.kube.resources import Obj, Resource

# What an update of an object cannot change.
_SERVER_FIELDS = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
    "generation",
    "managedFields",
)


def clone(value: Any) -> Any:
    """A deep copy of a JSON value, shared parts split."""
    return orjson.loads(orjson.dumps(value))


def copy_of(stored: Stored) -> Obj:
    """A copy that the caller may change."""
    copied: Obj = orjson.loads(stored.data)
    return copied


def content(obj: Obj) -> Obj:
    """What ``metadata.generation`` counts: everything but metadata and status."""
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def conflict(resource: Resource, name: str, why: str) -> ConflictError:
    """The 409 for an object."""
    return ConflictError(
        f'Operation cannot be fulfilled on {resource.plural} "{name}": {why}',
        status=409,
        reason="Conflict",
        obj=name,
    )


def check_identity(resource: Resource, old: Obj, new: Obj) -> None:
    """Refuse a write whose version, uid or name are not those of the object."""
    before, meta = old["metadata"], new.setdefault("metadata", {})
    name = before["name"]
    version, uid = meta.get("resourceVersion"), meta.get("uid")
    if uid and uid != before["uid"]:
        raise conflict(resource, name, f"Precondition failed: UID in precondition: {uid}")
    if version and version != before["resourceVersion"]:
        raise conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version",
        )
    if meta.get("name", name) != name:
        raise InvalidError(
            "metadata.name: field is immutable", causes=[("metadata.name", "field is immutable")]
        )


def limited_to(subresource: str, kind: Kind, stored: Stored, new: Obj) -> Obj:
    """The new object with only those changes that a write to this (sub)resource may make."""
    old = copy_of(stored)
    if subresource == "status" and kind.status:
        _take(old, new, ("status",))
        if kind.status_labels:
            _take(old["metadata"], new["metadata"], ("labels", "annotations"))
        return old
    _take(new["metadata"], old["metadata"], _SERVER_FIELDS)
    if kind.status:
        _take(new, old, ("status",))
    return new


def _take(target: Obj, source: Obj, fields: Iterable[str]) -> None:
    """Fields become those of the source, absent ones too."""
    for field in fields:
        target.pop(field, None)
        if field in source:
            target[field] = source[field]
