# SPDX-License-Identifier: Apache-2.0
"""What imports cost in CPU time and resident memory, each set in a process of its own.

Run: ``python -m tests.bench.bench_imports``. Behind docs/decisions/0003.
"""

import json
import statistics
import subprocess
import sys

AGENT = ("grpc.aio", "aiohttp", "structlog", "pydantic", "orjson", "yaml")
SETS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "gpudra.driver.kube.client": ("gpudra.driver.kube.client",),
    "gpudra.driver.kube.reflector": ("gpudra.driver.kube.reflector",),
    "gpudra.driver.kube.fakeserver": ("gpudra.driver.kube.fakeserver",),
    "kubernetes.aio.config": ("kubernetes.aio.config",),
    "what the agent needs anyway": AGENT,
    "the same and gpudra.driver.kube": (
        *AGENT,
        "gpudra.driver.kube.reflector",
        "gpudra.driver.kube.client",
    ),
    "the same and kubernetes.aio.config": (*AGENT, "kubernetes.aio.config"),
}
RUNS = 3
CODE = """
import importlib, json, sys, time
started = time.process_time()
for name in sys.argv[1:]:
    importlib.import_module(name)
seconds = time.process_time() - started
status = open("/proc/self/status").read()
print(json.dumps([seconds, int(status.split("VmRSS:")[1].split()[0]) / 1024]))
"""


def measure(modules: tuple[str, ...]) -> tuple[float, float]:
    """Seconds and resident megabytes after the imports, medians of a few runs."""
    runs = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", CODE, *modules],
                stdout=subprocess.PIPE, text=True, check=True,
            ).stdout
        )
        for _ in range(RUNS)
    ]  # fmt: skip
    return statistics.median(run[0] for run in runs), statistics.median(run[1] for run in runs)


def main() -> None:
    """Print a table."""
    for name, modules in SETS.items():
        seconds, resident = measure(modules)
        print(f"{name:36} {seconds * 1000:6.0f} ms  {resident:6.1f} MB")


if __name__ == "__main__":
    main()
