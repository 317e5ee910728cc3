# SPDX-License-Identifier: Apache-2.0
"""What the cluster side's comparison of 40,000 GPUs costs: ``python -m tests.bench.bench_fabric``.

Prints the time of one check and the memory of what is kept for each slice, beside that of the
whole slice, on 5,000 nodes with eight cards and a slice a card.
"""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from gpudra.api.resource_v1 import ResourceSlice
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.fabric import FabricCard, contradictions, fabric_cards

DRIVER = "gpu.gpudra.io"
NODES = 5_000
HARDWARE = "dgx-h100-8x80"
T = TypeVar("T")


def main() -> None:
    """Measures and prints."""
    documents = [json.dumps(one.to_dict()) for one in _slices("node")]
    raw = [text.replace('"node"', f'"node-{n}"') for n in range(NODES) for text in documents]
    kept, kept_bytes = _measured(lambda text: fabric_cards(_decoded(text), DRIVER), raw)
    whole, whole_bytes = _measured(_decoded, raw)
    started = time.perf_counter()
    found = contradictions(_distinct(card for cards in kept for card in cards))
    seconds = time.perf_counter() - started
    print(f"cards {len(raw)}, contradictions {len(found)}")
    print(f"one check: {seconds * 1000:.0f} ms")
    print(
        f"kept per card: {kept_bytes / len(raw):.0f} B; whole slice: {whole_bytes / len(raw):.0f} B"
    )
    print(f"saved: {(whole_bytes - kept_bytes) / 2**20:.0f} MiB of {whole_bytes / 2**20:.0f}")
    assert len(whole) == len(raw)


def _slices(node: str) -> tuple[ResourceSlice, ...]:
    return tuple(slices_of_hardware(HARDWARE, driver=DRIVER, node_name=node))


def _decoded(text: str) -> ResourceSlice:
    return ResourceSlice.from_dict(json.loads(text))


def _measured(read: Callable[[str], T], raw: Iterable[str]) -> tuple[list[T], int]:
    tracemalloc.start()
    found = [read(text) for text in raw]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found, size


def _distinct(cards: Iterable[FabricCard]) -> list[FabricCard]:
    """The nodes were copied; a card of a real cluster has its own uuid and domain."""
    return [
        replace(card, uuid=f"{card.uuid}-{number}", domain=f"{card.domain}-{card.node}")
        for number, card in enumerate(cards)
    ]


if __name__ == "__main__":
    main()
