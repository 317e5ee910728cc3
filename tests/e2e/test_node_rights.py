# SPDX-License-Identifier: Apache-2.0
"""What the plugin's token may say about nodes: labels, condition and start-up taint of its own."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpudra.api.errors import ForbiddenError, InvalidError
from gpudra.controller.ctl.local.agent import node_token
from gpudra.controller.ctl.local.apiclient import MERGE_PATCH, ApiClient
from tests.support.cluster import CORE, Cluster

NODES = f"{CORE}/nodes"
STRATEGIC = "application/strategic-merge-patch+json"
OWN, OTHER = "node-1", "node-2"
LABEL = "gpudra.io/gpu.rights-test"
FOREIGN = "rights-test.example.com/label"
TAINT = {"key": "gpudra.io/not-ready", "effect": "PreferNoSchedule"}


@pytest.fixture
def plugin(cluster: Cluster) -> ApiClient:
    """API requests with the plugin's token for node-1."""
    token = node_token(cluster.client, OWN, seconds=3600)
    return ApiClient(cluster.state.server, cluster.client.ca_file, token=token)


@pytest.fixture(autouse=True)
def nodes_as_before(cluster: Cluster) -> Iterator[None]:
    """Take away what a test wrote."""
    yield
    for node in (OWN, OTHER):
        taints = cluster.get(NODES, node)["spec"].get("taints", [])
        left = [taint for taint in taints if taint["key"] != TAINT["key"]]
        body = {
            "metadata": {"labels": {LABEL: None, FOREIGN: None}},
            "spec": {"taints": left or None},
        }
        cluster.client.request("PATCH", f"{NODES}/{node}", body, content_type=MERGE_PATCH)


def patch(client: ApiClient, body: dict[str, Any], node: str = OWN) -> dict[str, Any]:
    """A merge patch of a node."""
    return client.request("PATCH", f"{NODES}/{node}", body, content_type=MERGE_PATCH)


def patch_status(client: ApiClient, status: dict[str, Any], node: str = OWN) -> dict[str, Any]:
    """A strategic merge patch of a node's status."""
    return client.request(
        "PATCH", f"{NODES}/{node}/status", {"status": status}, content_type=STRATEGIC
    )


def condition(kind: str) -> dict[str, Any]:
    """A condition of a node."""
    return {"type": kind, "status": "True", "reason": "RightsTest", "message": "of a test"}


def test_own_labels_can_be_written_and_removed(plugin: ApiClient) -> None:
    """Names below gpudra.io/gpu., that of managed mode and those of GPU feature discovery."""
    labels = {LABEL: "x", "gpudra.io/managed": "true", "nvidia.com/gpu.product": "rights-test"}
    found = patch(plugin, {"metadata": {"labels": labels}})
    assert labels.items() <= found["metadata"]["labels"].items()
    found = patch(plugin, {"metadata": {"labels": dict.fromkeys(labels)}})
    assert not labels.keys() & found["metadata"]["labels"].keys()


@pytest.mark.parametrize("label", [FOREIGN, "gpudra.io/queue", "kubernetes.io/hostname"])
def test_other_labels_cannot_be_written(plugin: ApiClient, label: str) -> None:
    """Not even others of gpudra's own."""
    with pytest.raises(InvalidError, match=f"not {label}"):
        patch(plugin, {"metadata": {"labels": {label: "x"}}})


def test_labels_of_others_cannot_be_removed(cluster: Cluster, plugin: ApiClient) -> None:
    """A label that somebody else set stays."""
    patch(cluster.client, {"metadata": {"labels": {FOREIGN: "x"}}})
    with pytest.raises(InvalidError, match=f"not {FOREIGN}"):
        patch(plugin, {"metadata": {"labels": {FOREIGN: None}}})


def test_the_start_up_taint_can_be_removed_and_no_other(
    cluster: Cluster, plugin: ApiClient
) -> None:
    """Adding, changing and removing any other taint is refused."""
    other = {"key": FOREIGN, "effect": "PreferNoSchedule"}
    before = cluster.get(NODES, OWN)["spec"].get("taints", [])
    patch(cluster.client, {"spec": {"taints": [*before, other, TAINT]}})
    try:
        for wrong in ([*before, TAINT], [*before, other, {**TAINT, "effect": "NoExecute"}]):
            with pytest.raises(InvalidError, match="and change no other"):
                patch(plugin, {"spec": {"taints": wrong}})
        patch(plugin, {"spec": {"taints": [*before, other]}})
        with pytest.raises(InvalidError, match="and change no other"):
            patch(plugin, {"spec": {"taints": [*before, other, TAINT]}})
    finally:
        patch(cluster.client, {"spec": {"taints": before or None}})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"metadata": {"annotations": {FOREIGN: "x"}}}, "may not change annotations"),
        ({"metadata": {"finalizers": [FOREIGN]}}, "may not change annotations, finalizers"),
        ({"spec": {"unschedulable": True}}, "may not change the spec"),
    ],
)
def test_the_rest_of_the_node_cannot_be_written(
    plugin: ApiClient, body: dict[str, Any], message: str
) -> None:
    """Annotations, finalizers and cordoning are not the plugin's business."""
    with pytest.raises(InvalidError, match=message):
        patch(plugin, body)


def test_its_condition_can_be_written_and_nothing_else_of_the_status(plugin: ApiClient) -> None:
    """GPUsReady only: no other condition, no capacity."""
    patch_status(plugin, {"conditions": [condition("GPUsReady")]})
    for wrong in (
        {"conditions": [condition("Ready")]},
        {"conditions": [condition("RightsTest")]},
        {"capacity": {"example.com/thing": "1"}},
        {"allocatable": {"example.com/thing": "1"}},
        {"features": {"supplementalGroupsPolicy": False}},
        {"declaredFeatures": ["RightsTest"]},
    ):
        with pytest.raises(InvalidError, match="condition GPUsReady"):
            patch_status(plugin, wrong)


def test_other_nodes_cannot_be_written(plugin: ApiClient) -> None:
    """The token of node-1 is good for node-1."""
    message = "running on node 'node-1' may not modify node 'node-2'"
    with pytest.raises(InvalidError, match=message):
        patch(plugin, {"metadata": {"labels": {LABEL: "x"}}}, node=OTHER)
    with pytest.raises(InvalidError, match=message):
        patch_status(plugin, {"conditions": [condition("GPUsReady")]}, node=OTHER)


def test_nodes_are_neither_made_nor_taken_away(plugin: ApiClient) -> None:
    """No create, no delete, no replacing."""
    for method, path in (("POST", NODES), ("DELETE", f"{NODES}/{OWN}"), ("PUT", f"{NODES}/{OWN}")):
        with pytest.raises(ForbiddenError):
            plugin.request(method, path, {} if method != "DELETE" else None)
