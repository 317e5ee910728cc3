# SPDX-License-Identifier: Apache-2.0
"""The order of a node's cards, which the stock scheduler takes first-fit.

It depends on the inventory and the policy only, never on what is allocated, so that unchanged
hardware means unchanged slices. Used by gpudra.driver.core.allocatable.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from gpudra.driver.core.forms import DeviceOrder
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.core.topology import Topology


def ordered_gpus(inventory: Inventory, order: DeviceOrder) -> tuple[Gpu, ...]:
    """The cards in the order of the policy."""
    topology = Topology.of(inventory)
    levels: tuple[Callable[[Gpu], Hashable | None], ...] = (
        lambda gpu: topology.domains.get(gpu.key),
        lambda gpu: topology.islands.get(gpu.key),
        lambda gpu: gpu.numa_node,
        lambda gpu: gpu.pci.root if gpu.pci else None,
        lambda gpu: topology.switches.get(gpu.key),
        lambda gpu: topology.pairs.get(gpu.key),
    )
    gpus = sorted(inventory.gpus, key=_address)
    sizes = [_sizes(level(gpu) for gpu in gpus) for level in levels]
    first: dict[tuple[int, Hashable], tuple[str, str]] = {}
    for gpu in gpus:
        for number, level in enumerate(levels):
            first.setdefault((number, level(gpu)), _address(gpu))

    def weight(gpu: Gpu) -> tuple[object, ...]:
        # Level by level: small sets before large ones, then set by set, so that the cards of one
        # set lie side by side.
        return (
            *(
                (sizes[number].get(level(gpu), 1), first[number, level(gpu)])
                for number, level in enumerate(levels)
            ),
            _address(gpu),
        )

    kept = sorted(gpus, key=weight)
    return tuple(kept) if order is DeviceOrder.KEEP_SETS else _spread(kept, topology)


def _spread(gpus: list[Gpu], topology: Topology) -> tuple[Gpu, ...]:
    """Round robin over PCIe switches (or roots where there is none)."""
    turns: dict[Hashable, int] = {}
    keyed = []
    for place, gpu in enumerate(gpus):
        bucket = topology.switches.get(gpu.key) or (gpu.pci.root if gpu.pci else None) or gpu.key
        turn = turns.get(bucket, 0)
        turns[bucket] = turn + 1
        keyed.append((turn, place, gpu))
    return tuple(gpu for _, _, gpu in sorted(keyed, key=lambda entry: entry[:2]))


def _sizes(values: Iterable[Hashable | None]) -> Counter[Hashable]:
    return Counter(value for value in values if value is not None)


def _address(gpu: Gpu) -> tuple[str, str]:
    return (gpu.pci.bus_id if gpu.pci else "", gpu.key)
