# SPDX-License-Identifier: Apache-2.0
"""From a URL of the Kubernetes API to what it asks for. Pure; used by the HTTP front."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

# Below a namespace these are subresources of the namespace itself, not kinds inside it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names.

    Attributes:
        group: API group; empty for the core group.
        version: of the group.
        plural: the kind.
        namespace: None = none was named.
        name: None = the collection.
        subresource: empty = the object itself.
    """

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str | None = None
    subresource: str = ""


def parse_target(path: str) -> Target | None:
    """The target of a path; None when it is no path of a resource (discovery, health)."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    return Target(
        group,
        version,
        rest[0],
        namespace,
        rest[1] if len(rest) > 1 else None,
        "/".join(rest[2:]),
    )


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The verb as in RBAC."""
    if method == "GET":
        if target.name is not None:
            return "get"
        return "watch" if query.get("watch") in ("1", "true") else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return verbs.get(method, method.lower())
