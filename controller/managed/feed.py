# SPDX-License-Identifier: Apache-2.0
"""Watches everything that a plan depends on, and hands the differences on as changes of the state.

The state of managed mode (gpudra.driver.core.managed) is touched by one planner at a time, in a
thread of its own; here, in the event loop, changes are only collected. Answers to our own writes
are changes, too: see `gpudra.controller.managed.latest`.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gpudra.api.errors import ApiError
from gpudra.api.podgroup import PodGroup
from gpudra.api.queue import Queue
from gpudra.api.resource_v1 import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from gpudra.controller.managed.jobs import gang_of_job
from gpudra.controller.managed.latest import Form, Latest
from gpudra.controller.managed.pods import PodRecord, pod_record
from gpudra.driver.core.managed import ManagedState
from gpudra.driver.core.managed.budgets import budget
from gpudra.driver.kube import resources as kinds
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.reflector import Event, ListWatcher, Reflector, ReflectorError
from gpudra.driver.kube.resources import Obj, Resource, object_key
from gpudra.driver.observability.logging import get_logger
from gpudra.driver.observability.metrics import REFLECTOR_ERRORS, REFLECTOR_OBJECTS, Metrics

DEFAULT_QUEUE_LABEL = "gpudra.io/default-queue"

T = TypeVar("T")
log = get_logger(__name__)

Apply = Callable[[ManagedState], object]


class FeedApi(ListWatcher, Protocol):
    """What is needed of the API client."""

    async def api_resources(self, group: str, version: str) -> list[Obj]:
        """Kinds of a group; empty when it is not served."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        what: the object as a person would name it.
        apply: brings the state up to it.
    """

    what: str
    apply: Apply


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What of a node a plan depends on: a heartbeat changes none of it."""

    name: str
    raw: Obj

    def same(self, other: "NodeFacts | None") -> bool:
        """Whether both say the same."""
        return other is not None and self.raw == other.raw


class Feed:
    """All watches of managed mode.

    Args:
        client: lists and watches.
        on_change: told that `take` has something new; plain and quick.
        metrics: of the process.
        clock: for delays.
        rng: for jitter.
    """

    def __init__(
        self,
        client: FeedApi,
        *,
        on_change: Callable[[], None],
        metrics: Metrics,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.claims: Latest[ResourceClaim] = Latest()
        self.pods: Latest[PodRecord] = Latest()
        self._client = client
        self._on_change = on_change
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._changes: list[Change] = []
        self._reflectors: list[Reflector[Any]] = []
        self._optional: list[Reflector[Any]] = []
        self.queues = self._watch(
            kinds.QUEUES,
            Queue.decode,
            lambda event: self._plain(
                "queue", event, ManagedState.put_queue, lambda s, one: s.remove_queue(one.name)
            ),
        )
        self.groups = self._watch(
            kinds.POD_GROUPS,
            PodGroup.decode,
            lambda event: self._plain(
                "podgroup", event, ManagedState.put_group, lambda s, one: s.remove_group(one.key)
            ),
        )
        self.nodes = self._watch(kinds.NODES, node_facts, self._node_changed)
        self._watch(
            kinds.RESOURCE_SLICES,
            ResourceSlice.from_dict,
            lambda event: self._plain(
                "resourceslice",
                event,
                ManagedState.put_slice,
                lambda s, one: s.remove_slice(one.metadata.name),
            ),
        )
        self._watch(
            kinds.DEVICE_CLASSES,
            DeviceClass.from_dict,
            lambda event: self._plain(
                "deviceclass",
                event,
                ManagedState.put_class,
                lambda s, one: s.remove_class(one.metadata.name),
            ),
        )
        self._watch(
            kinds.DEVICE_TAINT_RULES,
            DeviceTaintRule.from_dict,
            lambda event: self._plain(
                "devicetaintrule",
                event,
                ManagedState.put_rule,
                lambda s, one: s.remove_rule(one.metadata.name),
            ),
            optional=True,
        )
        self._watch(
            kinds.POD_DISRUPTION_BUDGETS,
            budget,
            lambda event: self._plain(
                "poddisruptionbudget",
                event,
                ManagedState.put_budget,
                lambda s, one: s.remove_budget(one.key),
            ),
        )
        self._watch(kinds.JOBS, gang_of_job, self._job_changed)
        self._watch(kinds.RESOURCE_CLAIMS, self._decode_claim, self._claim_changed)
        # Read when a pod is: a pod that names no queue is in its namespace's.
        self._namespaces: Reflector[str] = Reflector(
            client,
            kinds.NAMESPACES,
            lambda raw: str((raw["metadata"].get("labels") or {}).get(DEFAULT_QUEUE_LABEL, "")),
            on_error=lambda error: self._failed(kinds.NAMESPACES, error),
            clock=clock,
            rng=rng,
        )
        self._pods = self._watch(kinds.PODS, self._decode_pod, self._pod_changed)

    @property
    def has_synced(self) -> bool:
        """Whether everything has been seen once."""
        return all(one.has_synced for one in self._reflectors)

    @property
    def pending(self) -> int:
        """How many changes nobody has taken yet."""
        return len(self._changes)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._namespaces.run(), name="reflector namespaces")
            await self._namespaces.wait_synced()
            for one in self._reflectors:
                tasks.create_task(one.run(), name=f"reflector {one.resource.plural}")
            for one in self._optional:
                tasks.create_task(self._run_optional(one), name=f"reflector {one.resource.plural}")

    async def wait_synced(self) -> None:
        """Return when everything has been seen once."""
        for one in self._reflectors:
            await one.wait_synced()

    def take(self) -> list[Change]:
        """What has changed since the last call, in order."""
        found, self._changes = self._changes, []
        return found

    def count(self) -> None:
        """Sets the gauges of what is held in memory."""
        for one in self._reflectors:
            self._metrics.set(REFLECTOR_OBJECTS, len(one.store), resource=one.resource.plural)

    def answered_claim(self, raw: Obj) -> None:
        """A claim as the server answered one of our requests."""
        claim = ResourceClaim.from_dict(raw)
        meta = claim.metadata
        if self.claims.answered(claim.key, Form(meta.uid, meta.resource_version, claim)):
            self._add(f"resourceclaim {claim.key}", lambda state: state.put_claim(claim))

    def answered_pod(self, raw: Obj) -> None:
        """A pod as the server answered one of our requests."""
        record = self._decode_pod(raw)
        if self.pods.answered(record.key, Form(record.view.uid, record.version, record)):
            self._add(f"pod {record.key}", lambda state: state.put_pod(record.view))

    def claim_gone(self, key: str, uid: str) -> None:
        """The server says that there is no such claim (any more)."""
        if self.claims.remove(key, uid):
            self._add(f"resourceclaim {key}", lambda state: state.remove_claim(key))

    def pod_gone(self, key: str, uid: str) -> None:
        """The server says that there is no such pod (any more)."""
        self.pods.remove(key, uid)
        self._add(f"pod {key}", lambda state: state.remove_pod(uid))

    def is_going(self, key: str, uid: str) -> bool:
        """Whether a pod is gone, has ended, or is being deleted."""
        known = self.pods.get(key, uid)
        return known is None or known.value.view.ended or known.value.view.deleting

    def request(self, what: str, apply: Apply) -> None:
        """A change of the state that is not of the cluster's, in its turn with those."""
        self._add(what, apply)

    def _decode_claim(self, raw: Obj) -> ResourceClaim:
        """The watch brings what our own writes were answered with: that is read once."""
        known = self.claims.get(object_key(raw), raw["metadata"].get("uid", ""))
        if known is not None and known.version == raw["metadata"].get("resourceVersion"):
            return known.value
        return ResourceClaim.from_dict(raw)

    def _decode_pod(self, raw: Obj) -> PodRecord:
        known = self.pods.get(object_key(raw), raw["metadata"].get("uid", ""))
        if known is not None and known.version == raw["metadata"].get("resourceVersion"):
            return known.value
        return pod_record(raw, self.default_queue(raw["metadata"].get("namespace", "")))

    def default_queue(self, namespace: str) -> str:
        """The queue of pods that name none; empty for none."""
        return self._namespaces.store.get(namespace) or ""

    def _add(self, what: str, apply: Apply) -> None:
        self._changes.append(Change(what, apply))
        self._on_change()

    def _watch(
        self,
        resource: Resource,
        decode: Callable[[Obj], T],
        on_event: Callable[[Event[T]], None],
        *,
        optional: bool = False,
    ) -> Reflector[T]:
        made: Reflector[T] = Reflector(
            self._client,
            resource,
            decode,
            on_event=on_event,
            on_error=lambda error: self._failed(resource, error),
            clock=self._clock,
            rng=self._rng,
        )
        (self._optional if optional else self._reflectors).append(made)
        return made

    async def _run_optional(self, reflector: Reflector[Any]) -> None:
        """Not every server has the kind; then there is nothing to wait for."""
        resource = reflector.resource
        while True:
            try:
                served = await self._client.api_resources(resource.group, resource.version)
            except ApiError as error:
                log.warning("cannot ask which kinds are served", error=str(error))
                served = []
            if any(kind.get("name") == resource.plural for kind in served):
                await reflector.run()
            await self._clock.sleep(60.0)

    def _failed(self, resource: Resource, error: ReflectorError) -> None:
        self._metrics.inc(REFLECTOR_ERRORS, resource=resource.plural, reason=error.kind)

    def _plain(
        self,
        kind: str,
        event: Event[T],
        put: Callable[[ManagedState, T], object],
        remove: Callable[[ManagedState, T], object],
    ) -> None:
        one = event.object
        apply = remove if event.new is None else put
        self._add(f"{kind} {_name(one)}", lambda state: apply(state, one))

    def _node_changed(self, event: Event[NodeFacts]) -> None:
        facts = event.object
        if event.new is None:
            self._add(f"node {facts.name}", lambda state: state.remove_node(facts.name))
        elif not facts.same(event.old):
            self._add(f"node {facts.name}", lambda state: state.put_node(facts.raw))

    def _job_changed(self, event: Event[PodGroup | None]) -> None:
        """A Job whose pods are a gang is a group that nobody has written down."""
        group, before = event.new, event.old
        if group is not None and group != before:
            self._add(f"gang {group.key}", lambda state: state.put_group(group))
        elif group is None and before is not None:
            self._add(f"gang {before.key}", lambda state: state.remove_group(before.key))

    def _claim_changed(self, event: Event[ResourceClaim]) -> None:
        claim = event.object
        meta = claim.metadata
        if event.new is None:
            self.claim_gone(claim.key, meta.uid)
            return
        known = self.claims.get(claim.key, meta.uid)
        if not self.claims.seen(claim.key, Form(meta.uid, meta.resource_version, claim)):
            return
        if known is None or not _same_claim(known.value, claim):
            self._add(f"resourceclaim {claim.key}", lambda state: state.put_claim(claim))

    def _pod_changed(self, event: Event[PodRecord]) -> None:
        record = event.object
        uid = record.view.uid
        if event.new is None:
            self.pod_gone(record.key, uid)
            return
        known = self.pods.get(record.key, uid)
        if not self.pods.seen(record.key, Form(uid, record.version, record)):
            return
        if known is None or known.value.view != record.view:
            self._add(f"pod {record.key}", lambda state: state.put_pod(record.view))


def node_facts(raw: Obj) -> NodeFacts:
    """A node without what changes all the time."""
    meta, status = raw["metadata"], raw.get("status") or {}
    return NodeFacts(
        str(meta["name"]),
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": meta["name"],
                "uid": meta.get("uid", ""),
                "labels": meta.get("labels") or {},
                "deletionTimestamp": meta.get("deletionTimestamp"),
            },
            "spec": {
                "taints": (raw.get("spec") or {}).get("taints") or [],
                "unschedulable": bool((raw.get("spec") or {}).get("unschedulable")),
            },
            "status": {
                "allocatable": status.get("allocatable") or {},
                "declaredFeatures": status.get("declaredFeatures") or [],
                "conditions": [
                    {"type": "Ready", "status": one.get("status")}
                    for one in status.get("conditions") or ()
                    if one.get("type") == "Ready"
                ],
            },
        },
    )


def _same_claim(one: ResourceClaim, other: ResourceClaim) -> bool:
    """Whether both mean the same to a plan: what drivers say in the status does not count."""
    return (
        one.status.allocation == other.status.allocation
        and one.status.reserved_for == other.status.reserved_for
        and one.metadata.deletion_timestamp == other.metadata.deletion_timestamp
    )


def _name(one: object) -> str:
    meta = getattr(one, "metadata", None)
    namespace, name = getattr(meta, "namespace", ""), getattr(meta, "name", "")
    return f"{namespace}/{name}" if namespace else str(name)
