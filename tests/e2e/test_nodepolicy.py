# SPDX-License-Identifier: Apache-2.0
"""NodePolicy on a real cluster: refused by rules, heard by the agent, told by the controller."""

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.test_controller import account, controller  # noqa: F401 - fixtures
from tests.support.cluster import RESOURCE, Cluster, busybox_pod

DRIVER = "gpu.gpudra.io"
NODE = "node-2"
POLICIES = "/apis/gpudra.io/v1alpha1/nodepolicies"
SLICES = f"{RESOURCE}/resourceslices"
QUERY = f"fieldSelector=spec.nodeName%3D{NODE}%2Cspec.driver%3D{DRIVER}"
# From the API server's answer to the new slices; the promise is five seconds.
PROMISED = 5.0


@pytest.fixture
def label(cluster: Cluster) -> Iterator[str]:
    """A label that only the test's node has, so that its policies concern no other."""
    key = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("label", "node", NODE, f"{key}=yes")
    yield key
    cluster.kubectl("delete", "nodepolicies", "-l", f"test={key}", "--ignore-not-found")
    cluster.kubectl("label", "node", NODE, f"{key}-")


def policy(name: str, label: str, **spec: Any) -> dict[str, Any]:
    """A policy for the test's node."""
    return {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "NodePolicy",
        "metadata": {"name": f"{name}-{label}", "labels": {"test": label}},
        "spec": {"nodeSelector": {label: "yes"}, **spec},
    }


def devices(slices: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The node's devices in the order of the scheduler."""
    return {
        device["name"]: device
        for _, one in sorted(slices.items())
        for device in one["spec"].get("devices", ())
    }


def wait(cluster: Cluster, what: str, wanted: Callable[[dict[str, Any]], Any], **more: Any) -> Any:
    """Follows the node's devices."""
    return cluster.wait_list(
        SLICES, lambda slices: wanted(devices(slices)), what=what, query=QUERY, **more
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"forms": ["gpu"]}, "Unsupported value"),
        ({"forms": ["mig", "mig"]}, "Duplicate value"),
        ({"forms": ["mig"], "memoryOversubscription": 2}, "which forms leaves out"),
        ({"models": [{"names": ["x"], "forms": [], "memoryOversubscription": 1.5}]}, "leaves out"),
        ({"memoryOversubscription": 0.5}, "greater than or equal to 1"),
        ({"managed": "yes"}, "must be of type boolean"),
        (
            {"xids": [{"codes": [13], "effect": "None"}, {"codes": [13], "effect": "None"}]},
            "one entry",
        ),
        ({"later": 1}, "unknown field"),
    ],
)
def test_a_wrong_policy_is_refused_by_the_api_server(
    cluster: Cluster, spec: dict[str, Any], message: str
) -> None:
    """The same rules as for files, with the field in the message."""
    body = policy("wrong", "x", **spec)
    done = subprocess.run(
        [
            *(str(cluster.layout.binary("kubectl")), "create", "--dry-run=server", "-f", "-"),
            f"--kubeconfig={cluster.layout.admin_kubeconfig}",
        ],
        input=yaml.safe_dump(body),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stderr


def test_the_agent_follows_policies_and_labels(cluster: Cluster, label: str) -> None:
    """Another order of cards, within five seconds, and back when the policy is gone."""
    before = list(wait(cluster, "devices", lambda found: found))
    started = time.monotonic()
    cluster.apply(policy("order", label, order="spread"))
    wait(
        cluster,
        "another order",
        lambda found: sorted(found) == sorted(before) and list(found) != before,
    )
    assert time.monotonic() - started < PROMISED
    started = time.monotonic()
    cluster.kubectl("delete", "nodepolicy", f"order-{label}")
    wait(cluster, "the old order", lambda found: list(found) == before)
    assert time.monotonic() - started < PROMISED


def test_an_excluded_card_stays_until_its_claim_ends(
    cluster: Cluster, label: str, namespace: str
) -> None:
    """It is listed and tainted while the pod runs, unharmed, and gone afterwards."""
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]}},
    }
    where = {"kubernetes.io/hostname": NODE}
    pod = busybox_pod("a", "sleep 600", claims={"c": "a"}, nodeSelector=where)
    cluster.apply(claim, pod, namespace=namespace)
    cluster.wait_pod(namespace, "a")
    claims = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
    (result,) = cluster.get(claims, "a")["status"]["allocation"]["devices"]["results"]
    name = result["device"]
    card = wait(cluster, "the device", lambda found: found.get(name))
    uuid_of = card["attributes"]["uuid"]["string"]
    cluster.apply(policy("exclude", label, excluded=[uuid_of]))

    def withdrawn(found: dict[str, Any]) -> bool:
        taints = found.get(name, {}).get("taints", ())
        return [one["key"] for one in taints] == [f"{DRIVER}/withdrawn"]

    wait(cluster, "the taint", withdrawn, timeout=PROMISED)
    with pytest.raises(AssertionError, match="waited"):
        wait(cluster, "nothing", lambda found: name not in found, timeout=12)
    cluster.wait_pod(namespace, "a")
    cluster.delete_namespace(namespace)
    wait(cluster, "the card to go", lambda found: found and name not in found, timeout=60)
    cluster.kubectl("delete", "nodepolicy", f"exclude-{label}")
    wait(cluster, "the card to come back", lambda found: name in found and not withdrawn(found))


def test_a_conflict_is_a_condition_of_both(
    cluster: Cluster,
    label: str,
    controller: Any,  # noqa: F811
) -> None:
    """The chart's rights suffice for the controller to say so; ``kubectl get`` shows it."""
    cluster.apply(policy("one", label), policy("two", label))

    def told(found: dict[str, Any]) -> bool:
        ours = [one for one in found.values() if one["metadata"]["name"].endswith(label)]
        conditions = [one.get("status", {}).get("conditions", [{}])[0] for one in ours]
        return len(ours) == 2 and all(one.get("status") == "True" for one in conditions)

    cluster.wait_list(POLICIES, told, what="the conflict")
    shown = cluster.kubectl("get", "nodepolicies", "-l", f"test={label}", "-o", "json")
    statuses = [item["status"] for item in json.loads(shown)["items"]]
    assert sorted(status["nodes"] for status in statuses) == [0, 1]
    assert all(NODE in status["conditions"][0]["message"] for status in statuses)
    table = cluster.kubectl("get", "nodepolicies", "-l", f"test={label}")
    assert table.splitlines()[0].split() == ["NAME", "FORMS", "MANAGED", "NODES", "CONFLICT", "AGE"]
    cluster.kubectl("delete", "nodepolicy", f"two-{label}")
    cluster.wait_list(
        POLICIES,
        lambda found: all(
            one["status"]["conditions"][0]["status"] == "False"
            for one in found.values()
            if one["metadata"]["name"].endswith(label)
        ),
        what="the end of the conflict",
    )
