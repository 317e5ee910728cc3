# SPDX-License-Identifier: Apache-2.0
"""A healthy cluster of two nodes as ``gpudra doctor`` reads it, for tests to break."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from gpudra.controller.ctl.doctor.facts import Access, Facts
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.features import ALL_FEATURES

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
DRIVER = "gpu.gpudra.io"
NAMESPACE = "gpudra-system"
NODES = ("node-a", "node-b")
_MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
_LABELS = {"app.kubernetes.io/name": "gpudra"}

Obj = dict[str, Any]


def node(name: str, **labels: str) -> Obj:
    """A node that is ready and says so."""
    return {
        "metadata": {"name": name, "labels": dict(labels)},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "GPUsReady", "status": "True", "reason": "GPUsReady", "message": "fine"},
            ],
            "allocatable": {"cpu": "8"},
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.0.1"},
        },
    }


def lease(name: str, namespace: str, **spec: Any) -> Obj:
    """A lease renewed a moment ago."""
    renewed = {"renewTime": "2026-06-01T11:59:58.000000Z", "leaseDurationSeconds": 15, **spec}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": renewed}


def pod(name: str, on: str) -> Obj:
    """An agent that is ready."""
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {**_LABELS, "app.kubernetes.io/component": "kubelet-plugin"},
        },
        "spec": {"nodeName": on, "containers": [_container()]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def workload(component: str, status: Obj) -> Obj:
    """The DaemonSet or Deployment of a part of the chart."""
    account = f"gpudra-{component}"
    return {
        "metadata": {
            "name": account,
            "namespace": NAMESPACE,
            "labels": {**_LABELS, "app.kubernetes.io/component": component},
        },
        "spec": {
            "template": {"spec": {"serviceAccountName": account, "containers": [_container()]}}
        },
        "status": status,
    }


def _container() -> Obj:
    ports = [{"name": "http", "containerPort": 8080}]
    return {"args": [f"--driver-name={DRIVER}"], "ports": ports}


def manifests(kind: str) -> list[Obj]:
    """Objects of a kind in deploy/manifests."""
    return [
        one
        for path in sorted(_MANIFESTS.glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text())
        if one and one["kind"] == kind
    ]


def healthy() -> Facts:
    """Nothing to complain about; fresh objects each time."""
    slices = [
        one.to_dict()
        for name in NODES
        for one in slices_of_hardware("l4-4x", driver=DRIVER, node_name=name)
    ]
    return Facts(
        driver=DRIVER,
        version="v1.37.2",
        kinds={
            "resource.k8s.io/v1": frozenset(
                {"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"}
            ),
            "gpudra.io/v1alpha1": frozenset({"nodepolicies"}),
        },
        features=ALL_FEATURES,
        clock=0.4,
        now=NOW,
        objects={
            "nodes": [node(name) for name in NODES],
            "resourceslices": slices,
            "deviceclasses": manifests("DeviceClass"),
            "nodepolicies": [],
            "pods": [pod(f"agent-{name}", name) for name in NODES],
            "daemonsets": [
                workload("kubelet-plugin", {"desiredNumberScheduled": 2, "numberReady": 2})
            ],
            "deployments": [workload("controller", {"availableReplicas": 1})],
            "validatingadmissionpolicies": manifests("ValidatingAdmissionPolicy"),
            "validatingadmissionpolicybindings": manifests("ValidatingAdmissionPolicyBinding"),
            "leases": [
                *(lease(name, "kube-node-lease") for name in NODES),
                lease("gpudra-controller", NAMESPACE, holderIdentity="pod-1"),
            ],
        },
        access=[
            Access(account=f"system:serviceaccount:{NAMESPACE}:gpudra-{part}")
            for part in ("kubelet-plugin", "controller")
        ],
    )
