# SPDX-License-Identifier: Apache-2.0
"""What looking at the cards costs: a full reading, and the look every two seconds.

Run: ``python -m tests.bench.bench_discovery [--hardware PROFILE] [--rounds N]``. Uses the fake NVML
library, whose answers cost a lock of its state file each, so a real driver's calls are slower and
ours are all that is measured of gpudra.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpudra.driver.core.forms import EVERYTHING
from gpudra.driver.core.health import HealthPolicy, HealthState, after_reading
from gpudra.driver.core.resourceslices import ALL_FEATURES, build_pool
from gpudra.driver.devicelib.nvml import NvmlLib
from tests.fakenvml.machine import FakeMachine


def cpu_milliseconds(call: Callable[[], object], rounds: int) -> float:
    """Median processor time of a call."""
    found = []
    for _ in range(rounds):
        before = time.process_time()
        call()
        found.append((time.process_time() - before) * 1000)
    return statistics.median(found)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hardware", default="dgx-h100-8x80")
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeMachine(args.hardware, Path(folder))
        os.environ["FAKENVML_STATE"] = str(machine.state)
        lib = NvmlLib(library=machine.library, host_root=machine.root)
        inventory = lib.discover()
        state = after_reading(HealthState(), inventory, HealthPolicy(), 0)
        placements = sum(
            len(one.placements) for gpu in inventory.gpus if gpu.mig for one in gpu.mig.profiles
        )
        print(f"{args.hardware}: {len(inventory.gpus)} GPUs, {placements} MIG placements, CPU ms")
        rows = {
            "look (nothing new)": lib.fingerprint,
            "judge health of an unchanged reading": lambda: after_reading(
                state, inventory, HealthPolicy(), 0
            ),
            "read everything": lib.discover,
            "build the pool, all forms": lambda: build_pool(
                inventory, node_name="n", features=ALL_FEATURES, policy=EVERYTHING
            ),
        }
        for name, call in rows.items():
            print(f"  {name:<40}{cpu_milliseconds(call, args.rounds):8.2f}")
        lib.close()


if __name__ == "__main__":
    main()
