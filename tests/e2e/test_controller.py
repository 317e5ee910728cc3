# SPDX-License-Identifier: Apache-2.0
"""``gpudra-controller`` against a real API server, with the rights that the chart gives it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.local.certs import kubeconfig
from tests.support.cluster import RESOURCE, Cluster
from tests.support.helm import NAMESPACE, Helm

NAME = "gpudra-controller"
DRIVER = "fabric.test.gpudra.io"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@dataclass
class Controller:
    """The running process and where its log goes."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        """What it logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@pytest.fixture
def account(cluster: Cluster) -> Iterator[str]:
    """The controller's account and roles from the chart; a token for it."""
    objects = [one for one in Helm.built().template() if one["metadata"]["name"] == NAME]
    rights = [one for one in objects if one["kind"] != "Deployment"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    cluster.kubectl(*apply, stdin=yaml.safe_dump_all([namespace, *rights]))
    yield cluster.kubectl("create", "token", NAME, "-n", NAMESPACE).strip()
    cluster.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(rights))
    cluster.kubectl("delete", "lease", NAME, "-n", NAMESPACE, "--ignore-not-found")


@pytest.fixture
def controller(cluster: Cluster, account: str, tmp_path: Path) -> Iterator[Controller]:
    """The process, once it leads."""
    config = tmp_path / "kubeconfig"
    authority = cluster.layout.pki_dir / "ca.crt"
    config.write_text(kubeconfig(cluster.state.server, authority, {"token": account}))
    command = [
        *(sys.executable, "-m", "gpudra.controller", f"--kubeconfig={config}"),
        *(f"--driver-name={DRIVER}", "--http-endpoint=127.0.0.1:0", "--instance=e2e"),
    ]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stderr=out) as process:
        cluster.wait_for(LEASE, NAME, lambda lease: holder(lease) == "e2e", what="to be held")
        yield Controller(process, log)
        process.kill()


@pytest.fixture(autouse=True)
def no_slices_left(cluster: Cluster) -> Iterator[None]:
    """Removes what a test published and what was said about it."""
    yield
    selector = f"--field-selector=spec.driver={DRIVER}"
    cluster.kubectl("delete", "resourceslices", selector, "--ignore-not-found")
    for event in cluster.client.request("GET", EVENTS)["items"]:
        if event.get("reportingController", "").startswith(DRIVER):
            cluster.client.request("DELETE", f"{EVENTS}/{event['metadata']['name']}")


def holder(lease: dict[str, Any]) -> str:
    """Who holds a lease."""
    return str(lease["spec"].get("holderIdentity", ""))


def publish(cluster: Cluster, node: str, uuid: str) -> None:
    """A slice with one card, as an agent on that node would write it."""
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}],
    }
    found = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-fabric-test"},
        "spec": spec,
    }
    cluster.client.request("POST", f"{RESOURCE}/resourceslices", found)


def test_it_gives_the_lease_back_and_ends_cleanly(cluster: Cluster, controller: Controller) -> None:
    """On SIGTERM: exit code 0, an empty holder, and nothing above info in the log."""
    assert controller.stop() == 0
    assert holder(cluster.get(LEASE, NAME)) == ""
    assert {line["level"] for line in controller.lines()} == {"info"}


def test_one_card_on_two_nodes_is_told_at_both(cluster: Cluster, controller: Controller) -> None:
    """``kubectl describe node`` shows the warning; the chart's rights suffice for it."""
    publish(cluster, "node-1", "GPU-1")
    publish(cluster, "node-2", "GPU-1")

    def both_told(events: dict[str, dict[str, Any]]) -> bool:
        told = [event for event in events.values() if event["reason"] == "FabricContradiction"]
        return {event["regarding"]["name"] for event in told} >= {"node-1", "node-2"}

    cluster.wait_list(EVENTS, both_told, what="an event at both nodes")
    described = cluster.kubectl("describe", "node", "node-1")
    assert "GPU GPU-1 is published by more than one node: node-1, node-2" in described
    assert controller.stop() == 0
    assert [line["event"] for line in controller.lines() if line["level"] == "error"] == [
        "nodes contradict each other"
    ]


def test_it_may_do_nothing_else(cluster: Cluster, account: str) -> None:
    """The account reads slices and claims; it may write neither, nor read pods or secrets."""

    def may(verb: str, resource: str) -> bool:
        user = f"--as=system:serviceaccount:{NAMESPACE}:{NAME}"
        told = subprocess.run(
            [
                *(cluster.layout.binary("kubectl"), "auth", "can-i", verb, resource, user),
                *("-A", f"--kubeconfig={cluster.layout.admin_kubeconfig}"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return told.stdout.strip() == "yes"

    assert account
    assert may("watch", "resourceslices.resource.k8s.io")
    for verb, resource in [
        ("update", "resourceslices.resource.k8s.io"),
        ("update", "resourceclaims.resource.k8s.io"),
        ("get", "pods"),
        ("get", "secrets"),
        ("patch", "nodes"),
    ]:
        assert not may(verb, resource), (verb, resource)
