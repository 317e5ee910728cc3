# SPDX-License-Identifier: Apache-2.0
"""The chart installed by a real helm on a real cluster of its own: agent and controller as pods.

The image is made from this machine's interpreter (tests.support.ownimage). Pods use the node's
network, since the local cluster's API server listens on loopback only.
"""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpudra.controller.ctl.local.images import import_archive
from gpudra.controller.ctl.local.layout import checkout_dir, layout_for
from tests.support import ownimage
from tests.support.cluster import CORE, RESOURCE, Cluster, gpudra_local
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm

SLICES = f"{RESOURCE}/resourceslices"
ONE_GPU = checkout_dir() / "deploy" / "examples" / "one-gpu" / "example.yaml"
GPUS = 8


@dataclass(frozen=True)
class Installation:
    """A cluster of one node with the chart on it."""

    cluster: Cluster
    helm: Helm

    def run(self, *arguments: str) -> None:
        """Helm in the release's namespace; waits until everything is ready."""
        config = f"--kubeconfig={self.cluster.layout.admin_kubeconfig}"
        done = self.helm.run(*arguments, "-n", NAMESPACE, config, "--wait", "--timeout=160s")
        assert done.returncode == 0, done.stderr + self.troubles()

    def apply(self, verb: str, *more: str) -> None:
        """``helm install`` or ``helm upgrade`` with the values of this cluster."""
        self.run(verb, RELEASE, str(CHART), *self.values(), *more)

    def values(self) -> list[str]:
        """What a person would put into a file for this cluster."""
        server, node = urlsplit(self.cluster.state.server), self.cluster.state.nodes[0]
        values = {
            "image.repository": ownimage.NAME,
            "image.pullPolicy": "Never",
            "apiServer.host": server.hostname,
            "apiServer.port": server.port,
            "kubeletPlugin.deviceLib": "simulated",
            "kubeletPlugin.hardwareProfile": "dgx-h100-8x80",
            "kubeletPlugin.hostNetwork": "true",
            "kubeletPlugin.kubeletRoot": node.kubelet_root,
            "kubeletPlugin.cdiDir": node.cdi_dir,
            "kubeletPlugin.httpPort": node.agent_port,
            "controller.hostNetwork": "true",
            "controller.httpPort": _free_port(),
            "controller.replicas": 1,
        }
        return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]

    def versions(self) -> dict[str, str]:
        """Uid and resourceVersion of every slice, by name."""
        items = self.cluster.client.request("GET", SLICES)["items"]
        metas = [item["metadata"] for item in items]
        return {meta["name"]: f"{meta['uid']}@{meta['resourceVersion']}" for meta in metas}

    def troubles(self) -> str:
        """What the pods say, for the message of a failed test."""
        described = self.cluster.kubectl("describe", "pods", "-n", NAMESPACE)
        selector = "-lapp.kubernetes.io/name=gpudra"
        logs = self.cluster.kubectl("logs", "-n", NAMESPACE, selector, "--prefix", "--tail=15")
        return f"{described[-1500:]}\n{logs}"


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Installation]:
    """A second cluster without agent, the image imported, the chart installed."""
    assert cluster, "its programs are used"
    base = Path(tempfile.mkdtemp(prefix="gpudra-chart-"))
    try:
        up = gpudra_local("up", "--nodes", "1", "--no-agent", "--yes", "--dir", str(base))
        assert up.returncode == 0, up.stderr
        own = Cluster.of(layout_for(str(base)))
        _import_image(own, base / "image.tar")
        own.kubectl(
            *("label", "namespace", NAMESPACE, "--overwrite"),
            "pod-security.kubernetes.io/enforce=privileged",
        )
        found = Installation(own, Helm.built())
        # `up` has applied the plain manifests, which are the same objects.
        found.apply("install", "--take-ownership", "--force-conflicts")
        yield found
    finally:
        gpudra_local("down", "--purge", "--dir", str(base))
        shutil.rmtree(base, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _import_image(cluster: Cluster, archive: Path) -> None:
    version = "0.1.0"
    ownimage.write_archive(archive, version)
    containerd = Path(cluster.state.nodes[0].containerd_socket)
    import_archive(
        cluster.layout.binary("ctr"), containerd, archive, archive.with_suffix(".imported")
    )
    archive.unlink()


def test_the_agent_publishes_and_the_controller_leads(installed: Installation) -> None:
    """As pods, with the rights of the chart and the token of their pod."""
    cluster = installed.cluster
    # One slice a card, and one with the counters that tie the forms of the cards together.
    wanted = GPUS + 1
    cluster.wait_list(SLICES, lambda items: len(items) == wanted, what=f"{wanted} slices")
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    pods = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name").split()
    cluster.wait_for(
        leases,
        "gpudra-controller",
        lambda lease: f"pod/{lease['spec'].get('holderIdentity')}" in pods,
        what="to be held by the pod",
    )


def test_an_update_leaves_slices_and_prepared_claims_alone(installed: Installation) -> None:
    """A pod that runs keeps running over a change of the agent, and can be ended afterwards."""
    cluster = installed.cluster
    cluster.apply_file(ONE_GPU)
    cluster.wait_pod("default", "one-gpu")
    before = installed.versions()
    agent = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name")

    installed.apply("upgrade", "--set", "log.level=debug")

    assert cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name") != agent
    assert installed.versions() == before
    environment = cluster.kubectl("exec", "one-gpu", "--", "env")
    assert environment.count("GPUDRA_DEVICE_") == 1
    cluster.kubectl("delete", "-f", str(ONE_GPU))
    cluster.wait_list(
        f"{RESOURCE}/namespaces/default/resourceclaims",
        lambda items: not items,
        what="the claim to be gone",
    )
    assert list(Path(cluster.state.nodes[0].cdi_dir).iterdir()) == []


def test_nothing_is_published_after_removal(installed: Installation) -> None:
    """``helm uninstall`` takes all objects, and the kubelet the slices of a driver that is gone."""
    cluster = installed.cluster
    installed.run("uninstall", RELEASE)
    cluster.wait_list(
        f"{CORE}/namespaces/{NAMESPACE}/pods", lambda items: not items, what="the pods to be gone"
    )
    cluster.wait_list(SLICES, lambda items: not items, what="the slices to be gone", timeout=90)
