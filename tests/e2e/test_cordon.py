# SPDX-License-Identifier: Apache-2.0
"""One GPU out of service and back, on the real scheduler; and what the agents say about their nodes."""

import subprocess
import sys
from pathlib import Path

from tests.support.cluster import CORE, RESOURCE, Cluster, Object, busybox_pod

DRIVER = "gpu.gpudra.io"
NODE = "node-2"
SLICES = f"{RESOURCE}/resourceslices"
NODES = f"{CORE}/nodes"
MERGE_PATCH = "application/merge-patch+json"


def gpudra(cluster: Cluster, *arguments: str) -> str:
    """The command as a person types it."""
    command = [str(Path(sys.executable).with_name("gpudra")), *arguments]
    command += ["--kubeconfig", str(cluster.layout.admin_kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def some_card(cluster: Cluster) -> tuple[str, str]:
    """Name and uuid of a whole card of the node."""
    for one in cluster.client.request("GET", SLICES)["items"]:
        spec = one["spec"]
        if spec["driver"] == DRIVER and spec.get("nodeName") == NODE:
            for device in spec.get("devices", ()):
                if device["attributes"]["type"]["string"] == "gpu":
                    return device["name"], device["attributes"]["uuid"]["string"]
    raise AssertionError(f"{NODE} publishes no card")


def claim(name: str, uuid: str) -> Object:
    """A claim for exactly that card."""
    selector = f'device.attributes["{DRIVER}"].uuid == "{uuid}"'
    exactly = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": selector}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def test_a_cordoned_gpu_is_given_to_nobody_until_it_is_uncordoned(
    cluster: Cluster, namespace: str
) -> None:
    """By uuid and by name; the listing shows it; the waiting pod runs afterwards."""
    name, uuid = some_card(cluster)
    try:
        assert "cordoned, effect NoSchedule" in gpudra(cluster, "cordon", uuid)
        assert "already cordoned" in gpudra(cluster, "cordon", name)
        listed = gpudra(cluster, "devices", "--node", NODE)
        (line,) = [one for one in listed.splitlines() if f" {name} " in one]
        assert "gpudra.io/cordoned:NoSchedule" in line
        pod = busybox_pod("p", "true", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        cluster.apply(claim("c", uuid), pod, namespace=namespace)
        pods = f"{CORE}/namespaces/{namespace}/pods"

        def refused(found: Object) -> bool:
            return any(
                one["type"] == "PodScheduled" and one["status"] == "False"
                for one in found.get("status", {}).get("conditions", ())
            )

        cluster.wait_for(pods, "p", refused, what="to be unschedulable")
    finally:
        assert "uncordoned" in gpudra(cluster, "uncordon", name)
    cluster.wait_pod(namespace, "p", phase="Succeeded", timeout=120)


def test_a_node_says_what_it_has_and_is_relieved_of_its_start_up_taint(cluster: Cluster) -> None:
    """The agent corrects its labels and removes the taint within a minute or so."""
    taint = {"key": "gpudra.io/not-ready", "effect": "PreferNoSchedule"}
    taints = cluster.get(NODES, NODE)["spec"].get("taints", [])
    body = {
        "metadata": {"labels": {"gpudra.io/gpu.count": "99", "gpudra.io/gpu.gone": "x"}},
        "spec": {"taints": [*taints, taint]},
    }
    cluster.client.request("PATCH", f"{NODES}/{NODE}", body, content_type=MERGE_PATCH)

    def right(node: Object) -> bool:
        labels = node["metadata"]["labels"]
        return (
            labels.get("gpudra.io/gpu.count") == "8"
            and "gpudra.io/gpu.gone" not in labels
            and node["spec"].get("taints", []) == taints
        )

    cluster.wait_for(NODES, NODE, right, what="labels and taints to be right", timeout=100)
    conditions = cluster.get(NODES, NODE)["status"]["conditions"]
    (ready,) = [one for one in conditions if one["type"] == "GPUsReady"]
    assert ready["status"] == "True"
