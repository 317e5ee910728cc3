# SPDX-License-Identifier: Apache-2.0
"""Compares CEL with the Go libraries over many generated expressions.

``python -m tests.fuzz.cel --count N --seed S``; without a seed a fresh one is taken and printed.
Ends with 1 if an unexplained difference was found; each is printed with what is needed to repeat it.
"""

import argparse
import random
import secrets
import sys
from collections import Counter

from tests.fuzz.cel_compare import Json, question, verdict
from tests.fuzz.cel_explained import explained
from tests.fuzz.cel_generator import Generator, device
from tests.support.oracle import Oracle

_SHOWN = 40


def ask_one(source: random.Random) -> Json:
    """One generated question over three devices."""
    text, value = Generator(source).expression()
    env = "new" if not value and source.random() < 0.3 else "stored"
    return question(text, [device(source) for _ in range(3)], value=value, env=env)


def run(count: int, seed: int) -> int:
    """Asks ``count`` questions; the number of unexplained differences."""
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    unexplained = 0
    with Oracle("cel") as oracle:
        for _ in range(count):
            asked = ask_one(source)
            answer = oracle.ask(asked)
            found = verdict(asked, answer)
            reason = explained(asked["expr"], found) if found else None
            outcomes[_outcome(answer)] += 1
            if found and reason:
                outcomes[f"explained: {reason}"] += 1
            elif found:
                unexplained += 1
                if unexplained <= _SHOWN:
                    print(f"DIFFERENCE {found}\n  {asked['env']} {asked['expr']}", flush=True)
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:7d}  {outcome}")
    print(f"{count} expressions, seed {seed}: {unexplained} unexplained differences")
    return unexplained


def _outcome(answer: Json) -> str:
    if "compileError" in answer:
        return "refused by the compiler"
    if all("error" in result for result in answer.get("results", [])):
        return "error for every device"
    return "value for some device"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    return 1 if run(args.count, seed) else 0


if __name__ == "__main__":
    sys.exit(main())
