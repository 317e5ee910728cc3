# SPDX-License-Identifier: Apache-2.0
"""What the kubelet plugin's token may do: slices of its own node, and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpudra.api.errors import ApiError, ForbiddenError, InvalidError
from gpudra.controller.ctl.local.agent import node_token
from gpudra.controller.ctl.local.apiclient import MERGE_PATCH, ApiClient
from tests.support.cluster import CORE, RESOURCE, Cluster

SLICES = f"{RESOURCE}/resourceslices"
DRIVER = "rights.test.gpudra.io"
OWN_DRIVER = "gpu.gpudra.io"


@pytest.fixture
def plugin(cluster: Cluster) -> ApiClient:
    """API requests with the plugin's token for node-1."""
    token = node_token(cluster.client, "node-1", seconds=3600)
    return ApiClient(cluster.state.server, cluster.client.ca_file, token=token)


@pytest.fixture(autouse=True)
def no_slices_left(cluster: Cluster) -> Iterator[None]:
    """Remove what a test published."""
    yield
    selector = f"fieldSelector=spec.driver%3D{DRIVER}"
    for item in cluster.client.request("GET", f"{SLICES}?{selector}")["items"]:
        cluster.client.request("DELETE", f"{SLICES}/{item['metadata']['name']}")


def slice_object(name: str, **place: Any) -> dict[str, Any]:
    """A slice with one device; ``place`` is nodeName or allNodes."""
    spec = {
        "driver": DRIVER,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
        **place,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_the_token_carries_the_name_of_its_node(plugin: ApiClient) -> None:
    """The API server adds node-1 to the identity of a token that is bound to node-1."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

    user = plugin.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)[
        "status"
    ]["userInfo"]

    assert user["username"] == "system:serviceaccount:gpudra-system:gpudra-kubelet-plugin"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["node-1"]


def test_slices_of_the_own_node_can_be_written(plugin: ApiClient) -> None:
    """Create, change and delete work for a slice of the token's node."""
    plugin.request("POST", SLICES, slice_object("rights-own", nodeName="node-1"))
    changed = plugin.request(
        "PATCH",
        f"{SLICES}/rights-own",
        {"spec": {"devices": [{"name": "gpu-1"}]}},
        content_type=MERGE_PATCH,
    )
    assert [device["name"] for device in changed["spec"]["devices"]] == ["gpu-1"]
    plugin.request("DELETE", f"{SLICES}/rights-own")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            {"nodeName": "node-2"},
            "this user running on node 'node-1' may not modify resourceslices on node 'node-2'",
        ),
        (
            {"allNodes": True},
            "this user running on node 'node-1' may not modify cluster resourceslices",
        ),
    ],
)
def test_slices_of_others_cannot_be_written(
    cluster: Cluster, plugin: ApiClient, place: dict[str, Any], message: str
) -> None:
    """Create, change and delete of another node's or a cluster-wide slice are refused with the reason."""
    with pytest.raises(InvalidError, match=message):
        plugin.request("POST", SLICES, slice_object("rights-new", **place))
    cluster.client.request("POST", SLICES, slice_object("rights-other", **place))
    path = f"{SLICES}/rights-other"

    with pytest.raises(InvalidError, match=message):
        plugin.request(
            "PATCH", path, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE_PATCH
        )
    with pytest.raises(InvalidError, match=message):
        plugin.request("DELETE", path)


def test_a_token_without_a_node_writes_no_slice(cluster: Cluster) -> None:
    """The account alone, not bound to a node, may not publish anything."""
    path = f"{CORE}/namespaces/gpudra-system/serviceaccounts/gpudra-kubelet-plugin/token"
    token = cluster.client.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"][
        "token"
    ]
    unbound = ApiClient(cluster.state.server, cluster.client.ca_file, token=token)

    with pytest.raises(InvalidError, match="bound to no node"):
        unbound.request("POST", SLICES, slice_object("rights-unbound", nodeName="node-1"))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{RESOURCE}/resourceclaims?watch=true"),
        ("GET", f"{CORE}/secrets"),
        ("GET", f"{CORE}/namespaces/gpudra-system/secrets/any"),
        ("GET", f"{CORE}/namespaces/gpudra-system/secrets?watch=true"),
        ("GET", f"{CORE}/configmaps"),
        ("GET", f"{CORE}/pods"),
        ("DELETE", f"{SLICES}"),
        ("DELETE", f"{CORE}/nodes/node-1"),
        ("PATCH", f"{RESOURCE}/namespaces/default/resourceclaims/any"),
        # Policies are read: RBAC cannot limit the watch of labels to the own node, this it can.
        ("PATCH", "/apis/gpudra.io/v1alpha1/nodepolicies/any"),
        ("PATCH", "/apis/gpudra.io/v1alpha1/nodepolicies/any/status"),
    ],
)
def test_nothing_else_is_allowed(plugin: ApiClient, method: str, path: str) -> None:
    """Watching claims, reading secrets, listing pods, and writes to specs and policies, are forbidden."""
    with pytest.raises(ForbiddenError):
        plugin.request(method, path, {} if method == "PATCH" else None, content_type=MERGE_PATCH)


def allocated_claim(cluster: Cluster, namespace: str, node: str, driver: str = OWN_DRIVER) -> str:
    """A claim allocated to one device on ``node``, as a scheduler writes it; its API path."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim", "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "none"}}]}},
    }
    path = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
    cluster.client.request("POST", path, body)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    result = {"request": "r", "driver": driver, "pool": node, "device": "gpu-0"}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    # A pod that does not exist keeps the claim allocated until the claim controller looks it up.
    status = {"status": {"allocation": allocation}}
    cluster.client.request("PATCH", f"{path}/claim/status", status, content_type=MERGE_PATCH)
    return f"{path}/claim"


def report_device(client: ApiClient, claim: str, node: str, driver: str = OWN_DRIVER) -> None:
    """Write ``status.devices`` of the claim, as the plugin does after preparing it."""
    device = {"driver": driver, "pool": node, "device": "gpu-0", "data": {"ready": True}}
    client.request(
        "PATCH", f"{claim}/status", {"status": {"devices": [device]}}, content_type=MERGE_PATCH
    )


@pytest.fixture
def release_claim(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Take the finalizer off the claim, so that its namespace can go."""
    yield
    claim = f"{RESOURCE}/namespaces/{namespace}/resourceclaims/claim"
    cluster.client.request(
        "PATCH", claim, {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH
    )


@pytest.mark.usefixtures("release_claim")
def test_device_status_of_claims_on_the_own_node_can_be_written(
    cluster: Cluster, plugin: ApiClient, namespace: str
) -> None:
    """The granular right ``associated-node:patch`` lets the plugin report a device of its node."""
    claim = allocated_claim(cluster, namespace, "node-1")

    report_device(plugin, claim, "node-1")

    assert cluster.client.request("GET", claim)["status"]["devices"][0]["data"] == {"ready": True}


@pytest.mark.usefixtures("release_claim")
def test_device_status_of_claims_on_another_node_cannot_be_written(
    cluster: Cluster, plugin: ApiClient, namespace: str
) -> None:
    """A claim that is allocated to node-2 is not the business of node-1's plugin."""
    claim = allocated_claim(cluster, namespace, "node-2")

    with pytest.raises(ApiError, match="resourceclaims/driver"):
        report_device(plugin, claim, "node-2")


@pytest.mark.usefixtures("release_claim")
def test_claims_of_another_driver_cannot_be_touched(
    cluster: Cluster, plugin: ApiClient, namespace: str
) -> None:
    """Not its devices on the own node, not the allocation, not who may use it, not the claim itself."""
    claim = allocated_claim(cluster, namespace, "node-1", driver="nic.example.com")
    before = cluster.client.request("GET", claim)

    with pytest.raises(ApiError, match="resourceclaims/driver"):
        report_device(plugin, claim, "node-1", driver="nic.example.com")
    consumer = {"resource": "pods", "name": "p", "uid": "u"}
    for status in ({"allocation": None}, {"reservedFor": [consumer]}):
        with pytest.raises(ApiError, match="resourceclaims/binding"):
            plugin.request("PATCH", f"{claim}/status", {"status": status}, content_type=MERGE_PATCH)
    with pytest.raises(ForbiddenError):
        plugin.request(
            "PATCH", claim, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE_PATCH
        )
    with pytest.raises(ForbiddenError):
        plugin.request("DELETE", claim)

    after = cluster.client.request("GET", claim)
    assert (after["spec"], after["status"]) == (before["spec"], before["status"])
