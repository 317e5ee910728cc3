# SPDX-License-Identifier: Apache-2.0
"""The local cluster itself: real components, pods that run, and a start that may be repeated."""

import json

from gpudra.controller.ctl.local.agent import newest_source
from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.controller.ctl.local.up import is_ready
from tests.support.cluster import CORE, Cluster, busybox_pod, gpudra_local


def test_it_is_the_kubernetes_that_is_pinned(cluster: Cluster) -> None:
    """The API server says 1.37 of itself, and serves resource.k8s.io/v1."""
    version = cluster.client.request("GET", "/version")

    assert version["gitVersion"].startswith("v1.37.")
    served = cluster.client.request("GET", "/apis/resource.k8s.io/v1")["resources"]
    assert {"resourceslices", "resourceclaims", "resourceclaims/status", "deviceclasses"} <= {
        resource["name"] for resource in served
    }


def test_both_nodes_are_ready_with_a_runtime_of_their_own(cluster: Cluster) -> None:
    """Two kubelets report Ready, the same version as the server, and containerd 2.4."""
    nodes = {node.name: cluster.get(f"{CORE}/nodes", node.name) for node in cluster.state.nodes}

    assert len(nodes) >= 2
    for node in nodes.values():
        info = node["status"]["nodeInfo"]
        assert is_ready(node)
        assert info["kubeletVersion"].startswith("v1.37.")
        assert info["containerRuntimeVersion"] == "containerd://2.4.2"
    assert len({node.containerd_socket for node in cluster.state.nodes}) == len(cluster.state.nodes)


def test_a_pod_runs_on_each_node_and_its_output_is_seen(cluster: Cluster, namespace: str) -> None:
    """The scheduler places pods, the kubelets run them, and kubectl logs reaches the kubelet."""
    names = [node.name for node in cluster.state.nodes]
    pods = [
        busybox_pod(
            f"hello-{name}",
            f"echo hello from {name}",
            nodeSelector={"kubernetes.io/hostname": name},
        )
        for name in names
    ]

    cluster.apply(*pods, namespace=namespace)

    for name in names:
        pod = cluster.wait_pod(namespace, f"hello-{name}", "Succeeded")
        assert pod["spec"]["nodeName"] == name
        assert cluster.kubectl("logs", "-n", namespace, f"hello-{name}") == f"hello from {name}\n"


def test_pods_of_different_nodes_reach_each_other_by_address(
    cluster: Cluster, namespace: str
) -> None:
    """There is no cluster DNS, but a pod on one node gets a page from a pod on the other."""
    first, second = (node.name for node in cluster.state.nodes[:2])
    server = busybox_pod(
        "server", "echo served > /tmp/page && exec httpd -f -p 8080 -h /tmp", node=first
    )
    cluster.apply(server, namespace=namespace)
    address = cluster.wait_pod(namespace, "server")["status"]["podIP"]

    cluster.apply(
        busybox_pod("client", f"wget -q -O - http://{address}:8080/page", node=second),
        namespace=namespace,
    )

    cluster.wait_pod(namespace, "client", "Succeeded")
    assert cluster.kubectl("logs", "-n", namespace, "client") == "served\n"


def test_a_second_up_restarts_nothing(cluster: Cluster) -> None:
    """Running ``up`` on a healthy cluster leaves every process as it is.

    The plugin's processes only as long as nobody edits its sources meanwhile.
    """
    gpudra_local("up", "--nodes", "2", "--yes")
    before, sources = cluster.pids(), newest_source(checkout_dir())

    up = gpudra_local("up", "--nodes", "2", "--yes")

    assert up.returncode == 0, up.stderr
    after = cluster.pids()
    edited = newest_source(checkout_dir()) != sources
    kept = [name for name in before if not (edited and name.startswith("agent-"))]
    assert {name: after.get(name) for name in kept} == {name: before[name] for name in kept}


def test_status_tells_ports_paths_and_health_to_programs(cluster: Cluster) -> None:
    """``status -o json`` exits 0 when all is healthy and names each node's folders."""
    status = gpudra_local("status", "-o", "json")

    assert status.returncode == 0, status.stdout
    answer = json.loads(status.stdout)
    assert answer["healthy"]
    assert {component["name"] for component in answer["components"]} >= {
        "etcd",
        "kube-apiserver",
        "kubelet-node-2",
    }
    assert answer["nodes"][0]["kubelet_root"] == cluster.state.nodes[0].kubelet_root
