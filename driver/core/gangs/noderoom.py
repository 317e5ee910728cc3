# SPDX-License-Identifier: Apache-2.0
"""Nodes as managed placement sees them: rules of kube-scheduler's filters, and room for pods.

The filters are those that a bound pod passes in a default kube-scheduler (NodeUnschedulable,
NodeName, TaintToleration, NodeAffinity, NodeResourcesFit). They are repeated here because devices
are given out before kube-scheduler sees the pod, and it takes them back where its own filters say
no (KEP-4381).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.driver.core.allocator import Node, matches
from gpudra.driver.core.gangs.types import NodeRules, PodView, Toleration

Obj = Mapping[str, Any]

MANAGED_LABEL = "gpudra.io/managed"
HOSTNAME = "kubernetes.io/hostname"
_UNSCHEDULABLE = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
_HARD = {"NoSchedule", "NoExecute"}

Taint = tuple[str, str, str]
"""Key, value, effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node without what runs on it.

    Attributes:
        node: as the allocator knows it.
        taints: with a hard effect.
        unschedulable: cordoned.
        ready: condition Ready is True.
        cpu_milli, memory_bytes, pods: allocatable.
        others: further allocatable resources in whole units.
    """

    node: Node
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name


def node_facts(raw: Obj) -> NodeFacts:
    """Reads a ``core/v1`` Node. A node without conditions (made by hand, for tests) is ready.

    Raises:
        InputError: allocatable holds something that is no quantity; the field is named.
    """
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    name = str(meta.get("name", ""))
    allocatable = dict(status.get("allocatable") or {})
    try:
        amounts = {key: Quantity.parse(text) for key, text in allocatable.items()}
    except InputError as error:
        raise error.within("status.allocatable", obj=f"node {name}") from error
    conditions = status.get("conditions") or ()
    ready = [one.get("status") == "True" for one in conditions if one.get("type") == "Ready"]
    cpu, memory, pods = (amounts.pop(key, None) for key in ("cpu", "memory", "pods"))
    return NodeFacts(
        node=Node(
            name,
            labels=dict(meta.get("labels") or {}),
            declared_features=frozenset(map(str, status.get("declaredFeatures") or ())),
        ),
        taints=tuple(
            (str(one.get("key", "")), str(one.get("value") or ""), str(one.get("effect", "")))
            for one in spec.get("taints") or ()
            if one.get("effect") in _HARD
        ),
        unschedulable=bool(spec.get("unschedulable")),
        ready=all(ready),
        cpu_milli=cpu.milli_value if cpu else 0,
        memory_bytes=memory.value if memory else 0,
        pods=pods.value if pods else 0,
        others={key: amount.value for key, amount in amounts.items()},
    )


def refusal(facts: NodeFacts, rules: NodeRules, label: str = "") -> str:
    """Why a node is none for pods with these rules, in two or three words; empty when it is.

    Args:
        facts: the node.
        rules: of the pod.
        label: name of a label that must be ``true``: nodes under managed mode; empty: any node.
    """
    if label and facts.node.labels.get(label) != "true":
        return "not managed"
    if not facts.ready:
        return "not ready"
    if facts.unschedulable and not _tolerated(_UNSCHEDULABLE, rules.tolerations):
        return "unschedulable"
    for taint in facts.taints:
        if not _tolerated(taint, rules.tolerations):
            return f"taint {taint[0]}"
    labels = facts.node.labels
    for key, value in rules.selector:
        if labels.get(key) != value:
            return "nodeSelector"
    if rules.affinity is not None and not matches(rules.affinity, facts.node):
        return "nodeAffinity"
    return ""


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """The rule of ``core/v1`` Toleration: an empty key with Exists stands everything."""
    key, value, effect = taint
    for one in tolerations:
        if one.effect and one.effect != effect:
            continue
        if one.key != key and (one.key or one.operator != "Exists"):
            continue
        if one.operator == "Exists" or one.value == value:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Room:
    """What the pods of a node ask for together."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    others: tuple[tuple[str, int], ...] = ()

    def plus(self, pod: PodView, sign: int = 1) -> "Room":
        """With one pod more, or with ``sign`` -1 one less."""
        others = self.others
        if pod.others:
            table = dict(others)
            for name, amount in pod.others:
                table[name] = table.get(name, 0) + sign * amount
            others = tuple(sorted((name, amount) for name, amount in table.items() if amount))
        return Room(
            self.cpu_milli + sign * pod.cpu_milli,
            self.memory_bytes + sign * pod.memory_bytes,
            self.pods + sign,
            others,
        )

    def lacks(self, facts: NodeFacts, pod: PodView) -> str:
        """What keeps a pod out, as one word; empty when it has room."""
        if self.pods >= facts.pods:
            return "pods"
        if pod.cpu_milli and self.cpu_milli + pod.cpu_milli > facts.cpu_milli:
            return "cpu"
        if pod.memory_bytes and self.memory_bytes + pod.memory_bytes > facts.memory_bytes:
            return "memory"
        if pod.others:
            used = dict(self.others)
            for name, amount in pod.others:
                if amount and used.get(name, 0) + amount > facts.others.get(name, 0):
                    return name
        return ""


NO_ROOM_USED = Room()
