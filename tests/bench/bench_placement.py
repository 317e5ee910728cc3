# SPDX-License-Identifier: Apache-2.0
"""Placement bench: list x policy, allocated GPU amount in percent (``make bench-placement``).

``python -m tests.bench.bench_placement`` runs two lists with one seed and
replays our runs through the checker. ``--full`` runs every list with the ten
published seeds and all policies (long), writes docs/placement-results.json after
every cell, so that it can be interrupted and resumed, and renders the tables of
docs/placement.md from that file; ``--render`` only renders. ``--front LIST...``
runs every candidate of the calibration, with two seeds.

Exit code 1 when our policy is not in front on a row, or a check fails.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpudra.controller.ctl.simulate.check import check_log
from gpudra.controller.ctl.simulate.csvfile import read_trace
from gpudra.controller.ctl.simulate.placementlog import PlacementLog
from gpudra.controller.ctl.simulate.published import run_published
from gpudra.controller.ctl.simulate.results import PublishedRun, mean, published_json
from gpudra.controller.ctl.simulate.trace import Trace
from gpudra.driver.core.placement.calibrate import CANDIDATES, Goal, calibrated_weights
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.policies import ANCHOR, NAMES, OURS, Maker, prepare

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "fixtures" / "openb"
RESULTS = ROOT / "docs" / "placement-results.json"
PAGE = ROOT / "docs" / "placement.md"
BEGIN, END = "<!-- results begin -->", "<!-- results end -->"

PUBLISHED = {
    "default": 95.39,
    "cpu100": 95.35,
    "gpushare40": 94.15,
    "gpushare100": 86.90,
    "gpuspec10": 94.95,
    "gpuspec33": 94.55,
    "multigpu20": 95.65,
    "multigpu50": 97.18,
}
"""FGD's end figure per list as published (ATC'23; mean of seeds 42 to 51)."""

SHORT_LISTS = ("default", "gpushare100")
SEEDS = range(42, 52)
UNTIL = 1.3


def load(name: str) -> Trace:
    """One openb list on the openb cluster."""
    nodes = DATA / "openb_node_list_gpu_node.csv"
    return read_trace(nodes, DATA / f"openb_pod_list_{name}.csv.gz")[0]


def run_cell(
    trace: Trace, policy: str, seeds: range, log: PlacementLog | None = None
) -> list[PublishedRun]:
    """All seeds of one policy on one list."""
    mix = DemandMix.of(task.request for task in trace.tasks)
    maker = prepare(policy, trace.nodes, mix)
    return _runs(trace, mix, maker, policy, seeds, log or PlacementLog())


def _runs(
    trace: Trace, mix: DemandMix, maker: Maker, policy: str, seeds: range, log: PlacementLog
) -> list[PublishedRun]:
    runs = []
    for seed in seeds:
        log.begin(
            policy=policy, protocol="published", seed=seed, until=UNTIL,
            nodes=len(trace.nodes), tasks=len(trace.tasks),
        )  # fmt: skip
        runs.append(
            run_published(
                trace, mix, maker, seed=seed, until=UNTIL, log=log, watch=lambda _part: None
            )
        )
    return runs


def run_checked(trace: Trace, policy: str, seeds: range) -> list[PublishedRun]:
    """The same through a log on disk that the independent checker then replays."""
    with tempfile.TemporaryDirectory(prefix="gpudra-bench-") as folder:
        path = Path(folder, "placements.log")
        with path.open("w", encoding="utf-8") as file:
            runs = run_cell(trace, policy, seeds, PlacementLog(file))
        check_log(path, trace)
    return runs


def short() -> int:
    """Two lists, one seed, every policy; our runs and FGD's are checked."""
    failed = False
    print(f"{'list':12s}" + "".join(f"{policy:>13s}" for policy in NAMES))
    for name in SHORT_LISTS:
        trace = load(name)
        row: dict[str, PublishedRun] = {}
        for policy in NAMES:
            one = range(SEEDS.start, SEEDS.start + 1)
            run = run_checked if policy in {OURS, ANCHOR} else run_cell
            row[policy] = run(trace, policy, one)[0]
        print(f"{name:12s}" + "".join(f"{row[p].allocated_percent:13.2f}" for p in NAMES))
        print(f"{'  us/decision':12s}" + f"{row[OURS].us_per_decision:12.0f}")
        ours = row[OURS].allocated_percent
        failed |= any(ours <= row[p].allocated_percent for p in NAMES if p != OURS)
        failed |= ours < PUBLISHED[name] + 0.5
    print("ours is not in front" if failed else "ours is in front on every row; checker agrees")
    return int(failed)


def full() -> int:
    """Every list, ten seeds, every policy; resumes from the results file."""
    results: dict[str, dict[str, Any]] = (
        json.loads(RESULTS.read_text(encoding="utf-8"))["lists"] if RESULTS.exists() else {}
    )
    for policy in NAMES:
        for name in PUBLISHED:
            cells = results.setdefault(name, {})
            if policy in cells:
                continue
            run = run_checked if policy in {OURS, ANCHOR} else run_cell
            runs = run(load(name), policy, SEEDS)
            cells[policy] = published_json(policy, runs)
            figure = mean([run.allocated_percent for run in runs])
            print(f"{name:12s} {policy:12s} {figure:6.2f}", flush=True)
            _save(results)
    return render()


def front(names: list[str]) -> int:
    """Every candidate of the calibration on some lists, two seeds: what pulls against what."""
    seeds = range(SEEDS.start, SEEDS.start + 2)
    for name in names:
        trace = load(name)
        mix = DemandMix.of(task.request for task in trace.tasks)
        chosen = {goal: calibrated_weights(trace.nodes, mix, goal) for goal in Goal}
        for number, weights in enumerate(CANDIDATES, start=1):
            maker = prepare(OURS, trace.nodes, mix, weights=weights)
            runs = _runs(trace, mix, maker, OURS, seeds, PlacementLog())
            end = mean([run.allocated_percent for run in runs])
            full_at = mean([run.allocated_percent_at_100 or 0.0 for run in runs])
            marks = " ".join(goal.value for goal in Goal if chosen[goal] == weights)
            print(f"{name:12s} {number:2d} {end:7.2f} {full_at:7.2f}  {marks}", flush=True)
    return 0


def _save(results: dict[str, dict[str, Any]]) -> None:
    document = {
        "command": "python -m tests.bench.bench_placement --full",
        "protocol": "published: list shuffled per seed, then samples, until 1.3 x requested",
        "seeds": [SEEDS.start, SEEDS.stop - 1],
        "lists": {name: results[name] for name in PUBLISHED if name in results},
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def tables(results: dict[str, dict[str, Any]]) -> str:
    """The Markdown tables of docs/placement.md from the results file."""
    lines = [
        "| list | FGD published | " + " | ".join(NAMES) + " |",
        "|---|---|" + "---|" * len(NAMES),
    ]
    for name, published in PUBLISHED.items():
        cells = [_cell(results, name, policy, "allocatedPercent") for policy in NAMES]
        cells[0] = f"**{cells[0]}**"
        lines.append(f"| {name} | {published:.2f} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| list | gain over FGD published | worst seed | FGD's mean here | at 100 %: ours / FGD | us per decision |",
        "|---|---|---|---|---|---|",
    ]
    for name, published in PUBLISHED.items():
        if OURS in results.get(name, {}) and ANCHOR in results[name]:
            lines.append(_detail(results[name], name, published))
    return "\n".join(lines)


def _cell(results: dict[str, dict[str, Any]], name: str, policy: str, key: str) -> str:
    found = results.get(name, {}).get(policy)
    return f"{found['mean'][key]:.2f}" if found else ""


def _detail(cells: dict[str, Any], name: str, published: float) -> str:
    ours, anchor = cells[OURS], cells[ANCHOR]
    worst = min(run["allocatedPercent"] for run in ours["runs"])
    mine = ours["mean"]
    return (
        f"| {name} | +{mine['allocatedPercent'] - published:.2f} | {worst:.2f} "
        f"| {anchor['mean']['allocatedPercent']:.2f} "
        f"| {mine['allocatedPercentAt100']:.2f} / {anchor['mean']['allocatedPercentAt100']:.2f} "
        f"| {mine['usPerDecision']:.0f} |"
    )


def render() -> int:
    """Puts the tables into docs/placement.md; 1 where ours is not in front."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["lists"]
    text = tables(results)
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    print(text)
    behind = [
        (name, policy)
        for name, cells in results.items()
        for policy, found in cells.items()
        if policy != OURS
        and found["mean"]["allocatedPercent"] >= cells[OURS]["mean"]["allocatedPercent"]
    ]
    print(f"behind: {behind}" if behind else "ours is in front on every row")
    return int(bool(behind))


def main() -> int:
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="every list, ten seeds (long)")
    parser.add_argument("--render", action="store_true", help="only render docs/placement.md")
    parser.add_argument("--front", nargs="+", choices=PUBLISHED, metavar="LIST")
    args = parser.parse_args()
    if args.front:
        return front(args.front)
    if args.render:
        return render()
    return full() if args.full else short()


if __name__ == "__main__":
    sys.exit(main())
