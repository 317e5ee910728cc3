# SPDX-License-Identifier: Apache-2.0
"""The documents that tell a client what is served: /version, /api, /apis and below. Pure."""

from gpudra.driver.kube.fakeserver.schema import Kind, KindTable
from gpudra.driver.kube.resources import Obj

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def document(path: str, kinds: KindTable, version: str) -> Obj | None:
    """The document at a path, or None when there is none.

    Args:
        path: of the request, without a trailing slash.
        kinds: everything that is served.
        version: of the pretended server, for example ``v1.37.2``.
    """
    fixed = {"/version": _version(version), "/api": _core_versions(), "/apis": _groups(kinds)}
    if path in fixed:
        return fixed[path]
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) == 2:
        return _resources(kinds, "", parts[1])
    if parts[0] == "apis" and len(parts) == 2:
        return next((g for g in _groups(kinds)["groups"] if g["name"] == parts[1]), None)
    if parts[0] == "apis" and len(parts) == 3:
        return _resources(kinds, parts[1], parts[2])
    return None


def _version(version: str) -> Obj:
    major, minor = version.lstrip("v").split(".")[:2]
    return {"major": major, "minor": minor, "gitVersion": version, "platform": "gpudra/fake"}


def _core_versions() -> Obj:
    return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}


def _groups(kinds: KindTable) -> Obj:
    groups: dict[str, Obj] = {}
    for kind in kinds.all():
        group, version = kind.resource.group, kind.resource.version
        if not group:
            continue
        entry = {"groupVersion": f"{group}/{version}", "version": version}
        known = groups.setdefault(group, {"name": group, "versions": [], "preferredVersion": entry})
        if entry not in known["versions"]:
            known["versions"].append(entry)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())}


def _resources(kinds: KindTable, group: str, version: str) -> Obj | None:
    served = [k for k in kinds.all() if (k.resource.group, k.resource.version) == (group, version)]
    if not served:
        return None
    listed = [entry for kind in served for entry in _entries(kind)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": listed,
    }


def _entries(kind: Kind) -> list[Obj]:
    resource = kind.resource
    entry: Obj = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS,
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if not kind.status:
        return [entry]
    status = {**entry, "name": f"{resource.plural}/status", "verbs": ["get", "patch", "update"]}
    return [entry, status]
