# SPDX-License-Identifier: Apache-2.0
"""Which nodes a plan uses: what kube-scheduler will ask of them, and pods it could not bind."""

from dataclasses import replace
from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.driver.core.gangs.podview import pod_view
from gpudra.driver.core.managed import ManagedState, Plan, PlanOptions, claim_refs
from tests.support import managedscene as scene

Obj = dict[str, Any]
HOST = "kubernetes.io/hostname"


def raw_pod(name: str, spec: Obj, **meta: Any) -> Obj:
    """A gated pod of queue main as the API has it."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"pod-{name}",
            "labels": {"gpudra.io/queue": "main", **meta.get("labels", {})},
        },
        "spec": {
            "schedulingGates": [{"name": "gpudra.io/admission"}],
            "containers": [{"resources": {"requests": spec.pop("requests", {"cpu": "1"})}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            **spec,
        },
    }


def put(state: ManagedState, name: str, spec: Obj, **meta: Any) -> None:
    """The pod with a claim of one card."""
    raw = raw_pod(name, spec, **meta)
    state.put_claim(scene.claim(name))
    state.put_pod(pod_view(raw, claims=claim_refs(raw), created=0.0))


def placed(plan: Plan) -> dict[str, str]:
    """Node by pod."""
    return {one.name: one.node for placement in plan.placements for one in placement.pods}


ODD = "node-odd"
NODE_CASES: list[tuple[str, Obj, str]] = [
    ("not ready", {"ready": False}, "not ready"),
    ("cordoned", {"cordoned": True}, "unschedulable"),
    ("tainted", {"taints": [{"key": "x", "effect": "NoSchedule"}]}, "taint x"),
    ("not managed", {"managed": False}, "not managed"),
    ("no cpu", {"allocatable": {**scene.ROOMY, "cpu": "500m"}}, "too little cpu"),
    ("no memory", {"allocatable": {**scene.ROOMY, "memory": "1Mi"}}, "too little memory"),
    ("no pods", {"allocatable": {**scene.ROOMY, "pods": "0"}}, "too little pods"),
]


@pytest.mark.parametrize(("what", "change", "said"), NODE_CASES)
def test_nodes_that_take_no_pod(what: str, change: Obj, said: str) -> None:
    """The only node with cards cannot be used: the pod waits and the reason is counted."""
    state = scene.cluster(0, options=PlanOptions(evictions=False))
    state.put_node(scene.node(ODD, **change))
    state.put_slice(scene.gpus(ODD))
    put(state, "p", {"requests": {"cpu": "1", "memory": "1Gi"}})
    (waiting,) = state.plan(0.0).waiting
    assert f"1 {said}" in waiting.message, what


POD_CASES: list[tuple[str, Obj]] = [
    ("selector", {"nodeSelector": {"zone": "b"}}),
    (
        "affinity",
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "zone", "operator": "In", "values": ["b"]}
                                ]
                            }
                        ]
                    }
                }
            }
        },
    ),
]


@pytest.mark.parametrize(("what", "spec"), POD_CASES)
def test_pods_that_want_certain_nodes(what: str, spec: Obj) -> None:
    """Node selector and required node affinity decide."""
    state = scene.cluster(0)
    for zone in ("a", "b"):
        state.put_node(scene.node(f"node-{zone}", labels={"zone": zone}))
        state.put_slice(scene.gpus(f"node-{zone}"))
    state.put_queue(scene.queue())
    put(state, "p", dict(spec))
    assert placed(state.plan(0.0)) == {"p": "node-b"}, what


def test_a_toleration_opens_a_tainted_node() -> None:
    """The taint that keeps others off does not keep this pod off."""
    state = scene.cluster(0)
    state.put_node(scene.node("n", taints=[{"key": "x", "value": "y", "effect": "NoSchedule"}]))
    state.put_slice(scene.gpus("n"))
    put(state, "p", {"tolerations": [{"key": "x", "operator": "Equal", "value": "y"}]})
    assert placed(state.plan(0.0)) == {"p": "n"}


def test_requests_of_foreign_pods_count() -> None:
    """A pod without queue takes the CPU; the managed one goes elsewhere."""
    state = scene.cluster(0)
    for name in ("node-a", "node-b"):
        state.put_node(scene.node(name, allocatable={**scene.ROOMY, "cpu": "4"}))
        state.put_slice(scene.gpus(name))
    state.put_queue(scene.queue())
    foreign = scene.pod("foreign", queue="", gated=False, node="node-a", cpu_milli=3500)
    state.put_pod(foreign)
    put(state, "p", {})
    assert placed(state.plan(0.0)) == {"p": "node-b"}
    state.remove_pod(foreign.uid)
    state.remove_node("node-b")
    assert placed(state.plan(0.0)) == {"p": "node-a"}


def test_other_requests_count_too() -> None:
    """Ephemeral storage that a node does not have keeps it out."""
    state = scene.cluster(0, options=PlanOptions(evictions=False))
    state.put_node(scene.node("n", allocatable={**scene.ROOMY, "ephemeral-storage": "10Gi"}))
    state.put_slice(scene.gpus("n"))
    put(state, "p", {"requests": {"ephemeral-storage": "8Gi"}})
    put(state, "q", {"requests": {"ephemeral-storage": "8Gi"}})
    plan = state.plan(0.0)
    assert placed(plan) == {"p": "n"}
    assert "ephemeral-storage" in plan.waiting[0].message


def apart(key: str = HOST) -> Obj:
    """Required anti-affinity to pods with the same label."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}}
    return {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    }


def test_pods_that_keep_apart() -> None:
    """One a node, although one node has room for all; the third waits."""
    state = scene.cluster(2, options=PlanOptions(evictions=False))
    for number in range(3):
        put(state, f"p{number}", apart(), labels={"app": "x"})
    plan = scene.run(state)
    assert sorted(placed(plan).values()) == ["node-000", "node-001"]
    assert [one.reason for one in state.plan(0.0).waiting] == ["NoRoom"]


def test_others_are_kept_away_as_well() -> None:
    """A pod without rules may not join one that wants no such neighbour."""
    state = scene.cluster(2)
    put(state, "shy", apart(), labels={"app": "x"})
    scene.run(state)
    put(state, "plain", {}, labels={"app": "x"})
    before = state.pods["pod-shy"].node
    assert placed(state.plan(0.0))["plain"] != before


def test_pods_that_want_each_other() -> None:
    """Required pod affinity: the second follows the first, which may begin anywhere."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    state = scene.cluster(3)
    put(state, "p0", dict(spec), labels={"app": "x"})
    put(state, "p1", dict(spec), labels={"app": "x"})
    nodes = placed(state.plan(0.0))
    assert len(nodes) == 2
    assert len(set(nodes.values())) == 1


# --- pods that could not be bound -------------------------------------------------------------


def torn(state: ManagedState) -> str:
    """A placed pod whose allocation kube-scheduler gave back; returns its node."""
    scene.submit(state, "p")
    (placement,) = state.plan(0.0).placements
    scene.carry_out(state, placement, bind=False)
    state.put_claim(scene.allocated(state.claims["default/p-0"], None))
    return placement.pods[0].node


def test_a_torn_pod_is_placed_anew_elsewhere() -> None:
    """The repair avoids the node, says so for the annotation, and costs the queue nothing more."""
    state = scene.cluster(2)
    node = torn(state)
    assert state.book.used("main").of("gpus") == 1000
    plan = state.plan(1.0)
    (repair,) = plan.repairs
    assert repair.pods[0].node != node
    assert repair.avoid == (node,)
    assert plan.placements == ()
    scene.carry_out(state, repair)
    assert state.book.used("main").of("gpus") == 1000


def test_a_torn_pod_goes_before_waiting_ones() -> None:
    """The last card elsewhere is the torn pod's, whoever waits."""
    state = scene.cluster(2, 1, options=PlanOptions(evictions=False))
    node = torn(state)
    scene.submit(state, "urgent", priority=9, pods=2)
    plan = state.plan(1.0)
    assert [one.job for one in plan.repairs] == ["pod/default/p-0"]
    assert placed(plan) == {"urgent-0": node}


def test_a_torn_pod_without_another_node_stays_charged() -> None:
    """It waits with a reason, and its queue cannot use the amount again."""
    state = scene.cluster(1)
    torn(state)
    plan = state.plan(1.0)
    assert plan.repairs == ()
    assert [one.job for one in plan.waiting] == ["pod/default/p-0"]
    assert state.book.used("main").of("gpus") == 1000


def test_the_annotation_says_which_nodes_to_avoid() -> None:
    """After a restart, only the pod's annotation tells; it is obeyed."""
    state = scene.cluster(2)
    state.put_claim(scene.claim("p"))
    state.put_pod(scene.pod("p", "p", gated=False, avoid=("node-000",)))
    (repair,) = state.plan(0.0).repairs
    assert repair.pods[0].node == "node-001"


def test_what_we_took_back_ourselves_is_no_reason_to_avoid() -> None:
    """An allocation that is gone while the gate is still there says nothing about the node."""
    state = scene.cluster(1)
    scene.submit(state, "p")
    (placement,) = state.plan(0.0).placements
    state.put_claim(scene.allocated(state.claims["default/p-0"], placement.claims[0].allocation))
    state.put_claim(scene.allocated(state.claims["default/p-0"], None))
    assert len(state.plan(0.0).placements) == 1


# --- in flight --------------------------------------------------------------------------------


def test_what_is_in_flight_counts() -> None:
    """An assumed placement holds its devices and its charge until it is dropped."""
    state = scene.cluster(1, 1, options=PlanOptions(evictions=False))
    scene.submit(state, "a")
    scene.submit(state, "b", created=1.0)
    (placement,) = state.plan(0.0).placements
    state.assume(placement)
    plan = state.plan(0.0)
    assert plan.placements == ()
    assert [one.job for one in plan.waiting] == ["pod/default/b-0"]
    assert state.book.used("main").of("gpus") == 1000
    state.drop(placement.job)
    assert [one.job for one in state.plan(0.0).placements] == ["pod/default/a-0"]
    assert state.book.used("main").of("gpus") == 0


def test_a_flight_ends_when_the_watch_shows_it() -> None:
    """Claim allocated, gate gone, pod bound: nothing is remembered any more."""
    state = scene.cluster(1)
    scene.submit(state, "a")
    (placement,) = state.plan(0.0).placements
    state.assume(placement)
    scene.carry_out(state, placement)
    assert state.flights == {}
    assert state.book.used("main").of("gpus") == 1000


def test_a_stale_event_does_not_end_a_flight() -> None:
    """The claim as it was before the write comes late: the allocation still counts."""
    state = scene.cluster(1, 1)
    (pod,) = scene.submit(state, "a")
    (placement,) = state.plan(0.0).placements
    state.assume(placement)
    state.put_claim(scene.claim("a-0"))
    assert state.plan(0.0).placements == ()
    assert state.planned_node(pod) == "node-000"


def test_a_flight_that_nobody_sees_is_forgotten() -> None:
    """After two minutes the job is planned anew."""
    state = scene.cluster(1)
    scene.submit(state, "a")
    (placement,) = state.plan(0.0).placements
    state.assume(placement)
    assert state.plan(10.0).placements == ()
    assert state.plan(129.0).placements == ()
    assert len(state.plan(131.0).placements) == 1


def test_a_repair_of_a_gang_member_ends_its_flight() -> None:
    """Its key is the pod's and not the gang's; it ends all the same."""
    state = scene.cluster(2)
    state.put_group(scene.group("g", 1))
    scene.submit(state, "p", group="default/g")
    (placement,) = state.plan(0.0).placements
    scene.carry_out(state, placement, bind=False)
    state.put_claim(scene.allocated(state.claims["default/p-0"], None))
    (repair,) = state.plan(0.0).repairs
    state.assume(repair)
    scene.carry_out(state, repair)
    assert state.flights == {}


def test_a_node_whose_amounts_cannot_be_read_stays_as_it_was() -> None:
    """The error names node and field; the state goes on with what it had."""
    state = scene.cluster(1)
    with pytest.raises(InputError, match=r"node node-000.*allocatable"):
        state.put_node(scene.node("node-000", allocatable={"cpu": "many"}))
    scene.submit(state, "p")
    assert len(state.plan(0.0).placements) == 1


def test_a_pod_with_impossible_requests_keeps_nobody_else() -> None:
    """Numbers that no API server lets through are no reason to stop."""
    state = scene.cluster(1)
    (bad,) = scene.submit(state, "bad")
    state.put_pod(replace(bad, cpu_milli=-5))
    scene.submit(state, "good")
    assert "pod/default/good-0" in [one.job for one in state.plan(0.0).placements]
