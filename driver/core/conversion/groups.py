# SPDX-License-Identifier: Apache-2.0
"""Groups of pods that other systems place together, as PodGroups of managed mode.

Called by `workloads`. A group is made only where the file says more than one pod at a time: Volcano's
minAvailable, Kueue's group size, and topology that KAI or Kueue is asked for.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.podgroup import KIND, PodGroup
from gpudra.api.queue import GROUP as API_GROUP
from gpudra.api.queue import VERSION
from gpudra.driver.core.conversion.queues import GROUP
from gpudra.driver.core.conversion.shape import check_object, metadata_of

Raw = Mapping[str, Any]
ROLE = "gpudra.io/role"
VOLCANO_JOB = "batch.volcano.sh"
TOPOLOGY = {
    "required": (
        "kai.scheduler/topology-required-placement",
        "kueue.x-k8s.io/podset-required-topology",
    ),
    "preferred": (
        "kai.scheduler/topology-preferred-placement",
        "kueue.x-k8s.io/podset-preferred-topology",
    ),
}
TOTAL, MIN_MEMBER = "kueue.x-k8s.io/pod-group-total-count", "kai.scheduler/batch-min-member"
_PRIORITY = "priorityClassName"
# Objects of other systems that are groups: API group -> fields that have no equal.
FOREIGN_GROUPS: Mapping[str, tuple[str, ...]] = {
    "scheduling.volcano.sh": ("networkTopology", "subGroupPolicy"),
    "scheduling.run.ai": ("subGroups", "minSubGroup"),
}


def finish(
    raw: dict[str, Any], pods: list[dict[str, Any]], *, managed: bool, notes: list[str]
) -> Iterator[dict[str, Any]]:
    """Joins the pods of a converted object to a group, if it asks for one; yields the PodGroup.

    Args:
        raw: the converted object; annotations that have become a group are taken out.
        pods: its pod templates, or itself.
        managed: without it there are no groups, which the notes then say.
        notes: for the reader.

    Raises:
        InputError: something that our groups do not have; names the field.
    """
    volcano = str(raw.get("apiVersion", "")).startswith(VOLCANO_JOB)
    topology = _topology([raw, *pods], take=managed)
    total = _total(raw, take=managed)
    if not managed:
        if topology or total or volcano:
            notes.append("pods are not grouped: groups and topology of groups need managed mode")
        return
    spec: dict[str, Any] = {}
    for pod in pods:
        _take_priority(pod, raw if volcano else {})
    if volcano:
        spec = _of_volcano_job(raw["spec"])
    elif total:
        spec = {"minCount": total}
    elif not topology:
        return
    if topology:
        spec = {"minCount": 1, **spec, "topology": topology}
    name = _join(raw, pods)
    notes.append(f"PodGroup {name}: {spec.get('minCount', 1)} pods start together")
    yield _group(name, (raw.get("metadata") or {}).get("namespace", ""), spec)


def convert_group(raw: Raw) -> dict[str, Any] | None:
    """A PodGroup of Volcano or KAI as ours; None for any other object.

    Raises:
        InputError: a field that has no equal.
    """
    refused = FOREIGN_GROUPS.get(str(raw.get("apiVersion", "")).partition("/")[0])
    if raw.get("kind") != KIND or refused is None:
        return None
    check_object(raw)
    spec, metadata = raw.get("spec") or {}, raw.get("metadata") or {}
    for field in refused:
        if spec.get(field):
            raise InputError(
                f"{spec[field]!r} has no equal",
                field=f"spec.{field}",
                obj=f"{KIND} {metadata.get('name', '')}",
                hint="use spec.topology and spec.roles of a PodGroup of gpudra.io",
            )
    members = spec.get("minTaskMember") or {}
    roles = [{"name": name, "minCount": count} for name, count in members.items()]
    least = max(spec.get("minMember") or 1, sum(members.values()))
    found: dict[str, Any] = {"minCount": least}
    if roles:
        found["roles"] = roles
    for field in ("queue", _PRIORITY):
        if spec.get(field):
            found[field] = spec[field]
    constraint = spec.get("topologyConstraint") or {}
    topology = {
        kind: [constraint[field]]
        for kind, field in (
            ("required", "requiredTopologyLevel"),
            ("preferred", "preferredTopologyLevel"),
        )
        if constraint.get(field)
    }
    if topology:
        found["topology"] = topology
    return _group(metadata.get("name", ""), metadata.get("namespace", ""), found)


def _group(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    group = {
        "apiVersion": f"{API_GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": metadata,
        "spec": spec,
    }
    PodGroup.decode(group)
    return group


def _topology(places: list[Any], *, take: bool) -> dict[str, list[str]]:
    """Keys by kind, from the workload or its pods."""
    found: dict[str, list[str]] = {}
    for place in places:
        annotations = (place.get("metadata") or {}).get("annotations") or {}
        for kind, keys in TOPOLOGY.items():
            for key in keys:
                value = annotations.get(key)
                if value is not None and value not in found.setdefault(kind, []):
                    found[kind].append(value)
        if take:
            _drop(
                place,
                "annotations",
                {"kai.scheduler/topology", *TOPOLOGY["required"], *TOPOLOGY["preferred"]},
            )
    return found


def _total(raw: dict[str, Any], *, take: bool) -> int:
    annotations = (raw.get("metadata") or {}).get("annotations") or {}
    for key in (TOTAL, MIN_MEMBER):
        value = annotations.get(key)
        if value is None:
            continue
        if not str(value).isdecimal() or int(value) < 1:
            raise InputError(
                f"{value!r} is no number of pods", field=f"metadata.annotations[{key}]"
            )
        if take:
            _drop(raw, "annotations", {key})
        return int(value)
    return 0


def _of_volcano_job(spec: dict[str, Any]) -> dict[str, Any]:
    """The group that Volcano's controller would make; tasks become roles."""
    if spec.get("networkTopology"):
        raise InputError(
            f"{spec['networkTopology']!r} is about HyperNodes, which gpudra does not have",
            field="spec.networkTopology",
            hint="remove it and write spec.topology into the PodGroup",
        )
    tasks = spec.get("tasks") or []
    for task in tasks:
        metadata = metadata_of(task["template"])
        metadata["labels"] = {**(metadata.get("labels") or {}), ROLE: task["name"]}
    roles = [
        {"name": task["name"], "minCount": task["minAvailable"]}
        for task in tasks
        if task.get("minAvailable")
    ]
    everything = sum(task.get("replicas") or 1 for task in tasks)
    least = max(spec.get("minAvailable") or everything, sum(role["minCount"] for role in roles))
    return {"minCount": least, **({"roles": roles} if roles else {})}


def _join(raw: Raw, pods: list[dict[str, Any]]) -> str:
    """The name of the group, which the pods then carry as a label."""
    labels = [(pod.get("metadata") or {}).get("labels") or {} for pod in pods]
    name = next((one[GROUP] for one in labels if GROUP in one), raw["metadata"]["name"])
    for pod in pods:
        metadata = metadata_of(pod)
        metadata["labels"] = {**(metadata.get("labels") or {}), GROUP: name}
    return str(name)


def _take_priority(pod: dict[str, Any], job: Raw) -> None:
    """KAI names the priority class by a label, Volcano in the job; Kubernetes in the pod."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    name = labels.get(_PRIORITY) or (job.get("spec") or {}).get(_PRIORITY)
    if name:
        pod["spec"].setdefault(_PRIORITY, name)
        _drop(pod, "labels", {_PRIORITY})


def _drop(place: dict[str, Any], kind: str, keys: set[str]) -> None:
    metadata = place.get("metadata") or {}
    if metadata.get(kind):
        metadata[kind] = {key: value for key, value in metadata[kind].items() if key not in keys}
        if not metadata[kind]:
            del metadata[kind]
