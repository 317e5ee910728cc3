# SPDX-License-Identifier: Apache-2.0
"""Every kind with pod templates is converted, with the templates and groups that it needs."""

from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.driver.core.conversion.types import Classes
from gpudra.driver.core.conversion.workloads import ObjectConversion, Settings, convert_object
from tests.support.conversion import CARDS

TEMPLATE = "gpudra-nvidia-1x-share-m3000"
LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}


def pod_template(limits: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    """A template with one container."""
    container = {"name": "c", "image": "x", "resources": {"limits": limits or LIMITS}}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}


def made(kind: str, spec: Any, version: str = "apps/v1", **metadata: Any) -> dict[str, Any]:
    """An object."""
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "w", **metadata},
        "spec": spec,
    }


def convert(raw: dict[str, Any], *, managed: bool = False) -> ObjectConversion:
    """With the cards of the table."""
    return convert_object(raw, Settings(cards=CARDS, classes=Classes(), managed=managed))


KINDS = {
    "Deployment": made("Deployment", {"template": pod_template()}),
    "StatefulSet": made("StatefulSet", {"template": pod_template()}),
    "DaemonSet": made("DaemonSet", {"template": pod_template()}),
    "Job": made("Job", {"template": pod_template()}, "batch/v1"),
    "CronJob": made("CronJob", {"jobTemplate": {"spec": {"template": pod_template()}}}, "batch/v1"),
    "JobSet": made(
        "JobSet",
        {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": pod_template()}}}]},
        "jobset.x-k8s.io/v1alpha2",
    ),
    "Volcano Job": made(
        "Job", {"tasks": [{"name": "a", "template": pod_template()}]}, "batch.volcano.sh/v1alpha1"
    ),
    "Pod": {"apiVersion": "v1", "kind": "Pod", **pod_template(), "metadata": {"name": "w"}},
    "PodTemplate": {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "w"},
        "template": pod_template(),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_pod_templates_are_found_in_every_kind(kind: str) -> None:
    """The claim is in the template, the object needs one ResourceClaimTemplate, the input is as it was."""
    raw = KINDS[kind]
    before = repr(raw)
    found = convert(raw)
    assert found.changed
    assert TEMPLATE in repr(found.object)
    assert "nvidia.com/gpumem" not in repr(found.object)
    assert [one["metadata"]["name"] for one in found.needs] == [TEMPLATE]
    assert repr(raw) == before


def test_templates_are_where_their_pods_are() -> None:
    """In the namespace of the object; equal requests of one object need one template."""
    tasks = [{"name": name, "template": pod_template()} for name in ("a", "b")]
    raw = made("Job", {"tasks": tasks}, "batch.volcano.sh/v1alpha1", namespace="team")
    (template,) = convert(raw).needs
    assert template["metadata"]["namespace"] == "team"


def test_a_part_says_in_a_note_which_sizes_were_considered() -> None:
    """A reader has to know that a card of another size is never taken."""
    raw = made("Deployment", {"template": pod_template({"nvidia.com/gpumem-percentage": 50})})
    assert "sizes considered are 40Gi,80Gi" in " ".join(convert(raw).notes)


def test_a_refusal_names_the_object_and_the_whole_path() -> None:
    """The path leads through the object to the field."""
    raw = made(
        "CronJob",
        {"jobTemplate": {"spec": {"template": pod_template({"nvidia.com/gpumem": "2Gi"})}}},
    )
    with pytest.raises(InputError) as refusal:
        convert(raw)
    assert str(refusal.value).startswith(
        "CronJob w: spec.jobTemplate.spec.template.spec.containers[0].resources.limits"
        "[nvidia.com/gpumem]: '2Gi' is no plain whole number"
    )


@pytest.mark.parametrize("managed", [False, True])
def test_other_kinds_pass_and_are_told_about(managed: bool) -> None:
    """A kind that is not known is not touched; what it holds is named."""
    raw = made("PyTorchJob", {"x": {"limits": LIMITS}}, "kubeflow.org/v1")
    found = convert(raw, managed=managed)
    assert (found.changed, found.object) == (False, raw)
    assert "holds nvidia.com/gpu, nvidia.com/gpumem" in found.notes[0]
    quota = made("ResourceQuota", {"hard": {"limits.nvidia.com/gpucores": 100}}, "v1")
    assert "limits.nvidia.com/gpucores" in convert(quota).notes[0]
    assert convert(made("ConfigMap", {}, "v1")).notes == ()


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"spec": {"containers": "x"}}, "spec.containers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0].name"),
        ({"spec": {"containers": [{"name": "c", "env": [1]}]}}, "spec.containers[0].env[0]"),
        ({"metadata": {"annotations": {"gpu-memory": 4096}}}, "metadata.annotations[gpu-memory]"),
        ({"metadata": {"labels": []}}, "metadata.labels"),
        (
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": True}}}]}},
            "spec.containers[0].resources.limits[cpu]",
        ),
    ],
)
def test_what_is_no_pod_is_refused_by_field(part: dict[str, Any], field: str) -> None:
    """Whatever a file holds, the answer is a refusal and no traceback."""
    raw = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}, **part}
    with pytest.raises(InputError) as refusal:
        convert(raw)
    assert refusal.value.field == field


def test_the_workloads_queue_is_that_of_its_pods_in_managed_mode() -> None:
    """Kueue and KAI label the workload, Volcano names it in the job's spec."""
    queue = {"kueue.x-k8s.io/queue-name": "team-a"}
    raw = made("Job", {"template": pod_template()}, "batch/v1", labels=queue)
    found = convert(raw, managed=True).object
    assert "labels" not in found["metadata"]
    assert found["spec"]["template"]["metadata"]["labels"]["gpudra.io/queue"] == "team-a"
    assert convert(raw).object["metadata"]["labels"] == queue
    tasks = [{"name": "a", "template": pod_template()}]
    volcano = made("Job", {"queue": "q", "tasks": tasks}, "batch.volcano.sh/v1alpha1")
    task = convert(volcano, managed=True).object["spec"]["tasks"][0]
    assert task["template"]["metadata"]["labels"]["gpudra.io/queue"] == "q"


def test_kueues_gate_goes_in_managed_mode() -> None:
    """Nobody else would lift it."""
    template = pod_template()
    template["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}, {"name": "mine"}]
    found = convert(made("Job", {"template": template}), managed=True).object
    assert found["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "mine"}]


def test_a_volcano_job_becomes_a_group_with_roles() -> None:
    """MinAvailable of the job and of its tasks, the scheduler, and the priority class."""
    tasks = [
        {"name": "ps", "replicas": 1, "minAvailable": 1, "template": pod_template({"cpu": 1})},
        {"name": "worker", "replicas": 4, "minAvailable": 2, "template": pod_template()},
    ]
    spec = {
        "minAvailable": 3,
        "schedulerName": "volcano",
        "priorityClassName": "high",
        "tasks": tasks,
    }
    found = convert(made("Job", spec, "batch.volcano.sh/v1alpha1"), managed=True)
    group = found.needs[-1]
    assert group["spec"] == {
        "minCount": 3,
        "roles": [{"name": "ps", "minCount": 1}, {"name": "worker", "minCount": 2}],
    }
    assert found.object["spec"]["schedulerName"] == "default-scheduler"
    for task in found.object["spec"]["tasks"]:
        labels = task["template"]["metadata"]["labels"]
        assert (labels["gpudra.io/pod-group"], labels["gpudra.io/role"]) == ("w", task["name"])
        assert task["template"]["spec"]["priorityClassName"] == "high"


@pytest.mark.parametrize(
    ("required", "preferred"),
    [
        ("kai.scheduler/topology-required-placement", "kai.scheduler/topology-preferred-placement"),
        ("kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"),
    ],
)
def test_topology_becomes_that_of_a_group(required: str, preferred: str) -> None:
    """From the workload's annotations; without managed mode a note says that nothing comes of it."""
    annotations = {required: "example.com/block", preferred: "example.com/rack", "a": "b"}
    raw = made("Job", {"template": pod_template()}, "batch/v1", annotations=annotations)
    found = convert(raw, managed=True)
    assert found.needs[-1]["spec"] == {
        "minCount": 1,
        "topology": {"required": ["example.com/block"], "preferred": ["example.com/rack"]},
    }
    assert found.object["metadata"]["annotations"] == {"a": "b"}
    stock = convert(raw)
    assert stock.object["metadata"]["annotations"] == annotations
    assert "need managed mode" in " ".join(stock.notes)


def test_kueues_group_of_pods_says_how_many() -> None:
    """Its total is the group's minimum; something that is no number is refused."""
    raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "labels": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/pod-group-name": "pair"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        },
        "spec": pod_template()["spec"],
    }
    group = convert(raw, managed=True).needs[-1]
    assert (group["metadata"]["name"], group["spec"]) == ("pair", {"minCount": 2})
    raw["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "two"}
    with pytest.raises(InputError, match="'two' is no number of pods"):
        convert(raw, managed=True)


def test_podgroups_of_volcano_and_kai_become_ours_in_managed_mode() -> None:
    """minMember, roles, queue, priority and topology; what has no equal is refused by its field."""
    volcano = {"minMember": 2, "minTaskMember": {"a": 1}, "queue": "q", "priorityClassName": "high"}
    raw = made("PodGroup", volcano, "scheduling.volcano.sh/v1beta1", namespace="n")
    assert convert(raw).object == raw
    found = convert(raw, managed=True).object
    assert found["apiVersion"] == "gpudra.io/v1alpha1"
    assert found["spec"] == {
        "minCount": 2,
        "roles": [{"name": "a", "minCount": 1}],
        "queue": "q",
        "priorityClassName": "high",
    }
    level = {"requiredTopologyLevel": "rack"}
    kai = made(
        "PodGroup", {"minMember": 3, "topologyConstraint": level}, "scheduling.run.ai/v2alpha2"
    )
    assert convert(kai, managed=True).object["spec"]["topology"] == {"required": ["rack"]}
    hyper = made("PodGroup", {"networkTopology": {"mode": "hard"}}, "scheduling.volcano.sh/v1beta1")
    with pytest.raises(InputError) as refusal:
        convert(hyper, managed=True)
    assert refusal.value.field == "spec.networkTopology"
