# SPDX-License-Identifier: Apache-2.0
"""``gpudra simulate``: arguments, and the order of work (called by ``controller/ctl/main.py``)."""

import argparse
import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.arrivals import check_amounts
from gpudra.controller.ctl.simulate.check import Verdict, check_log
from gpudra.controller.ctl.simulate.csvfile import Skipped, read_trace
from gpudra.controller.ctl.simulate.departures import (
    Arrival,
    replayed_arrivals,
    run_departures,
    scaled_arrivals,
)
from gpudra.controller.ctl.simulate.placementlog import PlacementLog
from gpudra.controller.ctl.simulate.plot import check_plot_file, draw
from gpudra.controller.ctl.simulate.progress import Progress
from gpudra.controller.ctl.simulate.published import run_published
from gpudra.controller.ctl.simulate.report import departures_table, published_table, verdict_table
from gpudra.controller.ctl.simulate.results import (
    DepartureRun,
    PublishedRun,
    departures_json,
    published_json,
)
from gpudra.controller.ctl.simulate.trace import Trace
from gpudra.driver.core.placement.calibrate import Goal
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.policies import NAMES, OURS, prepare

USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``simulate``."""
    add = parser.add_argument
    add("--nodes", type=Path, required=True, metavar="FILE", help="node list (.csv or .csv.gz)")
    add("--pods", type=Path, required=True, metavar="FILE", help="task list (.csv or .csv.gz)")
    add(
        "--policy",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help=f"one of {', '.join(NAMES)} (default {OURS}); repeat it to compare",
    )
    add("--seed", type=_seed, default=42, metavar="N", help="seed of the first run (default 42)")
    add("--repeat", type=_count, default=1, metavar="K", help="runs, with seeds N, N+1, ...")
    add(
        "--until",
        type=_factor,
        default=1.3,
        metavar="X",
        help="published protocol: stop at X times the cluster's GPUs requested (default 1.3)",
    )
    add(
        "--protocol",
        choices=("published", "departures"),
        default="published",
        help="pods only arrive, as in the published runs, or leave again (default: published)",
    )
    add(
        "--load",
        type=_load,
        default=1.0,
        metavar="X",
        help="departures: offered GPU amount over capacity, or 'trace' for its own times (default 1)",
    )
    add("--arrivals", type=_count, default=20_000, metavar="N", help="departures: Poisson arrivals")
    add(
        "--longest",
        type=_factor,
        default=21_600.0,
        metavar="SECONDS",
        help="departures: longest stay; longer ones in the list are cut (default 21600)",
    )
    add("--lenient", action="store_true", help="leave out rows at fault and count them")
    add("--log", type=Path, metavar="FILE", help="write every decision to FILE")
    add("--check", type=Path, metavar="FILE", help="check a log against the two lists, run nothing")
    add("--plot", type=Path, metavar="FILE", help="draw allocated against requested (.png or .svg)")
    add(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="how to print (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns 0, or 2 for options that do not go together."""
    clash = _clash(args)
    if clash:
        print(f"gpudra simulate: {clash}", file=sys.stderr)
        return USAGE
    trace, skipped = read_trace(args.nodes, args.pods, lenient=args.lenient)
    _say_skipped(skipped)
    if args.check:
        verdicts = check_log(args.check, trace)
        _print_check(args, verdicts)
        return 0
    if args.plot:
        check_plot_file(args.plot)
    policies: list[str] = list(dict.fromkeys(args.policy or [OURS]))
    with ExitStack() as stack:
        log = PlacementLog(_open_log(args.log, stack))
        progress = Progress(len(policies) * args.repeat)
        stack.callback(progress.close)
        if args.protocol == "published":
            published = _published(args, trace, policies, log, progress)
            progress.close()
            _print_published(args, published)
        else:
            departed = _departures(args, trace, policies, log, progress)
            progress.close()
            _print_departures(args, departed)
    return 0


def _clash(args: argparse.Namespace) -> str:
    """What does not go together, or an empty text."""
    if args.check and (args.log or args.plot or args.policy):
        return "--check reads a log and runs nothing; leave out --policy, --log and --plot"
    if args.plot and args.protocol != "published":
        return "--plot draws the published protocol; leave out --protocol departures"
    if args.log and args.log.resolve() in {args.nodes.resolve(), args.pods.resolve()}:
        return "--log would overwrite an input list"
    return ""


def _open_log(path: Path | None, stack: ExitStack) -> IO[str] | None:
    if path is None:
        return None
    try:
        return stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from error


def _mix(trace: Trace) -> DemandMix:
    return DemandMix.of(task.request for task in trace.tasks)


def _published(
    args: argparse.Namespace,
    trace: Trace,
    policies: list[str],
    log: PlacementLog,
    progress: Progress,
) -> dict[str, list[PublishedRun]]:
    amounts = [task.request.amount_milli for task in trace.tasks]
    check_amounts(amounts, trace.capacity_milli, args.until)
    mix = _mix(trace)
    found: dict[str, list[PublishedRun]] = {}
    for policy in policies:
        progress.start(f"{policy}: set-up")
        maker = prepare(policy, trace.nodes, mix)
        runs = found[policy] = []
        for seed in range(args.seed, args.seed + args.repeat):
            progress.start(f"{policy}: seed {seed}")
            log.begin(
                policy=policy, protocol="published", seed=seed, until=args.until,
                nodes=len(trace.nodes), tasks=len(trace.tasks),
            )  # fmt: skip
            runs.append(
                run_published(
                    trace, mix, maker, seed=seed, until=args.until, log=log, watch=progress.part
                )
            )
            progress.step()
    return found


def _departures(
    args: argparse.Namespace,
    trace: Trace,
    policies: list[str],
    log: PlacementLog,
    progress: Progress,
) -> dict[str, list[DepartureRun]]:
    mix = _mix(trace)
    found: dict[str, list[DepartureRun]] = {}
    for policy in policies:
        progress.start(f"{policy}: set-up")
        maker = prepare(policy, trace.nodes, mix, goal=Goal.STEADY)
        runs = found[policy] = []
        for seed in range(args.seed, args.seed + args.repeat):
            progress.start(f"{policy}: seed {seed}")
            log.begin(
                policy=policy, protocol="departures", seed=seed, load=args.load,
                nodes=len(trace.nodes), tasks=len(trace.tasks),
            )  # fmt: skip
            arrivals = _arrivals(args, trace, seed)
            runs.append(
                run_departures(
                    trace, mix, maker, seed=seed, arrivals=arrivals, log=log, watch=progress.part
                )
            )
            progress.step()
    return found


def _arrivals(args: argparse.Namespace, trace: Trace, seed: int) -> list[Arrival]:
    if args.load is None:
        return list(replayed_arrivals(trace))
    return list(
        scaled_arrivals(
            trace, seed=seed, load=args.load, count=args.arrivals, longest_s=args.longest
        )
    )


def _print_published(args: argparse.Namespace, found: dict[str, list[PublishedRun]]) -> None:
    if args.plot:
        draw(args.plot, f"{args.pods.name}, {args.repeat} run(s)", found)
    if args.output == "json":
        _print_json([published_json(policy, runs) for policy, runs in found.items()])
    else:
        print(published_table(found))


def _print_departures(args: argparse.Namespace, found: dict[str, list[DepartureRun]]) -> None:
    if args.output == "json":
        _print_json([departures_json(policy, runs) for policy, runs in found.items()])
    else:
        print(departures_table(found))


def _print_check(args: argparse.Namespace, verdicts: list[Verdict]) -> None:
    if args.output == "json":
        print(
            json.dumps(
                {
                    "runs": [
                        {
                            "policy": v.policy,
                            "seed": v.seed,
                            "placed": v.placed,
                            "dropped": v.dropped,
                            "released": v.released,
                            "allocatedPercent": round(v.allocated_percent, 4),
                        }
                        for v in verdicts
                    ]
                }
            )
        )
    else:
        print(verdict_table(verdicts))


def _print_json(answers: list[dict[str, object]]) -> None:
    """One policy prints its object, several print a list of them."""
    print(json.dumps(answers[0] if len(answers) == 1 else answers, indent=2))


def _say_skipped(skipped: Skipped) -> None:
    if not skipped.total:
        return
    print(f"left out {skipped.total} row(s):", file=sys.stderr)
    for reason, count in sorted(skipped.counts.items()):
        print(f"  {count:6d}  {reason}", file=sys.stderr)
    for example in skipped.examples:
        print(f"  for example {example}", file=sys.stderr)


def _seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed (0 to 2^63 - 1)")
    return value


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1000000")
    return value


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and 0 < value <= 1e9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def _load(text: str) -> float | None:
    return None if text == "trace" else _factor(text)
