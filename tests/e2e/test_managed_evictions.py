# SPDX-License-Identifier: Apache-2.0
"""Taking devices back on a real API server: who is evicted, who stays, and who gets what they leave.

Nodes are objects without a kubelet. An evicted pod that may take its time stays there, ending, until
the test removes it as a kubelet would: so there is no race about what is seen meanwhile.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.driver.core.forms import DeviceKind
from tests.support.cluster import CORE, RESOURCE, Cluster, Object
from tests.support.gate import gate_installed
from tests.support.managedcluster import (
    DRIVER,
    QUEUES,
    ManagedController,
    gpu_template,
    group,
    is_gated,
    managed_controller,
    managed_node,
    managed_nodes,
    managed_slices,
    queue,
    queued_pod,
    word,
)

CARDS, SHARES, PARTS = "evict-cards", "evict-share", ("evict-mig-1", "evict-mig-2")
HARDWARE = str(checkout_dir() / "tests" / "fixtures" / "managed" / "h100-1x.yaml")
CLASSES = checkout_dir() / "deploy" / "manifests" / "deviceclasses.yaml"
PRIORITIES = {"evict-low": 10, "evict-middle": 50, "evict-high": 90}
Pods = dict[str, Object]


@pytest.fixture(scope="module")
def controller(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManagedController]:
    """Eight cards, a card in shares, two cards in MIG parts; the controller may move two pods."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CLASSES))
    nodes = [
        (managed_node(CARDS), managed_slices(CARDS, "dgx-h100-8x80")),
        (managed_node(SHARES), managed_slices(SHARES, HARDWARE, (DeviceKind.SHARE,))),
        *(
            (managed_node(name), managed_slices(name, HARDWARE, (DeviceKind.MIG,)))
            for name in PARTS
        ),
    ]
    folder = tmp_path_factory.mktemp("evictions")
    with (
        gate_installed(cluster),
        priorities(cluster),
        managed_nodes(cluster, *nodes),
        managed_controller(cluster, folder, "--defrag-moves=2") as running,
    ):
        yield running


@contextlib.contextmanager
def priorities(cluster: Cluster) -> Iterator[None]:
    """PriorityClasses of these tests."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.apply(
        *(
            {**head, "metadata": {"name": name}, "value": value}
            for name, value in PRIORITIES.items()
        )
    )
    try:
        yield
    finally:
        cluster.kubectl("delete", "priorityclasses", *PRIORITIES)


@pytest.fixture
def space(cluster: Cluster, controller: ManagedController, namespace: str) -> Iterator[str]:
    """A namespace with two queues that are named after it."""
    assert controller.process is not None
    for name in ("left", "right"):
        cluster.kubectl("label", "namespace", namespace, f"queue.gpudra.io/{namespace}-{name}=true")
    cluster.apply(gpu_template(), namespace=namespace)
    yield namespace
    cluster.kubectl("delete", "replicasets", "--all", "-n", namespace)
    cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
    for name in ("left", "right"):
        cluster.kubectl("delete", "queue", f"{namespace}-{name}", "--ignore-not-found")


def slow_pod(name: str, queue_name: str, node: str = CARDS, **more: Any) -> Object:
    """A pod that stays, ending, until somebody plays its kubelet."""
    priority = more.pop("priority", "")
    if priority:
        more["priorityClassName"] = priority
    if node:
        more["nodeSelector"] = {"kubernetes.io/hostname": node}
    return queued_pod(name, queue_name, **{"terminationGracePeriodSeconds": 60, **more})


def wait(cluster: Cluster, space: str, wanted: Callable[[Pods], Any], what: str) -> Any:
    """Follows the pods of a namespace."""
    return cluster.wait_list(f"{CORE}/namespaces/{space}/pods", wanted, what=what, timeout=120)


def bound(*names: str) -> Callable[[Pods], bool]:
    """All of these have a node."""
    return lambda pods: all(name in pods and pods[name]["spec"].get("nodeName") for name in names)


def going(pods: Pods) -> list[str]:
    """Those that are being deleted."""
    return sorted(name for name, pod in pods.items() if pod["metadata"].get("deletionTimestamp"))


def gone(cluster: Cluster, space: str, *names: str) -> None:
    """What a kubelet does in the end."""
    cluster.kubectl("delete", "pod", *names, "-n", space, "--grace-period=0", "--force")


def waits(name: str, *reasons: str) -> Callable[[Pods], str]:
    """What a pod says that waits for one of these reasons."""

    def wanted(pods: Pods) -> str:
        status, reason, message = word(pods[name]) if name in pods else ("", "", "")
        return message if status == "True" and reason in reasons else ""

    return wanted


def devices(cluster: Cluster, space: str) -> dict[str, str]:
    """The device of each pod."""
    claims = cluster.client.request("GET", f"{RESOURCE}/namespaces/{space}/resourceclaims")["items"]
    return {
        user["name"]: one["device"]
        for claim in claims
        for one in claim.get("status", {})
        .get("allocation", {})
        .get("devices", {})
        .get("results", ())
        for user in claim["status"].get("reservedFor", ())
    }


def test_a_quota_is_taken_back_for_the_one_who_needs_it(cluster: Cluster, space: str) -> None:
    """Two of eight go, say for whom and why; nobody else gets their cards; the queue says so, too."""
    left, right = f"{space}-left", f"{space}-right"
    cluster.apply(queue(left, quota={"gpus": 4}), queue(right, quota={"gpus": 4}))
    mine = [f"l{n}" for n in range(8)]
    cluster.apply(*(slow_pod(name, left) for name in mine), namespace=space)
    wait(cluster, space, bound(*mine), "the cards to be lent")
    held = devices(cluster, space)
    cluster.apply(slow_pod("r0", right), slow_pod("r1", right), namespace=space)
    wait(cluster, space, lambda pods: len(going(pods)) == 2, "two to be evicted")
    for name in ("r0", "r1"):
        message = wait(cluster, space, waits(name, "WaitingForVictims"), f"{name} to say so")
        assert "gets the devices of" in message
    pods = {name: cluster.get(f"{CORE}/namespaces/{space}/pods", name) for name in mine}
    victims = going(pods)
    assert len(victims) == 2
    assert set(victims) <= set(mine)
    for name in victims:
        status, reason, message = word(pods[name], "Evicted")
        assert (status, reason) == ("True", "Reclaimed")
        assert f"to pod/{space}/r" in message
        assert f"queue {left} borrows" in message
        assert f"queue {right} is within its quota" in message
    told = cluster.wait_for(
        QUEUES,
        left,
        lambda one: [c for c in one["status"].get("conditions", ()) if c["type"] == "Evicted"],
        what="to say what was taken from it",
    )
    assert told[0]["reason"] == "Reclaimed"
    assert "r" in told[0]["message"]

    # Older than its like, and there first when the cards come free: they are for others.
    cluster.apply(slow_pod("l-late", left), namespace=space)
    wait(cluster, space, waits("l-late", "NoRoom", "Reserved"), "the third to wait")
    gone(cluster, space, *victims)
    wait(cluster, space, bound("r0", "r1"), "the two to be bound")
    assert is_gated(cluster.get(f"{CORE}/namespaces/{space}/pods", "l-late"))
    found = devices(cluster, space)
    assert {found["r0"], found["r1"]} == {held[name] for name in victims}
    reasons = cluster.wait_list(
        f"/apis/events.k8s.io/v1/namespaces/{space}/events",
        lambda items: (
            {"Reclaimed", "WaitingForVictims"} <= {one["reason"] for one in items.values()}
            and {(one["reason"], one["regarding"]["name"]) for one in items.values()}
        ),
        what="the events of both sides",
    )
    assert {name for reason, name in reasons if reason == "Reclaimed"} == set(victims)


def test_two_tenants_go_for_a_larger_share_and_their_neighbour_stays(
    cluster: Cluster, space: str
) -> None:
    """Of 20, 20, 40 and 20 percent of a card the two least important go for one of 40."""
    left = f"{space}-left"
    cluster.apply(queue(left))
    for percent in (20, 40):
        capacity = {"requests": {"compute": str(percent), "memory": f"{percent * 700}Mi"}}
        exactly = {"deviceClassName": "share.gpudra.io", "capacity": capacity}
        made = gpu_template(f"share-{percent}")
        made["spec"]["spec"]["devices"]["requests"] = [{"name": "gpu", "exactly": exactly}]
        cluster.apply(made, namespace=space)
    tenants = {
        "low-1": (20, "evict-low"),
        "low-2": (20, "evict-low"),
        "neighbour": (40, "evict-high"),
        "high": (20, "evict-high"),
    }
    for name, (percent, priority) in tenants.items():
        one = slow_pod(name, left, SHARES, template=f"share-{percent}", priority=priority)
        cluster.apply(one, namespace=space)
    wait(cluster, space, bound(*tenants), "the tenants to be bound")
    one = slow_pod("want", left, SHARES, template="share-40", priority="evict-middle")
    cluster.apply(one, namespace=space)
    wait(cluster, space, lambda pods: len(going(pods)) == 2, "two to be evicted")
    pods = {name: cluster.get(f"{CORE}/namespaces/{space}/pods", name) for name in tenants}
    assert going(pods) == ["low-1", "low-2"]
    for name in ("low-1", "low-2"):
        status, reason, message = word(pods[name], "Evicted")
        assert (status, reason) == ("True", "Preempted")
        assert "priority 10 is below the 50" in message
    gone(cluster, space, "low-1", "low-2")
    wait(cluster, space, bound("want", "neighbour", "high"), "the preemptor to be bound")
    assert set(devices(cluster, space)) == {"want", "neighbour", "high"}


def test_a_gang_is_evicted_as_one(cluster: Cluster, space: str) -> None:
    """One card is wanted, and three of the gang's could go on without it: all four go."""
    left, right = f"{space}-left", f"{space}-right"
    cluster.apply(queue(left), queue(right, quota={"gpus": 8}))
    gang, rest = [f"g{n}" for n in range(4)], [f"r{n}" for n in range(4)]
    cluster.apply(group("g", 4), namespace=space)
    cluster.apply(*(slow_pod(name, left, member_of="g") for name in gang), namespace=space)
    cluster.apply(*(slow_pod(name, right) for name in rest), namespace=space)
    wait(cluster, space, bound(*gang, *rest), "all to be bound")
    cluster.apply(slow_pod("one", right), namespace=space)
    wait(cluster, space, lambda pods: going(pods) == gang, "the gang to be evicted")
    gone(cluster, space, *gang)
    wait(cluster, space, bound("one", *rest), "the one to be bound")


def test_a_part_is_moved_so_that_a_larger_one_fits(cluster: Cluster, space: str) -> None:
    """Each of two cards has a 3g and a 1g: the 1g of one goes to the other, and a third 3g fits."""
    left = f"{space}-left"
    cluster.apply(queue(left))
    for profile in ("1g.10gb", "3g.40gb"):
        made = gpu_template(profile.replace(".", "-"))
        made["spec"]["spec"]["devices"]["requests"][0]["exactly"] = {
            "deviceClassName": "mig.gpudra.io",
            "selectors": [
                {"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{profile}"'}}
            ],
        }
        cluster.apply(made, namespace=space)
    anywhere: dict[str, Any] = {"node": "", "terminationGracePeriodSeconds": 0}
    for node, other in (PARTS, PARTS[::-1]):
        cluster.kubectl("cordon", other)
        small = slow_pod("any", left, template="1g-10gb", **anywhere)
        cluster.apply(
            slow_pod(f"large-{node}", left, node, template="3g-40gb"),
            replicaset(f"small-{node}", small),
            namespace=space,
        )

        def both(pods: Pods, node: str = node) -> bool:
            there = [name for name, pod in pods.items() if pod["spec"].get("nodeName") == node]
            return len(there) == 2

        wait(cluster, space, both, f"both parts of {node} to be bound")
        cluster.kubectl("uncordon", other)
    cluster.apply(slow_pod("want", left, template="3g-40gb", **anywhere), namespace=space)

    def settled(pods: Pods) -> bool:
        there = [pod for pod in pods.values() if pod["spec"].get("nodeName")]
        return len(pods) == len(there) == 5 and not going(pods)

    wait(cluster, space, settled, "the larger part to fit, and the smaller to be back")
    pods = cluster.client.request("GET", f"{CORE}/namespaces/{space}/pods")["items"]
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    smalls = {node for name, node in nodes.items() if name.startswith("small")}
    assert len(smalls) == 1
    assert nodes["want"] not in smalls
    cluster.wait_list(
        f"/apis/events.k8s.io/v1/namespaces/{space}/events",
        lambda items: [one for one in items.values() if one["reason"] == "Moved"],
        what="an event about the move",
    )


def replicaset(name: str, pod: Object) -> Object:
    """Somebody who makes such a pod anew when it is gone."""
    labels = {**pod["metadata"]["labels"], "app": name}
    spec = {**pod["spec"], "restartPolicy": "Always"}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def test_a_disruption_budget_is_kept(cluster: Cluster, space: str) -> None:
    """Two of a web service may not go, so another goes; with the budget gone, they are next."""
    left, right = f"{space}-left", f"{space}-right"
    cluster.apply(queue(left), queue(right, quota={"gpus": 8}))
    web, rest = ["web-0", "web-1"], [f"r{n}" for n in range(5)]
    for name in web:
        one = slow_pod(name, left, priority="evict-low")
        one["metadata"]["labels"]["app"] = "web"
        cluster.apply(one, namespace=space)
    cluster.apply(slow_pod("batch", left, priority="evict-high"), namespace=space)
    cluster.apply(*(slow_pod(name, right) for name in rest), namespace=space)
    wait(cluster, space, bound("batch", *web, *rest), "all to be bound")
    for name in (*web, "batch"):
        runs(cluster, space, name)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    }
    cluster.apply(budget, namespace=space)
    budgets = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"
    cluster.wait_for(
        budgets,
        "web",
        lambda one: one.get("status", {}).get("currentHealthy") == 2,
        what="to count both pods",
    )
    cluster.apply(slow_pod("first", right), namespace=space)
    wait(cluster, space, lambda pods: going(pods) == ["batch"], "the unprotected one to be evicted")
    gone(cluster, space, "batch")
    wait(cluster, space, bound("first"), "the first to be bound")
    cluster.apply(slow_pod("second", right), namespace=space)
    wait(cluster, space, waits("second", "NoRoom"), "the second to wait")
    pods = cluster.client.request("GET", f"{CORE}/namespaces/{space}/pods")["items"]
    assert going({pod["metadata"]["name"]: pod for pod in pods}) == []
    cluster.kubectl("delete", "pdb", "web", "-n", space)
    wait(cluster, space, lambda pods: len(going(pods)) == 1, "one of them to be evicted")


def runs(cluster: Cluster, space: str, name: str) -> None:
    """What a kubelet writes when a pod has started."""
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.kubectl(
        *("patch", "pod", name, "-n", space, "--subresource=status", "--type=strategic"),
        *("-p", json.dumps({"status": status})),
    )
