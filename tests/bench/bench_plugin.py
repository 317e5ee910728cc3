# SPDX-License-Identifier: Apache-2.0
"""What a Prepare and an Unprepare cost, and what the agent costs when nothing happens.

Run: ``make bench-plugin``, or ``python -m tests.bench.bench_plugin [--only PART]…``. Parts:

``standin``  the agent beside a fake API server, called by this program in the kubelet's place;
``memory``   resident memory over 10,000 cycles of claims that are new each time;
``idle``     processor time of an agent that has nothing to do;
``cluster``  pods on the local cluster, timed by the real kubelet's own histogram. With
             ``BENCH_PEER=<binary of the Go example driver>`` that driver serves the same pods on
             the same kubelet in the same run, and the ratio is printed.

Where the disk decides, one synced write of a small file is timed beside: the ratio travels between
machines, the milliseconds do not.
"""

import argparse
import asyncio
import os
import platform
from pathlib import Path

from tests.bench.plugin_cluster import bench_cluster
from tests.bench.plugin_standin import bench_cards, bench_idle, bench_memory, bench_mig
from tests.bench.plugin_table import HEADER

PARTS = ("standin", "memory", "idle", "cluster")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be repeated")
    parser.add_argument("--rounds", type=int, default=150, help="calls of one claim (default 150)")
    parser.add_argument("--cards", type=int, default=1024, help="simulated cards (default 1024)")
    parser.add_argument("--cycles", type=int, default=10000, help="for memory (default 10000)")
    parser.add_argument("--idle", type=float, default=10, help="seconds of idling (default 10)")
    parser.add_argument("--pods", type=int, default=10, help="pods of one claim (default 10)")
    parser.add_argument("--folder", type=Path, help="where to work: its disk is measured")
    return parser.parse_args()


def main() -> None:
    """Says where it runs, measures."""
    options = parsed()
    parts = options.only or PARTS
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}; milliseconds unless named"
    )
    if "idle" in parts:
        asyncio.run(bench_idle(options.folder, options.idle))
    if "memory" in parts:
        asyncio.run(bench_memory(options.folder, options.cycles))
    if "standin" in parts:
        print(f"\nstand-in for the kubelet\n{HEADER}")
        asyncio.run(bench_cards(options.folder, options.rounds, options.cards))
        print(f"\non the fake NVML\n{HEADER}")
        asyncio.run(bench_mig(options.folder, options.rounds))
    if "cluster" in parts:
        print("\nreal kubelet, by its own histogram")
        bench_cluster(options.pods, os.environ.get("BENCH_PEER", ""))


if __name__ == "__main__":
    main()
