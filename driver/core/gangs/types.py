# SPDX-License-Identifier: Apache-2.0
"""Words of managed placement: pods as a plan sees them, and where they go.

Made by `gpudra.driver.core.gangs.podview` from API objects; read by the solver beside it and by
`gpudra.driver.core.managed`. Times are seconds since the epoch, given by whoever read the object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpudra.api.codec import NOTHING
from gpudra.api.meta import NodeSelector
from gpudra.api.resource_v1 import AllocationResult


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim that a pod names.

    Attributes:
        name: the pod's own name for it.
        key: ``namespace/name`` of the ResourceClaim; empty while none has been generated.
    """

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A node taint that a pod stands (``core/v1`` Toleration)."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class LabelTest:
    """One condition of a label selector. Operators: In, NotIn, Exists, DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required pod (anti-)affinity term: a domain of nodes, and the pods that count.

    Attributes:
        topology_key: node label whose value makes the domain.
        namespaces: of the pods that count; empty: all namespaces.
        tests: all of them hold for a pod that counts; None: no pod counts.
    """

    topology_key: str
    namespaces: tuple[str, ...]
    tests: tuple[LabelTest, ...] | None


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Which nodes a pod accepts, and which accept the pod.

    Attributes:
        text: equal for equal rules; what kinds of pods are told apart by.
        selector: ``nodeSelector``.
        affinity: required node affinity.
        tolerations: of node taints.
        apart: required pod anti-affinity.
        together: required pod affinity.
    """

    text: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    affinity: NodeSelector | None = field(default=None, compare=False)
    tolerations: tuple[Toleration, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    together: tuple[PodTerm, ...] = ()


NO_RULES = NodeRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """What a plan needs of a pod, managed or not.

    Attributes:
        queue: it asks to run in; empty for pods that managed mode has nothing to do with.
        group: key of its gang: ``namespace/name`` of a PodGroup, ``namespace/Kind.name`` of an
            owner that is a gang; empty for a pod of its own.
        role: in the gang.
        created, started: seconds since the epoch; started is None before the kubelet saw it.
        gated: it has our scheduling gate.
        node: it is bound to.
        ended: Succeeded or Failed: it holds nothing any more.
        failed: it ended, and not well.
        deleting: it is being deleted; a gated one is not placed any more.
        lasting: it belongs to its node (DaemonSet, mirror pod) and does not go away.
        cpu_milli, memory_bytes: requests as kube-scheduler adds them up.
        others: further requests, such as ephemeral-storage, in whole units by name.
        claims: in the order of the pod's spec.
        max_runtime: seconds after which it ends by promise.
        avoid: nodes to which kube-scheduler could not bind it.
        problem: what about the pod cannot be understood, field named; such a pod waits.
    """

    uid: str
    namespace: str
    name: str
    queue: str = ""
    group: str = ""
    role: str = ""
    priority: int = 0
    created: float = 0.0
    started: float | None = None
    gated: bool = False
    node: str = ""
    ended: bool = False
    failed: bool = False
    deleting: bool = False
    lasting: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0
    others: tuple[tuple[str, int], ...] = ()
    rules: NodeRules = NO_RULES
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    claims: tuple[ClaimRef, ...] = ()
    max_runtime: float | None = None
    owner: str = ""
    avoid: tuple[str, ...] = ()
    problem: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def waits(self) -> bool:
        """Whether it can be placed: gated, managed, and going to live."""
        return self.gated and not self.node and not self.ended and not self.deleting

    @property
    def placed(self) -> bool:
        """Whether it holds, or is about to hold, room on a node."""
        return not self.ended and not self.gated


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """A pod and its node."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with everything that was settled for it.

    Attributes:
        pod: the pod.
        node: where it goes.
        allocations: of claims that were allocated for it, by claim key.
    """

    pod: PodView
    node: str
    allocations: Mapping[str, AllocationResult]
