# SPDX-License-Identifier: Apache-2.0
"""The agent is killed again and again while the real kubelet prepares fifty claims."""

import os
import signal
from pathlib import Path

from gpudra.controller.ctl.local.agent import Agent
from gpudra.controller.ctl.local.process import ProcessTable
from gpudra.kubelet_plugin.checkpoint_file import CheckpointFile
from tests.support.cluster import CORE, Cluster, Object, busybox_pod

NODE = "node-1"
PODS = 50
# The agent dies when so many pods have ended.
KILLS = (3, 15, 30)
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu"},
    "spec": {
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.gpudra.io"}}]}
        }
    },
}  # fmt: skip


def pod(number: int) -> Object:
    """A pod that looks at its GPU and ends."""
    found = busybox_pod(
        f"p{number}",
        "env | grep ^GPUDRA_DEVICE_",
        nodeSelector={"kubernetes.io/hostname": NODE},
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
    )
    found["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return found


def kill_and_restart(cluster: Cluster) -> None:
    """SIGKILL, then a new process of the same agent, healthy."""
    table = ProcessTable(cluster.layout.pid_dir, cluster.layout.log_dir)
    node = cluster.node(NODE)
    agent = Agent(node, cluster.state.hardware)
    record = table.running(agent.name)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    assert table.ensure(agent.component(Path(node.agent_dir) / "kubeconfig"))


def ended(items: dict[str, Object]) -> int:
    """How many pods have succeeded."""
    return sum(one.get("status", {}).get("phase") == "Succeeded" for one in items.values())


def test_fifty_claims_survive_the_kills_and_leave_nothing(cluster: Cluster, namespace: str) -> None:
    """Every pod gets its GPU in the end; no CDI file, checkpoint entry or pod is left over."""
    pods = f"{CORE}/namespaces/{namespace}/pods"
    cluster.apply(TEMPLATE, *(pod(number) for number in range(PODS)), namespace=namespace)
    for count in KILLS:
        cluster.wait_list(
            pods,
            lambda items, count=count: ended(items) >= count,  # type: ignore[misc]
            what=f"{count} pods to end",
            timeout=240,
        )
        kill_and_restart(cluster)
    # The kubelet tries a pod again up to 90 s after a Prepare that failed.
    cluster.wait_list(pods, lambda items: ended(items) == PODS, what="all pods to end", timeout=400)
    cluster.delete_namespace(namespace)

    node = cluster.node(NODE)
    files = list(Path(node.cdi_dir).iterdir())
    content = CheckpointFile(Agent(node, "").state_dir).load().content
    assert content is not None
    assert [one.name for one in content.claims.values() if one.namespace == namespace] == []
    # Claims of other tests may come and go meanwhile; a file that stays without a record is a leak.
    stray = [path for path in files if not any(uid in path.name for uid in content.claims)]
    assert [path.name for path in stray if path.exists()] == []
