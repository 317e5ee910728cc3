# SPDX-License-Identifier: Apache-2.0
"""``gpudra allocate``: which devices claims get, from files alone.

The same allocator that managed mode uses, asked without any cluster: claims with an allocation are
state, claims named by ``--claim`` (or all that wait) are allocated together on the named node, or
on the node that kube-scheduler would prefer.
"""

import argparse
import copy
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.resource_v1 import (
    ADMIN_ACCESS_LABEL,
    FINALIZER,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from gpudra.controller.ctl import printers
from gpudra.controller.ctl.objects import ObjectSet, load_objects
from gpudra.driver.core.allocator import (
    Answer,
    ClusterIndex,
    Deadline,
    Outcome,
    explain_claims,
    is_unreadable,
)

_EXIT = {Outcome.ALLOCATED: 0, Outcome.UNSATISFIABLE: 3}
_DEFAULT_NAMESPACE = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "-f", "--file", action="append", required=True, metavar="FILE", dest="files",
        help="YAML or JSON with nodes, classes, slices, claims, taint rules; '-' is standard input",
    )  # fmt: skip
    parser.add_argument("--node", metavar="NODE", help="ask this node only (default: any node)")
    parser.add_argument(
        "--claim", action="append", default=[], metavar="[NAMESPACE/]NAME", dest="claims",
        help="allocate this claim; several are allocated together (default: all that wait)",
    )  # fmt: skip
    parser.add_argument(
        "--taint-rule", action="append", metavar="NAME", dest="rules",
        help="only these DeviceTaintRules are in force (default: all in the files)",
    )  # fmt: skip
    parser.add_argument(
        "--commit", metavar="OUT", help="write all objects, the allocation filled in, to this file"
    )
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS",
        help="give up after this time for one node (default: 10, as kube-scheduler)",
    )  # fmt: skip
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Answers; the exit code tells the outcome: 0 allocated, 3 unsatisfiable, 1 anything else.

    Raises:
        InputError: a file or an argument cannot be used.
    """
    objects = load_objects(args.files)
    for warning in objects.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    index = build_index(objects, args.rules)
    for warning in unready_pools(index, objects):
        print(f"warning: {warning}", file=sys.stderr)
    claims = chosen_claims(objects, args.claims)
    answer = _ask(index, objects, claims, args.node, args.timeout)
    document = describe(index, claims, answer)
    if args.commit and answer.fits:
        write_objects(committed(objects, claims, answer), args.commit)
    _print(document, args.output)
    return _EXIT.get(answer.outcome, 1)


def build_index(objects: ObjectSet, rules: Sequence[str] | None) -> ClusterIndex:
    """The index of what the files hold.

    Args:
        objects: from files.
        rules: names of the taint rules in force; None means all.

    Raises:
        InputError: a named rule is not there.
    """
    known = {rule.metadata.name: rule for rule in objects.rules}
    for name in rules or ():
        if name not in known:
            raise InputError(f"the files hold no DeviceTaintRule {name}", field="--taint-rule")
    return ClusterIndex.of(
        nodes=objects.nodes,
        slices=objects.slices,
        classes=objects.classes,
        claims=objects.claims,
        rules=objects.rules if rules is None else [known[name] for name in rules],
    )


def unready_pools(index: ClusterIndex, objects: ObjectSet) -> list[str]:
    """What is wrong with pools although each of their slices can be read, one sentence each."""
    files = {one.name: one.file for one in objects.sources if one.kind == "ResourceSlice"}
    return [
        f"{files.get(record.slices[0].metadata.name, '')}: {record.pool.problem}"
        for record in index.state.records()
        if not record.pool.ready and not any(map(is_unreadable, record.slices))
    ]


def chosen_claims(objects: ObjectSet, wanted: Sequence[str]) -> list[ResourceClaim]:
    """The claims to allocate, in the order named, or all that wait, in the order of the files.

    Raises:
        InputError: a name fits no claim, or several, or there is nothing to do.
    """
    if not wanted:
        waiting = [claim for claim in objects.claims if claim.status.allocation is None]
        if not waiting:
            raise InputError("the files hold no claim that waits", field="--claim")
        return waiting
    chosen: list[ResourceClaim] = []
    for name in wanted:
        fitting = [claim for claim in objects.claims if _is_named(claim, name)]
        if len(fitting) != 1:
            what = "no claim" if not fitting else f"{len(fitting)} claims"
            raise InputError(
                f"the files hold {what} named {name}",
                field="--claim",
                hint="write NAMESPACE/NAME" if fitting else "",
            )
        if fitting[0] not in chosen:
            chosen.append(fitting[0])
    return chosen


def _is_named(claim: ResourceClaim, name: str) -> bool:
    namespace, slash, bare = name.rpartition("/")
    if claim.metadata.name != bare:
        return False
    return not slash or (claim.metadata.namespace or _DEFAULT_NAMESPACE) == namespace


def deadline_after(seconds: float) -> Deadline:
    """A deadline on the monotonic clock."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _ask(
    index: ClusterIndex,
    objects: ObjectSet,
    claims: Sequence[ResourceClaim],
    node: str | None,
    timeout: float,
) -> Answer:
    refused = _admin_refusal(objects, claims)
    if refused:
        return Answer(Outcome.CLAIM_ERROR, node or "", message=refused)
    if node is not None:
        if index.state.node(node) is None:
            raise InputError(f"the files hold no node {node}", field="--node")
        return index.allocate(claims, node, deadline=deadline_after(timeout))
    answers = []
    for name in index.state.node_names():
        answer = index.allocate(claims, name, deadline=deadline_after(timeout))
        if answer.outcome is Outcome.CLAIM_ERROR:
            return answer
        answers.append(answer)
    return best_answer(answers)


def best_answer(answers: Sequence[Answer]) -> Answer:
    """The node that kube-scheduler would prefer, the first of equals; or why there is none."""
    fitting = [answer for answer in answers if answer.fits]
    if fitting:
        return max(fitting, key=lambda answer: answer.preference)
    for outcome in (Outcome.TIMEOUT, Outcome.UNSATISFIABLE, Outcome.NODE_ERROR):
        some = [answer for answer in answers if answer.outcome is outcome]
        if some:
            message = "; ".join(answer.message for answer in answers)
            return Answer(outcome, some[0].node if len(answers) == 1 else "", message=message)
    return Answer(Outcome.UNSATISFIABLE, "", message="there are no nodes")


def _admin_refusal(objects: ObjectSet, claims: Sequence[ResourceClaim]) -> str:
    """The API server's rule on admin access, as far as the files tell about namespaces."""
    for claim in claims:
        labels = objects.namespaces.get(claim.metadata.namespace or _DEFAULT_NAMESPACE)
        asks = any(
            request.exactly is not None and request.exactly.admin_access
            for request in claim.spec.devices.requests
        )
        if asks and labels is not None and labels.get(ADMIN_ACCESS_LABEL) != "true":
            return (
                f"claim {claim.key}: admin access needs the label {ADMIN_ACCESS_LABEL}: "
                '"true" on the namespace'
            )
    return ""


def describe(
    index: ClusterIndex, claims: Sequence[ResourceClaim], answer: Answer
) -> dict[str, Any]:
    """The answer as plain data, in the shape of the command's JSON."""
    results = [
        _result(claim, result)
        for claim, allocation in zip(claims, answer.allocations, strict=False)
        for result in allocation.devices.results
    ]
    reasons: list[dict[str, Any]] = []
    message = answer.message
    if not answer.fits and answer.node and index.state.node(answer.node) is not None:
        explanation = explain_claims(index, claims, answer.node, answer=answer)
        reasons = [dataclasses.asdict(reason) for reason in explanation.reasons]
        if answer.outcome is Outcome.UNSATISFIABLE and explanation.binding:
            message = f"{message}: {explanation.binding}"
    return {
        "outcome": answer.outcome.value,
        "node": answer.node or None,
        "results": results,
        "message": message,
        "reasons": reasons,
    }


def _result(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, Any]:
    return {
        "claim": claim.metadata.name,
        "namespace": claim.metadata.namespace or _DEFAULT_NAMESPACE,
        "request": result.request,
        "driver": result.driver,
        "pool": result.pool,
        "device": result.device,
        "shareID": result.share_id,
        "consumedCapacity": {
            name: str(amount) for name, amount in result.consumed_capacity.items()
        },
        "adminAccess": bool(result.admin_access),
        "tolerations": [one.to_dict() for one in result.tolerations],
    }


def committed(
    objects: ObjectSet, claims: Sequence[ResourceClaim], answer: Answer
) -> list[dict[str, Any]]:
    """All objects, with the allocations filled in and the finalizer set, as the scheduler would."""
    filled = {id(claim): one for claim, one in zip(claims, answer.allocations, strict=True)}
    by_key = {
        (claim.metadata.namespace, claim.metadata.name): filled[id(claim)] for claim in claims
    }
    documents = []
    for source in objects.sources:
        raw = source.raw
        allocation = by_key.get((source.namespace, source.name))
        if source.kind == "ResourceClaim" and allocation is not None:
            raw = copy.deepcopy(raw)
            status = raw.get("status") or {}
            if not status.get("allocation"):
                raw["status"] = {**status, "allocation": allocation.to_dict()}
            finalizers = raw["metadata"].setdefault("finalizers", [])
            if FINALIZER not in finalizers:
                finalizers.append(FINALIZER)
        documents.append(raw)
    return documents


def write_objects(documents: Sequence[dict[str, Any]], out: str) -> None:
    """Writes YAML documents, or one JSON List if the name ends in .json.

    Raises:
        InputError: the file cannot be written.
    """
    import yaml

    if out.endswith(".json"):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}, indent=2)
    else:
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump_all(documents, Dumper=dumper, sort_keys=False, explicit_start=True)
    try:
        Path(out).write_text(text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=out) from error


def _print(document: dict[str, Any], output: str) -> None:
    if output != printers.TABLE:
        printers.print_data(document, output)
        return
    rows: list[list[str]] = [
        [
            row["claim"],
            row["request"],
            row["driver"],
            row["pool"],
            row["device"],
            ", ".join(f"{name}={amount}" for name, amount in row["consumedCapacity"].items()),
        ]
        for row in document["results"]
    ]
    where = f" on {document['node']}" if document["node"] else ""
    print(f"{document['outcome']}{where}")
    if document["message"]:
        print(document["message"])
    if rows:
        headers = ("CLAIM", "REQUEST", "DRIVER", "POOL", "DEVICE", "CONSUMED")
        print(printers.format_table(headers, rows), end="")
    elif document["reasons"]:
        titles = ("DEVICE", "REQUEST", "REASON", "DETAIL")
        keys = ("device", "request", "reason", "detail")
        body = [[row[key] for key in keys] for row in document["reasons"]]
        print(printers.format_table(titles, body), end="")


def main(argv: Sequence[str] | None = None) -> int:
    """The command on its own: ``python -m gpudra.controller.ctl.allocate``."""
    from gpudra.controller.ctl.main import main as gpudra

    return gpudra(["allocate", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
