# SPDX-License-Identifier: Apache-2.0
"""``gpudra queues``: the tree of queues, what each uses of what is its own, and who waits."""

import argparse
import sys
from typing import Any

from gpudra.controller.ctl import managedview, printers

_HEADERS = (
    "QUEUE",
    "GPUS",
    "OF QUOTA",
    "LIMIT",
    "GUARANTEE",
    "SHARE",
    "RUNNING",
    "WAITING",
    "STATE",
)
# Past use stands behind the share, where the controller keeps one (--fairness-half-life).
_PAST = _HEADERS.index("SHARE") + 1
_WIDTH = 16
_FULL, _OVER, _EMPTY = "#", "+", "."

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    managedview.add_arguments(parser)
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    from gpudra.controller.managed.answers import queue_row

    found = managedview.read(args)
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    running, waiting = found.counts()
    rows = [
        queue_row(view, running[view.name], waiting[view.name]) for view in found.state.book.views()
    ]
    if args.output != printers.TABLE:
        printers.print_data({"items": rows}, args.output)
        return 0
    past = any("past" in row for row in rows)
    headers = (*_HEADERS[:_PAST], "PAST", *_HEADERS[_PAST:]) if past else _HEADERS
    lines = [with_past(row) if past else cells(row) for row in rows]
    printers.print_table(headers, lines, nothing="there are no queues")
    return 0


def cells(row: Row) -> tuple[object, ...]:
    """A queue as a line of the table."""
    used = row["used"].get("gpus", "0")
    quota, limit = row.get("quota", {}), row.get("limit", {})
    problem = row.get("problem")
    state = f"{problem['reason']}: {problem['message']}" if problem else _state(row)
    return (
        f"{'  ' * row['depth']}{row['name']}",
        used,
        bar(used, quota.get("gpus", limit.get("gpus", ""))),
        limit.get("gpus", ""),
        row.get("guarantee", {}).get("gpus", ""),
        f"{row['share']:.3f}",
        row["running"],
        row["waiting"],
        state,
    )


def with_past(row: Row) -> tuple[object, ...]:
    """The same with what the queue used before."""
    found = cells(row)
    return *found[:_PAST], f"{row.get('past', 0.0):.3f}", *found[_PAST:]


def bar(used: str, own: str) -> str:
    """Usage of what is a queue's own as a bar; what is borrowed stands behind it."""
    if not own or float(own) == 0:
        return ""
    part = float(used) / float(own)
    filled = round(min(part, 1.0) * _WIDTH)
    over = round(min(max(part - 1.0, 0.0), 1.0) * _WIDTH)
    return f"[{_FULL * filled}{_EMPTY * (_WIDTH - filled)}]{_OVER * over} {part:.0%} of {own}"


def _state(row: Row) -> str:
    borrowed = {name: text for name, text in row["borrowed"].items() if text != "0"}
    if borrowed and row.get("quota"):
        return "borrows " + ", ".join(f"{text} {name}" for name, text in sorted(borrowed.items()))
    return ""
