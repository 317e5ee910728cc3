# SPDX-License-Identifier: Apache-2.0
"""Queues and groups of KAI, Volcano and Kueue, which are gpudra's in managed mode."""

from typing import Any

from gpudra.api.errors import InputError
from gpudra.driver.core.conversion.shape import metadata_of

QUEUE, GROUP = "gpudra.io/queue", "gpudra.io/pod-group"
LABELS, ANNOTATIONS = "labels", "annotations"
# Where other systems name the queue of a pod, and its group.
QUEUES = (
    (LABELS, "kai.scheduler/queue"),
    (LABELS, "kueue.x-k8s.io/queue-name"),
    (LABELS, "scheduling.volcano.sh/queue-name"),
    (ANNOTATIONS, "scheduling.volcano.sh/queue-name"),
)
GROUPS = (
    (LABELS, "kueue.x-k8s.io/pod-group-name"),
    (ANNOTATIONS, "pod-group-name"),
    (ANNOTATIONS, "scheduling.k8s.io/group-name"),
    (ANNOTATIONS, "scheduling.volcano.sh/group-name"),
)
KUEUE_GATE = "kueue.x-k8s.io/admission"


def convert(pod: dict[str, Any], *, managed: bool) -> list[str]:
    """Renames queue and group in place; what the reader should know.

    Without managed mode nothing is changed: there is no queue to go to.

    Raises:
        InputError: two systems name different queues or groups.
    """
    if not managed:
        metadata = pod.get("metadata") or {}
        named = [key for kind, key in (*QUEUES, *GROUPS) if key in (metadata.get(kind) or {})]
        return [f"{key} is left as it is: queues and groups need managed mode" for key in named]
    metadata = metadata_of(pod)
    _rename(metadata, QUEUES, QUEUE)
    _rename(metadata, GROUPS, GROUP)
    _lift_gate(pod["spec"])
    return []


def _rename(metadata: dict[str, Any], places: tuple[tuple[str, str], ...], label: str) -> None:
    labels = dict(metadata.get(LABELS) or {})
    found = {label: labels[label]} if label in labels else {}
    for kind, key in places:
        value = (metadata.get(kind) or {}).get(key)
        if value is None:
            continue
        first = next(iter(found.items()), None)
        if first and first[1] != value:
            raise InputError(
                f"{value!r} is named beside {first[1]!r} of {first[0]}",
                field=f"metadata.{kind}[{key}]",
                hint="keep one of them",
            )
        found[key] = value
        metadata[kind] = {name: text for name, text in metadata[kind].items() if name != key}
    if found:
        value = next(iter(found.values()))
        metadata[LABELS] = {**(metadata.get(LABELS) or {}), label: value}
    for kind in (LABELS, ANNOTATIONS):
        if kind in metadata and not metadata[kind]:
            del metadata[kind]


def _lift_gate(spec: dict[str, Any]) -> None:
    gates = spec.pop("schedulingGates", None) or []
    kept = [gate for gate in gates if gate.get("name") != KUEUE_GATE]
    if kept:
        spec["schedulingGates"] = kept
