# SPDX-License-Identifier: Apache-2.0
"""Merge patch (RFC 7386), JSON patch (RFC 6902) and strategic merge patch. Pure.

Each function takes ownership of the target and returns the result. Used by the object store;
`gpudra.driver.kube.fakeserver.apply` shares the table of list keys.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gpudra.api.errors import InvalidError

# Lists that are maps in disguise, by their path without indexes: which fields identify an item
# (patchMergeKey and listMapKey of the API types). Everything else is replaced as a whole.
LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "metadata.ownerReferences": ("uid",),
    "status.conditions": ("type",),
    "status.devices": ("driver", "pool", "device", "shareID"),
    "status.reservedFor": ("uid",),
    "status.containerStatuses": ("name",),
    "spec.containers": ("name",),
    "spec.initContainers": ("name",),
    "spec.containers.env": ("name",),
    "spec.containers.resources.claims": ("name", "request"),
    "spec.volumes": ("name",),
    "spec.schedulingGates": ("name",),
    "spec.resourceClaims": ("name",),
    "status.resourceClaimStatuses": ("name",),
    "spec.taints": ("key", "effect"),
}
# Lists of plain values that are merged as sets.
SET_LISTS = frozenset({"metadata.finalizers"})


def item_key(item: Any, keys: Iterable[str]) -> tuple[str, ...] | None:
    """What identifies an item of a keyed list; missing fields count as empty."""
    if not isinstance(item, dict):
        return None
    return tuple(str(item.get(key) or "") for key in keys)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, mappings merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_patch(target: Any, patch: Any, path: str = "") -> Any:
    """Like a merge patch, but lists of `LIST_KEYS` merge item by item; ``$patch: delete`` removes one."""
    if isinstance(patch, dict):
        result = target if isinstance(target, dict) else {}
        for key, value in patch.items():
            if key.startswith("$"):
                continue
            if value is None:
                result.pop(key, None)
            else:
                inner = f"{path}.{key}" if path else key
                result[key] = strategic_patch(result.get(key), value, inner)
        return result
    if isinstance(patch, list) and isinstance(target, list):
        if path in SET_LISTS:
            return target + [item for item in patch if item not in target]
        if path in LIST_KEYS:
            return _merge_items(target, patch, path)
    return patch


def _merge_items(target: list[Any], patch: list[Any], path: str) -> list[Any]:
    keys = LIST_KEYS[path]
    result = list(target)
    for item in patch:
        key = item_key(item, keys)
        at = next((i for i, old in enumerate(result) if item_key(old, keys) == key), None)
        if isinstance(item, dict) and item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(item)
        else:
            result[at] = strategic_patch(result[at], item, path)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902, all six operations.

    Raises:
        InvalidError: an operation cannot be carried out, or a ``test`` failed (422, as the server).
    """
    if not isinstance(operations, list):
        raise InvalidError("a JSON patch is a list", status=400, reason="BadRequest")
    for operation in operations:
        target = _json_operation(target, operation)
    return target


def _json_operation(target: Any, operation: Mapping[str, Any]) -> Any:
    name, path = operation.get("op"), _pointer(operation.get("path"))
    if name == "test":
        if _read(target, path) != operation.get("value"):
            raise InvalidError(f"testing value {operation.get('path')} failed")
        return target
    if name == "remove":
        return _remove(target, path)
    if name in ("add", "replace"):
        if name == "replace":
            _read(target, path)
        return _write(target, path, operation.get("value"), insert=name == "add")
    if name in ("move", "copy"):
        source = _pointer(operation.get("from"))
        value = _read(target, source)
        if name == "move":
            target = _remove(target, source)
        return _write(target, path, value, insert=True)
    raise InvalidError(f"unknown operation {name!r}", status=400, reason="BadRequest")


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise InvalidError(f"not a JSON pointer: {text!r}", status=400, reason="BadRequest")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _read(target: Any, path: list[str]) -> Any:
    for part in path:
        target = _child(target, part)
    return target


def _child(target: Any, part: str) -> Any:
    try:
        return target[int(part)] if isinstance(target, list) else target[part]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise InvalidError(f"the path does not exist: {part!r}") from error


def _remove(target: Any, path: list[str]) -> Any:
    if not path:
        return None
    parent = _read(target, path[:-1])
    _child(parent, path[-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return target


def _write(target: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _read(target, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        _write_item(parent, last, value, insert=insert)
    else:
        raise InvalidError(f"the parent of {last!r} is neither a map nor a list")
    return target


def _write_item(parent: list[Any], last: str, value: Any, *, insert: bool) -> None:
    at = len(parent) if last == "-" else int(last) if last.isdigit() else -1
    if not 0 <= at <= len(parent) - (not insert):
        raise InvalidError(f"index out of bounds: {last!r}")
    if insert:
        parent.insert(at, value)
    else:
        parent[at] = value
