# SPDX-License-Identifier: Apache-2.0
"""From API objects to placement and back.

Slices become node specs, allocation results become placements, and a chosen placement becomes the
pool and the device names to write. A test repeats a simulated run through it. The planner of managed
mode has claims of any form and reads the same tables by itself (gpudra.driver.core.gangs.potential);
of this module it shares the attributes that make an NVLink set.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device, DeviceRequestAllocationResult, ResourceSlice
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import (
    FULL_CARD,
    MIG_SLICES,
    MigProfile,
    MigTable,
    NodeSpec,
    Placement,
    PlacementError,
    Request,
)

MIB = 1 << 20
SLICE_COUNTER = "memory-slice-"
LINK_ATTRIBUTES = ("nvlinkIsland", "nvlinkPair", "nvlinkDomain")
"""Where the NVLink set of a card is read, narrowest set first: the first that the card has."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """CPU and memory of a node that pods may use: allocatable minus what pods without GPUs hold."""

    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class _Form:
    """What one published device is: a form of a card."""

    card: int
    kind: str
    profile: str = ""
    start: int = -1


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """The placement view of the published pools of one driver; rows in order of node name."""

    driver: str
    nodes: tuple[NodeSpec, ...]
    card_memory_mib: int
    _rows: Mapping[str, int] = field(default_factory=dict)
    _forms: Mapping[tuple[str, str], _Form] = field(default_factory=dict)

    @classmethod
    def of(
        cls, driver: str, slices: Iterable[ResourceSlice], rooms: Mapping[str, NodeRoom]
    ) -> "LiveCluster":
        """Reads the node-local pools of the newest generation; nodes without room known are left out.

        Raises InputError for a partition or share whose card is not published.
        """
        pools = _newest_pools(driver, slices)
        nodes: list[NodeSpec] = []
        rows: dict[str, int] = {}
        forms: dict[tuple[str, str], _Form] = {}
        memories: list[int] = []
        for node_name in sorted(pools.keys() & rooms.keys()):
            devices = pools[node_name]
            spec, found = _node(node_name, devices, rooms[node_name])
            rows[node_name] = len(nodes)
            nodes.append(spec)
            forms.update({(node_name, name): form for name, form in found.items()})
            memories += [m for device in devices if (m := _memory_mib(device))]
        return cls(driver, tuple(nodes), min(memories, default=1), rows, forms)

    def state(self) -> ClusterState:
        """A fresh state with everything free; commit what claims hold through a placer."""
        return ClusterState(self.nodes)

    def share_request(self, *, memory: Quantity, compute_percent: int, room: NodeRoom) -> Request:
        """The request for a share.

        Memory is a part of the smallest card, rounded up: on larger cards the
        scorer then assumes a little more than the share will take, never less.
        """
        milli = -(-memory.value * FULL_CARD // (self.card_memory_mib * MIB))
        if milli > FULL_CARD or not 0 <= compute_percent <= 100:
            raise PlacementError(
                f"a share of {memory} and {compute_percent} % is larger than a card"
            )
        return Request(room.cpu_milli, room.memory_mib, 1, compute_percent * 10, milli)

    def held(self, results: Sequence[DeviceRequestAllocationResult]) -> Placement | None:
        """Where the devices of an allocation are; None when none of them is ours.

        Raises InputError for a device that is not published, or for results on
        two nodes: neither can be accounted for.
        """
        ours = [r for r in results if r.driver == self.driver and not r.admin_access]
        if not ours:
            return None
        nodes, cards, start = set(), [], -1
        for result in ours:
            form = self._forms.get((result.pool, result.device))
            if form is None:
                raise InputError(
                    "is allocated but not published", obj=f"{result.pool}/{result.device}"
                )
            nodes.add(self._rows[result.pool])
            cards.append(form.card)
            start = max(start, form.start)
        if len(nodes) > 1:
            raise InputError("devices of one allocation are on two nodes", obj=ours[0].pool)
        return Placement(nodes.pop(), tuple(cards), start)

    def devices(self, request: Request, place: Placement) -> tuple[str, tuple[str, ...]]:
        """Pool and device names of a placement, in the order of its cards.

        Raises PlacementError where the node does not publish the form the request needs.
        """
        pool = self.nodes[place.node].name
        kind = "mig" if request.mig_profile else "gpu" if request.whole else "share"
        names = {
            (form.card, form.start): name
            for (owner, name), form in self._forms.items()
            if owner == pool and form.kind == kind and form.profile == request.mig_profile
        }
        missing = [c for c in place.cards if (c, place.mig_start) not in names]
        if missing:
            raise PlacementError(f"node {pool}: card {missing[0]} is not published as {kind}")
        return pool, tuple(names[card, place.mig_start] for card in place.cards)


def _newest_pools(driver: str, slices: Iterable[ResourceSlice]) -> dict[str, list[Device]]:
    """Devices by node name, of each pool's highest generation, slices in order of name."""
    newest: dict[str, tuple[int, list[Device]]] = {}
    for item in sorted(slices, key=lambda s: s.metadata.name):
        spec = item.spec
        if spec.driver != driver or not spec.node_name or spec.pool.name != spec.node_name:
            continue
        generation, devices = newest.get(spec.node_name, (-1, []))
        if spec.pool.generation > generation:
            newest[spec.node_name] = (spec.pool.generation, list(spec.devices))
        elif spec.pool.generation == generation:
            devices.extend(spec.devices)
    return {name: devices for name, (_, devices) in newest.items()}


def _node(
    name: str, devices: Sequence[Device], room: NodeRoom
) -> tuple[NodeSpec, dict[str, _Form]]:
    cards = [d for d in devices if _text(d, "type") == "gpu"]
    by_uuid = {_text(d, "uuid") or d.name: i for i, d in enumerate(cards)}
    forms = {d.name: _Form(i, "gpu") for i, d in enumerate(cards)}
    profiles: dict[str, tuple[int, set[int]]] = {}
    for device in devices:
        kind = _text(device, "type")
        if kind not in {"mig", "share"}:
            continue
        card = by_uuid.get(_text(device, "parentUUID"))
        if card is None:
            raise InputError("its card is not published", obj=f"device {name}/{device.name}")
        if kind == "share":
            forms[device.name] = _Form(card, "share")
            continue
        taken = _slices(device)
        profile = _text(device, "profile")
        size, starts = profiles.setdefault(profile, (len(taken), set()))
        starts.add(taken[0])
        forms[device.name] = _Form(card, "mig", profile, taken[0])
        if size != len(taken):
            raise InputError(f"profile {profile} has two widths", obj=f"node {name}")
    table = MigTable(
        tuple(MigProfile(p, size, tuple(sorted(s))) for p, (size, s) in sorted(profiles.items())),
        max((size + max(starts) for size, starts in profiles.values()), default=MIG_SLICES),
    )
    spec = NodeSpec(
        name,
        room.cpu_milli,
        room.memory_mib,
        len(cards),
        _text(cards[0], "productName") if cards else "",
        _numbers([next((t for a in LINK_ATTRIBUTES if (t := _text(d, a))), "") for d in cards]),
        _numbers([_text(d, "pcieSwitch") for d in cards]),
        table,
    )
    return spec, forms


def _text(device: Device, attribute: str) -> str:
    value = device.attributes.get(attribute)
    return value if isinstance(value, str) else ""


def _numbers(names: Sequence[str]) -> tuple[int, ...]:
    """Set number per card; cards without a set get -1, a node without sets an empty tuple."""
    known = {text: i for i, text in enumerate(dict.fromkeys(t for t in names if t))}
    return tuple(known.get(text, -1) for text in names) if known else ()


def _memory_mib(device: Device) -> int:
    capacity = device.capacity.get("memory")
    if capacity is None or _text(device, "type") not in {"gpu", "share"}:
        return 0
    return capacity.value.value // MIB


def _slices(device: Device) -> list[int]:
    """Memory slices a MIG device takes, from its counters."""
    found = sorted(
        int(name.removeprefix(SLICE_COUNTER))
        for consumption in device.consumes_counters
        for name in consumption.counters
        if name.startswith(SLICE_COUNTER)
    )
    if not found:
        raise InputError("takes no memory slice", obj=f"device {device.name}")
    return found
