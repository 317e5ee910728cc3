# SPDX-License-Identifier: Apache-2.0
"""Compares CEL with the Go libraries over many generated expressions.

``python -m tests.fuzz.cel --count N --seed S``; without a seed a fresh one is taken and printed.
Ends with 1 if an unexplained difference was found; each is printed with what is needed to repeat it.
``--keep FILE`` writes the expressions on which both agree as a table, which tests/tables/test_cel.py
then holds gpudra to.
"""

import argparse
import json
import random
import re
import secrets
import sys
from collections import Counter
from pathlib import Path

from tests.fuzz.cel_compare import Json, question, verdict
from tests.fuzz.cel_devices import device
from tests.fuzz.cel_explained import explained
from tests.fuzz.cel_generator import Generator
from tests.support.oracle import Oracle

_SHOWN = 40


def ask_one(source: random.Random) -> Json:
    """One generated question over three devices."""
    if source.random() < 0.12:
        text = Generator(source).derived()
        devices = [device(source) for _ in range(3)]
        return question(text, devices, value=False, env="stored") | {"derived": True}
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


def keep(count: int, seed: int, path: Path) -> None:
    """Writes a table of questions and upstream's answers on which both sides agree."""
    source = random.Random(seed)
    devices = [device(source) for _ in range(6)]
    rows: list[Json] = []
    with Oracle("cel") as oracle:
        while len(rows) < count:
            asked = ask_one(source)
            chosen = sorted(source.sample(range(len(devices)), 2))
            asked["devices"] = [devices[index] for index in chosen]
            answer = oracle.ask(asked)
            if verdict(asked, answer) is None and len(asked["expr"]) < 400:
                rows.append({**asked, "devices": chosen, "answer": _short(answer)})
    lines = [f"- {_yaml(row)}" for row in rows]
    head = f"# Made by: python -m tests.fuzz.cel --keep tests/tables/{path.name} --count {count} --seed {seed}\n"
    path.write_text(f"{head}devices: {_yaml(devices)}\nrows:\n" + "\n".join(lines) + "\n")


def _yaml(value: object) -> str:
    """JSON that is YAML as well: characters beyond the basic plane have one escape, not two."""
    return re.sub(
        r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})",
        lambda pair: (
            f"\\U{0x10000 + ((int(pair[1], 16) - 0xD800) << 10) + int(pair[2], 16) - 0xDC00:08x}"
        ),
        json.dumps(value),
    )


def _short(answer: Json) -> Json:
    """The answer without its wording, which is not compared."""
    kept = {key: value for key, value in answer.items() if key != "compileError"}
    if "compileError" in answer:
        kept["compileError"] = "refused"
    for result in kept.get("results", []):
        if "error" in result and "cost limit exceeded" not in result["error"]:
            result["error"] = "error"
    return kept


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=None)
    args = parser.parse_args()
    seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    if args.keep is not None:
        keep(args.count, seed, args.keep)
        return 0
    return 1 if run(args.count, seed) else 0


if __name__ == "__main__":
    sys.exit(main())
