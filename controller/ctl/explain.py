# SPDX-License-Identifier: Apache-2.0
"""``gpudra explain``: why a claim or pod is pending, device by device, and what would help.

Reads a live cluster and changes nothing; or files with ``-f``. The allocator that answers is the one
of managed mode, whose answers are those of kube-scheduler, so an explanation holds in either mode.
"""

import argparse
import asyncio
import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import InputError, NotFoundError
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.ctl import cluster, printers
from gpudra.controller.ctl.allocate import build_index, deadline_after
from gpudra.controller.ctl.objects import ObjectSet, load_objects, objects_of
from gpudra.driver.core.allocator import (
    Answer,
    ClusterIndex,
    Explanation,
    Kind,
    Outcome,
    Reason,
    Refusal,
    explain_claims,
    matches,
)

if TYPE_CHECKING:
    from gpudra.driver.kube.client import KubeClient

Obj = dict[str, Any]

_CLOSE_LOOK = 32  # nodes that are looked at closely to find the one that comes nearest
_MOST_LINES = 8  # different details shown per request and reason
_GATE = "gpudra.io/admission"
_QUEUE = "gpudra.io/queue"


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What is to be explained.

    Attributes:
        name: as a person would name it, ``pod team/a`` for example.
        claims: that must be allocated together.
        notes: what else keeps it waiting, one sentence each.
    """

    name: str
    claims: tuple[ResourceClaim, ...]
    notes: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    parser.add_argument(
        "what", metavar="CLAIM|POD", help="claim/NAME, pod/NAME, or the bare name of a claim"
    )
    parser.add_argument(
        "-n", "--namespace", default=cluster.DEFAULT_NAMESPACE, metavar="NAME",
        help="its namespace (default: default)",
    )  # fmt: skip
    parser.add_argument("--node", metavar="NODE", help="explain this node (default: the nearest)")
    parser.add_argument(
        "-f", "--file", action="append", metavar="FILE", dest="files",
        help="read objects from files instead of a cluster; '-' is standard input",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS",
        help="give up searching after this time (default: 10)",
    )  # fmt: skip
    cluster.add_cluster_arguments(parser)
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Explains; 0 if it fits or is allocated, 3 if it does not fit, 1 for other outcomes.

    Raises:
        InputError: files or arguments cannot be used, or there is no such claim or pod.
        ApiError: the server refused or did not answer.
    """
    objects = load_objects(args.files) if args.files else cluster.ask(args, read_cluster)
    for warning in objects.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    subject = find_subject(objects, args.what, args.namespace)
    index = build_index(objects, None)
    report = explain_subject(index, subject, args.node, args.timeout)
    if args.output == printers.TABLE:
        print(text_of(report), end="")
    else:
        printers.print_data(report, args.output)
    return {"allocated": 0, "unsatisfiable": 3}.get(report["outcome"], 1)


async def read_cluster(client: "KubeClient") -> ObjectSet:
    """All objects that decide about devices."""
    from gpudra.driver.kube import resources

    kinds = (
        resources.NODES,
        resources.NAMESPACES,
        resources.PODS,
        resources.RESOURCE_SLICES,
        resources.RESOURCE_CLAIMS,
        resources.DEVICE_CLASSES,
        resources.DEVICE_TAINT_RULES,
    )

    async def listed(resource: Any) -> list[Obj]:
        try:
            found = await client.list(resource)
        except NotFoundError:
            return []  # DeviceTaintRule is not served by every server
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [{**head, **item} for item in found.items]

    lists = await asyncio.gather(*(listed(resource) for resource in kinds))
    return objects_of([obj for one in lists for obj in one])


# --- what is asked about ----------------------------------------------------------------------


def find_subject(objects: ObjectSet, what: str, namespace: str) -> Subject:
    """The claim or pod that a word on the command line names.

    Raises:
        InputError: there is none.
    """
    kind, slash, name = what.partition("/")
    kind, name = (kind.lower(), name) if slash else ("claim", what)
    if kind in {"claim", "resourceclaim", "resourceclaims"}:
        return _claim_subject(objects, name, namespace)
    if kind in {"pod", "pods", "po"}:
        return _pod_subject(objects, name, namespace)
    raise InputError(f"{what!r} is neither claim/NAME nor pod/NAME", field="CLAIM|POD")


def _claim(objects: ObjectSet, name: str, namespace: str) -> ResourceClaim | None:
    for claim in objects.claims:
        own = claim.metadata.namespace or cluster.DEFAULT_NAMESPACE
        if claim.metadata.name == name and own == namespace:
            return claim
    return None


def _claim_subject(objects: ObjectSet, name: str, namespace: str) -> Subject:
    claim = _claim(objects, name, namespace)
    if claim is None:
        raise InputError(f"there is no claim {name} in namespace {namespace}", field="CLAIM|POD")
    return Subject(f"claim {namespace}/{name}", (claim,))


def _pod_subject(objects: ObjectSet, name: str, namespace: str) -> Subject:
    for pod in objects.pods:
        metadata = pod["metadata"]
        own = metadata.get("namespace") or cluster.DEFAULT_NAMESPACE
        if metadata["name"] == name and own == namespace:
            return _of_pod(objects, pod, name, namespace)
    raise InputError(f"there is no pod {name} in namespace {namespace}", field="CLAIM|POD")


def _of_pod(objects: ObjectSet, pod: Obj, name: str, namespace: str) -> Subject:
    claims, notes = [], []
    made = {
        entry.get("name"): entry.get("resourceClaimName")
        for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    spec = pod.get("spec") or {}
    for entry in spec.get("resourceClaims") or ():
        claim_name = entry.get("resourceClaimName") or made.get(entry.get("name"))
        claim = _claim(objects, claim_name, namespace) if claim_name else None
        if claim is not None:
            claims.append(claim)
        elif claim_name:
            notes.append(f"claim {claim_name} does not exist")
        else:
            template = entry.get("resourceClaimTemplateName")
            notes.append(f"no claim has been made from the template {template} yet")
    if any(gate.get("name") == _GATE for gate in spec.get("schedulingGates") or ()):
        queue = (pod["metadata"].get("labels") or {}).get(_QUEUE, "of its namespace")
        notes.append(f"it waits to be admitted by the queue {queue}")
    if not claims and not notes:
        notes.append("it uses no claims")
    return Subject(f"pod {namespace}/{name}", tuple(claims), tuple(notes))


# --- the explanation --------------------------------------------------------------------------


def explain_subject(index: ClusterIndex, subject: Subject, node: str | None, timeout: float) -> Obj:
    """Everything about a subject as plain data.

    Raises:
        InputError: the named node does not exist.
    """
    report: Obj = {
        "subject": subject.name,
        "claims": [claim.key for claim in subject.claims],
        "notes": list(subject.notes),
    }
    waiting = [claim for claim in subject.claims if claim.status.allocation is None]
    if not waiting:
        outcome = "unsatisfiable" if subject.notes and not subject.claims else "allocated"
        return report | _nothing(outcome, [_given(claim) for claim in subject.claims])
    if node is not None and index.state.node(node) is None:
        raise InputError(f"there is no node {node}", field="--node")
    try:
        answers = index.everywhere(waiting, deadline=deadline_after(timeout))
    except Refusal as refusal:
        return report | _nothing(refusal.outcome.value, []) | {"binding": refusal.message}
    allowed = _allowed(index, subject)
    report["notes"] += _tie(subject, allowed)
    names = [name for name in answers if allowed is None or name in allowed]
    report["nodes"] = dict(Counter(answers[name].outcome.value for name in names))
    chosen = node or _nearest(index, waiting, {name: answers[name] for name in names})
    if chosen is None:
        return report | _nothing("unsatisfiable", []) | {"binding": "there are no nodes"}
    return report | _described(_look(index, waiting, chosen, answers.get(chosen), timeout))


def _allowed(index: ClusterIndex, subject: Subject) -> set[str] | None:
    """The nodes to which claims of the pod that are allocated already tie it; None for all."""
    selectors = [
        claim.status.allocation.node_selector
        for claim in subject.claims
        if claim.status.allocation is not None and claim.status.allocation.node_selector is not None
    ]
    if not selectors:
        return None
    nodes = [index.state.node(name) for name in index.state.node_names()]
    return {
        node.name
        for node in nodes
        if node is not None and all(matches(selector, node) for selector in selectors)
    }


def _tie(subject: Subject, allowed: set[str] | None) -> list[str]:
    if allowed is None:
        return []
    names = ", ".join(claim.key for claim in subject.claims if claim.status.allocation is not None)
    shown = ", ".join(sorted(allowed)[:3]) + (", ..." if len(allowed) > 3 else "")
    return [f"{names} is allocated already, so only these nodes count: {shown or 'none'}"]


def _nothing(outcome: str, given: list[Obj]) -> Obj:
    return {
        "outcome": outcome, "node": None, "binding": "", "requests": [], "reasons": [],
        "relaxations": [], "allocated": given,
    }  # fmt: skip


def _given(claim: ResourceClaim) -> Obj:
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    return {
        "claim": claim.key,
        "devices": [f"{one.driver}/{one.pool}/{one.device}" for one in results],
    }


def _nearest(
    index: ClusterIndex, claims: Sequence[ResourceClaim], answers: Mapping[str, Answer]
) -> str | None:
    """A node that fits, or of the first few the one that lacks least."""
    for name, answer in answers.items():
        if answer.fits:
            return name
    best: tuple[float, str] | None = None
    for name in list(answers)[:_CLOSE_LOOK]:
        found = explain_claims(index, claims, name, answer=answers[name])
        share = sum(min(one.at_once / max(one.wanted, 1), 1.0) for one in found.requests)
        if best is None or share > best[0]:
            best = (share, name)
    return None if best is None else best[1]


def _look(
    index: ClusterIndex,
    claims: Sequence[ResourceClaim],
    node: str,
    answer: Answer | None,
    timeout: float,
) -> Explanation:
    return explain_claims(
        index, claims, node, answer=answer, relax=True, deadline=deadline_after(timeout)
    )


def _described(found: Explanation) -> Obj:
    return {
        "outcome": found.answer.outcome.value,
        "node": found.answer.node,
        "binding": found.binding,
        "requests": [
            {
                "claim": one.claim,
                "request": one.request,
                "wanted": one.wanted or "all",
                "devices": one.devices,
                "fitting": one.fitting,
                "atOnce": one.at_once,
                "reasons": {kind.value: count for kind, count in one.counts},
            }
            for one in found.requests
        ],
        "reasons": [dataclasses.asdict(one) for one in found.reasons],
        "relaxations": [
            {
                "change": one.change.value,
                "claim": one.claim,
                "field": one.field,
                "before": one.before,
                "after": one.after,
                "node": one.node,
                "text": one.text,
            }
            for one in found.relaxations
        ],
        "allocated": [],
    }


# --- text for people --------------------------------------------------------------------------


def text_of(report: Obj) -> str:
    """The report as lines."""
    lines = [_headline(report)]
    lines += [f"  note: {note}" for note in report["notes"]]
    for given in report["allocated"]:
        devices = ", ".join(given["devices"]) or "no devices"
        lines.append(f"  claim {given['claim']} has {devices}")
    if report["binding"]:
        lines.append(f"  because: {report['binding']}")
    if report["outcome"] != Outcome.ALLOCATED.value:
        for request in report["requests"]:
            lines += _request_lines(report, request)
        lines += _pool_lines(report)
    if report["relaxations"]:
        lines.append("what would help (each alone is enough):")
        lines += [f"  - {one['text']}" for one in _few_nodes(report["relaxations"])]
    return "\n".join(lines) + "\n"


def _headline(report: Obj) -> str:
    subject, outcome = report["subject"], report["outcome"]
    if outcome == Outcome.ALLOCATED.value:
        if report["node"] is None:
            return f"{subject} is allocated"
        return f"{subject} fits on node {report['node']} ({_counted(report['nodes'])})"
    if report["node"] is None:
        return f"{subject}: {outcome}"
    return f"{subject} on node {report['node']}: {outcome} (all nodes: {_counted(report['nodes'])})"


def _counted(nodes: dict[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(nodes.items()))


def _request_lines(report: Obj, request: Obj) -> list[str]:
    head = (
        f"  request {request['request']} of {request['claim']}: wants {request['wanted']}, "
        f"{request['fitting']} of {request['devices']} devices fit"
    )
    lines = [head]
    own = [
        Reason(**one)
        for one in report["reasons"]
        if one["request"] == request["request"] and one["reason"] != Kind.FITS.value
    ]
    for kind, count in Counter(one.reason for one in own).most_common():
        lines.append(f"    {count} of {request['devices']} devices: {kind}")
        details = Counter(one.detail for one in own if one.reason == kind)
        for detail, times in details.most_common(_MOST_LINES):
            example = next(one.device for one in own if one.detail == detail)
            lines.append(f"      {times} x {detail} [{example}]")
        if len(details) > _MOST_LINES:
            lines.append(f"      and {len(details) - _MOST_LINES} more details (-o json)")
    return lines


def _pool_lines(report: Obj) -> list[str]:
    return [
        f"  pool {one['device']}: {one['detail']}"
        for one in report["reasons"]
        if not one["request"]
    ]


def _few_nodes(relaxations: Sequence[Obj]) -> list[Obj]:
    """At most three other nodes; a cluster may have thousands."""
    nodes = [one for one in relaxations if one["change"] == "node"]
    rest = [one for one in relaxations if one["change"] != "node"]
    shown = nodes[:3]
    if len(nodes) > len(shown):
        shown.append({"text": f"{len(nodes) - len(shown)} more nodes would do"})
    return shown + rest


def main(argv: Sequence[str] | None = None) -> int:
    """The command on its own: ``python -m gpudra.controller.ctl.explain``."""
    from gpudra.controller.ctl.main import main as gpudra

    return gpudra(["explain", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
