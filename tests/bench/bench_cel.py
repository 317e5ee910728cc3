# SPDX-License-Identifier: Apache-2.0
"""CEL selectors: ours, and the Go environment that kube-scheduler uses, in one run.

Run: ``python -m tests.bench.bench_cel [--json FILE]``. Both answer the same expressions over the same
devices on one core. The Go figure is ``DeviceMatches`` of k8s.io/dynamic-resource-allocation, timed
inside the oracle; ours is ``CompiledSelector.matches``. The best of several rounds counts, as the
machine may be shared.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

from gpudra.driver.core.cel import CelDevice, CompiledSelector
from gpudra.driver.core.cel.environment import environment
from gpudra.driver.core.cel.selector import compile_selector
from tests.fuzz.cel_compare import to_device
from tests.support.oracle import Oracle

DRIVER = "gpu.example.com"
TARGET_RATE = 500_000
TARGET_COMPILE_MS = 1.0
ROUNDS = 5
EVALUATIONS = 60_000
COMPILATIONS = 60

EXPRESSIONS = {
    "driver only": f'device.driver == "{DRIVER}"',
    "driver, model, memory": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model == "H100" && device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
    "guarded, version": f'device.driver == "{DRIVER}" && has(device.attributes["{DRIVER}"].driverVersion) && device.attributes["{DRIVER}"].driverVersion.isGreaterThan(semver("550.0.0"))',
    "bound domain": f'cel.bind(a, device.attributes["{DRIVER}"], a.model in ["H100", "H200"] && a.numaNode == 1)',
    "pattern": f'device.attributes["{DRIVER}"].model.matches("^H[12]00$")',
    "loop over names": f'device.attributes["{DRIVER}"].exists(n, n == "model")',
}


class Figures(NamedTuple):
    """What was measured for one expression."""

    name: str
    ours_per_s: float
    go_per_s: float
    ours_compile_ms: float
    go_compile_ms: float


def devices(count: int) -> list[dict[str, Any]]:
    """Devices as the API writes them; made anew in every run."""
    return [
        {
            "driver": DRIVER,
            "device": {
                "name": f"gpu-{number}",
                "attributes": {
                    "model": {"string": random.choice(["H100", "H200", "A100"])},
                    "uuid": {"string": f"GPU-{random.getrandbits(64):016x}"},
                    "numaNode": {"int": number % 2},
                    "driverVersion": {"version": random.choice(["535.54.3", "580.1.2"])},
                    "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number % 256:02x}"},
                },
                "capacity": {"memory": {"value": random.choice(["40Gi", "80Gi"])}},
            },
        }
        for number in range(count)
    ]


def rate(selector: CompiledSelector, seen: list[CelDevice]) -> float:
    """Evaluations per second, best round."""
    best = 0.0
    matches = selector.matches
    rounds = range(EVALUATIONS // len(seen))
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in rounds:
            for device in seen:
                matches(device)
        best = max(best, len(rounds) * len(seen) / (time.perf_counter() - start))
    return best


def compile_ms(text: str) -> float:
    """Milliseconds of one compilation without the cache, best round."""
    rules = environment(list_attributes=True)
    best = float("inf")
    for _ in range(COMPILATIONS):
        start = time.perf_counter()
        CompiledSelector(text, rules)
        best = min(best, (time.perf_counter() - start) * 1000)
    return best


def measure(oracle: Oracle, name: str, text: str, raw: list[dict[str, Any]]) -> Figures:
    """Both sides, one after the other."""
    seen = [to_device(device) for device in raw]
    selector = compile_selector(text, list_attributes=True)
    asked = {"expr": text, "env": "stored", "devices": raw, "repeat": EVALUATIONS}
    answers = [oracle.ask(asked) for _ in range(ROUNDS)]
    return Figures(
        name,
        rate(selector, seen),
        1e9 / min(answer["evalNs"] for answer in answers),
        compile_ms(text),
        min(answer["compileNs"] for answer in answers) / 1e6,
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file")
    args = parser.parse_args()
    raw = devices(200)
    with Oracle("cel") as oracle:
        found = [measure(oracle, name, text, raw) for name, text in EXPRESSIONS.items()]
    print(f"{'expression':24}{'ours/s':>12}{'Go/s':>12}{'ratio':>7}{'compile ours':>14}{'Go':>9}")
    for row in found:
        print(
            f"{row.name:24}{row.ours_per_s:12,.0f}{row.go_per_s:12,.0f}"
            f"{row.ours_per_s / row.go_per_s:7.1f}{row.ours_compile_ms:11.2f} ms{row.go_compile_ms:6.2f} ms"
        )
    main_row = found[1]
    print(
        f"target: {TARGET_RATE:,} evaluations/s of {main_row.name!r}, compilation ≤ {TARGET_COMPILE_MS} ms: "
        f"{'met' if main_row.ours_per_s >= TARGET_RATE and main_row.ours_compile_ms <= TARGET_COMPILE_MS else 'MISSED'}"
    )
    if args.json is not None:
        args.json.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
