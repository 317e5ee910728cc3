# SPDX-License-Identifier: Apache-2.0
"""The examples of managed mode on a real managed node: what their READMEs promise is what happens."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.local.layout import checkout_dir
from tests.support.cluster import CORE, RESOURCE, Cluster, Object
from tests.support.gate import gate_installed
from tests.support.managedcluster import ManagedController, managed_controller, word

EXAMPLES = checkout_dir() / "deploy" / "examples"
CLASSES = checkout_dir() / "deploy" / "manifests" / "deviceclasses.yaml"
DRIVER = "gpu.gpudra.io"
NODE = "node-2"
TAINT = f"{DRIVER}/managed"

Pods = dict[str, Object]


@pytest.fixture(scope="module")
def controller(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManagedController]:
    """A managed node, the policies, and the controller; afterwards the node is as it was."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CLASSES))
    name = f"managed-{uuid.uuid4().hex[:8]}"
    policy = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "NodePolicy",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "managed": True,
            "forms": ["whole"],
        },
    }
    with gate_installed(cluster):
        cluster.apply(policy)
        try:
            published(cluster, managed=True)
            with managed_controller(cluster, tmp_path_factory.mktemp("managed")) as running:
                yield running
        finally:
            cluster.kubectl("delete", "nodepolicy", name)
            published(cluster, managed=False)


def published(cluster: Cluster, *, managed: bool) -> None:
    """Waits until all devices and the label of the node say so."""

    def wanted(items: dict[str, Object]) -> bool:
        devices = [one for item in items.values() for one in item["spec"].get("devices", ())]
        tainted = [
            any(taint["key"] == TAINT for taint in device.get("taints", ())) for device in devices
        ]
        return bool(tainted) and all(one is managed for one in tainted)

    cluster.wait_list(
        f"{RESOURCE}/resourceslices",
        wanted,
        what=f"devices of {NODE} {'with' if managed else 'without'} the taint",
        query=f"fieldSelector=spec.nodeName%3D{NODE}%2Cspec.driver%3D{DRIVER}",
    )
    cluster.wait_for(
        f"{CORE}/nodes",
        NODE,
        lambda node: ("gpudra.io/managed" in node["metadata"]["labels"]) is managed,
        what=f"the label {'to come' if managed else 'to go'}",
    )


@pytest.fixture
def example(
    cluster: Cluster, controller: ManagedController, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The namespace of an example, applied; deleted with everything afterwards."""
    file = EXAMPLES / str(request.param) / "example.yaml"
    documents = list(yaml.safe_load_all(file.read_text()))
    space = str(documents[0]["metadata"]["name"])
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(documents[0]))
    cluster.wait_for(
        f"{CORE}/namespaces/{space}/serviceaccounts", "default", lambda _: True, what="to exist"
    )
    cluster.kubectl("apply", "-f", str(file))
    yield space
    cluster.kubectl("delete", "jobs", "--all", "-n", space, "--wait=false")
    cluster.delete_namespace(space)
    cluster.kubectl("delete", "-f", str(file), "--ignore-not-found", "--wait=false")


def wait(cluster: Cluster, space: str, wanted: Callable[[Pods], Any], what: str) -> Any:
    """Follows the pods of an example."""
    return cluster.wait_list(f"{CORE}/namespaces/{space}/pods", wanted, what=what, timeout=120)


def running(pods: Pods, **labels: str) -> list[str]:
    """Names of the pods that run, with these labels."""
    return [
        name
        for name, pod in pods.items()
        if pod["status"].get("phase") == "Running"
        and labels.items() <= pod["metadata"]["labels"].items()
    ]


def reasons(pods: Pods) -> list[str]:
    """Why the pods that wait do so."""
    found = [word(pod) for pod in pods.values()]
    return [reason for status, reason, _ in found if status == "True"]


def cards(cluster: Cluster, space: str) -> list[str]:
    """Devices of all claims of the example."""
    claims = cluster.client.request("GET", f"{RESOURCE}/namespaces/{space}/resourceclaims")["items"]
    return [
        one["device"]
        for claim in claims
        for one in claim.get("status", {})
        .get("allocation", {})
        .get("devices", {})
        .get("results", ())
    ]


@pytest.mark.parametrize("example", ["queue"], indirect=True)
def test_a_queue_with_a_limit(cluster: Cluster, example: str) -> None:
    """Three of four run; the fourth follows when one ends."""
    wait(
        cluster,
        example,
        lambda pods: len(running(pods)) == 3 and reasons(pods) == ["OverLimit"],
        "three to run and one to wait",
    )
    assert len(set(cards(cluster, example))) == 3


@pytest.mark.parametrize("example", ["lending"], indirect=True)
def test_teams_lend_each_other(cluster: Cluster, example: str) -> None:
    """Six of one team, two of the other, whose guarantee was never lent."""
    wait(
        cluster,
        example,
        lambda pods: (
            (len(running(pods, team="research")), len(running(pods, team="production"))) == (6, 2)
        ),
        "six and two to run",
    )
    assert len(set(cards(cluster, example))) == 8


@pytest.mark.parametrize("example", ["gang"], indirect=True)
def test_a_gang_runs_together(cluster: Cluster, example: str) -> None:
    """Three pods, six cards, and the group says so."""
    wait(cluster, example, lambda pods: len(running(pods)) == 3, "the gang to run")
    assert len(set(cards(cluster, example))) == 6
    cluster.wait_for(
        f"/apis/gpudra.io/v1alpha1/namespaces/{example}/podgroups",
        "training",
        lambda one: one.get("status", {}).get("phase") == "Running",
        what="to run",
    )


@pytest.mark.parametrize("example", ["topology-gang"], indirect=True)
def test_a_gang_in_one_domain(cluster: Cluster, example: str) -> None:
    """Two pods, eight cards of one node."""
    pods = wait(
        cluster,
        example,
        lambda pods: pods if len(running(pods)) == 2 else None,
        "the gang to run",
    )
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == {NODE}
    assert len(set(cards(cluster, example))) == 8


@pytest.mark.parametrize("example", ["two-teams"], indirect=True)
def test_a_team_takes_back_what_it_lent(cluster: Cluster, example: str) -> None:
    """Four of day run; when night comes, two of them go, and two that are made anew wait."""
    wait(cluster, example, lambda pods: len(running(pods, team="day")) == 4, "day to have it all")
    cluster.kubectl("scale", "replicaset/night", "-n", example, "--replicas=2")
    wait(
        cluster,
        example,
        lambda pods: (
            (len(running(pods, team="day")), len(running(pods, team="night"))) == (2, 2)
            and reasons(pods) == ["OverLimit", "OverLimit"]
        ),
        "both to have what is their own",
    )
    assert len(set(cards(cluster, example))) == 4
    events = cluster.wait_list(
        f"/apis/events.k8s.io/v1/namespaces/{example}/events",
        lambda items: [one for one in items.values() if one["reason"] == "Reclaimed"],
        what="an event about what was taken back",
    )
    assert all("is within its quota" in one["note"] for one in events)
    cluster.kubectl("delete", "replicasets", "--all", "-n", example)
