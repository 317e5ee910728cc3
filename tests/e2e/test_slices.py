# SPDX-License-Identifier: Apache-2.0
"""Slices against the real API server: nothing dropped, nothing refused, back when deleted."""

import json
import subprocess
import sys
from typing import Any

import pytest

from gpudra.controller.resourceslices import probe_features
from gpudra.driver.core.resourceslices import ServerFeatures
from gpudra.driver.devicelib.simulated import profile_names
from gpudra.driver.kube.client import KubeClient
from tests.support.cluster import RESOURCE, Cluster

DRIVER = "gpu.gpudra.io"
SLICES = f"{RESOURCE}/resourceslices"


@pytest.mark.parametrize("forms", ["whole", "whole,mig,share,monitor"])
@pytest.mark.parametrize("profile", profile_names())
def test_the_slices_of_every_profile_pass_untouched(
    cluster: Cluster, profile: str, forms: str
) -> None:
    """What ``gpudra slices`` prints is accepted, and comes back field for field."""
    command = [sys.executable, "-m", "gpudra.controller.ctl.main", "slices", "--forms", forms]
    options = ["--hardware", profile, "--node-name", f"e2e-{profile}", "-o", "json"]
    printed = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    for item in json.loads(printed.stdout)["items"]:
        answer = cluster.client.request("POST", f"{SLICES}?dryRun=All", item)
        assert answer["spec"] == item["spec"]


async def test_the_probe_finds_the_features_of_this_server(cluster: Cluster) -> None:
    """1.37 keeps counters, shares and taints by default, and lists only behind an alpha gate."""
    async with await KubeClient.load(str(cluster.layout.admin_kubeconfig)) as client:
        found = await probe_features(client, driver=DRIVER, node_name="node-1")
    assert found == ServerFeatures(
        counters=True, consumable_capacity=True, device_taints=True, list_attributes=False
    )
    names = [item["metadata"]["name"] for item in cluster.client.request("GET", SLICES)["items"]]
    assert not [name for name in names if name.endswith("-probe")]


def _listed(cluster: Cluster, node: str) -> dict[str, Any]:
    query = f"fieldSelector=spec.nodeName%3D{node}%2Cspec.driver%3D{DRIVER}"
    items = cluster.client.request("GET", f"{SLICES}?{query}")["items"]
    return {item["metadata"]["name"]: item for item in items}


def test_a_slice_deleted_by_hand_comes_back_as_it_was(cluster: Cluster) -> None:
    """The agent of the node puts it back, and touches no other."""
    before = _listed(cluster, "node-1")
    assert len([one for one in before.values() if one["spec"].get("devices")]) == 8
    name = sorted(before)[3]
    cluster.client.request("DELETE", f"{SLICES}/{name}")
    uid = before[name]["metadata"]["uid"]
    cluster.wait_for(
        SLICES, name, lambda found: found["metadata"]["uid"] != uid or None, what="to come back"
    )
    after = _listed(cluster, "node-1")
    assert after[name]["spec"] == before[name]["spec"]
    assert {key for key in after if after[key] != before[key]} == {name}
