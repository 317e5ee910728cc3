# SPDX-License-Identifier: Apache-2.0
"""What a round of the slice controller costs: inventory to pool, and the plan that finds nothing.

Run: ``python -m tests.bench.bench_slices``. CPU time of this process, median of several rounds.
"""

import platform
import statistics
import time
from collections.abc import Callable

from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import (
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    ResourceSlice,
)
from gpudra.driver.core.resourceslices import (
    ALL_FEATURES,
    DesiredPool,
    build_pool,
    cut_pool,
    resource_slices,
)
from gpudra.driver.core.slicediff import plan_slices
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware

ROUNDS = 50
CARDS = 16
FORMS = 27


def measured(work: Callable[[], object]) -> float:
    """Milliseconds of CPU for one run, median."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1000)
    return statistics.median(times)


def partitioned(cards: int) -> DesiredPool:
    """A node on which every card is offered in 27 forms over one counter set."""
    sets = [
        CounterSet(
            name=f"gpu-{card}",
            counters={f"slice-{part}": Counter(value=Quantity.of(1)) for part in range(15)},
        )
        for card in range(cards)
    ]
    groups = [
        [
            Device(
                name=f"gpu-{card}-{form}",
                attributes={f"attribute{number}": number for number in range(22)},
                capacity={"memory": DeviceCapacity(value=Quantity.parse("81559Mi"))},
                consumes_counters=(
                    CounterConsumption(counter_set=f"gpu-{card}", counters=sets[card].counters),
                ),
            )
            for form in range(FORMS)
        ]
        for card in range(cards)
    ]
    return cut_pool(
        driver="gpu.gpudra.io", pool="n", node_name="n", groups=groups, counter_sets=sets
    )


def read_back(pool: DesiredPool) -> list[ResourceSlice]:
    """The pool as the API would return it: other objects, equal content."""
    return [ResourceSlice.from_dict(one.to_dict()) for one in resource_slices(pool)]


def main() -> None:
    """Prints one line a figure."""
    hardware = load_hardware("dgx-h100-8x80")
    inventory = build_inventory(hardware, node_name="n")
    whole = build_pool(inventory, node_name="n", features=ALL_FEATURES)
    actual = read_back(whole)
    many = partitioned(CARDS)
    listed = read_back(many)
    rows: list[tuple[str, Callable[[], object]]] = [
        (
            "8 whole GPUs: inventory to pool",
            lambda: build_pool(inventory, node_name="n", features=ALL_FEATURES),
        ),
        ("8 whole GPUs: plan, nothing to do", lambda: plan_slices(whole, actual)),
        (f"{CARDS} GPUs x {FORMS} devices: cut into slices", lambda: partitioned(CARDS)),
        (f"{CARDS} GPUs x {FORMS} devices: plan, nothing to do", lambda: plan_slices(many, listed)),
    ]
    print(f"machine: {platform.machine()}, Python {platform.python_version()}, {ROUNDS} rounds")
    for name, work in rows:
        print(f"{measured(work):8.2f} ms  {name}")


if __name__ == "__main__":
    main()
