# SPDX-License-Identifier: Apache-2.0
"""Tables for people; programs read the JSON of ``results.py``."""

from collections.abc import Mapping, Sequence

from gpudra.controller.ctl.printers import format_table
from gpudra.controller.ctl.simulate.check import Verdict
from gpudra.controller.ctl.simulate.results import DepartureRun, PublishedRun, Stranded, mean


def published_table(found: Mapping[str, Sequence[PublishedRun]]) -> str:
    """One line a run and a mean line a policy, then what was left over and what was dropped."""
    rows: list[tuple[object, ...]] = []
    for policy, runs in found.items():
        rows += [(policy, run.seed, *_published_cells([run])) for run in runs]
        if len(runs) > 1:
            rows.append((policy, "mean", *_published_cells(runs)))
    head = (
        "POLICY",
        "SEED",
        "ALLOCATED %",
        "AT 100 % %",
        "DROPPED",
        "US/DECISION",
        "DROPPED BY SIZE",
    )
    lines = format_table(head, rows)
    return f"{lines}\nfree but out of reach of the expected next request, % of the cluster\n" + (
        _stranded_table({policy: [r.stranded for r in runs] for policy, runs in found.items()})
    ).rstrip("\n")


def _published_cells(runs: Sequence[PublishedRun]) -> tuple[object, ...]:
    at_100 = [r.allocated_percent_at_100 for r in runs if r.allocated_percent_at_100 is not None]
    return (
        f"{mean([r.allocated_percent for r in runs]):.2f}",
        f"{mean(at_100):.2f}" if len(at_100) == len(runs) else "",
        f"{mean([r.dropped for r in runs]):.0f}",
        f"{mean([r.us_per_decision for r in runs]):.0f}",
        _sizes(runs[0].dropped_by_size) if len(runs) == 1 else "",
    )


def departures_table(found: Mapping[str, Sequence[DepartureRun]]) -> str:
    """The same for the protocol with departures; percentages are means over time."""
    rows: list[tuple[object, ...]] = []
    for policy, runs in found.items():
        rows += [(policy, run.seed, *_departure_cells([run])) for run in runs]
        if len(runs) > 1:
            rows.append((policy, "mean", *_departure_cells(runs)))
    head = (
        "POLICY", "SEED", "ALLOCATED %", "OFFERED %", "REJECTED %", "DROPPED", "GANG MIN/MEAN",
        "US/DECISION", "DROPPED BY SIZE",
    )  # fmt: skip
    lines = format_table(head, rows)
    return f"{lines}\nfree but out of reach of the expected next request, % of the cluster\n" + (
        _stranded_table({policy: [r.stranded for r in runs] for policy, runs in found.items()})
    ).rstrip("\n")


def _departure_cells(runs: Sequence[DepartureRun]) -> tuple[object, ...]:
    gangs = [float(point.cards) for run in runs for point in run.gangs] or [0.0]
    return (
        f"{mean([r.allocated_percent for r in runs]):.2f}",
        f"{mean([r.offered_percent for r in runs]):.2f}",
        f"{mean([r.rejected_percent for r in runs]):.2f}",
        f"{mean([r.dropped for r in runs]):.0f}",
        f"{min(gangs):.0f}/{mean(gangs):.0f}",
        f"{mean([r.us_per_decision for r in runs]):.0f}",
        _sizes(runs[0].dropped_by_size) if len(runs) == 1 else "",
    )


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """What the checker recomputed, one line a run."""
    rows = [
        (v.policy, v.seed, v.placed, v.dropped, v.released, f"{v.allocated_percent:.4f}", "agrees")
        for v in verdicts
    ]
    head = ("POLICY", "SEED", "PLACED", "DROPPED", "RELEASED", "ALLOCATED %", "LOG")
    return format_table(head, rows).rstrip("\n")


def _stranded_table(found: Mapping[str, Sequence[Stranded]]) -> str:
    causes = ("fragmentation", "cpu", "memory", "model", "total")
    rows = [
        (policy, *(f"{mean([getattr(s, cause) for s in parts]):.2f}" for cause in causes))
        for policy, parts in found.items()
    ]
    return format_table(("POLICY", *(cause.upper() for cause in causes)), rows)


def _sizes(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{label}:{count}" for label, count in sizes.items())
