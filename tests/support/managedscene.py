# SPDX-License-Identifier: Apache-2.0
"""Small and large clusters for managed mode's core, made of plain objects.

Used by tests/unit/gangs, tests/unit/managed and tests/bench/bench_managed_plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpudra.api.podgroup import PodGroup
from gpudra.api.queue import Queue
from gpudra.api.resource_v1 import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from gpudra.driver.core.managed import (
    ClaimRef,
    JobPlacement,
    ManagedState,
    Plan,
    PlanOptions,
    PodView,
)

Obj = dict[str, Any]
DRIVER = "gpu.gpudra.io"
GIB = 2**30
ROOMY = {"cpu": "256", "memory": "2Ti", "pods": "250"}


def node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    taints: Sequence[Obj] = (),
    ready: bool = True,
    managed: bool = True,
    cordoned: bool = False,
) -> Obj:
    """A ``core/v1`` Node."""
    own = {"kubernetes.io/hostname": name, **(labels or {})}
    if managed:
        own["gpudra.io/managed"] = "true"
    return {
        "metadata": {"name": name, "labels": own},
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {
            "allocatable": dict(allocatable or ROOMY),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def gpus(
    name: str,
    count: int = 8,
    *,
    model: str = "NVIDIA H100 80GB HBM3",
    domains: Sequence[str] = (),
    switches: Sequence[str] = (),
    memory: str = "80Gi",
    share: bool = False,
    tainted: bool = True,
) -> ResourceSlice:
    """The pool of a node: whole cards, and with ``share`` a share device beside each.

    Args:
        name: of the node.
        count: of cards.
        model: their product name.
        domains: NVLink domain per card; one for all cards of the node if not given.
        switches: PCIe switch per card.
        memory: of each card.
        share: a share device beside each card; then ``counters`` has to be put too.
        tainted: with the taint of managed mode.
    """
    devices: list[Obj] = []
    sets: list[Obj] = []
    for index in range(count):
        uuid = f"GPU-{name}-{index}"
        attributes: Obj = {
            "type": {"string": "gpu"},
            "uuid": {"string": uuid},
            "index": {"int": index},
            "productName": {"string": model},
            "nvlinkDomain": {"string": domains[index] if domains else f"domain-{name}"},
        }
        if switches:
            attributes["pcieSwitch"] = {"string": switches[index]}
        taints = [{"key": f"{DRIVER}/managed", "effect": "NoSchedule"}] if tainted else []
        card: Obj = {
            "name": f"gpu-{index}",
            "attributes": attributes,
            "capacity": {"memory": {"value": memory}},
            "taints": taints,
        }
        devices.append(card)
        if share:
            card["consumesCounters"] = [_all_of(index)]
            devices.append(_share(card, uuid, index))
            sets.append({"name": f"card-{index}", "counters": {"card": {"value": "1"}}})
    spec: Obj = {
        "driver": DRIVER,
        "nodeName": name,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 2 if share else 1},
        "devices": devices,
    }
    return ResourceSlice.from_dict({"metadata": {"name": f"{name}-gpus"}, "spec": spec})


def counters(name: str, count: int = 8) -> ResourceSlice:
    """The counter sets that belong to ``gpus(share=True)``."""
    sets = [
        {"name": f"card-{index}", "counters": {"card": {"value": "1"}}} for index in range(count)
    ]
    spec = {
        "driver": DRIVER,
        "nodeName": name,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": sets,
    }
    return ResourceSlice.from_dict({"metadata": {"name": f"{name}-counters"}, "spec": spec})


def _all_of(index: int) -> Obj:
    return {"counterSet": f"card-{index}", "counters": {"card": {"value": "1"}}}


def _share(card: Obj, uuid: str, index: int) -> Obj:
    attributes = {**card["attributes"], "type": {"string": "share"}, "parentUUID": {"string": uuid}}
    del attributes["uuid"]
    policy = {"default": "0", "validRange": {"min": "0", "step": "1"}}
    memory = {
        "default": card["capacity"]["memory"]["value"],
        "validRange": {"min": "1Mi", "step": "1Mi"},
    }
    return {
        "name": f"gpu-{index}-share",
        "attributes": attributes,
        "capacity": {
            "memory": {**card["capacity"]["memory"], "requestPolicy": memory},
            "compute": {"value": "100", "requestPolicy": policy},
        },
        "consumesCounters": [_all_of(index)],
        "allowMultipleAllocations": True,
        "taints": card["taints"],
    }


def device_class(kind: str = "gpu") -> DeviceClass:
    """``gpu.gpudra.io`` for whole cards, ``share.gpudra.io`` for shares."""
    text = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    return DeviceClass.from_dict(
        {
            "metadata": {"name": f"{kind}.gpudra.io"},
            "spec": {"selectors": [{"cel": {"expression": text}}]},
        }
    )


def claim(
    name: str,
    count: int = 1,
    *,
    namespace: str = "default",
    kind: str = "gpu",
    constraints: Sequence[Obj] = (),
    capacity: Mapping[str, str] | None = None,
    selector: str = "",
) -> ResourceClaim:
    """A claim that waits."""
    exactly: Obj = {
        "deviceClassName": f"{kind}.gpudra.io",
        "allocationMode": "ExactCount",
        "count": count,
    }
    if capacity:
        exactly["capacity"] = {"requests": dict(capacity)}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    devices: Obj = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if constraints:
        devices["constraints"] = list(constraints)
    return ResourceClaim.from_dict(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
            "spec": {"devices": devices},
        }
    )


def pod(name: str, *claims: str, namespace: str = "default", **more: Any) -> PodView:
    """A gated pod of queue ``main`` with these claims."""
    fields: Obj = {
        "uid": f"pod-{namespace}-{name}",
        "namespace": namespace,
        "name": name,
        "queue": "main",
        "gated": True,
        "cpu_milli": 1000,
        "memory_bytes": GIB,
        "claims": tuple(ClaimRef(f"c{i}", f"{namespace}/{one}") for i, one in enumerate(claims)),
    }
    return PodView(**{**fields, **more})


def queue(name: str = "main", **spec: Any) -> Queue:
    """A queue; field names as in YAML."""
    return Queue.decode(
        {
            "apiVersion": "gpudra.io/v1alpha1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": spec,
        }
    )


def group(name: str, minimum: int, *, namespace: str = "default", **spec: Any) -> PodGroup:
    """A pod group; field names as in YAML."""
    return PodGroup.decode(
        {
            "apiVersion": "gpudra.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minCount": minimum, **spec},
        }
    )


def cluster(
    nodes: int = 2,
    cards: int = 8,
    *,
    queues: Iterable[Queue] = (),
    options: PlanOptions | None = None,
    share: bool = False,
    **more: Any,
) -> ManagedState:
    """A state with equal nodes ``node-000`` … and the queue ``main``."""
    state = ManagedState(DRIVER, options)
    for kind in ("gpu", "share"):
        state.put_class(device_class(kind))
    for number in range(nodes):
        name = f"node-{number:03d}"
        state.put_node(node(name))
        state.put_slice(gpus(name, cards, share=share, **more))
        if share:
            state.put_slice(counters(name, cards))
    for one in list(queues) or [queue()]:
        state.put_queue(one)
    return state


def submit(
    state: ManagedState, name: str, count: int = 1, *, pods: int = 1, **more: Any
) -> list[PodView]:
    """Puts pods ``NAME-0`` … with a claim of so many cards each."""
    claim_options = {
        key: more.pop(key) for key in ("kind", "constraints", "capacity", "selector") if key in more
    }
    namespace = more.get("namespace", "default")
    made = []
    for number in range(pods):
        own = f"{name}-{number}"
        state.put_claim(claim(own, count, namespace=namespace, **claim_options))
        made.append(pod(own, own, **more))
        state.put_pod(made[-1])
    return made


def allocated(one: ResourceClaim, allocation: AllocationResult | None) -> ResourceClaim:
    """The claim with this status."""
    return replace(one, status=replace(one.status, allocation=allocation))


def carry_out(state: ManagedState, placement: JobPlacement, *, bind: bool = True) -> None:
    """What the controller and kube-scheduler do with a placement, as the watch shows it."""
    for one in placement.claims:
        state.put_claim(allocated(state.claims[one.key], one.allocation))
    for each in placement.pods:
        before = state.pods[each.uid]
        state.put_pod(replace(before, gated=False, node=each.node if bind else ""))


def finish(state: ManagedState, view: PodView) -> None:
    """The pod ends and its claims go with it."""
    state.remove_pod(view.uid)
    for ref in view.claims:
        if ref.key not in state.users:
            state.remove_claim(ref.key)


def run(state: ManagedState, now: float = 0.0) -> Plan:
    """Plans, and carries out all placements and repairs."""
    plan = state.plan(now)
    for placement in (*plan.repairs, *plan.placements):
        carry_out(state, placement)
    return plan
