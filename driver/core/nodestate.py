# SPDX-License-Identifier: Apache-2.0
"""What the agent says about its node: labels, a condition, and the start-up taint it removes. Pure.

The agent's rights on its Node object are confined to exactly this by an admission policy
(deploy/manifests/rbac.yaml), which has to be changed together with the names here.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.driver.core.inventory import NVIDIA, Gpu, Inventory

LABEL_PREFIX = "gpudra.io/gpu."
# Set beside the names of GPU feature discovery, so that only labels of ours are taken away again.
FEATURE_MARK = f"{LABEL_PREFIX}feature-labels"
FEATURE_LABELS = frozenset(
    {
        "nvidia.com/cuda.driver-version.full",
        "nvidia.com/cuda.driver-version.major",
        "nvidia.com/cuda.driver-version.minor",
        "nvidia.com/cuda.driver-version.revision",
        "nvidia.com/cuda.runtime-version.full",
        "nvidia.com/cuda.runtime-version.major",
        "nvidia.com/cuda.runtime-version.minor",
        "nvidia.com/gpu.clique",
        "nvidia.com/gpu.compute.major",
        "nvidia.com/gpu.compute.minor",
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.family",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.product",
        "nvidia.com/mig.capable",
    }
)
# The node's GPUs are given out by managed mode; its pods are sent to nodes with this label.
MANAGED_LABEL = "gpudra.io/managed"
CONDITION = "GPUsReady"
STARTUP_TAINT = "gpudra.io/not-ready"
MIXED = "mixed"

_MIB = 2**20
_MAX_LABEL = 63
_NOT_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
# What device plugins of the vendors offer; NVIDIA's has one name for each MIG profile beside it.
_PLUGIN_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_MIG_RESOURCE = "nvidia.com/mig-"
# The API server cuts nothing here, but nobody reads more.
_MAX_MESSAGE = 1024

Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """The condition as it should be."""

    ready: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePatches:
    """Merge patch of the node and strategic merge patch of its status; None: nothing to do."""

    node: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


def label_value(text: str) -> str:
    """Cut and cleaned to what a label may say: ``NVIDIA-H100-80GB-HBM3``."""
    return _NOT_LABEL.sub("-", text)[:_MAX_LABEL].strip("._-")


def node_labels(inventory: Inventory, *, feature_names: bool = False) -> dict[str, str]:
    """Labels for these cards.

    What is not the same on all cards is ``mixed``; memory is that of the smallest card. What no card
    tells has no label.

    Args:
        inventory: the cards.
        feature_names: also under the names of GPU feature discovery, for NVIDIA's cards.
    """
    gpus = [gpu for gpu in inventory.gpus if not gpu.lost]
    if not gpus:
        return {}
    found = {
        "count": str(len(gpus)),
        "vendor": _common(gpu.vendor for gpu in gpus),
        "product": _common(gpu.product_name for gpu in gpus),
        "architecture": _common(gpu.architecture for gpu in gpus),
        "memory": _memory(gpus),
        "driver-version": _common(gpu.driver_version for gpu in gpus),
        "cuda-version": _common(_cuda(gpu) for gpu in gpus),
        "compute-capability": _common(_capability(gpu) for gpu in gpus),
        "mig-capable": _flag(any(_is_mig_capable(gpu) for gpu in gpus)),
        "nvlink-clique": _common(_clique(gpu) for gpu in gpus),
    }
    labels = {f"{LABEL_PREFIX}{name}": value for name, value in found.items() if value}
    if feature_names:
        nvidia = [gpu for gpu in gpus if gpu.vendor == NVIDIA]
        labels |= {FEATURE_MARK: "true", **_feature_labels(nvidia)}
    return labels


def _feature_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    if not gpus:
        return {}
    driver = _common(gpu.driver_version for gpu in gpus).split(".")
    cuda = _common(_cuda(gpu) for gpu in gpus).split(".")
    compute = _common(_capability(gpu) for gpu in gpus).split(".")
    parts = dict(enumerate(driver)), dict(enumerate(cuda)), dict(enumerate(compute))
    found = {
        "gpu.present": "true",
        "gpu.count": str(len(gpus)),
        "gpu.product": _common(gpu.product_name for gpu in gpus),
        "gpu.family": _common(gpu.architecture for gpu in gpus).lower(),
        "gpu.memory": _memory(gpus),
        "gpu.compute.major": parts[2].get(0, ""),
        "gpu.compute.minor": parts[2].get(1, ""),
        "cuda.driver-version.full": ".".join(driver),
        "cuda.driver-version.major": parts[0].get(0, ""),
        "cuda.driver-version.minor": parts[0].get(1, ""),
        "cuda.driver-version.revision": parts[0].get(2, ""),
        "cuda.runtime-version.full": ".".join(cuda),
        "cuda.runtime-version.major": parts[1].get(0, ""),
        "cuda.runtime-version.minor": parts[1].get(1, ""),
        "mig.capable": _flag(any(_is_mig_capable(gpu) for gpu in gpus)),
        "gpu.clique": _common(_clique(gpu) for gpu in gpus),
    }
    return {f"nvidia.com/{name}": value for name, value in found.items() if value}


def _common(values: Iterable[str | None]) -> str:
    found = Counter(label_value(value) for value in values if value)
    return MIXED if len(found) > 1 else next(iter(found), "")


def _memory(gpus: Iterable[Gpu]) -> str:
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    return str(min(sizes) // _MIB) if sizes else ""


def _cuda(gpu: Gpu) -> str | None:
    packed = gpu.cuda_version
    return f"{packed // 1000}.{packed % 1000 // 10}" if packed else None


def _capability(gpu: Gpu) -> str | None:
    pair = gpu.compute_capability
    return f"{pair[0]}.{pair[1]}" if pair else None


def _clique(gpu: Gpu) -> str | None:
    fabric = gpu.fabric
    return f"{fabric.cluster_uuid}.{fabric.clique_id}" if fabric and fabric.usable else None


def _is_mig_capable(gpu: Gpu) -> bool:
    return gpu.mig is not None and bool(gpu.mig.profiles)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def device_plugin_resources(node: Obj, vendors: Iterable[str]) -> tuple[str, ...]:
    """Resources by which a device plugin offers the same cards on this node, ascending."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    names = {_PLUGIN_RESOURCES[vendor] for vendor in vendors if vendor in _PLUGIN_RESOURCES}
    nvidia = _PLUGIN_RESOURCES[NVIDIA] in names
    return tuple(
        name
        for name, amount in sorted(allocatable.items())
        if (name in names or (nvidia and name.startswith(_MIG_RESOURCE))) and str(amount) != "0"
    )


def plan_node(
    node: Obj,
    *,
    labels: Mapping[str, str],
    condition: NodeCondition,
    now: str,
    managed: bool | None = None,
) -> NodePatches:
    """What to write so that the node says what it should.

    Args:
        node: as the API has it.
        labels: ours as they should be.
        condition: as it should be; ready also removes the start-up taint.
        now: RFC 3339, for the condition's times.
        managed: whether managed mode gives out the GPUs; None: not known yet, the label stays.
    """
    return NodePatches(
        node=_node_patch(node, labels, managed, untaint=condition.ready),
        status=_status_patch(node, condition, now),
    )


def _node_patch(
    node: Obj, labels: Mapping[str, str], managed: bool | None, *, untaint: bool
) -> dict[str, Any] | None:
    present: Mapping[str, str] = (node.get("metadata") or {}).get("labels") or {}
    ours = {name for name in present if name.startswith(LABEL_PREFIX)}
    if FEATURE_MARK in present:
        ours |= FEATURE_LABELS & present.keys()
    if managed is not None:
        ours |= {MANAGED_LABEL} & present.keys()
        labels = {**labels, MANAGED_LABEL: "true"} if managed else labels
    change: dict[str, str | None] = dict.fromkeys(sorted(ours - labels.keys()))
    change |= {name: value for name, value in labels.items() if present.get(name) != value}
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != STARTUP_TAINT]
    patch: dict[str, Any] = {}
    if change:
        patch["metadata"] = {"labels": change}
    if untaint and len(left) != len(taints):
        # A list is replaced as a whole: the version makes sure that nobody else's change is lost.
        version = node["metadata"]["resourceVersion"]
        patch.setdefault("metadata", {})["resourceVersion"] = version
        patch["spec"] = {"taints": left or None}
    return patch or None


def _status_patch(node: Obj, wanted: NodeCondition, now: str) -> dict[str, Any] | None:
    conditions = (node.get("status") or {}).get("conditions") or []
    found: Obj = next((one for one in conditions if one.get("type") == CONDITION), {})
    status, message = ("True" if wanted.ready else "False"), wanted.message[:_MAX_MESSAGE]
    said = (found.get("status"), found.get("reason"), found.get("message"))
    if said == (status, wanted.reason, message):
        return None
    changed = found.get("lastTransitionTime") if found.get("status") == status else None
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": wanted.reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": changed or now,
    }
    return {"status": {"conditions": [condition]}}
