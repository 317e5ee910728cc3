# SPDX-License-Identifier: Apache-2.0
"""A sick card on a real cluster: taint, pod status, scheduling, and recovery."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import CORE, RESOURCE, Cluster, Object, busybox_pod
from tests.support.nvmlagent import NvmlAgent, nvml_agent

DRIVER = "health.test.gpudra.io"
TAINT = f"{DRIVER}/xid-79"
# What is promised; the watch adds little to it.
PROMISED_SECONDS = 5


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[NvmlAgent]:
    """An agent with eight pretended H100 on node-1."""
    with nvml_agent(cluster, driver=DRIVER) as found:
        found.wait_devices(lambda devices: len(devices) >= 8, "eight GPUs to be published", 60)
        yield found


def claim(name: str, uuid: str = "") -> Object:
    """A claim for one GPU: any, or the one with a uuid."""
    exactly: Object = {"deviceClassName": DRIVER}
    if uuid:
        selector = f'device.attributes["{DRIVER}"].uuid == "{uuid}"'
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod(name: str) -> Object:
    """A pod that runs until it is deleted, with the claim of its name."""
    found = busybox_pod(
        name,
        "while true; do sleep 1; done",
        resourceClaims=[{"name": "gpu", "resourceClaimName": name}],
    )
    found["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return found


def taints(device: Object) -> dict[str, str]:
    """Keys and effects."""
    return {one["key"]: one["effect"] for one in device.get("taints", ())}


def gpu_health(found: Object) -> tuple[str, str] | None:
    """Health and message that the kubelet wrote into the pod's status, if it did."""
    for container in found.get("status", {}).get("containerStatuses", ()):
        for status in container.get("allocatedResourcesStatus", ()):
            for one in status.get("resources", ()):
                return str(one["health"]), str(one.get("message", ""))
    return None


def test_a_sick_card_is_tainted_avoided_shown_and_healed(
    cluster: Cluster, agent: NvmlAgent, namespace: str
) -> None:
    """XID 79: taint within seconds, Unhealthy in the pod's status, other claims go elsewhere; then back."""
    pods = f"{CORE}/namespaces/{namespace}/pods"
    sick = agent.machine.inventory.gpus[2].uuid
    assert sick is not None
    cluster.apply(claim("a", sick), pod("a"), namespace=namespace)
    cluster.wait_pod(namespace, "a", timeout=120)
    allocated = cluster.get(f"{RESOURCE}/namespaces/{namespace}/resourceclaims", "a")
    (result,) = allocated["status"]["allocation"]["devices"]["results"]
    name = result["device"]
    cluster.wait_for(
        pods, "a", lambda found: (gpu_health(found) or ("",))[0] == "Healthy", what="to be healthy"
    )

    agent.machine.ctl("xid", sick, 79)
    agent.wait_devices(
        lambda devices: taints(devices.get(name, {})).get(TAINT) == "NoSchedule",
        "the taint",
        timeout=PROMISED_SECONDS,
    )
    cluster.wait_for(
        pods,
        "a",
        lambda found: (gpu_health(found) or ("",))[0] == "Unhealthy",
        what="to be unhealthy",
    )
    _, message = gpu_health(cluster.get(pods, "a")) or ("", "")
    assert "xid-79" in message
    cluster.apply(claim("b", sick), pod("b"), claim("c"), pod("c"), namespace=namespace)
    cluster.wait_pod(namespace, "c", timeout=120)
    elsewhere = cluster.get(f"{RESOURCE}/namespaces/{namespace}/resourceclaims", "c")
    (other,) = elsewhere["status"]["allocation"]["devices"]["results"]
    assert other["device"] != name
    assert cluster.get(pods, "b")["status"]["phase"] == "Pending"

    agent.machine.ctl("recovery", sick, 0)
    agent.wait_devices(
        lambda devices: name in devices and TAINT not in taints(devices[name]),
        "the taint to go",
        PROMISED_SECONDS,
    )
    cluster.wait_for(
        pods,
        "a",
        lambda found: (gpu_health(found) or ("",))[0] == "Healthy",
        what="to be healthy again",
    )


def test_a_pulled_card_comes_back_under_its_name(agent: NvmlAgent) -> None:
    """Pull one of eight cards and plug it in at another index: no device is renamed."""
    before = agent.wait_devices(lambda devices: devices if len(devices) >= 8 else None, "GPUs")
    uuid = agent.machine.inventory.gpus[5].uuid

    agent.machine.ctl("remove", uuid)
    name = next(
        name for name, device in before.items() if device["attributes"]["uuid"]["string"] == uuid
    )
    lost = f"{DRIVER}/lost"
    agent.wait_devices(
        lambda devices: lost in taints(devices.get(name, {})),
        "the card to be tainted",
        PROMISED_SECONDS,
    )
    # It stays listed while it may have been allocated in the meantime.
    agent.wait_devices(lambda devices: len(devices) == len(before) - 1, "the card to go")
    agent.machine.ctl("plug", uuid, 0)
    after = agent.wait_devices(
        lambda devices: devices if len(devices) == len(before) else None,
        "the card to come back",
        PROMISED_SECONDS,
    )
    assert set(after) == set(before)
    uuids = {name: device["attributes"]["uuid"]["string"] for name, device in after.items()}
    assert uuids == {
        name: device["attributes"]["uuid"]["string"] for name, device in before.items()
    }
