# SPDX-License-Identifier: Apache-2.0
"""``gpudra claims``: ResourceClaims, what they were given and who uses it."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from gpudra.api.resource_v1 import DeviceRequest, DeviceRequestAllocationResult, ResourceClaim
from gpudra.controller.ctl import cluster, printers, watching

_HEADERS = ("NAMESPACE", "NAME", "STATE", "REQUESTS", "DEVICES", "USED BY", "AGE")
_COLOURS = {
    "Pending": printers.YELLOW,
    "Allocated": printers.GREEN,
    "InUse": printers.GREEN,
    "Deleting": printers.DIM,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    cluster.add_cluster_arguments(parser)
    cluster.add_namespace_arguments(parser)
    parser.add_argument("--node", metavar="NAME", help="only claims with a device of this node")
    watching.add_watch_argument(parser)
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    if args.watch:
        from gpudra.driver.kube.resources import RESOURCE_CLAIMS

        source = watching.Source(RESOURCE_CLAIMS, namespace=args.namespace)
        watching.follow(args, (source,), lambda found: _show(args, found[0]))
        return 0

    async def question(client: Any) -> list[dict[str, Any]]:
        return await cluster.list_claims(client, args.namespace)

    _show(args, cluster.ask(args, question))
    return 0


def _show(args: argparse.Namespace, objects: Sequence[dict[str, Any]]) -> None:
    found = sorted(
        ((ResourceClaim.from_dict(raw), raw) for raw in objects), key=lambda pair: pair[0].key
    )
    chosen = [
        (claim, raw) for claim, raw in found if args.node is None or on_node(claim, args.node)
    ]
    if args.output != printers.TABLE:
        printers.print_objects([raw for _, raw in chosen], args.output)
        return
    now = datetime.now(UTC)
    colour = printers.use_colour(sys.stdout)
    rows = [claim_row(claim, now) for claim, _ in chosen]
    printers.print_table(
        _HEADERS,
        [
            (*row[:2], printers.painted(str(row[2]), _COLOURS[str(row[2])], on=colour), *row[3:])
            for row in rows
        ],
        nothing="no claims found",
    )


def on_node(claim: ResourceClaim, node: str) -> bool:
    """Whether a device of the claim belongs to the node's pool."""
    return any(result.pool == node for result in _results(claim))


def claim_row(claim: ResourceClaim, now: datetime) -> tuple[object, ...]:
    """The cells of one claim, in the order of the headers."""
    return (
        claim.metadata.namespace,
        claim.metadata.name,
        state_of(claim),
        ", ".join(request_text(request) for request in claim.spec.devices.requests),
        ", ".join(_device_text(result) for result in _results(claim)),
        ", ".join(reference.name for reference in claim.status.reserved_for),
        age_text(claim.metadata.creation_timestamp, now),
    )


def state_of(claim: ResourceClaim) -> str:
    """One word, in the order in which a claim lives."""
    if claim.metadata.deletion_timestamp:
        return "Deleting"
    if claim.status.allocation is None:
        return "Pending"
    return "InUse" if claim.status.reserved_for else "Allocated"


def request_text(request: DeviceRequest) -> str:
    """``main: 2 gpu.gpudra.io``; alternatives are parted by ``or``."""
    if request.exactly is not None:
        exact = request.exactly
        admin = " (admin)" if exact.admin_access else ""
        amount = _amount_text(exact.allocation_mode, exact.count)
        return f"{request.name}: {amount} {exact.device_class_name}{admin}"
    choices = " or ".join(
        f"{_amount_text(choice.allocation_mode, choice.count)} {choice.device_class_name}"
        for choice in request.first_available
    )
    return f"{request.name}: {choices}"


def age_text(created: str, now: datetime) -> str:
    """Age as kubectl shows it, in its largest unit; empty when the time is not known."""
    if not created:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(created)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _amount_text(mode: str, count: int | None) -> str:
    return "all" if mode == "All" else str(count or 1)


def _device_text(result: DeviceRequestAllocationResult) -> str:
    consumed = ",".join(f"{name}={amount}" for name, amount in result.consumed_capacity.items())
    return f"{result.pool}/{result.device}{f'[{consumed}]' if consumed else ''}"


def _results(claim: ResourceClaim) -> Iterable[DeviceRequestAllocationResult]:
    return claim.status.allocation.devices.results if claim.status.allocation else ()
