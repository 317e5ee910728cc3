# SPDX-License-Identifier: Apache-2.0
"""The command: reads the cluster once, asks every check, prints what they say.

Exit code 1 when anything is red. Warnings and what could not be looked at do not count.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from gpudra.controller.ctl import cluster, printers
from gpudra.controller.ctl.doctor import installation, managed, nodes, server
from gpudra.controller.ctl.doctor.facts import Facts, collect
from gpudra.controller.ctl.doctor.findings import Finding, Status

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    server.check_version,
    server.check_kinds,
    server.check_features,
    server.check_access,
    server.check_clock,
    installation.check_classes,
    installation.check_admission,
    installation.check_agents,
    installation.check_controller,
    nodes.check_nodes,
    nodes.check_slices,
    nodes.check_runtime,
    nodes.check_health,
    managed.check_policies,
    managed.check_managed,
    server.check_reading,
)
_COLOURS = {
    Status.OK: printers.GREEN,
    Status.WARNING: printers.YELLOW,
    Status.UNKNOWN: printers.YELLOW,
    Status.ERROR: printers.RED,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    cluster.add_cluster_arguments(parser)
    parser.add_argument("--driver", default=cluster.DEFAULT_DRIVER, help="name of the DRA driver")
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""

    async def question(client: Any) -> Facts:
        return await collect(client, args.driver, datetime.now(UTC))

    found = diagnose(cluster.ask(args, question))
    if args.output == printers.TABLE:
        print(report(found, colour=printers.use_colour(sys.stdout)), end="")
    else:
        data = {
            "healthy": is_healthy(found),
            "driver": args.driver,
            "findings": [one.as_data() for one in found],
        }
        printers.print_data(data, args.output)
    return 0 if is_healthy(found) else 1


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """What all checks say, in their order."""
    return tuple(finding for check in CHECKS for finding in check(facts))


def is_healthy(found: Iterable[Finding]) -> bool:
    """Whether nothing is red."""
    return all(one.status is not Status.ERROR for one in found)


def report(found: Sequence[Finding], *, colour: bool) -> str:
    """For people: a line each, and below it how to mend what is not well."""
    lines = []
    width = max((len(one.check) for one in found), default=0)
    for one in found:
        word = printers.painted(f"{one.status:8}", _COLOURS[one.status], on=colour)
        lines.append(f"{word} {one.check:{width}}  {one.message}")
        if one.fix:
            lines.append(f"{'':8} {'':{width}}  -> {one.fix}")
    counts = Counter(one.status for one in found)
    said = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    return "\n".join([*lines, "", said, ""])
