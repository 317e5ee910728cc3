# SPDX-License-Identifier: Apache-2.0
"""Differential run of the allocator: ``python -m tests.fuzz.allocator --count N --seed S``.

Draws small clusters, asks our allocator, upstream's (through tests/oracle) and the brute-force
checker, and prints what the table of known differences does not cover. Exit code 1 if there is any.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.alloccompare import Finding, compare, draw_case, question
from tests.support.oracle import Oracle


def run(count: int, seed: int, *, keep: Path | None = None, stop_after: int = 10) -> Counter[str]:
    """Compares ``count`` cases; counts differences by row, unexplained ones under an empty name."""
    rows: Counter[str] = Counter()
    with Oracle("allocate") as oracle:
        for number in range(count):
            if number % 1000 == 999:
                print(f"{number + 1} cases", flush=True)
            rng = random.Random(f"{seed}/{number}")
            case = draw_case(rng, size=rng.choice([3, 5, 6]))
            for finding in compare(case, oracle.ask(question(case, timeoutMs=3_000))):
                rows[finding.row] += 1
                if not finding.row:
                    _report(number, seed, finding)
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        path = keep / f"{seed}-{number}.json"
                        path.write_text(json.dumps(question(case), indent=1))
            if rows[""] >= stop_after:
                break
    return rows


def _report(number: int, seed: int, finding: Finding) -> None:
    print(f"case {seed}/{number} on {finding.node}: {finding.what}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one, printed")
    parser.add_argument("--keep", type=Path, help="folder for cases that differ")
    parser.add_argument("--stop-after", type=int, default=10)
    args = parser.parse_args(argv)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}, {args.count} cases", flush=True)
    start = time.monotonic()
    rows = run(args.count, seed, keep=args.keep, stop_after=args.stop_after)
    print(f"{time.monotonic() - start:.1f} s")
    for row, number in sorted(rows.items()):
        print(f"{number:7d}  {row or 'NOT EXPLAINED'}")
    return 1 if rows[""] else 0


if __name__ == "__main__":
    sys.exit(main())
