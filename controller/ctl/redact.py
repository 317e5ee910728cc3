# SPDX-License-Identifier: Apache-2.0
"""What ``gpudra gather`` leaves out, so that its file can be given to strangers. Pure.

Kept: names, namespaces, uids, labels, devices, taints, conditions, selectors. Left out: annotations
(people and tools put everything there), managed fields, container images' environment and
arguments, addresses of nodes, values of environment variables in CDI files, serial numbers, and
opaque parameters that are not ours.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"
OUR_GROUP = "gpudra.io"
_COMPONENT = "app.kubernetes.io/name"
_DROPPED_METADATA = ("annotations", "managedFields", "selfLink")

Obj = dict[str, Any]


def redacted(obj: Obj) -> Obj:
    """A copy without what is nobody's business."""
    found = dict(obj)
    metadata = dict(found.get("metadata") or {})
    found["metadata"] = {
        key: value for key, value in metadata.items() if key not in _DROPPED_METADATA
    }
    kind = found.get("kind", "")
    if kind == "Node":
        return _node(found)
    if kind == "Pod":
        return _pod(found)
    result = _without_parameters(found)
    return result if isinstance(result, dict) else found


def _node(node: Obj) -> Obj:
    status = dict(node.get("status") or {})
    for key in ("addresses", "images", "volumesInUse", "volumesAttached", "daemonEndpoints"):
        status.pop(key, None)
    info = status.get("nodeInfo")
    if isinstance(info, Mapping):
        hidden = ("machineID", "systemUUID")
        status["nodeInfo"] = {key: value for key, value in info.items() if key not in hidden}
    spec = {key: value for key, value in (node.get("spec") or {}).items() if key == "taints"}
    return {**node, "spec": spec, "status": status}


def _pod(pod: Obj) -> Obj:
    """Which program in which state; not what it was given."""
    spec = pod.get("spec") or {}
    containers = [
        {key: one[key] for key in ("name", "image", "resources") if key in one}
        for one in spec.get("containers") or ()
    ]
    kept = {"nodeName": spec.get("nodeName"), "containers": containers}
    status = dict(pod.get("status") or {})
    for key in ("hostIP", "hostIPs", "podIP", "podIPs"):
        status.pop(key, None)
    return {**pod, "spec": kept, "status": status}


def _without_parameters(value: Any) -> Any:
    """Opaque parameters of others hidden, at any depth."""
    if isinstance(value, Mapping):
        return {
            key: _parameters(inner) if key == "parameters" else _without_parameters(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_parameters(one) for one in value]
    return value


def _parameters(value: Any) -> Any:
    version = value.get("apiVersion", "") if isinstance(value, Mapping) else ""
    return value if str(version).partition("/")[0] == OUR_GROUP else REDACTED


def is_ours(pod: Obj) -> bool:
    """Whether a pod is one of gpudra's own."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return labels.get(_COMPONENT) == "gpudra"


def is_event_of(event: Obj, driver: str) -> bool:
    """Whether gpudra reported it."""
    reporter = str(event.get("reportingController", ""))
    return reporter == driver or reporter.startswith("gpudra") or reporter.endswith("gpudra.io")


def plain(value: Any) -> Any:
    """Frozen dataclasses as plain types, without what is not set."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(inner) for name, inner in fields.items() if inner is not None}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool) else str(value)


def state_file(content: bytes) -> bytes:
    """A file of the agent, line by line, with foreign opaque parameters hidden.

    What is no JSON is kept as it is: it is the agent's own file, and its damage is what people want
    to see. Lines that are JSON are written again, so the checksum in the first does not fit any more.
    """
    lines = []
    for line in content.splitlines():
        try:
            lines.append(json.dumps(_without_parameters(json.loads(line))).encode())
        except ValueError:
            lines.append(line)
    return b"\n".join(lines) + b"\n"


def cdi_file(content: bytes) -> bytes:
    """A CDI file without the values of environment variables."""
    try:
        return json.dumps(_without_env(json.loads(content)), indent=1).encode()
    except ValueError:
        return content


def _without_env(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: [f"{str(one).partition('=')[0]}={REDACTED}" for one in inner]
            if key == "env" and isinstance(inner, list)
            else _without_env(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_env(one) for one in value]
    return value
