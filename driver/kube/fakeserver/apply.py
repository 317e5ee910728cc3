# SPDX-License-Identifier: Apache-2.0
"""Server-side apply with field ownership, as far as our clients rely on it. Pure.

Owned are leaves: a path of keys, where an item of a keyed list is one step. A list that is not
keyed is one leaf. Ownership is tracked from the first apply of an object on; fields that were there
before belong to ``before-first-apply``, as for a real server. Used by the object store.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import orjson

from gpudra.api.errors import ConflictError
from gpudra.driver.kube.fakeserver.patches import LIST_KEYS, SET_LISTS, item_key
from gpudra.driver.kube.resources import Obj

Path: TypeAlias = tuple[str, ...]
# (manager, operation, subresource) -> leaves
Owners: TypeAlias = dict[tuple[str, str, str], frozenset[Path]]

_BEFORE = ("before-first-apply", "Update", "")
_TOP = frozenset({"apiVersion", "kind"})
# Set by the server or part of the object's identity: nobody owns them.
_UNOWNED = frozenset(
    {
        ("metadata", "name"),
        ("metadata", "namespace"),
        ("metadata", "uid"),
        ("metadata", "resourceVersion"),
        ("metadata", "generation"),
        ("metadata", "creationTimestamp"),
        ("metadata", "managedFields"),
        ("metadata", "deletionTimestamp"),
    }
)


def leaves(value: Any, path: Path = (), dotted: str = "") -> Iterator[tuple[Path, Any]]:
    """Leaves of an object with their values."""
    if isinstance(value, dict) and (value or not path):
        for key, child in value.items():
            yield from leaves(child, (*path, f"f:{key}"), f"{dotted}.{key}" if dotted else key)
    elif isinstance(value, list) and dotted in LIST_KEYS:
        for item in value:
            step = "k:" + orjson.dumps(item_key(item, LIST_KEYS[dotted])).decode()
            yield (*path, step), None
            yield from leaves(item, (*path, step), dotted)
    elif isinstance(value, list) and dotted in SET_LISTS:
        for item in value:
            yield (*path, f"v:{item}"), item
    else:
        yield path, value


def owned(obj: Obj) -> dict[Path, Any]:
    """Leaves that can have an owner."""
    return {
        path: value
        for path, value in leaves(obj)
        if tuple(step[2:] for step in path[:2]) not in _UNOWNED and path and path[0][2:] not in _TOP
    }


def track_update(old: Obj, new: Obj, owners: Owners, who: tuple[str, str, str]) -> Owners:
    """Ownership after an ordinary write: what changed belongs to the writer."""
    if not owners:
        return owners
    before, after = owned(old), owned(new)
    changed = {p for p, v in after.items() if p not in before or before[p] != v}
    kept = {
        key: frozenset(p for p in paths if p in after and p not in changed)
        for key, paths in owners.items()
    }
    kept[who] = kept.get(who, frozenset()) | changed
    return {key: paths for key, paths in kept.items() if paths}


def apply_config(
    current: Obj | None, config: Obj, owners: Owners, who: tuple[str, str, str], *, force: bool
) -> tuple[Obj, Owners]:
    """The object and its ownership after an apply.

    Args:
        current: the object, owned by the callee; None when it does not exist.
        config: what was applied.
        owners: ownership so far; empty before the first apply.
        who: manager, ``Apply``, subresource.
        force: take conflicting fields over.

    Raises:
        ConflictError: another manager owns a field that would get another value.
    """
    existing = owned(current) if current is not None else {}
    if current is not None and not owners:
        owners = {_BEFORE: frozenset(existing)}
    wanted = owned(config)
    clashing = {p for p, v in wanted.items() if p in existing and existing[p] != v}
    _refuse_conflicts(clashing, owners, who, force=force)
    fresh = {
        key: frozenset(p for p in paths if p not in clashing)
        for key, paths in owners.items()
        if key != who
    }
    held_by_others = frozenset().union(*fresh.values()) if fresh else frozenset()
    given_up = owners.get(who, frozenset()) - wanted.keys() - held_by_others
    result = _without(current or {}, given_up)
    fresh[who] = frozenset(wanted)
    return _merge(result, config), {key: paths for key, paths in fresh.items() if paths}


def managed_fields(owners: Owners, api_version: str, time: str) -> list[Obj]:
    """``metadata.managedFields`` for the ownership."""
    entries = []
    for (manager, operation, subresource), paths in sorted(owners.items()):
        tree: Obj = {}
        for path in sorted(paths):
            node = tree
            for step in path:
                node = node.setdefault(step, {})
        entry = {
            "manager": manager,
            "operation": operation,
            "apiVersion": api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": tree,
        }
        if subresource:
            entry["subresource"] = subresource
        entries.append(entry)
    return entries


def _refuse_conflicts(
    clashing: set[Path], owners: Owners, who: tuple[str, str, str], *, force: bool
) -> None:
    if force:
        return
    for key, paths in sorted(owners.items()):
        conflicts = sorted(clashing & paths)
        if key != who and conflicts:
            field = "." + ".".join(step[2:] for step in conflicts[0])
            raise ConflictError(
                f'Apply failed with {len(conflicts)} conflict: conflict with "{key[0]}": {field}',
                status=409,
                reason="Conflict",
            )


def _without(value: Any, gone: frozenset[Path], path: Path = (), dotted: str = "") -> Any:
    """The value without the leaves that nobody wants any more, and without what they leave empty."""
    if isinstance(value, dict):
        result = {}
        for key, child in value.items():
            inner = (*path, f"f:{key}")
            if inner in gone:
                continue
            kept = _without(child, gone, inner, f"{dotted}.{key}" if dotted else key)
            if kept in ({}, []) and child not in ({}, []):
                continue
            result[key] = kept
        return result
    if isinstance(value, list) and dotted in LIST_KEYS:
        steps = ["k:" + orjson.dumps(item_key(item, LIST_KEYS[dotted])).decode() for item in value]
        return [
            _without(item, gone, (*path, step), dotted)
            for item, step in zip(value, steps, strict=True)
            if (*path, step) not in gone
        ]
    if isinstance(value, list) and dotted in SET_LISTS:
        return [item for item in value if (*path, f"v:{item}") not in gone]
    return value


def _merge(target: Any, config: Any, dotted: str = "") -> Any:
    if isinstance(config, dict) and isinstance(target, dict):
        result = dict(target)
        for key, value in config.items():
            inner = f"{dotted}.{key}" if dotted else key
            result[key] = _merge(target[key], value, inner) if key in target else value
        return result
    if isinstance(config, list) and isinstance(target, list):
        if dotted in SET_LISTS:
            return target + [item for item in config if item not in target]
        if dotted in LIST_KEYS:
            return _merge_keyed(target, config, dotted)
    return config


def _merge_keyed(target: list[Any], config: list[Any], dotted: str) -> list[Any]:
    keys = LIST_KEYS[dotted]
    result = list(target)
    places = {item_key(item, keys): at for at, item in enumerate(result)}
    for item in config:
        at = places.get(item_key(item, keys))
        if at is None:
            result.append(item)
        else:
            result[at] = _merge(result[at], item, dotted)
    return result
