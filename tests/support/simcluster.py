# SPDX-License-Identifier: Apache-2.0
"""What stands around managed mode in a simulated cluster: who makes claims, binds, runs, cleans up.

Plays kube-controller-manager (claims from templates, reservations of pods that ended, garbage),
kube-scheduler (binds ungated pods whose claims are theirs; clears the allocation of one that it cannot
bind) and kubelets (pods run, and end after their time). Each does its work when the run says so.
"""

import random
from collections.abc import Iterator
from typing import Any

from gpudra.api.errors import NotFoundError
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import FINALIZER
from gpudra.driver.kube.clock import VirtualClock, rfc3339
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Obj,
)

LIFE = "sim/seconds"
QUEUE = "gpudra.io/queue"
GATE = "gpudra.io/admission"
DRIVER = "gpu.gpudra.io"


class SimCluster:
    """The cluster around managed mode.

    Args:
        objects: the state.
        clock: virtual.
        rng: for whatever is drawn.
    """

    def __init__(self, objects: ObjectStore, clock: VirtualClock, rng: random.Random) -> None:
        self.objects = objects
        self._clock = clock
        self._rng = rng
        self._ends: dict[str, float] = {}
        self.cleared = 0

    def pods(self) -> list[Obj]:
        """All pods."""
        return self.objects.list(PODS)

    def claims(self) -> list[Obj]:
        """All claims."""
        return self.objects.list(RESOURCE_CLAIMS)

    def turn(self, *, binds: bool = True, refuses: float = 0.0) -> None:
        """Everybody does what there is to do now.

        Args:
            binds: whether kube-scheduler is there.
            refuses: probability that it cannot bind a pod, and clears its allocation.
        """
        self._make_claims()
        if binds:
            self._bind(refuses)
        self._run()
        self._clean_up()

    def submit(self, pod: Obj) -> Obj:
        """A pod as admission would leave it."""
        labels = pod["metadata"].get("labels") or {}
        if QUEUE in labels:
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
            pod["spec"].setdefault("nodeSelector", {})["gpudra.io/managed"] = "true"
        made = self.objects.create(PODS, pod)
        made["status"] = {"phase": "Pending"}
        return self.objects.update(PODS, made, subresource="status")

    def delete(self, pod: Obj) -> None:
        """A pod goes at once; its own claims follow when they are cleaned up."""
        self.objects.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])

    # --- kube-controller-manager ----------------------------------------------------------

    def _make_claims(self) -> None:
        for pod in self.pods():
            meta, status = pod["metadata"], pod.setdefault("status", {})
            known = {one["name"] for one in status.get("resourceClaimStatuses") or ()}
            fresh = [
                one
                for one in pod["spec"].get("resourceClaims") or ()
                if one.get("resourceClaimTemplateName") and one["name"] not in known
            ]
            for one in fresh:
                template = self.objects.get(
                    RESOURCE_CLAIM_TEMPLATES, one["resourceClaimTemplateName"], meta["namespace"]
                )
                claim = self.objects.create(
                    RESOURCE_CLAIMS,
                    {
                        "metadata": {
                            "generateName": f"{meta['name']}-{one['name']}-",
                            "namespace": meta["namespace"],
                            "ownerReferences": [
                                {
                                    "apiVersion": "v1",
                                    "kind": "Pod",
                                    "name": meta["name"],
                                    "uid": meta["uid"],
                                    "controller": True,
                                }
                            ],
                        },
                        "spec": template["spec"]["spec"],
                    },
                )
                status.setdefault("resourceClaimStatuses", []).append(
                    {"name": one["name"], "resourceClaimName": claim["metadata"]["name"]}
                )
            if fresh:
                self.objects.update(PODS, pod, subresource="status")

    def _clean_up(self) -> None:
        alive = {
            pod["metadata"]["uid"]
            for pod in self.pods()
            if pod["status"].get("phase") not in {"Succeeded", "Failed"}
        }
        for claim in self.claims():
            status = claim.get("status") or {}
            reserved = status.get("reservedFor") or []
            left = [one for one in reserved if one["uid"] in alive]
            owners = claim["metadata"].get("ownerReferences") or []
            orphan = bool(owners) and not any(one["uid"] in alive for one in owners)
            if len(left) != len(reserved) or (orphan and status.get("allocation") and not left):
                status = {**status, "reservedFor": left} if left else {}
                self.objects.update(
                    RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status"
                )
            if orphan and not status.get("allocation"):
                self._end_claim(claim)

    def _end_claim(self, claim: Obj) -> None:
        meta = claim["metadata"]
        self.objects.delete(RESOURCE_CLAIMS, meta["name"], meta["namespace"])
        if FINALIZER in (meta.get("finalizers") or ()):
            self.objects.patch(
                RESOURCE_CLAIMS,
                meta["name"],
                {"metadata": {"finalizers": None}},
                namespace=meta["namespace"],
            )

    # --- kube-scheduler -------------------------------------------------------------------

    def claims_of(self, pod: Obj) -> list[Obj] | None:
        """The claims of a pod; None while one is missing."""
        made = {
            one["name"]: one.get("resourceClaimName")
            for one in pod["status"].get("resourceClaimStatuses") or ()
        }
        found = []
        for one in pod["spec"].get("resourceClaims") or ():
            name = one.get("resourceClaimName") or made.get(one["name"])
            try:
                found.append(
                    self.objects.get(RESOURCE_CLAIMS, name or "?", pod["metadata"]["namespace"])
                )
            except NotFoundError:
                return None
        return found

    def _bind(self, refuses: float) -> None:
        for pod in self.pods():
            spec = pod["spec"]
            if spec.get("schedulingGates") or spec.get("nodeName") or not _alive(pod):
                continue
            claims = self.claims_of(pod)
            if claims is None or not all(_allocation(one) for one in claims):
                continue
            nodes = [name for name in self.nodes_for(pod) if _reaches(claims, name)]
            if nodes and self._rng.random() >= refuses:
                pod["spec"]["nodeName"] = nodes[0]
                for claim in claims:
                    self._reserve(claim, pod)
                self._start(self.objects.update(PODS, pod))
            else:
                self._post_filter(pod, claims)

    def _start(self, pod: Obj) -> None:
        pod["status"].update(phase="Running", startTime=rfc3339(self._clock.now()))
        pod["status"].pop("nominatedNodeName", None)
        self.objects.update(PODS, pod, subresource="status")
        life = float((pod["metadata"].get("annotations") or {}).get(LIFE, "10"))
        self._ends[pod["metadata"]["uid"]] = self._clock.monotonic() + life

    def _reserve(self, claim: Obj, pod: Obj) -> None:
        reserved = claim["status"].setdefault("reservedFor", [])
        if all(one["uid"] != pod["metadata"]["uid"] for one in reserved):
            reserved.append(
                {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            )
            self.objects.update(RESOURCE_CLAIMS, claim, subresource="status")

    def _post_filter(self, pod: Obj, claims: list[Obj]) -> None:
        """As the scheduler's plugin does: of the claims that only this pod uses, one is cleared."""
        for claim in claims:
            users = {one["uid"] for one in claim["status"].get("reservedFor") or ()}
            if users <= {pod["metadata"]["uid"]}:
                self.cleared += 1
                self.objects.update(RESOURCE_CLAIMS, {**claim, "status": {}}, subresource="status")
                return

    def nodes_for(self, pod: Obj) -> Iterator[str]:
        """Nodes that have room for a pod's requests, and accept it."""
        used: dict[str, int] = {}
        for other in self.pods():
            if _alive(other) and other["spec"].get("nodeName"):
                name = other["spec"]["nodeName"]
                used[name] = used.get(name, 0) + _cpu(other)
        for node in self.objects.list(NODES):
            labels = node["metadata"].get("labels") or {}
            wanted = pod["spec"].get("nodeSelector") or {}
            if node.get("spec", {}).get("unschedulable"):
                continue
            if any(labels.get(key) != value for key, value in wanted.items()):
                continue
            top = Quantity.parse(node["status"]["allocatable"]["cpu"]).nanos // 10**6
            if used.get(node["metadata"]["name"], 0) + _cpu(pod) <= top:
                yield node["metadata"]["name"]

    # --- kubelets -------------------------------------------------------------------------

    def _run(self) -> None:
        now = self._clock.monotonic()
        for pod in self.pods():
            due = self._ends.get(pod["metadata"]["uid"])
            if due is not None and due <= now and pod["status"].get("phase") == "Running":
                pod["status"]["phase"] = "Succeeded"
                self.objects.update(PODS, pod, subresource="status")
                del self._ends[pod["metadata"]["uid"]]

    def remove_ended(self) -> None:
        """Pods that ended are deleted."""
        for pod in self.pods():
            if not _alive(pod):
                self.delete(pod)


def node(name: str, cpu: int = 64, **labels: str) -> Obj:
    """A Ready managed node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"gpudra.io/managed": "true", **labels}},
        "status": {
            "allocatable": {"cpu": str(cpu), "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def template(name: str, namespace: str, *requests: Obj, **devices: Any) -> Obj:
    """A ResourceClaimTemplate."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": list(requests), **devices}}},
    }


def seed_classes(objects: ObjectStore, classes: list[Obj]) -> None:
    """Device classes of the chart."""
    for one in classes:
        objects.create(DEVICE_CLASSES, one)


def _alive(pod: Obj) -> bool:
    return pod["status"].get("phase") not in {"Succeeded", "Failed"}


def _allocation(claim: Obj) -> Obj | None:
    found = (claim.get("status") or {}).get("allocation")
    return found if isinstance(found, dict) else None


def _reaches(claims: list[Obj], node_name: str) -> bool:
    for claim in claims:
        selector = claim["status"]["allocation"].get("nodeSelector")
        if selector and not any(
            node_name in expression.get("values", ())
            for term in selector["nodeSelectorTerms"]
            for expression in term.get("matchFields", ())
        ):
            return False
    return True


def _cpu(pod: Obj) -> int:
    total = 0
    for container in pod["spec"].get("containers") or ():
        text = ((container.get("resources") or {}).get("requests") or {}).get("cpu", "0")
        total += Quantity.parse(text).nanos // 10**6
    return total
