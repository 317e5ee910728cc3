# SPDX-License-Identifier: Apache-2.0
"""From a ``core/v1`` Pod to what a plan needs of it.

Called by the controller for every pod that its watch shows, managed or not: the requests of all
pods of a node count. Nothing here refuses a pod: what cannot be understood is said in ``problem``
and the pod waits with that message.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpudra.api.codec import NOTHING
from gpudra.api.errors import InputError
from gpudra.api.meta import NodeSelector
from gpudra.api.quantity import Quantity
from gpudra.driver.core.gangs.types import (
    NO_RULES,
    ClaimRef,
    LabelTest,
    NodeRules,
    PodTerm,
    PodView,
    Toleration,
)

Obj = Mapping[str, Any]

GATE = "gpudra.io/admission"
QUEUE_LABEL = "gpudra.io/queue"
GROUP_LABEL = "gpudra.io/pod-group"
ROLE_LABEL = "gpudra.io/role"
GANG = "gpudra.io/gang"
MAX_RUNTIME = "gpudra.io/max-runtime"
AVOID = "gpudra.io/avoid-nodes"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
KAI_GROUP = "pod-group-name"
KAI_QUEUE = "kai.scheduler/queue"
MIRROR = "kubernetes.io/config.mirror"

_RULES: dict[str, NodeRules] = {}
_MOST_RULES = 4096  # kinds of rules that are kept; beyond that they are simply made again


def pod_view(
    raw: Obj, *, claims: tuple[ClaimRef, ...], created: float, started: float | None = None
) -> PodView:
    """Reads a pod.

    Args:
        raw: the pod.
        claims: the claims that it names, resolved (``status.resourceClaimStatuses``).
        created: ``metadata.creationTimestamp`` in seconds.
        started: ``status.startTime`` in seconds.
    """
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    labels = meta.get("labels") or NOTHING
    notes = meta.get("annotations") or NOTHING
    phase = status.get("phase", "")
    problems: list[str] = []
    queue = labels.get(QUEUE_LABEL) or notes.get(VOLCANO_QUEUE) or labels.get(KAI_QUEUE) or ""
    cpu, memory, others = _requests(spec, problems)
    return PodView(
        uid=str(meta.get("uid", "")),
        namespace=str(meta.get("namespace", "")),
        name=str(meta.get("name", "")),
        queue=queue,
        group=_group(meta, spec, problems) if queue else "",
        role=labels.get(ROLE_LABEL, ""),
        priority=int(spec.get("priority") or 0),
        created=created,
        started=started,
        gated=any(one.get("name") == GATE for one in spec.get("schedulingGates") or ()),
        node=str(spec.get("nodeName") or ""),
        ended=phase in {"Succeeded", "Failed"},
        failed=phase == "Failed",
        deleting=bool(meta.get("deletionTimestamp")),
        lasting=MIRROR in notes or _owner(meta).startswith("DaemonSet/"),
        cpu_milli=cpu,
        memory_bytes=memory,
        others=others,
        rules=_rules(spec, str(meta.get("namespace", "")), problems),
        labels=labels,
        claims=claims,
        max_runtime=_max_runtime(spec, notes, problems),
        owner=_owner(meta),
        avoid=tuple(sorted(filter(None, str(notes.get(AVOID) or "").split(",")))),
        problem="; ".join(problems),
    )


def claim_refs(raw: Obj) -> tuple[ClaimRef, ...]:
    """The claims of a pod, generated ones by the name in its status."""
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    generated = {
        one.get("name"): one.get("resourceClaimName") or ""
        for one in status.get("resourceClaimStatuses") or ()
    }
    found = []
    for one in spec.get("resourceClaims") or ():
        own = str(one.get("name", ""))
        if one.get("resourceClaimName"):
            name = str(one["resourceClaimName"])
        elif own in generated and not generated[own]:
            continue  # the template needs no claim (``resourceClaimName`` null)
        else:
            name = generated.get(own, "")
        found.append(ClaimRef(own, f"{meta.get('namespace', '')}/{name}" if name else ""))
    return tuple(found)


def _owner(meta: Obj) -> str:
    for one in meta.get("ownerReferences") or ():
        if one.get("controller"):
            return f"{one.get('kind', '')}/{one.get('name', '')}"
    return ""


def _group(meta: Obj, spec: Obj, problems: list[str]) -> str:
    """The gang, by our label or those of others; two different names are a mistake."""
    labels, notes = meta.get("labels") or NOTHING, meta.get("annotations") or NOTHING
    native = (spec.get("schedulingGroup") or {}).get("podGroupName")
    named = {
        f"label {GROUP_LABEL}": labels.get(GROUP_LABEL),
        f"annotation {VOLCANO_GROUP}": notes.get(VOLCANO_GROUP),
        f"annotation {KAI_GROUP}": notes.get(KAI_GROUP),
        "spec.schedulingGroup.podGroupName": native,
    }
    found = {where: str(name) for where, name in named.items() if name}
    if len(set(found.values())) > 1:
        texts = ", ".join(f"{where} {name}" for where, name in found.items())
        problems.append(f"two groups claim the pod: {texts}")
    namespace = meta.get("namespace", "")
    if found:
        return f"{namespace}/{next(iter(found.values()))}"
    if notes.get(GANG) == "true" or labels.get(GANG) == "true":
        owner = _owner(meta)
        if owner:
            return f"{namespace}/{owner.replace('/', '.', 1)}"
        problems.append(f"annotation {GANG}: the pod has no owner whose pods could be its gang")
    return ""


def _max_runtime(spec: Obj, notes: Obj, problems: list[str]) -> float | None:
    found = []
    deadline = spec.get("activeDeadlineSeconds")
    if isinstance(deadline, int) and deadline > 0:
        found.append(float(deadline))
    text = notes.get(MAX_RUNTIME)
    if text is not None:
        if str(text).isascii() and str(text).isdigit() and 0 < int(text) < 2**40:
            found.append(float(text))
        else:
            problems.append(f"annotation {MAX_RUNTIME}: {text!r} is no number of seconds")
    return min(found, default=None)


# --- requests ---------------------------------------------------------------------------------


def _requests(spec: Obj, problems: list[str]) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    """As kube-scheduler adds up: containers and side-cars, or the largest init step; overhead.

    What stands in ``spec.resources`` replaces the sum (pod-level resources, KEP-2837).
    """
    try:
        running: dict[str, int] = {}
        for one in spec.get("containers") or ():
            _add(running, _amounts(one.get("resources")))
        peak: dict[str, int] = {}
        beside: dict[str, int] = {}
        for one in spec.get("initContainers") or ():
            own = _amounts(one.get("resources"))
            if one.get("restartPolicy") == "Always":
                _add(beside, own)
                _raise(peak, beside)
            else:
                step = dict(beside)
                _add(step, own)
                _raise(peak, step)
        _add(running, beside)
        _raise(running, peak)
        running.update(_amounts(spec.get("resources")))
        overhead = spec.get("overhead") or {}
        _add(running, {name: _nanos(text) for name, text in overhead.items()})
    except (InputError, AttributeError, TypeError) as error:
        problems.append(f"spec.containers: {error}")
        return 0, 0, ()
    cpu = -(-running.pop("cpu", 0) // 10**6)
    memory = -(-running.pop("memory", 0) // 10**9)
    others = tuple(sorted((name, -(-n // 10**9)) for name, n in running.items() if n))
    return cpu, memory, others


def _amounts(resources: Obj | None) -> dict[str, int]:
    found = (resources or {}).get("requests") or {}
    return {name: _nanos(text) for name, text in found.items()}


def _nanos(text: Any) -> int:
    return Quantity.parse(text).nanos


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: dict[str, int], other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, 0), amount)


# --- rules ------------------------------------------------------------------------------------


def _rules(spec: Obj, namespace: str, problems: list[str]) -> NodeRules:
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    parts = {
        "selector": spec.get("nodeSelector") or {},
        "affinity": (affinity.get("nodeAffinity") or {}).get(required),
        "tolerations": spec.get("tolerations") or [],
        "apart": (affinity.get("podAntiAffinity") or {}).get(required) or [],
        "together": (affinity.get("podAffinity") or {}).get(required) or [],
    }
    if not any(parts.values()):
        return NO_RULES
    inside = namespace if parts["apart"] or parts["together"] else ""
    text = json.dumps([inside, parts], sort_keys=True)
    found = _RULES.get(text)
    if found is None:
        try:
            found = _read_rules(text, parts, namespace)
        except KeyError as error:
            problems.append(f"spec.affinity: a condition without {error}")
            return NO_RULES
        except (InputError, AttributeError, TypeError, ValueError) as error:
            problems.append(f"spec.affinity: {error}")
            return NO_RULES
        if len(_RULES) >= _MOST_RULES:
            _RULES.clear()
        _RULES[text] = found
    return found


def _read_rules(text: str, parts: Mapping[str, Any], namespace: str) -> NodeRules:
    affinity = parts["affinity"]
    return NodeRules(
        text=text,
        selector=tuple(sorted(parts["selector"].items())),
        affinity=None if affinity is None else NodeSelector.from_dict(affinity),
        tolerations=tuple(
            Toleration(
                str(one.get("key") or ""),
                str(one.get("operator") or "Equal"),
                str(one.get("value") or ""),
                str(one.get("effect") or ""),
            )
            for one in parts["tolerations"]
        ),
        apart=tuple(_terms(parts["apart"], namespace)),
        together=tuple(_terms(parts["together"], namespace)),
    )


def _terms(raws: Iterable[Obj], namespace: str) -> Iterable[PodTerm]:
    """Terms with a namespaceSelector count pods of all namespaces: never too few are kept apart."""
    for one in raws:
        everywhere = one.get("namespaceSelector") is not None
        named = tuple(sorted(one.get("namespaces") or ())) or (namespace,)
        yield PodTerm(
            str(one.get("topologyKey", "")),
            () if everywhere else named,
            label_tests(one.get("labelSelector")),
        )


def label_tests(selector: Obj | None) -> tuple[LabelTest, ...] | None:
    """A label selector as tests; None selects nothing, an empty one everything (meta/v1)."""
    """The conditions of a ``meta/v1`` label selector; None: it selects nothing."""
    if selector is None:
        return None
    simple = [
        LabelTest(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    listed = [
        LabelTest(str(one["key"]), str(one["operator"]), tuple(one.get("values") or ()))
        for one in selector.get("matchExpressions") or ()
    ]
    return tuple(sorted([*simple, *listed], key=lambda one: (one.key, one.operator, one.values)))
