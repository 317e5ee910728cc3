# SPDX-License-Identifier: Apache-2.0
"""Managed mode end to end: real API server, policies, kube-scheduler; the controller as a process.

Nodes are objects without a kubelet, so "placed" is read as "bound": kube-scheduler has taken over
what the controller decided.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import CORE, RESOURCE, Cluster, Object
from tests.support.gate import gate_installed
from tests.support.managedcluster import (
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

# Two nodes with eight cards in one NVLink domain each, and one with four cards without NVLink.
BIG, CARDS = ("managed-big-1", "managed-big-2"), 8
SMALL = "managed-small"
ALL = 2 * CARDS + 4


@pytest.fixture(scope="module")
def controller(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManagedController]:
    """Policies, nodes, and the controller, for all tests of this module."""
    big = [(managed_node(name), managed_slices(name, "dgx-h100-8x80")) for name in BIG]
    small = (managed_node(SMALL), managed_slices(SMALL, "l4-4x"))
    folder: Path = tmp_path_factory.mktemp("managed")
    with (
        gate_installed(cluster),
        managed_nodes(cluster, *big, small),
        managed_controller(cluster, folder) as running,
    ):
        yield running


@pytest.fixture
def space(cluster: Cluster, controller: ManagedController, namespace: str) -> Iterator[str]:
    """A namespace that may use the queues of a test, which are named after it; a template for a card."""
    if controller.process is None:  # an earlier test has failed in the middle
        controller.start()
    for name in ("left", "right"):
        cluster.kubectl("label", "namespace", namespace, f"queue.gpudra.io/{namespace}-{name}=true")
    cluster.apply(gpu_template(), namespace=namespace)
    yield namespace
    cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
    for name in ("left", "right"):
        cluster.kubectl("delete", "queue", f"{namespace}-{name}", "--ignore-not-found")


def wait(
    cluster: Cluster, space: str, wanted: Callable[[dict[str, Object]], Any], what: str
) -> Any:
    """Follows the pods of a namespace."""
    return cluster.wait_list(f"{CORE}/namespaces/{space}/pods", wanted, what=what, timeout=120)


def all_bound(count: int) -> Callable[[dict[str, Object]], dict[str, str] | None]:
    """The node of each pod, once so many are bound."""

    def wanted(pods: dict[str, Object]) -> dict[str, str] | None:
        nodes = {name: pod["spec"].get("nodeName", "") for name, pod in pods.items()}
        bound = {name: node for name, node in nodes.items() if node}
        return bound if len(bound) >= count else None

    return wanted


def waits_for(name: str, *reasons: str) -> Callable[[dict[str, Object]], str | None]:
    """What a pod says that waits for one of these reasons."""

    def wanted(pods: dict[str, Object]) -> str | None:
        if name not in pods:
            return None
        status, reason, message = word(pods[name])
        return message if status == "True" and reason in reasons else None

    return wanted


def devices(cluster: Cluster, space: str) -> dict[str, list[tuple[str, str]]]:
    """Pool and device of each allocated claim, by the pod that has it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for claim in cluster.client.request("GET", f"{RESOURCE}/namespaces/{space}/resourceclaims")[
        "items"
    ]:
        status = claim.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", ())
        for user in status.get("reservedFor", ()):
            found.setdefault(user["name"], []).extend(
                (one["pool"], one["device"]) for one in results
            )
    return found


def test_a_pod_goes_through_the_queue_and_says_so(cluster: Cluster, space: str) -> None:
    """It waits for a limit, then is bound, with its conditions and Events; the queue shows its use."""
    name = f"{space}-left"
    cluster.apply(queue(name, limit={"gpus": 0}), queued_pod("one", name), namespace=space)
    wait(
        cluster, space, waits_for("one", "AboveLimit", "OverLimit", "NeverPlaceable"), "it to wait"
    )
    cluster.apply(queue(name, quota={"gpus": 4}, limit={"gpus": 4}))
    wait(cluster, space, all_bound(1), "the pod to be bound")
    pod = cluster.get(f"{CORE}/namespaces/{space}/pods", "one")
    assert word(pod, "Queued")[:2] == ("False", "Admitted")
    assert word(pod, "Placed")[:2] == ("True", "Placed")
    assert pod["spec"]["nodeName"] in word(pod, "Placed")[2]
    cluster.wait_for(
        QUEUES,
        name,
        lambda one: one.get("status", {}).get("used", {}).get("gpus") == "1",
        what="to show what it uses",
    )
    events = cluster.wait_list(
        f"/apis/events.k8s.io/v1/namespaces/{space}/events",
        lambda items: [one for one in items.values() if one["reason"] == "Placed"],
        what="an event",
    )
    assert events[0]["regarding"]["name"] == "one"


def test_two_teams_lend_each_other_what_is_idle(cluster: Cluster, space: str) -> None:
    """Quota is lent and a limit not passed; whoever wants what is his own takes it back."""
    left, right = f"{space}-left", f"{space}-right"
    cluster.apply(
        queue(left, quota={"gpus": 10}, limit={"gpus": 16}),
        queue(right, quota={"gpus": 10}),
        namespace=space,
    )
    cluster.apply(*(queued_pod(f"l{n:02}", left) for n in range(18)), namespace=space)
    wait(cluster, space, all_bound(16), "the limit to be reached")
    message = wait(cluster, space, waits_for("l17", "OverLimit"), "the limit to be told")
    assert left in message
    cluster.wait_for(
        QUEUES,
        left,
        lambda one: one.get("status", {}).get("borrowed", {}).get("gpus") == "6",
        what="to show what it borrows",
    )

    cluster.apply(*(queued_pod(f"r{n:02}", right) for n in range(6)), namespace=space)
    bound = wait(
        cluster,
        space,
        lambda pods: (
            (found := all_bound(ALL)(pods))
            and sum(name.startswith("r") for name in found) == 6
            and found
        ),
        "the other team to get what is its own",
    )
    assert len(bound) == ALL
    evicted = cluster.wait_list(
        f"/apis/events.k8s.io/v1/namespaces/{space}/events",
        lambda items: [one for one in items.values() if one["reason"] == "Reclaimed"],
        what="an event about what was taken back",
    )
    assert {one["regarding"]["name"][0] for one in evicted} == {"l"}


def test_a_gang_stays_in_one_nvlink_domain(cluster: Cluster, space: str) -> None:
    """Although single cards elsewhere would do: all four of one domain, all at once."""
    left = f"{space}-left"
    cluster.apply(
        queue(left), group("g", 4, topology={"required": ["nvlinkDomain"]}), namespace=space
    )
    # Three cards are left on each big node, and four on the small one, which has no NVLink.
    cluster.apply(
        *(
            queued_pod(f"s{n:02}", left, nodeSelector={"kubernetes.io/hostname": BIG[n % 2]})
            for n in range(10)
        ),
        namespace=space,
    )
    wait(cluster, space, all_bound(10), "the others to be bound")
    cluster.apply(*(queued_pod(f"g{n}", left, member_of="g") for n in range(4)), namespace=space)
    wait(cluster, space, waits_for("g3", "NoRoom", "Reserved"), "the gang to wait as a whole")
    pods = cluster.client.request("GET", f"{CORE}/namespaces/{space}/pods")["items"]
    assert all(is_gated(pod) for pod in pods if pod["metadata"]["name"].startswith("g"))
    cluster.kubectl("delete", "pod", "s00", "-n", space, "--grace-period=0", "--force")
    bound = wait(cluster, space, all_bound(13), "the gang to be bound")
    assert {bound[f"g{n}"] for n in range(4)} == {BIG[0]}
    cluster.wait_for(
        f"/apis/gpudra.io/v1alpha1/namespaces/{space}/podgroups",
        "g",
        lambda one: one.get("status", {}).get("phase") == "Placed",
        what="to be placed",
    )


def test_a_gang_is_placed_by_going_back(cluster: Cluster, space: str) -> None:
    """The members that go anywhere leave the only node that the last one accepts."""
    left = f"{space}-left"
    cluster.apply(queue(left), gpu_template("four", 4), group("g", 4), namespace=space)
    only = {"nodeSelector": {"kubernetes.io/hostname": SMALL}}
    cluster.apply(
        *(queued_pod(f"g{n}", left, template="four", member_of="g") for n in range(3)),
        queued_pod("g3", left, template="four", member_of="g", **only),
        namespace=space,
    )
    bound = wait(cluster, space, all_bound(4), "the gang to be bound")
    assert bound["g3"] == SMALL
    assert {bound[f"g{n}"] for n in range(3)} <= set(BIG)


def test_a_killed_controller_leaves_nothing_half_done(
    cluster: Cluster, controller: ManagedController, space: str
) -> None:
    """SIGKILL as soon as the first claim of a gang is written; the next leader finishes the gang."""
    left = f"{space}-left"
    cluster.apply(queue(left), group("g", 12), namespace=space)
    cluster.apply(
        *(queued_pod(f"g{n:02}", left, member_of="g") for n in range(12)), namespace=space
    )

    def begun(claims: dict[str, Object]) -> bool:
        return any(one.get("status", {}).get("allocation") for one in claims.values())

    cluster.wait_list(
        f"{RESOURCE}/namespaces/{space}/resourceclaims", begun, what="a claim to be written"
    )
    controller.kill()
    pods = cluster.client.request("GET", f"{CORE}/namespaces/{space}/pods")["items"]
    free = [pod["metadata"]["name"] for pod in pods if not is_gated(pod)]
    held = devices(cluster, space)
    # Gates are lifted only when every member has its device.
    assert not free or len(held) == 12, (free, held)
    controller.start()
    wait(cluster, space, all_bound(12), "the gang to be bound")
    held = devices(cluster, space)
    given = [one for found in held.values() for one in found]
    assert len(given) == len(set(given)) == 12


def test_without_a_controller_pods_wait_and_nothing_else_changes(
    cluster: Cluster, controller: ManagedController, space: str
) -> None:
    """Killed in the middle of many admissions: what runs stays, and the rest follows later."""
    left = f"{space}-left"
    cluster.apply(queue(left, limit={"gpus": 14}), namespace=space)
    cluster.apply(*(queued_pod(f"p{n:02}", left) for n in range(10)), namespace=space)
    wait(cluster, space, all_bound(1), "the first to be bound")
    controller.kill()
    cluster.apply(*(queued_pod(f"p{n:02}", left) for n in range(10, 16)), namespace=space)
    before = devices(cluster, space)
    pods = cluster.client.request("GET", f"{CORE}/namespaces/{space}/pods")["items"]
    assert sum(is_gated(pod) for pod in pods) >= 6
    controller.start()
    bound = wait(cluster, space, all_bound(14), "all that fit to be bound")
    assert len(bound) == 14
    wait(cluster, space, waits_for("p15", "OverLimit"), "the limit to be told")
    after = devices(cluster, space)
    assert {name: after.get(name) for name in before} == before
    given = [one for found in after.values() for one in found]
    assert len(given) == len(set(given)) == 14


def test_a_pod_that_can_never_run_is_told_why(cluster: Cluster, space: str) -> None:
    """By its condition, and by what-if before it is submitted; other pods go past it."""
    left = f"{space}-left"
    cluster.apply(queue(left), gpu_template("nine", 9), namespace=space)
    cluster.apply(queued_pod("never", left, template="nine"), namespace=space)
    message = wait(cluster, space, waits_for("never", "NeverPlaceable"), "the reason to be told")
    assert message
    cluster.apply(queued_pod("other", left), namespace=space)
    wait(cluster, space, all_bound(1), "the other pod to be bound")


def test_release_lets_pods_go(
    cluster: Cluster, controller: ManagedController, space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a controller, an administrator takes the gates off; with one he is told to wait."""
    from gpudra.controller.ctl.main import main

    where = ("--kubeconfig", str(cluster.layout.admin_kubeconfig), "-n", space)
    lease = ("--controller-namespace", "gpudra-managed-e2e")
    left = f"{space}-left"
    cluster.apply(queue(left, limit={"gpus": 0}), queued_pod("one", left), namespace=space)
    wait(
        cluster, space, waits_for("one", "OverLimit", "AboveLimit", "NeverPlaceable"), "it to wait"
    )
    assert main(["release", *where, *lease]) == 1
    assert "is at work" in capsys.readouterr().err
    controller.kill()
    assert main(["release", *where, *lease]) == 0
    assert "one" in capsys.readouterr().out
    assert not is_gated(cluster.get(f"{CORE}/namespaces/{space}/pods", "one"))
    controller.start()


def test_queues_are_shown_as_a_tree(
    cluster: Cluster, space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``gpudra queues`` with what is used, and the problem of a queue that cannot be used."""
    from gpudra.controller.ctl.main import main

    left, right = f"{space}-left", f"{space}-right"
    cluster.apply(
        queue(left, quota={"gpus": 4}), queue(right, parent=f"{space}-nobody"), namespace=space
    )
    cluster.apply(queued_pod("one", left), queued_pod("two", right), namespace=space)
    wait(cluster, space, all_bound(1), "the pod to be bound")
    assert main(["queues", "--kubeconfig", str(cluster.layout.admin_kubeconfig)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "25% of 4" in lines[left]
    assert "UnknownParent" in lines[right]
    ready = cluster.wait_for(
        QUEUES,
        right,
        lambda one: [
            c for c in one.get("status", {}).get("conditions", ()) if c["status"] == "False"
        ],
        what="the problem to be told",
    )
    assert ready[0]["reason"] == "UnknownParent"
