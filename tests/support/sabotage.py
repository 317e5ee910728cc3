# SPDX-License-Identifier: Apache-2.0
"""Ways to spoil a cluster on which the chart is installed, and how each is mended.

What belongs to the chart is really spoiled. What would be a node of its own (a driver that is
missing, a device plugin, a slow clock) is a node that is only an object.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpudra.api.errors import ConflictError
from tests.support.cluster import CORE, RESOURCE, Cluster
from tests.support.helm import NAMESPACE

Object = dict[str, Any]
Spoil = Callable[[Cluster], AbstractContextManager[None]]

DRIVER = "gpu.gpudra.io"
POLICY = "gpudra-kubelet-plugin-resourceslices"
ROLE = "gpudra-kubelet-plugin"
NODE = "spoiled"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class Sabotage:
    """One way.

    Attributes:
        name: of the case.
        spoil: spoils on entry, mends on exit.
        check: of ``gpudra doctor`` that has to be red.
        says: words of its message.
        advises: words of its advice.
    """

    name: str
    spoil: Spoil
    check: str
    says: str
    advises: str


def deleted(collection: str, name: str) -> Spoil:
    """An object is gone; it comes back as it was."""

    @contextlib.contextmanager
    def spoil(cluster: Cluster) -> Iterator[None]:
        found = cluster.get(collection, name)
        cluster.client.request("DELETE", f"{collection}/{name}")
        cluster.wait_gone(collection, name)
        try:
            yield
        finally:
            cluster.client.request("POST", collection, _bare(found))

    return spoil


def changed(collection: str, name: str, change: Callable[[Object], object]) -> Spoil:
    """An object says something else; afterwards it says the same as before."""

    @contextlib.contextmanager
    def spoil(cluster: Cluster) -> Iterator[None]:
        found = cluster.get(collection, name)
        content = {key: found[key] for key in found.keys() & {"spec", "rules"}}
        _put(cluster, collection, name, change)
        try:
            yield
        finally:
            _put(cluster, collection, name, lambda one: one.update(content))

    return spoil


def _put(cluster: Cluster, collection: str, name: str, change: Callable[[Object], object]) -> None:
    """Controllers write statuses all the time: a change is tried until nobody was quicker."""
    while True:
        now = cluster.get(collection, name)
        change(now)
        with contextlib.suppress(ConflictError):
            cluster.client.request("PUT", f"{collection}/{name}", now)
            return


def node(*, reason: str = "", runtime: str = "containerd://2.0.0", **allocatable: str) -> Spoil:
    """A node that is only an object.

    Args:
        reason: of its condition GPUsReady; without one the node says that all is well.
        runtime: its container runtime.
        allocatable: resources that it has beside a CPU.
    """
    status = {
        "conditions": [
            _condition("Ready", True, "KubeletReady"),
            _condition("GPUsReady", not reason, reason or "GPUsReady"),
        ],
        "allocatable": {"cpu": "1", **allocatable},
        "capacity": {"cpu": "1", **allocatable},
        "nodeInfo": {
            **dict.fromkeys(
                (
                    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"),
                    *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
                ),
                "",
            ),
            "containerRuntimeVersion": runtime,
        },
    }

    @contextlib.contextmanager
    def spoil(cluster: Cluster) -> Iterator[None]:
        taint = {"key": "e2e.gpudra.io/spoiled", "effect": "NoSchedule"}
        made = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE},
            "spec": {"taints": [taint]},
        }
        cluster.client.request("POST", f"{CORE}/nodes", made)
        try:
            patch = json.dumps({"status": status})
            words = ("node", NODE, "--subresource=status", "--type=merge", "-p", patch)
            cluster.kubectl("patch", *words)
            yield
        finally:
            cluster.kubectl("delete", "node", NODE)

    return spoil


def beside(spoil: Spoil, *objects: Callable[[], Object]) -> Spoil:
    """More objects beside a spoiled node, deleted before it."""

    @contextlib.contextmanager
    def both(cluster: Cluster) -> Iterator[None]:
        with spoil(cluster):
            made = [one() for one in objects]
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
            cluster.kubectl("create", "-f", "-", stdin=text)
            try:
                yield
            finally:
                cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)

    return both


@contextlib.contextmanager
def nothing(_: Cluster) -> Iterator[None]:
    """No change of what is there."""
    yield


def _condition(kind: str, true: bool, reason: str) -> Object:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    status = "True" if true else "False"
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": "by a test", **times}


def _bare(found: Object) -> Object:
    meta = found["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "labels", "annotations") if key in meta}
    return {**{key: value for key, value in found.items() if key != "status"}, "metadata": kept}


def _lease() -> Object:
    ahead = datetime.now(UTC) + timedelta(hours=1)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NODE, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": NODE, "renewTime": f"{ahead:%Y-%m-%dT%H:%M:%S.%fZ}"},
    }


def _half_a_pool() -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{NODE}-half"},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 2},
            "devices": [{"name": "gpu-1", "attributes": {
                "type": {"string": "gpu"}, "vendor": {"string": "nvidia"}}}],
        },
    }  # fmt: skip


def _managed() -> Object:
    return {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "NodePolicy",
        "metadata": {"name": "e2e-doctor"},
        "spec": {"managed": True, "nodeSelector": {"e2e.gpudra.io/nobody": "true"}},
    }


def _without_rule(resource: str) -> Callable[[Object], object]:
    def change(role: Object) -> None:
        role["rules"] = [rule for rule in role["rules"] if resource not in rule["resources"]]

    return change


def _nowhere(daemon_set: Object) -> None:
    daemon_set["spec"]["template"]["spec"]["nodeSelector"] = {"e2e.gpudra.io/nobody": "true"}


def _other_account(policy: Object) -> None:
    condition = policy["spec"]["matchConditions"][0]
    condition["expression"] = condition["expression"].replace("gpudra-kubelet-plugin", "renamed")


def _other_driver(device_class: Object) -> None:
    device_class["spec"]["selectors"] = [{"cel": {"expression": 'device.driver == "x.example"'}}]


SABOTAGES: tuple[Sabotage, ...] = (
    Sabotage(
        "a class is deleted", deleted(f"{RESOURCE}/deviceclasses", DRIVER),
        "device-classes", f"DeviceClass {DRIVER} is missing", "helm upgrade",
    ),
    Sabotage(
        "a class selects another driver",
        changed(f"{RESOURCE}/deviceclasses", "share.gpudra.io", _other_driver),
        "device-classes", "share.gpudra.io selects none", "restore its selector",
    ),
    Sabotage(
        "nothing binds the policy",
        deleted(f"{ADMISSION}/validatingadmissionpolicybindings", POLICY),
        "admission", "has no binding that denies", "admissionPolicy.enabled=true",
    ),
    Sabotage(
        "the policy names another account",
        changed(f"{ADMISSION}/validatingadmissionpolicies", POLICY, _other_account),
        "admission", "does not name system:serviceaccount:", "helm upgrade",
    ),
    Sabotage(
        "the agent lacks a right",
        changed(f"{RBAC}/clusterroles", ROLE, _without_rule("nodes/status")),
        "permissions", "may not patch nodes/status", "helm upgrade restores",
    ),
    Sabotage(
        "the agent runs nowhere",
        changed(f"{APPS}/daemonsets", "gpudra-kubelet-plugin-node-1", _nowhere),
        "agents", "runs on no node", "kubeletPlugin.nodeSelector",
    ),
    Sabotage(
        "the controller is scaled away",
        changed(f"{APPS}/deployments", "gpudra-controller", lambda one: one["spec"].update(replicas=0)),
        "controller", "no pod of Deployment", "kubectl describe deployment",
    ),
    Sabotage(
        "our kind is gone", deleted(CRD, "nodepolicies.gpudra.io"),
        "crds", "NodePolicy is not installed", "kubectl apply -f deploy/charts/gpudra/crds/",
    ),
    Sabotage(
        "the driver is missing", node(reason="DriverMissing"),
        "driver", f"{NODE}: DriverMissing", "install the kernel driver",
    ),
    Sabotage(
        "a device plugin is there", node(**{"nvidia.com/gpu": "4"}),
        "device-plugin", f"offers nvidia.com/gpu on {NODE}", "take the device plugin off",
    ),
    Sabotage(
        "the runtime knows no CDI", node(runtime="containerd://1.6.8"),
        "cdi", "containerd://1.6.8", "upgrade to containerd",
    ),
    Sabotage(
        "a clock is wrong", beside(node(), _lease),
        "clock", f"ahead of the server's on {NODE}", "timedatectl",
    ),
    Sabotage(
        "a slice is missing", beside(node(), _half_a_pool),
        "slices", f"missing in the pool of {NODE}", "its log says why",
    ),
    Sabotage(
        "a ready node publishes nothing", node(),
        "slices", f"{NODE} have GPUs and publish nothing", "30 s after it lost the agent",
    ),
    Sabotage(
        "managed mode has no gate", beside(nothing, _managed),
        "managed-mode", "no MutatingAdmissionPolicy puts the gate", "managed.enabled=true",
    ),
)  # fmt: skip
