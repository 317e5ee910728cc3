# SPDX-License-Identifier: Apache-2.0
"""`ObjectStore`: the state of the fake API server, without HTTP.

Synchronous, deterministic (seeded names and uids, injected clock), so that simulations can use it
directly; the HTTP front of `FakeApiServer` is one user of it. It answers what a real API server
answers: versions, conflicts, preconditions, finalizers, subresources, defaults, dropped fields.
What goes in and comes out are copies.
"""

import random
import uuid
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import orjson

from gpudra.api.errors import AlreadyExistsError, InvalidError, NotFoundError
from gpudra.driver.kube.clock import Clock, SystemClock, rfc3339
from gpudra.driver.kube.fakeserver import fieldpaths
from gpudra.driver.kube.fakeserver.apply import Owners, apply_config, managed_fields, track_update
from gpudra.driver.kube.fakeserver.defaults import Defaulter
from gpudra.driver.kube.fakeserver.history import History, Page, Stored, StoreEvent
from gpudra.driver.kube.fakeserver.patches import json_patch, merge_patch, strategic_patch
from gpudra.driver.kube.fakeserver.schema import Kind, KindTable, builtin_kinds
from gpudra.driver.kube.fakeserver.selectors import (
    Predicate,
    both,
    field_predicate,
    label_predicate,
)
from gpudra.driver.kube.fakeserver.validation import Validator
from gpudra.driver.kube.fakeserver.writes import (
    check_identity,
    clone,
    conflict,
    content,
    copy_of,
    limited_to,
)
from gpudra.driver.kube.resources import NAMESPACES, Obj, Resource

# The alphabet that Kubernetes draws name suffixes from: no vowels, nothing easily misread.
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

# Namespace and name.
_Key: TypeAlias = tuple[str, str]
# A class with a method called ``list`` cannot say ``list[...]`` in the signatures below it.
Objects: TypeAlias = list[Obj]
Changes: TypeAlias = list[StoreEvent]
StoredItems: TypeAlias = list[Stored]


class ObjectStore:
    """All objects of one pretended cluster.

    Args:
        clock: for time stamps.
        seed: for uids and generated names.
        history: how many changes a watch can look back.
    """

    def __init__(
        self, clock: Clock | None = None, *, seed: int = 0, history: int = 100_000
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.revision = 1
        self._rng = random.Random(seed)  # noqa: S311 - uids of a pretended cluster
        self._history = History(history)
        self.kinds = KindTable(builtin_kinds())
        self._objects: dict[Resource, dict[_Key, Stored]] = {
            kind.resource: {} for kind in self.kinds.all()
        }
        self._owners: dict[tuple[Resource, _Key], Owners] = {}
        for name in ("default", "kube-system"):
            self._ensure_namespace(name)

    def register(
        self,
        resource: Resource,
        *,
        status: bool = True,
        selectable: Iterable[str] = (),
        default: Defaulter | None = None,
        validate: Validator | None = None,
    ) -> None:
        """Serve one more kind (a CRD), or serve a known one differently."""
        self.kinds.add(Kind(resource, status, frozenset(selectable), default, validate))
        self._objects.setdefault(resource, {})

    def unregister(self, resource: Resource) -> None:
        """Stop serving a kind: every request for it answers 404. Its objects are gone."""
        self.kinds.remove(resource)
        self._objects.pop(resource, None)

    def drop_fields(self, resource: Resource, *paths: str) -> None:
        """Drop these fields silently on write, like a server whose feature gate is off.

        Args:
            resource: the kind.
            paths: for example ``spec.sharedCounters`` or ``spec.devices[*].taints``.
        """
        self.kinds.get(resource).dropped += [fieldpaths.parse_path(path) for path in paths]

    def restore_fields(self, resource: Resource) -> None:
        """Keep all fields again."""
        self.kinds.get(resource).dropped.clear()

    def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        """A copy of an object. Raises NotFoundError."""
        return copy_of(self.stored(resource, name, namespace))

    def stored(self, resource: Resource, name: str, namespace: str = "") -> Stored:
        """An object as it is stored; not to be changed. Raises NotFoundError."""
        self.kinds.get(resource)
        found = self._objects[resource].get((namespace if resource.namespaced else "", name))
        if found is None:
            raise NotFoundError(
                f'{resource.plural} "{name}" not found', status=404, reason="NotFound", obj=name
            )
        return found

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
    ) -> Objects:
        """Copies of the objects that fit, ordered by namespace and name."""
        predicate = self.predicate(resource, field_selector, label_selector)
        return [copy_of(item) for item in self._matching(resource, namespace, predicate)]

    def predicate(
        self, resource: Resource, field_selector: str, label_selector: str
    ) -> Predicate | None:
        """Test for the selectors; None = everything. Raises InvalidError."""
        fields = field_predicate(field_selector, self.kinds.get(resource).selectable)
        return both(fields, label_predicate(label_selector))

    def page(
        self,
        resource: Resource,
        namespace: str | None,
        predicate: Predicate | None,
        *,
        limit: int = 0,
        continue_token: str = "",
    ) -> Page:
        """One page of a list, cut from the state at the time of its first page."""
        self.kinds.get(resource)
        if continue_token:
            return self._history.next_page(continue_token, limit)
        items = self._matching(resource, namespace, predicate)
        return self._history.first_page(items, self.revision, limit)

    def events_since(self, resource: Resource, revision: int) -> Changes:
        """Changes of a kind after a version. Raises ExpiredError."""
        return self._history.since(revision, resource)

    def subscribe(self, callback: Callable[[StoreEvent], None]) -> Callable[[], None]:
        """Call ``callback`` at once with each change of any kind; the result ends that."""
        return self._history.subscribe(callback)

    def expire(self) -> None:
        """All versions and continue tokens given out so far answer 410 from now on."""
        self.revision += 1
        self._history.expire(self.revision)

    def skip_to(self, revision: int) -> None:
        """Jump to a version, which must not lie in the past."""
        assert revision >= self.revision, "versions only grow"
        self.revision = revision

    def seed(self, *objects: Obj) -> None:
        """Put objects in as they are, status included (a snapshot of a cluster)."""
        for obj in objects:
            resource = self.kinds.of_object(obj)
            created = self.create(resource, obj)
            if "status" in obj and self.kinds.get(resource).status:
                self.update(resource, {**created, "status": obj["status"]}, subresource="status")

    def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create an object. Raises AlreadyExistsError or InvalidError."""
        return self._create(resource, obj, None, dry_run=dry_run)

    def _create(self, resource: Resource, obj: Obj, owners: Owners | None, *, dry_run: bool) -> Obj:
        kind = self.kinds.get(resource)
        new = clone(obj)
        self._check_type(new, resource)
        meta = new.setdefault("metadata", {})
        self._name(meta, resource)
        key = (meta.get("namespace", "") if resource.namespaced else "", meta["name"])
        if key in self._objects[resource]:
            raise AlreadyExistsError(
                f'{resource.plural} "{key[1]}" already exists', status=409, reason="AlreadyExists"
            )
        if kind.status:
            new.pop("status", None)
        meta["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        meta["creationTimestamp"] = rfc3339(self.clock.now())
        for field in ("generation", "resourceVersion", "deletionTimestamp", "managedFields"):
            meta.pop(field, None)
        if kind.generation:
            meta["generation"] = 1
        self._finish(kind, new, None)
        return self._commit(resource, key, new, None, dry_run=dry_run, owners=owners)

    def update(
        self,
        resource: Resource,
        obj: Obj,
        *,
        subresource: str = "",
        dry_run: bool = False,
        field_manager: str = "",
    ) -> Obj:
        """Replace an object or its status. Raises NotFoundError, ConflictError or InvalidError."""
        meta = obj.get("metadata") or {}
        name, namespace = meta.get("name", ""), meta.get("namespace", "")
        self._check_type(obj, resource)
        old = self.stored(resource, name, namespace)
        return self._replace(
            resource, old, clone(obj), subresource, dry_run=dry_run, manager=field_manager
        )

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str = "",
        patch_type: str = "merge",
        subresource: str = "",
        dry_run: bool = False,
        field_manager: str = "",
        force: bool = False,
    ) -> Obj:
        """Change parts of an object; ``apply`` creates it when it is missing.

        Raises:
            NotFoundError: no such object.
            ConflictError: the body names another version or uid, or a field is owned by others.
            InvalidError: the patch or its result cannot be used.
        """
        if patch_type == "apply":
            return self._apply(
                resource, name, namespace, body, subresource, field_manager, force, dry_run
            )
        old = self.stored(resource, name, namespace)
        change = {"merge": merge_patch, "json": json_patch, "strategic": strategic_patch}
        if patch_type not in change:
            raise InvalidError(f"unknown patch type {patch_type!r}", status=400)
        new = change[patch_type](copy_of(old), clone(body))
        return self._replace(
            resource, old, new, subresource, dry_run=dry_run, manager=field_manager
        )

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
    ) -> Obj:
        """Delete an object, or mark it when finalizers hold it. Pods go at once, without grace.

        Raises:
            NotFoundError: no such object.
            ConflictError: it has another uid or version.
        """
        old = self.stored(resource, name, namespace)
        meta = old.obj["metadata"]
        for field, wanted in (("uid", uid), ("resourceVersion", resource_version)):
            if wanted and meta.get(field) != wanted:
                raise conflict(resource, name, f"the {field} in the precondition is {wanted}")
        key = (meta.get("namespace", "") if resource.namespaced else "", name)
        if not meta.get("finalizers"):
            return self._remove(resource, key, old, dry_run=dry_run)
        if meta.get("deletionTimestamp"):
            return copy_of(old)
        new = copy_of(old)
        new["metadata"]["deletionTimestamp"] = rfc3339(self.clock.now())
        new["metadata"]["deletionGracePeriodSeconds"] = 0
        return self._commit(resource, key, new, old, dry_run=dry_run)

    def collect_garbage(self) -> int:
        """Delete what is owned only by objects that are gone (the garbage collector's job).

        Returns:
            How many objects were deleted.
        """
        alive = {
            item.obj["metadata"]["uid"]
            for items in self._objects.values()
            for item in items.values()
        }
        orphans = [
            (resource, key)
            for resource, items in self._objects.items()
            for key, item in items.items()
            if (owners := item.obj["metadata"].get("ownerReferences"))
            and not any(owner.get("uid") in alive for owner in owners)
        ]
        for resource, (namespace, name) in orphans:
            self.delete(resource, name, namespace)
        return len(orphans) + (self.collect_garbage() if orphans else 0)

    def _matching(
        self, resource: Resource, namespace: str | None, predicate: Predicate | None
    ) -> StoredItems:
        self.kinds.get(resource)
        items = self._objects[resource]
        return [
            items[key]
            for key in sorted(items)
            if (not namespace or key[0] == namespace)
            and (predicate is None or predicate(items[key].obj))
        ]

    def _replace(
        self,
        resource: Resource,
        old: Stored,
        new: Obj,
        subresource: str,
        *,
        dry_run: bool,
        manager: str,
    ) -> Obj:
        kind, before = self.kinds.get(resource), old.obj
        check_identity(resource, before, new)
        new = limited_to(subresource, kind, old, new)
        self._finish(kind, new, before)
        key = (before["metadata"].get("namespace", ""), before["metadata"]["name"])
        owners = self._owners.get((resource, key), {})
        who = (manager or "unknown", "Update", subresource)
        return self._commit(
            resource,
            key,
            new,
            old,
            dry_run=dry_run,
            owners=track_update(before, new, owners, who),
        )

    def _apply(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        body: Obj,
        subresource: str,
        manager: str,
        force: bool,
        dry_run: bool,
    ) -> Obj:
        if not manager:
            raise InvalidError("fieldManager is required for apply patch", status=400)
        config = clone(body)
        config.setdefault("metadata", {})["name"] = name
        if resource.namespaced:
            config["metadata"]["namespace"] = namespace
        key = (namespace if resource.namespaced else "", name)
        old = self._objects[self.kinds.get(resource).resource].get(key)
        who = (manager, "Apply", subresource)
        current = copy_of(old) if old is not None else None
        known = self._owners.get((resource, key), {})
        new, owners = apply_config(current, config, known, who, force=force)
        if old is None:
            return self._create(resource, new, owners, dry_run=dry_run)
        kind = self.kinds.get(resource)
        check_identity(resource, old.obj, new)
        new = limited_to(subresource, kind, old, new)
        self._finish(kind, new, old.obj)
        return self._commit(resource, key, new, old, dry_run=dry_run, owners=owners)

    def _finish(self, kind: Kind, new: Obj, old: Obj | None) -> None:
        """Drop, default, validate, count generations: what every write goes through."""
        for segments in kind.dropped:
            fieldpaths.drop(new, segments)
        if kind.default is not None:
            kind.default(new, old, self.clock.now())
        causes = kind.validate(new, old) if kind.validate is not None else []
        if causes:
            name = new["metadata"]["name"]
            listed = ", ".join(f"{field}: {message}" for field, message in causes)
            raise InvalidError(
                f'{kind.resource.kind} "{name}" is invalid: {listed}', causes=causes, obj=name
            )
        if old is not None and kind.generation and content(new) != content(old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def _commit(
        self,
        resource: Resource,
        key: _Key,
        new: Obj,
        old: Stored | None,
        *,
        dry_run: bool,
        owners: Owners | None = None,
    ) -> Obj:
        if owners:
            # The time stays, so that an apply without a change is none.
            stamp = new["metadata"]["creationTimestamp"]
            new["metadata"]["managedFields"] = managed_fields(owners, resource.api_version, stamp)
        if old is not None and new == old.obj:
            return copy_of(old)
        if dry_run:
            return new
        meta = new["metadata"]
        if owners is not None:
            self._owners[resource, key] = owners
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and old is not None:
            return self._remove(resource, key, old, dry_run=False)
        self.revision += 1
        meta["resourceVersion"] = str(self.revision)
        stored = Stored(new, orjson.dumps(new), self.revision)
        self._objects[resource][key] = stored
        self._history.record(
            StoreEvent("ADDED" if old is None else "MODIFIED", resource, self.revision, stored, old)
        )
        return copy_of(stored)

    def _remove(self, resource: Resource, key: _Key, old: Stored, *, dry_run: bool) -> Obj:
        if dry_run:
            return copy_of(old)
        self.revision += 1
        last = copy_of(old)
        last["metadata"]["resourceVersion"] = str(self.revision)
        stored = Stored(last, orjson.dumps(last), self.revision)
        del self._objects[resource][key]
        self._owners.pop((resource, key), None)
        self._history.record(StoreEvent("DELETED", resource, self.revision, stored, old))
        return copy_of(stored)

    def _name(self, meta: Obj, resource: Resource) -> None:
        if not meta.get("name"):
            prefix = meta.get("generateName")
            if not prefix:
                raise InvalidError(
                    "name or generateName is required",
                    causes=[("metadata.name", "Required value: name or generateName is required")],
                )
            meta["name"] = prefix + "".join(self._rng.choices(_SUFFIX_LETTERS, k=5))
        if not resource.namespaced:
            meta.pop("namespace", None)
            return
        meta.setdefault("namespace", "default")
        self._ensure_namespace(meta["namespace"])

    def _ensure_namespace(self, name: str) -> None:
        """Namespaces come into being with their first object; nobody needs to create them."""
        if ("", name) in self._objects[NAMESPACES]:
            return
        labels = {"kubernetes.io/metadata.name": name}
        self.create(
            NAMESPACES,
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": labels},
            },
        )

    @staticmethod
    def _check_type(obj: Obj, resource: Resource) -> None:
        kind = obj.get("kind", resource.kind)
        version = obj.get("apiVersion", resource.api_version)
        if (kind, version) != (resource.kind, resource.api_version):
            raise InvalidError(
                f"the object is a {version} {kind}, not a {resource.api_version} {resource.kind}",
                status=400,
                reason="BadRequest",
            )
        obj["kind"], obj["apiVersion"] = kind, version
