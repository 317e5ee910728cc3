# SPDX-License-Identifier: Apache-2.0
"""The kinds Queue and PodGroup: what is understood, what is refused, and that the CRDs say the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.api.errors import InputError
from gpudra.api.podgroup import PodGroup, PodGroupSpec
from gpudra.api.queue import Queue, QueueSpec, parse_amount
from gpudra.api.yamlfile import parse_documents

CRDS = Path(__file__).parents[3] / "deploy/charts/gpudra/crds"
FULL_QUEUE = """\
apiVersion: gpudra.io/v1alpha1
kind: Queue
metadata: {name: research}
spec:
  parent: company
  weight: 2.5
  guarantee: {gpus: 4, memory: 80Gi}
  quota: {gpus: "8.5", class/mig.gpudra.io: 3, model/NVIDIA-A100: 2}
  limit: {gpus: 16, compute: 1600}
  priority: 10
  reclaimable: false
  preemptMinRuntime: 5m
  reclaimMinRuntime: 1h30m
"""
FULL_GROUP = """\
apiVersion: gpudra.io/v1alpha1
kind: PodGroup
metadata: {name: train, namespace: team}
spec:
  minCount: 5
  roles:
    - {name: leader, minCount: 1}
    - {name: worker, minCount: 4}
  queue: research
  priorityClassName: high
  topology: {required: [nvlinkDomain], preferred: [pcieSwitch, topology.kubernetes.io/zone]}
  timeout: 90s
  disruption: single
"""


def queue(**spec: Any) -> Queue:
    """A queue as the API has it."""
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}}
    return Queue.decode({**head, "spec": spec})


def group(**spec: Any) -> PodGroup:
    """A group as the API has it."""
    meta = {"name": "g", "namespace": "n"}
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": "PodGroup", "metadata": meta}
    return PodGroup.decode({**head, "spec": spec})


def test_everything_that_the_kinds_say_is_heard() -> None:
    """Each field is read, in the unit in which it is counted."""
    spec = parse_documents(FULL_QUEUE, "q.yaml")[0].validate(Queue).spec
    assert (spec.parent, float(spec.weight), spec.priority) == ("company", 2.5, 10)
    assert (spec.reclaimable, spec.preempt_min_runtime, spec.reclaim_min_runtime) == (
        False,
        300,
        5400,
    )
    amounts = {
        key: parse_amount(key, text) for key, text in {**spec.quota, **spec.guarantee}.items()
    }
    assert amounts == {
        "gpus": 4000,
        "memory": 80 * 2**30,
        "class/mig.gpudra.io": 3,
        "model/NVIDIA-A100": 2000,
    }
    pods = parse_documents(FULL_GROUP, "g.yaml")[0].validate(PodGroup)
    assert pods.key == "team/train"
    assert [(role.name, role.min_count) for role in pods.spec.roles] == [
        ("leader", 1),
        ("worker", 4),
    ]
    assert pods.spec.topology.preferred == ("pcieSwitch", "topology.kubernetes.io/zone")
    assert (pods.spec.timeout, pods.spec.disruption) == (90, "single")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": -1}, "weight"),
        ({"guarantee": {"gpus": "16Gi"}}, "gpus: '16Gi' is no number of cards"),
        ({"guarantee": {"gpus": "1.2345"}}, "three decimals"),
        ({"quota": {"compute": "2.5"}}, "percent points"),
        ({"quota": {"gpus": 2**63 - 1}}, "no number of cards"),
        ({"quota": {"memory": "-1"}}, "between 0 and 1Ei"),
        ({"quota": {"memory": "much"}}, "no amount of memory"),
        ({"quota": {"gpus": 2.5}}, "in quotes"),
        ({"quota": {"cards": 1}}, "none of gpus, memory"),
        ({"quota": {"class/": 1}}, "none of gpus, memory"),
        ({"limit": {"gpus": 1}, "guarantee": {"gpus": 2}}, "below the guarantee"),
        ({"limit": {"gpus": 1}, "quota": {"gpus": "1.5"}}, "below the quota"),
        ({"guarantee": {"class/a": 1}}, "no fixed number"),
        ({"reclaimMinRuntime": "5 minutes"}, "no duration"),
        ({"parent": "No Name"}, "parent"),
    ],
)
def test_wrong_queues_are_refused_by_field(spec: dict[str, Any], words: str) -> None:
    """The error names the queue, the field, and what would be right."""
    with pytest.raises(InputError) as caught:
        queue(**spec)
    assert words in str(caught.value)
    assert "queue q" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"minCount": 0}, "minCount"),
        ({"minCount": 2**63 - 1}, "minCount"),
        ({"minCount": 2, "roles": [{"name": "a", "minCount": 3}]}, "above minCount"),
        ({"minCount": 9, "roles": [{"name": "a", "minCount": 3}] * 2}, "comes twice"),
        ({"topology": {"required": [" "]}}, "topology.required"),
        ({"timeout": "-5s"}, "no duration"),
        ({"disruption": "some"}, "disruption"),
    ],
)
def test_wrong_groups_are_refused_by_field(spec: dict[str, Any], words: str) -> None:
    """The error names the group and the field."""
    with pytest.raises(InputError) as caught:
        group(**spec)
    assert words in str(caught.value)
    assert "podgroup n/g" in str(caught.value)


def test_fields_of_a_newer_version_are_ignored_in_stored_objects() -> None:
    """What the API server holds is read leniently; a file of a user is not."""
    assert queue(color="red").spec == QueueSpec()
    with pytest.raises(InputError, match="color"):
        parse_documents(FULL_QUEUE + "  color: red\n", "q.yaml")[0].validate(Queue)


@pytest.mark.parametrize(
    ("file", "model"), [("queues.yaml", QueueSpec), ("podgroups.yaml", PodGroupSpec)]
)
def test_the_crd_has_the_fields_of_the_model(file: str, model: Any) -> None:
    """Neither knows a field that the other lacks, at any depth, and each field is described."""
    crd = yaml.safe_load((CRDS / file).read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert fields_of_schema(schema) == fields_of_model(model)
    assert all("description" in field for field in schema["properties"].values())


def fields_of_schema(schema: dict[str, Any], at: str = "") -> set[str]:
    """Paths of all fields below an object or list."""
    inner = schema.get("items", schema)
    found = set()
    for name, field in inner.get("properties", {}).items():
        found |= {f"{at}{name}"} | fields_of_schema(field, f"{at}{name}.")
    return found


def fields_of_model(model: Any, at: str = "") -> set[str]:
    """The same of a pydantic model."""
    return flat(model.model_json_schema(by_alias=True), at)


def flat(schema: dict[str, Any], at: str) -> set[str]:
    """Paths in a JSON schema with references."""
    definitions = schema.get("$defs", {})

    def walk(part: dict[str, Any], at: str) -> set[str]:
        part = definitions[part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
        if "items" in part:
            return walk(part["items"], at)
        found = set()
        for name, field in part.get("properties", {}).items():
            found |= {f"{at}{name}"} | walk(field, f"{at}{name}.")
        return found

    return walk(schema, at)
