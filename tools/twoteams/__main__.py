# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.twoteams [--nodes N] [--seed S]``: both worlds in the simulator, side by side."""

import argparse
import sys

from tools.twoteams.exclusive import run_exclusive
from tools.twoteams.managed import run_managed
from tools.twoteams.workload import DAY, workload

CARDS_A_NODE = 8


def main() -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="of eight cards each (even)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cards = args.nodes * CARDS_A_NODE
    work = workload(cards, args.seed)
    asked = sum(one.card_seconds for one in work) / (cards * DAY)
    print(
        f"{args.nodes} nodes, {cards} cards, {len(work)} jobs of openb's tasks in a day, which need "
        f"{100 * asked:.0f} % of the cluster's day; seed {args.seed}",
        flush=True,
    )
    for line in run_exclusive(work, args.nodes, CARDS_A_NODE).lines():
        print(line, flush=True)
    told = [0]

    def progress(part: float) -> None:
        if sys.stderr.isatty() and int(part * 100) > told[0]:
            told[0] = int(part * 100)
            print(f"\r{told[0]} % of the day", end="", file=sys.stderr, flush=True)

    measure = run_managed(work, args.nodes, CARDS_A_NODE, progress)
    if told[0]:
        print(file=sys.stderr)
    for line in measure.lines():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
