# SPDX-License-Identifier: Apache-2.0
"""The state of managed mode from objects that were listed or read from files, for one question.

Used by ``gpudra queues`` and ``gpudra whatif``, which answer without a controller, and by tests that
hold a long-running controller against a fresh one.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.errors import GpudraError
from gpudra.api.podgroup import PodGroup
from gpudra.api.queue import Queue
from gpudra.api.resource_v1 import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from gpudra.controller.managed.feed import DEFAULT_QUEUE_LABEL, node_facts
from gpudra.controller.managed.pasts import noted
from gpudra.controller.managed.pods import PodRecord, pod_record
from gpudra.driver.core.managed import ManagedState, PlanOptions
from gpudra.driver.core.managed.budgets import budget

Obj = dict[str, Any]

# What a later kind refers to comes first.
_ORDER = (
    "Namespace",
    "Queue",
    "PodGroup",
    "Node",
    "ResourceSlice",
    "DeviceClass",
    "DeviceTaintRule",
    "ResourceClaimTemplate",
    "ResourceClaim",
    "PodDisruptionBudget",
    "Pod",
)


@dataclass(slots=True)
class Snapshot:
    """A state, and what else was among the objects.

    Attributes:
        pods: by uid.
        templates: claim specs by namespace and name.
        default_queues: by namespace.
        warnings: objects that could not be read, one sentence each.
    """

    state: ManagedState
    pods: dict[str, PodRecord] = field(default_factory=dict)
    templates: dict[tuple[str, str], Obj] = field(default_factory=dict)
    default_queues: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Running and waiting pods by queue."""
        running, waiting = Counter[str](), Counter[str]()
        for record in self.pods.values():
            if record.view.queue and not record.view.ended:
                (waiting if record.view.gated else running)[record.view.queue] += 1
        return running, waiting


def snapshot_of(
    objects: Iterable[Obj], driver: str, options: PlanOptions | None = None
) -> Snapshot:
    """Reads objects; one that cannot be read is left out, with a warning."""
    found = Snapshot(ManagedState(driver, options or PlanOptions()))
    groups: dict[str, list[Obj]] = {}
    for raw in objects:
        groups.setdefault(str(raw.get("kind")), []).append(raw)
    for kind in _ORDER:
        put = _READERS[kind]
        for raw in groups.get(kind, ()):
            try:
                put(found, raw)
            except (GpudraError, KeyError, TypeError, ValueError) as error:
                found.warnings.append(f"{kind} {raw['metadata'].get('name')}: {error}")
    pasts = {name: noted(queue.status) for name, queue in found.state.queues.items()}
    if any(pasts.values()):
        found.state.book.history = {name: past[0] for name, past in pasts.items() if past}
    return found


def _namespace(found: Snapshot, raw: Obj) -> None:
    queue = (raw["metadata"].get("labels") or {}).get(DEFAULT_QUEUE_LABEL)
    if queue:
        found.default_queues[raw["metadata"]["name"]] = queue


def _template(found: Snapshot, raw: Obj) -> None:
    meta = raw["metadata"]
    found.templates[meta.get("namespace", ""), meta["name"]] = raw["spec"]["spec"]


def _pod(found: Snapshot, raw: Obj) -> None:
    default = found.default_queues.get(raw["metadata"].get("namespace", ""), "")
    record = pod_record(raw, default)
    found.pods[record.view.uid] = record
    found.state.put_pod(record.view)


_READERS: dict[str, Callable[[Snapshot, Obj], object]] = {
    "Namespace": _namespace,
    "Queue": lambda found, raw: found.state.put_queue(Queue.decode(raw)),
    "PodGroup": lambda found, raw: found.state.put_group(PodGroup.decode(raw)),
    "Node": lambda found, raw: found.state.put_node(node_facts(raw).raw),
    "ResourceSlice": lambda found, raw: found.state.put_slice(ResourceSlice.from_dict(raw)),
    "DeviceClass": lambda found, raw: found.state.put_class(DeviceClass.from_dict(raw)),
    "DeviceTaintRule": lambda found, raw: found.state.put_rule(DeviceTaintRule.from_dict(raw)),
    "ResourceClaimTemplate": _template,
    "ResourceClaim": lambda found, raw: found.state.put_claim(ResourceClaim.from_dict(raw)),
    "PodDisruptionBudget": lambda found, raw: found.state.put_budget(budget(raw)),
    "Pod": _pod,
}
