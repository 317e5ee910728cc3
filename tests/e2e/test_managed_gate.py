# SPDX-License-Identifier: Apache-2.0
"""The chart's admission policies of managed mode in a real API server: who waits, who may what.

No controller runs here: what is gated stays gated, and nothing of stock mode is touched.
"""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster import Cluster, Object, busybox_pod
from tests.support.gate import gate_installed

GATE = [{"name": "gpudra.io/admission"}]
CLAIM = {"name": "gpu", "resourceClaimName": "some"}


@pytest.fixture(scope="module")
def gate(cluster: Cluster) -> Iterator[None]:
    """The policies."""
    with gate_installed(cluster):
        yield


@pytest.fixture
def space(cluster: Cluster, gate: None, namespace: str) -> str:
    """A namespace that may use the queues ``left`` (its default) and ``right``, and its editor bob."""
    labels = ("gpudra.io/default-queue=left", "queue.gpudra.io/right=true")
    cluster.kubectl("label", "namespace", namespace, *labels)
    cluster.kubectl("create", "serviceaccount", "-n", namespace, "bob")
    cluster.kubectl(
        *("create", "rolebinding", "-n", namespace, "bob", "--clusterrole=edit"),
        f"--serviceaccount={namespace}:bob",
    )
    return namespace


def pod(name: str, labels: dict[str, str], **spec: Any) -> Object:
    """A pod with labels, which never runs here."""
    made = busybox_pod(name, "true", **spec)
    made["metadata"]["labels"] = labels
    return made


def made(cluster: Cluster, space: str, one: Object) -> Object:
    """The pod as the API server would keep it."""
    text = cluster.kubectl(
        *("create", "-n", space, "--dry-run=server", "-o", "json", "-f", "-"), stdin=json.dumps(one)
    )
    found: Object = json.loads(text)
    return found


def refused(cluster: Cluster, *arguments: str, stdin: str = "") -> str:
    """What kubectl says about something that must not work."""
    layout = cluster.layout
    command = [layout.binary("kubectl"), f"--kubeconfig={layout.admin_kubeconfig}", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_a_pod_with_a_queue_waits_at_the_gate(cluster: Cluster, space: str) -> None:
    """With the node selector if it has claims; beside gates and selectors of its own."""
    plain = made(cluster, space, pod("a", {"gpudra.io/queue": "right"}))
    assert plain["spec"]["schedulingGates"] == GATE
    assert "nodeSelector" not in plain["spec"]
    more = {"nodeSelector": {"disk": "fast"}, "schedulingGates": [{"name": "own.example.com/x"}]}
    claiming = made(
        cluster, space, pod("b", {"gpudra.io/queue": "right"}, resourceClaims=[CLAIM], **more)
    )
    assert claiming["spec"]["nodeSelector"] == {"disk": "fast", "gpudra.io/managed": "true"}
    assert claiming["spec"]["schedulingGates"] == [{"name": "own.example.com/x"}, *GATE]
    member = made(cluster, space, pod("c", {"gpudra.io/pod-group": "g"}))
    assert member["spec"]["schedulingGates"] == GATE
    assert "gpudra.io/queue" not in member["metadata"]["labels"]


def test_the_namespace_may_have_a_default_queue(cluster: Cluster, space: str) -> None:
    """It is meant for pods with claims; others, and those of other namespaces, are left alone."""
    claiming = made(cluster, space, pod("a", {"app": "x"}, resourceClaims=[CLAIM]))
    assert claiming["metadata"]["labels"] == {"app": "x", "gpudra.io/queue": "left"}
    assert claiming["spec"]["schedulingGates"] == GATE
    unlabelled = busybox_pod("b", "true", resourceClaims=[CLAIM])
    assert made(cluster, space, unlabelled)["metadata"]["labels"] == {"gpudra.io/queue": "left"}
    for where, one in ((space, pod("c", {})), ("default", pod("d", {}, resourceClaims=[CLAIM]))):
        kept = made(cluster, where, one)
        assert "schedulingGates" not in kept["spec"]
        assert "nodeSelector" not in kept["spec"]


def test_a_namespace_uses_the_queues_that_it_may(cluster: Cluster, space: str) -> None:
    """Pods and groups are refused with the label that an admin would have to set; so is a fixed node."""
    arguments = ("create", "-n", space, "--dry-run=server", "-f", "-")
    said = refused(cluster, *arguments, stdin=json.dumps(pod("a", {"gpudra.io/queue": "third"})))
    assert f"namespace {space} may not use queue third" in said
    assert "queue.gpudra.io/third=true" in said
    group = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"queue": "third"},
    }
    assert "may not use queue third" in refused(cluster, *arguments, stdin=json.dumps(group))
    group["spec"] = {"queue": "left"}
    made(cluster, space, group)
    fixed = pod("b", {"gpudra.io/queue": "right"}, nodeName="node-1")
    assert "cannot name its node" in refused(cluster, *arguments, stdin=json.dumps(fixed))


def test_only_the_controller_and_admins_open_the_gate(cluster: Cluster, space: str) -> None:
    """An editor of the namespace neither opens it nor moves the pod; other changes are its own."""
    cluster.apply(pod("a", {"gpudra.io/queue": "right"}), namespace=space)
    bob = f"--as=system:serviceaccount:{space}:bob"
    opening = ("patch", "pod", "a", "-n", space, "--type=json", "-p")
    patch = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    assert "opened by gpudra's controller" in refused(cluster, *opening, patch, bob)
    moving = ("label", "pod", "a", "-n", space, "--overwrite")
    for label in ("gpudra.io/queue=left", "gpudra.io/queue-", "gpudra.io/pod-group=g"):
        assert "cannot be changed" in refused(cluster, *moving, label, bob)
    cluster.kubectl(*moving, "color=red", bob)
    cluster.kubectl(*opening, patch)
    cluster.kubectl("delete", "pod", "a", "-n", space, "--grace-period=0", "--force")


@pytest.mark.parametrize(
    ("toleration", "passes"),
    [
        ({"operator": "Exists"}, False),
        ({"operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "gpu.gpudra.io/managed", "operator": "Exists"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "gpu.gpudra.io/ecc", "operator": "Exists"}, True),
    ],
)
def test_claims_do_not_pass_by_the_queue(
    cluster: Cluster, space: str, toleration: dict[str, str], passes: bool
) -> None:
    """Whoever tolerates the taint of managed devices is refused, in claims, templates, alternatives."""
    exactly = {"deviceClassName": "gpu.gpudra.io", "tolerations": [toleration]}
    alternatives = {"name": "r", "firstAvailable": [{"name": "s", **exactly}]}
    claim = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    bodies = [
        ("ResourceClaim", claim),
        ("ResourceClaim", {"devices": {"requests": [alternatives]}}),
        ("ResourceClaimTemplate", {"spec": claim}),
    ]
    for kind, spec in bodies:
        head = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "c"}}
        text = json.dumps({**head, "spec": spec})
        arguments = ("create", "-n", space, "--dry-run=server", "-f", "-")
        if passes:
            cluster.kubectl(*arguments, stdin=text)
        else:
            assert "tolerates the taint gpu.gpudra.io/managed" in refused(
                cluster, *arguments, stdin=text
            )


QUEUES = [
    ({"parent": "q"}, "its own parent"),
    ({"weight": 0}, "spec.weight"),
    ({"weight": -1}, "spec.weight"),
    ({"guarantee": {"gpus": "16Gi"}}, "spec.guarantee"),
    ({"quota": {"gpus": 2**63 - 1}}, "nine digits"),
    ({"quota": {"memory": "-1Gi"}}, "no amount of bytes"),
    ({"quota": {"cards": 1}}, "none of gpus, memory"),
    ({"limit": {"gpus": 1}, "guarantee": {"gpus": "1.5"}}, "below the guarantee"),
    ({"limit": {"memory": "1Gi"}, "quota": {"memory": "2Gi"}}, "below the quota"),
    ({"guarantee": {"class/a": 1}}, "cannot be guaranteed"),
    ({"reclaimMinRuntime": "soon"}, "spec.reclaimMinRuntime"),
]
GROUPS = [
    ({"minCount": 0}, "spec.minCount"),
    ({"minCount": 2**63 - 1}, "spec.minCount"),
    ({"minCount": 1, "roles": [{"name": "a", "minCount": 2}]}, "above minCount"),
    ({"topology": {"required": ["a b"]}}, "spec.topology.required"),
    ({"disruption": "some"}, "spec.disruption"),
]


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [("Queue", *case) for case in QUEUES] + [("PodGroup", *case) for case in GROUPS],
)
def test_wrong_objects_are_refused_by_the_server(
    cluster: Cluster, kind: str, spec: dict[str, Any], words: str
) -> None:
    """The schema names the field, before anything of ours sees the object."""
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": kind, "metadata": {"name": "q"}}
    said = refused(
        cluster, "create", "--dry-run=server", "-f", "-", stdin=json.dumps({**head, "spec": spec})
    )
    assert words in said
