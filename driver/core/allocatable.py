# SPDX-License-Identifier: Apache-2.0
"""From cards to devices that claims can get, with their names and their order.

The order is policy for the stock scheduler, which takes the first device that fits. It depends on
the inventory and the policy only, never on what is allocated, so that unchanged hardware means
unchanged slices.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpudra.api.errors import InputError
from gpudra.api.names import check_dns_label
from gpudra.driver.core.inventory import Gpu, Inventory, MigInstance, MigProfile, Placement
from gpudra.driver.core.topology import Topology

_UUID_PREFIX = re.compile(r"[A-Za-z]+-")
_NOT_HEX = re.compile(r"[^0-9a-f]")
_NOT_NAME = re.compile(r"[^0-9a-z]+")


class DeviceKind(StrEnum):
    """The forms in which a card is offered; the value is that of the attribute ``type``."""

    WHOLE = "gpu"
    MIG = "mig"
    SHARE = "share"
    MONITOR = "monitor"


class DeviceOrder(StrEnum):
    """Which cards the first-fit scheduler should take first.

    KEEP_SETS takes the worst-connected cards first and finishes one set before it breaks the
    next, so that good sets stay whole. SPREAD goes round the PCIe switches, for single-GPU work
    that wants bandwidth to the host.
    """

    KEEP_SETS = "keep-sets"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPolicy:
    """What of a node is published, and how.

    Attributes:
        order: see DeviceOrder.
        excluded: keys of cards that are not published at all.
    """

    order: DeviceOrder = DeviceOrder.KEEP_SETS
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatableDevice:
    """One device as claims name it, tied to its card.

    Attributes:
        name: DNS label, unique on the node, the same for ever for the same card.
        kind: whole card, MIG placement, share or monitor.
        gpu: the card; for a MIG device its parent.
        profile: of a MIG device.
        placement: of a MIG device.
        instance: of a MIG device that exists already (static).
    """

    name: str
    kind: DeviceKind
    gpu: Gpu
    profile: MigProfile | None = None
    placement: Placement | None = None
    instance: MigInstance | None = None


def gpu_name(gpu: Gpu) -> str:
    """``gpu-<8 hex of the uuid>-<4 hex of its sha256>``; a card without uuid: its declared name.

    Never made of an index or a minor number: those change when a card falls off the bus. The hash
    keeps two cards apart whose uuids begin alike, without renaming the one that was there first.
    A card that tells no uuid and was not declared goes by its PCI address.

    Raises:
        InputError: nothing names the card, or the declared name is no DNS label.
    """
    if gpu.uuid is None:
        if gpu.declared_name is not None:
            return check_dns_label(gpu.declared_name, "name")
        if gpu.pci is None:
            raise InputError(
                "tells neither a uuid nor a PCI address", hint="declare it with a name"
            )
        return check_dns_label(f"gpu-pci-{_NOT_NAME.sub('-', gpu.pci.bus_id.lower())}", "pci")
    digest = hashlib.sha256(gpu.uuid.encode()).hexdigest()
    digits = _NOT_HEX.sub("", _UUID_PREFIX.sub("", gpu.uuid, count=1).lower())
    # A uuid of another vendor may hold fewer than eight hex digits.
    return f"gpu-{(digits + digest[4:])[:8]}-{digest[:4]}"


def allocatable_devices(
    inventory: Inventory, policy: PublishPolicy | None = None
) -> tuple[AllocatableDevice, ...]:
    """Everything that the node offers, in published order, each name once."""
    return _allocatable(inventory, policy or PublishPolicy())[0]


def naming_problems(
    inventory: Inventory, policy: PublishPolicy | None = None
) -> tuple[InputError, ...]:
    """The cards that are left out since nothing names them, or another has the name already."""
    return _allocatable(inventory, policy or PublishPolicy())[1]


def _allocatable(
    inventory: Inventory, policy: PublishPolicy
) -> tuple[tuple[AllocatableDevice, ...], tuple[InputError, ...]]:
    devices: dict[str, AllocatableDevice] = {}
    problems: list[InputError] = []
    for gpu in ordered_gpus(inventory, policy.order):
        if gpu.key in policy.excluded:
            continue
        obj = f"GPU {gpu.key or gpu.index}"
        try:
            name = gpu_name(gpu)
        except InputError as error:
            problems.append(error.within(obj=obj))
            continue
        if name in devices:
            problems.append(
                InputError(
                    f"another card is device {name} already",
                    obj=obj,
                    hint="declare distinct names",
                )
            )
            continue
        devices[name] = AllocatableDevice(name=name, kind=DeviceKind.WHOLE, gpu=gpu)
    return tuple(devices.values()), tuple(problems)


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
