# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.simulation``: managed mode under fresh random work and trouble, seed by seed.

Each seed is printed with what it did; one that fails is printed with the command that repeats it.
Sets of text have another order in each interpreter, so every seed runs in one of its own with a
fixed hash seed.
"""

import argparse
import os
import random
import subprocess
import sys
import time

RUN = """
import asyncio, sys, structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
from tests.support.simworkload import run
print(asyncio.run(run(int(sys.argv[1]), int(sys.argv[2]))))
"""


def main() -> int:
    """Runs; 1 when a seed has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=100, help="how many fresh seeds (default: 100)"
    )
    parser.add_argument("--steps", type=int, default=10_000, help="steps of each (default: 10000)")
    parser.add_argument(
        "--seed", type=int, action="append", help="this one (again), may be repeated"
    )
    args = parser.parse_args()
    fresh = random.SystemRandom()
    seeds = args.seed or [fresh.randrange(10**6) for _ in range(args.seeds)]
    failed = []
    for number, seed in enumerate(seeds, start=1):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(seed), str(args.steps)],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.perf_counter() - started
        head = f"[{number}/{len(seeds)}] seed {seed}, {args.steps} steps, {took:.0f} s:"
        if done.returncode == 0:
            print(head, done.stdout.strip(), flush=True)
            continue
        failed.append(seed)
        print(head, "FAILED", flush=True)
        print(done.stderr[-3000:], flush=True)
        print(f"again: python -m tests.simulation --seed {seed} --steps {args.steps}", flush=True)
    print(f"{len(seeds) - len(failed)} of {len(seeds)} seeds hold every rule")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
