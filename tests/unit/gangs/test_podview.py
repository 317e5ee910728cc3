# SPDX-License-Identifier: Apache-2.0
"""Pods as plans see them: queue and gang by anybody's labels, requests, rules, and what is wrong."""

from typing import Any

import pytest

from gpudra.driver.core.gangs.noderoom import NO_ROOM_USED, node_facts, refusal
from gpudra.driver.core.gangs.podview import claim_refs, pod_view
from gpudra.driver.core.gangs.types import ClaimRef, NodeRules, PodView, Toleration

Obj = dict[str, Any]


def view(spec: Obj | None = None, *, created: float = 0.0, **meta: Any) -> PodView:
    """A pod in namespace team."""
    raw = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", **meta},
        "spec": spec or {},
        "status": meta.pop("status", {}),
    }
    return pod_view(raw, claims=claim_refs(raw), created=created)


QUEUE = {"gpudra.io/queue": "q"}
JOB = [{"kind": "Job", "name": "train", "controller": True}]


@pytest.mark.parametrize(
    ("meta", "queue"),
    [
        ({"labels": QUEUE}, "q"),
        ({"annotations": {"scheduling.volcano.sh/queue-name": "v"}}, "v"),
        ({"labels": {"kai.scheduler/queue": "k"}}, "k"),
        ({"labels": {**QUEUE, "kai.scheduler/queue": "k"}}, "q"),
        ({}, ""),
    ],
)
def test_queue(meta: Obj, queue: str) -> None:
    """Our label comes first, then those of Volcano and KAI."""
    assert view(**meta).queue == queue


@pytest.mark.parametrize(
    ("meta", "spec", "group"),
    [
        ({"labels": {**QUEUE, "gpudra.io/pod-group": "g"}}, {}, "team/g"),
        ({"labels": QUEUE, "annotations": {"scheduling.k8s.io/group-name": "v"}}, {}, "team/v"),
        ({"labels": QUEUE, "annotations": {"pod-group-name": "k"}}, {}, "team/k"),
        ({"labels": QUEUE}, {"schedulingGroup": {"podGroupName": "n"}}, "team/n"),
        (
            {"labels": QUEUE, "annotations": {"gpudra.io/gang": "true"}, "ownerReferences": JOB},
            {},
            "team/Job.train",
        ),
        ({"labels": {"gpudra.io/pod-group": "g"}}, {}, ""),
        ({"labels": QUEUE}, {}, ""),
    ],
)
def test_group(meta: Obj, spec: Obj, group: str) -> None:
    """A gang is named by a label or annotation of anybody's, or by the owner that is one."""
    found = view(spec, **meta)
    assert (found.group, found.problem) == (group, "")


def test_two_groups_claim_one_pod() -> None:
    """Both are named with where they were read."""
    labels = {**QUEUE, "gpudra.io/pod-group": "a"}
    found = view(labels=labels, annotations={"pod-group-name": "b"})
    assert "two groups claim the pod" in found.problem
    assert "gpudra.io/pod-group a" in found.problem
    assert "pod-group-name b" in found.problem


def requests(**amounts: str) -> Obj:
    """A container that asks for this."""
    return {"resources": {"requests": amounts}}


CASES: list[tuple[str, Obj, int, int]] = [
    ("sum", {"containers": [requests(cpu="1"), requests(cpu="500m", memory="1Gi")]}, 1500, 1024),
    (
        "the largest init step",
        {"containers": [requests(cpu="1")], "initContainers": [requests(cpu="3")]},
        3000,
        0,
    ),
    (
        "side-cars run beside",
        {
            "containers": [requests(cpu="1")],
            "initContainers": [
                {**requests(cpu="1"), "restartPolicy": "Always"},
                requests(cpu="500m"),
            ],
        },
        2000,
        0,
    ),
    ("overhead", {"containers": [requests(cpu="1")], "overhead": {"cpu": "250m"}}, 1250, 0),
    (
        "pod level",
        {"containers": [requests(cpu="1")], "resources": {"requests": {"cpu": "4"}}},
        4000,
        0,
    ),
    ("rounded up", {"containers": [requests(cpu="1500u")]}, 2, 0),
]


@pytest.mark.parametrize(("what", "spec", "cpu", "mebibytes"), CASES)
def test_requests_are_added_as_kube_scheduler_does(
    what: str, spec: Obj, cpu: int, mebibytes: int
) -> None:
    """Containers, init steps, side-cars, overhead and pod-level resources."""
    found = view(spec)
    assert (found.cpu_milli, found.memory_bytes) == (cpu, mebibytes * 2**20), what


@pytest.mark.parametrize(
    ("spec", "meta", "said"),
    [
        ({"containers": [requests(cpu="many")]}, {}, "spec.containers"),
        ({}, {"annotations": {"gpudra.io/max-runtime": "1h"}}, "gpudra.io/max-runtime"),
        ({}, {"labels": QUEUE, "annotations": {"gpudra.io/gang": "true"}}, "no owner"),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchExpressions": [{}]}}]}}}, {}, "spec.affinity"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_a_problem_of_the_pod(spec: Obj, meta: Obj, said: str) -> None:
    """Nothing is raised; the field is named."""
    assert said in view(spec, **meta).problem


def test_the_shorter_promise_counts() -> None:
    """The deadline that Kubernetes enforces and the annotation are both upper bounds."""
    annotations = {"gpudra.io/max-runtime": "60"}
    assert view({"activeDeadlineSeconds": 100}, annotations=annotations).max_runtime == 60.0
    assert view({"activeDeadlineSeconds": 30}, annotations=annotations).max_runtime == 30.0
    assert view().max_runtime is None


def test_claims_of_a_pod() -> None:
    """Named ones, generated ones by status, those not generated yet, and those not needed."""
    raw = {
        "metadata": {"namespace": "team"},
        "spec": {
            "resourceClaims": [
                {"name": "a", "resourceClaimName": "own"},
                {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"},
                {"name": "d", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {
            "resourceClaimStatuses": [
                {"name": "b", "resourceClaimName": "p-b-x1"},
                {"name": "d"},
            ]
        },
    }
    assert claim_refs(raw) == (
        ClaimRef("a", "team/own"),
        ClaimRef("b", "team/p-b-x1"),
        ClaimRef("c", ""),
    )


def test_equal_rules_are_one_object() -> None:
    """Pods of one template share their rules; pods without any share the empty ones."""
    spec = {"nodeSelector": {"a": "b"}}
    assert view(dict(spec)).rules is view(dict(spec)).rules
    assert view().rules == NodeRules()


@pytest.mark.parametrize(
    ("toleration", "stands"),
    [
        (Toleration("k", "Equal", "v", "NoSchedule"), True),
        (Toleration("k", "Equal", "v"), True),
        (Toleration("k", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("k", "Exists", "", "NoExecute"), False),
        (Toleration("", "Equal", "v"), False),
    ],
)
def test_tolerations(toleration: Toleration, stands: bool) -> None:
    """The rules of core/v1: empty effect stands all effects, an empty key needs Exists."""
    facts = node_facts(
        {
            "metadata": {"name": "n"},
            "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        }
    )
    rules = NodeRules(tolerations=(toleration,))
    assert (refusal(facts, rules) == "") == stands


def test_room_comes_back() -> None:
    """What a pod took is there again when it goes, other resources included."""
    pod = PodView(uid="u", namespace="n", name="p", cpu_milli=5, others=(("x", 2),))
    assert NO_ROOM_USED.plus(pod).plus(pod, -1) == NO_ROOM_USED
