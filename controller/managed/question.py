# SPDX-License-Identifier: Apache-2.0
"""What-if questions: from a person's manifests to pods and claims that a plan could place.

Pods, Jobs (as many pods as run side by side), PodGroups, claims and templates may stand in the
documents; templates and claims that do not are looked up in the cluster. Nothing is created. Used
by ``gpudra whatif`` and by the HTTP API.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.podgroup import PodGroup
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.managed.pods import GATE
from gpudra.driver.core.gangs.podview import GROUP_LABEL, QUEUE_LABEL, claim_refs, pod_view
from gpudra.driver.core.gangs.types import PodView

Obj = dict[str, Any]
# The claim spec of a template, by namespace and name; None when there is none.
FindTemplate = Callable[[str, str], Obj | None]

# More pods at once are no question of a person.
MOST_PODS = 1024
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Question:
    """What would be submitted.

    Attributes:
        pods: as they would wait.
        claims: that would be made for them.
        group: that they would be in.
    """

    pods: tuple[PodView, ...]
    claims: tuple[ResourceClaim, ...]
    group: PodGroup | None


def read_question(
    documents: Iterable[Obj],
    find_template: FindTemplate,
    *,
    now: float,
    queue_of: Callable[[str], str] = lambda _: "",
) -> Question:
    """Reads the documents.

    Args:
        documents: raw objects.
        find_template: for templates that are not among them.
        now: seconds since the epoch.
        queue_of: the default queue of a namespace.

    Raises:
        InputError: they ask nothing, or something is missing.
    """
    reader = _Reader(find_template, now, queue_of)
    for raw in documents:
        reader.read(raw)
    return reader.question()


class _Reader:
    def __init__(
        self, find_template: FindTemplate, now: float, queue_of: Callable[[str], str]
    ) -> None:
        self._find = find_template
        self._now = now
        self._queue_of = queue_of
        self._pods: list[Obj] = []
        self._claims: list[ResourceClaim] = []
        self._templates: dict[tuple[str, str], Obj] = {}
        self._groups: list[PodGroup] = []

    def read(self, raw: Obj) -> None:
        """Takes a document in; kinds that say nothing about devices are passed over."""
        kind, meta = raw.get("kind"), raw.setdefault("metadata", {})
        if not meta.get("name") and not meta.get("generateName"):
            raise InputError(f"a {kind} has no name", field="metadata.name")
        meta.setdefault("name", f"{meta.get('generateName', '')}new")
        place = (str(meta.setdefault("namespace", DEFAULT_NAMESPACE)), str(meta["name"]))
        if kind == "Pod":
            self._pods.append(raw)
        elif kind == "Job":
            self._pods += _pods_of_job(raw)
        elif kind == "PodGroup":
            self._groups.append(PodGroup.decode(raw))
        elif kind == "ResourceClaimTemplate":
            self._templates[place] = (raw.get("spec") or {}).get("spec") or {}
        elif kind == "ResourceClaim":
            self._claims.append(ResourceClaim.from_dict(_with_uid(raw, f"claim-{place[1]}")))

    def question(self) -> Question:
        """What all of it together asks."""
        if len(self._groups) > 1:
            raise InputError("ask about one PodGroup at a time", field="-f")
        if not self._pods:
            raise InputError("there is no Pod or Job in what was given", field="-f")
        if len(self._pods) > MOST_PODS:
            raise InputError(f"{len(self._pods)} pods are more than {MOST_PODS}", field="-f")
        group = self._groups[0] if self._groups else None
        views = tuple(self._view(number, raw) for number, raw in enumerate(self._pods))
        if group is not None and len(views) < group.spec.min_count:
            raise InputError(
                f"{len(views)} pods are fewer than its minCount of {group.spec.min_count}",
                field="spec.minCount",
                obj=f"podgroup {group.key}",
            )
        return Question(views, tuple(self._claims), group)

    def _view(self, number: int, raw: Obj) -> PodView:
        pod = _with_uid(copy.deepcopy(raw), f"what-if-{number}")
        meta, spec = pod["metadata"], pod.setdefault("spec", {})
        labels = meta.setdefault("labels", {})
        if self._groups:
            labels.setdefault(GROUP_LABEL, self._groups[0].metadata.name)
            if self._groups[0].spec.queue:
                labels.setdefault(QUEUE_LABEL, self._groups[0].spec.queue)
        default = self._queue_of(meta["namespace"])
        if default:
            labels.setdefault(QUEUE_LABEL, default)
        if QUEUE_LABEL not in labels:
            raise InputError(
                f"label {QUEUE_LABEL} is missing, and its namespace has no default queue",
                obj=f"pod {meta['namespace']}/{meta['name']}",
                hint="only pods that name a queue are placed by managed mode",
            )
        spec["schedulingGates"] = [{"name": GATE}]
        pod["status"] = {"resourceClaimStatuses": self._make_claims(meta, spec)}
        return pod_view(pod, claims=claim_refs(pod), created=self._now)

    def _make_claims(self, meta: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Obj]:
        made = []
        for entry in spec.get("resourceClaims") or ():
            name = entry.get("resourceClaimTemplateName")
            if not name:
                continue
            where = (str(meta["namespace"]), str(name))
            found = self._templates.get(where) or self._find(*where)
            if found is None:
                raise InputError(
                    f"there is no ResourceClaimTemplate {name} in namespace {where[0]}",
                    field=f"spec.resourceClaims[{entry.get('name')}]",
                    obj=f"pod {meta['namespace']}/{meta['name']}",
                )
            own = f"{meta['name']}-{entry.get('name')}-what-if"
            raw = {"metadata": {"name": own, "namespace": where[0]}, "spec": found}
            self._claims.append(ResourceClaim.from_dict(_with_uid(raw, f"claim-{own}")))
            made.append({"name": entry.get("name"), "resourceClaimName": own})
        return made


def _pods_of_job(job: Obj) -> list[Obj]:
    """The pods that a Job runs side by side."""
    meta, spec = job["metadata"], job.get("spec") or {}
    template = spec.get("template") or {}
    count = int(spec.get("parallelism", 1))
    notes = {
        **(meta.get("annotations") or {}),
        **((template.get("metadata") or {}).get("annotations") or {}),
    }
    labels = (template.get("metadata") or {}).get("labels") or {}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": "what-if-job"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{meta['name']}-{number}",
                "namespace": meta["namespace"],
                "labels": dict(labels),
                "annotations": notes,
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": template.get("spec") or {},
        }
        for number in range(min(count, MOST_PODS + 1))
    ]


def _with_uid(raw: Obj, uid: str) -> Obj:
    return {**raw, "metadata": {**raw["metadata"], "uid": uid}}
