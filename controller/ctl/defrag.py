# SPDX-License-Identifier: Apache-2.0
"""``gpudra defrag --plan``: which running pods could be moved so that waiting ones fit. Changes nothing.

The plan is that of managed mode with moves allowed and evictions not; the controller carries out the
same when it runs with ``--defrag-moves``.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import InputError
from gpudra.controller.ctl import managedview, printers

if TYPE_CHECKING:
    from gpudra.driver.core.managed.types import Eviction

Row = dict[str, Any]
_HEADERS = ("MOVE", "FROM NODE", "FREES", "SO THAT FITS")
_MOST = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    parser.add_argument(
        "--plan",
        action="store_true",
        help="show what would be moved; nothing is ever done from here",
    )
    parser.add_argument(
        "--moves", type=int, default=4, metavar="N", help="pods that may be moved for one job"
    )
    managedview.add_arguments(parser)
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Shows the moves; 0 when there are any, 3 when none would help.

    Raises:
        InputError: a file or a number cannot be used, or ``--plan`` is missing.
        ApiError: the server refused or did not answer.
    """
    if not args.plan:
        raise InputError(
            "moves are made by the controller (--defrag-moves)",
            field="--plan",
            hint="with --plan this command shows them",
        )
    if not 1 <= args.moves <= _MOST:
        raise InputError(f"must be from 1 to {_MOST}, not {args.moves}", field="--moves")
    found = managedview.read(args)
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    state = found.state
    state.options = replace(state.options, evictions=False, moves=args.moves)
    rows = [_row(one) for one in state.plan(time.time()).evictions]
    if args.output == printers.TABLE:
        nothing = "nothing to move: no waiting job would fit by moving pods that fit elsewhere"
        printers.print_table(_HEADERS, _cells(rows), nothing=nothing)
    else:
        printers.print_data({"moves": rows}, args.output)
    return 0 if rows else 3


def _row(one: "Eviction") -> Row:
    return {
        "namespace": one.pod.namespace,
        "pod": one.pod.name,
        "node": one.pod.node,
        "for": one.by,
        "frees": one.frees.texts(),
        "message": one.message,
    }


def _cells(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    return [
        (
            f"{row['namespace']}/{row['pod']}",
            row["node"],
            ", ".join(f"{text} {name}" for name, text in row["frees"].items() if "/" not in name),
            row["for"],
        )
        for row in rows
    ]
