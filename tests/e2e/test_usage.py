# SPDX-License-Identifier: Apache-2.0
"""``gpudra top`` on a real cluster: what a pod's claim uses, who may see it, and that it ends.

Agent, kubelet, API server and its proxy are real; processes are put into the fake NVML.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpudra.controller.ctl.local.certs import kubeconfig
from tests.support.cluster import CORE, Cluster, Object, busybox_pod
from tests.support.nvmlagent import NvmlAgent, nvml_agent

DRIVER = "usage.test.gpudra.io"
NODE = "node-1"
CARDS = 8
GIB = 2**30
PID = 4711
LABELS = {
    "app.kubernetes.io/name": "gpudra",
    "app.kubernetes.io/component": "kubelet-plugin",
}
MERGE_PATCH = "application/merge-patch+json"
T = TypeVar("T")


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[NvmlAgent]:
    """Eight H100 on node-1; its endpoint is where the API server's proxy reaches it."""
    options = [f"--http-endpoint={address(cluster)}:0", "--usage-period=0.2"]
    with nvml_agent(cluster, driver=DRIVER, node=NODE, options=options) as found:
        found.wait_devices(lambda cards: len(cards) == CARDS, "the cards to be published")
        yield found


def address(cluster: Cluster) -> str:
    """The node's own address: the proxy refuses loopback."""
    addresses = cluster.get(f"{CORE}/nodes", NODE)["status"]["addresses"]
    return next(one["address"] for one in addresses if one["type"] == "InternalIP")


def port(agent: NvmlAgent) -> int:
    """Of its endpoint."""
    told = re.search(r'"port":(\d+),?[^}]*"event":"status endpoint"', agent.log.read_text())
    told = told or re.search(r'"event":"status endpoint"[^}]*"port":(\d+)', agent.log.read_text())
    assert told, agent.log.read_text()[:2000]
    return int(told[1])


class Top:
    """Runs ``gpudra top`` as somebody."""

    def __init__(self, config: Path, *words: str) -> None:
        self._words = (*words, "--kubeconfig", str(config))

    def __call__(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Once."""
        command = [sys.executable, "-m", "gpudra.controller.ctl.main", "top"]
        return subprocess.run(
            [*command, *self._words, *words], capture_output=True, text=True, check=False
        )

    def items(self) -> list[Object]:
        """What it shows; nothing while it is refused."""
        done = self("-o", "json")
        found: list[Object] = json.loads(done.stdout)["items"] if done.returncode == 0 else []
        return found

    def refused(self, why: str) -> None:
        """Waits until it fails for a reason; rights take a moment to get around."""
        deadline = time.monotonic() + 60
        while why not in (done := self()).stderr:
            assert time.monotonic() < deadline, done
        assert (done.returncode, done.stdout) == (1, "")

    def until(self, wanted: Callable[[list[Object]], T | None]) -> T:
        """The first answer to what it shows that is one."""
        deadline = time.monotonic() + 60
        while True:
            items = self.items()
            if found := wanted(items):
                return found
            assert time.monotonic() < deadline, items


@pytest.fixture
def pod(cluster: Cluster, agent: NvmlAgent, namespace: str) -> str:
    """A pod that runs with a whole card; its name."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "training"},
        "spec": {"devices": {"requests": [request]}},
    }
    cluster.apply(
        claim, busybox_pod("trainer", "exec sleep infinity", claims={"g": "training"}),
        namespace=namespace,
    )  # fmt: skip
    cluster.wait_pod(namespace, "trainer")
    return "trainer"


def card_of(cluster: Cluster, namespace: str, pod: str) -> str:
    """The uuid of the card that the container sees."""
    words = ("exec", "-n", namespace, pod, "--", "/bin/sh", "-c", "env | grep ^GPUDRA_DEVICE_")
    return cluster.kubectl(*words).strip().partition("=")[2]


def test_a_pods_processes_show_and_go(
    cluster: Cluster, agent: NvmlAgent, namespace: str, pod: str
) -> None:
    """Memory, rate and pods of the claim; nothing is left of it when it is gone."""
    url = f"http://{address(cluster)}:{port(agent)}"
    top = Top(cluster.layout.admin_kubeconfig, "-n", namespace, "--agent", f"{NODE}={url}")
    card = card_of(cluster, namespace, pod)
    agent.machine.ctl("process", card, PID, 3 * GIB)
    agent.machine.ctl("runs", card, PID, 55)

    def busy(items: list[Object]) -> Object | None:
        found = [one for one in items if one.get("memoryUsedBytes") == 3 * GIB]
        return found[0] if found and found[0].get("computePercent") == 55 else None

    shown = top.until(busy)
    del shown["device"], shown["memoryBytes"]
    assert shown == {
        "node": NODE,
        "namespace": namespace,
        "claim": "training",
        "form": "gpu",
        "memoryUsedBytes": 3 * GIB,
        "computePercent": 55,
        "processes": 1,
        "pods": ["trainer"],
    }
    row = top().stdout.splitlines()[1].split()
    assert row[5:] == ["3072Mi", "81559Mi", "4", "55", "1", "trainer"]
    cluster.client.request("DELETE", f"{CORE}/namespaces/{namespace}/pods/{pod}")
    cluster.wait_gone(f"{CORE}/namespaces/{namespace}/pods", pod)
    top.until(lambda items: top().returncode == 0 and not items)


@pytest.fixture
def listed(cluster: Cluster, agent: NvmlAgent, namespace: str) -> None:
    """A pod in the API that stands for the agent's, at its address; no kubelet has it."""
    container = {
        "name": "kubelet-plugin",
        "image": "none",
        "ports": [{"name": "http", "containerPort": port(agent)}],
    }
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "labels": LABELS},
        "spec": {"containers": [container], "schedulingGates": [{"name": "gpudra.io/never"}]},
    }
    pods = f"{CORE}/namespaces/{namespace}/pods"
    cluster.client.request("POST", pods, made)
    ip = address(cluster)
    status = {"status": {"podIP": ip, "podIPs": [{"ip": ip}]}}
    cluster.client.request("PATCH", f"{pods}/agent/status", status, content_type=MERGE_PATCH)


def somebody(cluster: Cluster, namespace: str, folder: Path, *resources: str) -> Path:
    """A kubeconfig of an account that may use some kinds of the namespace."""
    group = "rbac.authorization.k8s.io"
    meta: Object = {"name": "viewer"}
    verbs = {"pods": ["list"], "pods/proxy": ["get"], "resourceclaims": ["list"]}
    rules: list[Any] = [
        {
            "apiGroups": ["resource.k8s.io" if one == "resourceclaims" else ""],
            "resources": [one],
            "verbs": verbs[one],
        }
        for one in resources
    ]
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "viewer"},
            "subjects": [subject],
        },
        namespace=namespace,
    )
    token = cluster.kubectl("create", "token", "viewer", "-n", namespace).strip()
    file = folder / "kubeconfig"
    authority = cluster.layout.pki_dir / "ca.crt"
    file.write_text(kubeconfig(cluster.state.server, authority, {"token": token}))
    file.chmod(0o600)
    return file


def test_agents_are_read_through_the_api_server(
    cluster: Cluster, agent: NvmlAgent, namespace: str, listed: None, tmp_path: Path, pod: str
) -> None:
    """With the rights that the page names and no others; which one is missing is said."""
    words = ("--agent-namespace", namespace, "-n", namespace)
    top = Top(somebody(cluster, namespace, tmp_path), *words)
    top.refused(f"you may not list pods in namespace {namespace}")
    somebody(cluster, namespace, tmp_path, "pods")
    top.refused("the right get on pods/proxy is missing")
    somebody(cluster, namespace, tmp_path, "pods", "pods/proxy", "resourceclaims")
    shown = top.until(lambda items: [one for one in items if one["claim"] == "training"])
    assert shown[0]["pods"] == [pod]
