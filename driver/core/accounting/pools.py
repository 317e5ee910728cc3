# SPDX-License-Identifier: Apache-2.0
"""What of one pool is held, free, out of reach or tainted. A pool is counted anew when it changes.

Memory of a card adds up: held + free + stranded + tainted = what the card has. *Free* is what some
device that is published could still give out; *stranded* is free memory that none could: the rest of
a card after parts were placed badly, or what is left of a share that nobody may have. Monitors do
not count.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpudra.driver.core.accounting.facts import (
    MEMORY_SLICE,
    MIG,
    PROCESSORS,
    SHARE,
    WHOLE,
    Counters,
    DeviceFact,
    Hold,
    Shape,
    SliceFact,
)


class GpuState(StrEnum):
    """What a card is used as now."""

    FREE = "free"
    WHOLE = "whole"
    PARTITIONED = "partitioned"
    SHARED = "shared"
    TAINTED = "tainted"


class MemoryState(StrEnum):
    """What becomes of a card's memory."""

    HELD = "held"
    FREE = "free"
    STRANDED = "stranded"
    TAINTED = "tainted"


@dataclass(slots=True)
class Use:
    """What claims of one class have of one form of one model.

    Attributes:
        devices: how many.
        memory: bytes.
        compute: in cards.
    """

    devices: int = 0
    memory: int = 0
    compute: float = 0.0

    def add(self, other: "Use") -> None:
        """The sum."""
        self.devices += other.devices
        self.memory += other.memory
        self.compute += other.compute


@dataclass(slots=True)
class Account:
    """The figures of one pool, or of many.

    Attributes:
        gpus: cards by (model, state).
        memory: bytes by (model, state).
        free_gpus: most whole cards of a model that one pool could give out.
        largest: bytes of the largest device that could be given out, by (model, form).
        uses: by (class, model, form).
        published: devices of each kind.
        available: of them, how many could be given out one by one.
        untainted: of those published, how many no taint keeps claims off.
        pools: by whether they are complete.
    """

    gpus: Counter[tuple[str, str]] = field(default_factory=Counter)
    memory: Counter[tuple[str, str]] = field(default_factory=Counter)
    free_gpus: dict[str, int] = field(default_factory=dict)
    largest: dict[tuple[str, str], int] = field(default_factory=dict)
    uses: dict[tuple[str, str, str], Use] = field(default_factory=dict)
    published: Counter[Shape] = field(default_factory=Counter)
    available: Counter[Shape] = field(default_factory=Counter)
    untainted: Counter[Shape] = field(default_factory=Counter)
    pools: Counter[bool] = field(default_factory=Counter)

    def add(self, other: "Account") -> None:
        """Another pool's figures."""
        self.gpus.update(other.gpus)
        self.memory.update(other.memory)
        self.published.update(other.published)
        self.available.update(other.available)
        self.untainted.update(other.untainted)
        self.pools.update(other.pools)
        for model, count in other.free_gpus.items():
            self.free_gpus[model] = max(count, self.free_gpus.get(model, 0))
        for key, size in other.largest.items():
            self.largest[key] = max(size, self.largest.get(key, 0))
        for name, use in other.uses.items():
            self.uses.setdefault(name, Use()).add(use)


@dataclass(frozen=True, slots=True)
class CardView:
    """One card as a person wants to see it.

    Attributes:
        name: of the whole card, or what its devices have in common.
        model: product name.
        memory: in bytes.
        held: bytes of it that claims have.
        compute: part of the card that claims have; shares without a reservation count nothing.
        state: what it is used as.
        tainted: whether every form of it is kept from new claims.
        room: bytes of the largest device of each form that could be given out now.
        devices: names of its forms, monitors left out.
    """

    name: str
    model: str
    memory: int
    held: int
    compute: float
    state: GpuState
    tainted: bool
    room: Mapping[str, int]
    devices: tuple[str, ...]


def card_views(slices: Iterable[SliceFact], holds: Iterable[Hold]) -> tuple[CardView, ...]:
    """The cards of one pool in the order in which they are published; see `count_pool`."""
    _, cards = _cards(slices, holds)
    return tuple(card.view(name) for name, card in cards.items())


def count_pool(slices: Iterable[SliceFact], holds: Iterable[Hold]) -> Account:
    """The figures of one pool.

    Args:
        slices: of the pool, of any generation; the newest counts.
        holds: devices that claims have in it. Those of devices that are not published count for
            nothing, since nobody knows what they are.
    """
    current, cards = _cards(slices, holds)
    account = Account()
    if current:
        account.pools[all(one.count == len(current) for one in current)] += 1
    for card in cards.values():
        card.count(account)
    for model in {model for model, _ in account.gpus}:
        account.free_gpus.setdefault(model, 0)
    return account


def _cards(
    slices: Iterable[SliceFact], holds: Iterable[Hold]
) -> tuple[list[SliceFact], dict[str, "_Card"]]:
    """The slices that count, and the cards by key."""
    known = sorted(slices, key=lambda one: one.name)
    newest = max((one.generation for one in known), default=0)
    current = [one for one in known if one.generation == newest]
    totals = {name: counters for one in current for name, counters in one.totals.items()}
    held: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        held[hold.device].append(hold)
    devices: dict[str, list[DeviceFact]] = defaultdict(list)
    for one in current:
        for device in one.devices:
            devices[device.card].append(device)
    return current, {name: _Card(found, totals.get(name), held) for name, found in devices.items()}


class _Card:
    """One card and its forms."""

    def __init__(
        self,
        devices: Sequence[DeviceFact],
        totals: Counters | None,
        held: Mapping[str, Sequence[Hold]],
    ) -> None:
        self.devices = devices
        self.held = {one.name: held[one.name] for one in devices if one.name in held}
        self.whole = next((one for one in devices if one.shape.form == WHOLE), None)
        largest = max(devices, key=lambda one: one.shape.memory)
        self.model = (self.whole or largest).shape.model
        self.memory = (self.whole or largest).shape.memory
        self.totals: Counters = totals or (self.whole.shape.counters if self.whole else {})
        self.left = self._left()
        self.tainted = all(one.tainted for one in devices)

    def _left(self) -> dict[str, int]:
        left = dict(self.totals)
        for one in self.devices:
            if one.name in self.held:
                for name, amount in one.shape.counters.items():
                    left[name] = left.get(name, 0) - amount
        return left

    def count(self, account: Account) -> None:
        """Adds the card to the figures of its pool."""
        available = [one for one in self.devices if not one.tainted and self._room(one) > 0]
        for one in self.devices:
            account.published[one.shape] += 1
            account.untainted[one.shape] += not one.tainted
        for one in available:
            account.available[one.shape] += 1
            key = (self.model, one.shape.form)
            account.largest[key] = max(self._room(one), account.largest.get(key, 0))
        if self.whole is not None and self.whole in available:
            account.free_gpus[self.model] = account.free_gpus.get(self.model, 0) + 1
        account.gpus[self.model, self._state()] += 1
        used = self._count_uses(account)
        self._count_memory(account, used, available)

    def view(self, key: str) -> CardView:
        """The card for people."""
        uses = [
            self._taken(one.shape, hold)
            for one in self.devices
            for hold in self.held.get(one.name, ())
        ]
        room: dict[str, int] = {}
        for one in self.devices:
            if not one.tainted and (size := self._room(one)) > 0:
                room[one.shape.form] = max(size, room.get(one.shape.form, 0))
        return CardView(
            name=self.whole.name if self.whole else key,
            model=self.model,
            memory=self.memory,
            held=min(self.memory, sum(memory for memory, _ in uses)),
            compute=min(1.0, sum(compute for _, compute in uses)),
            state=self._state(),
            tainted=self.tainted,
            room=room,
            devices=tuple(one.name for one in self.devices),
        )

    def _room(self, device: DeviceFact) -> int:
        """Bytes of the device that could be given out now; a card without memory counts as one."""
        holds = self.held.get(device.name, ())
        if device.shape.form == SHARE and holds:
            return device.shape.memory - sum(hold.memory for hold in holds)
        if holds or any(self.left.get(n, 0) < need for n, need in device.shape.counters.items()):
            return 0
        return 0 if self._is_taken(device) else max(device.shape.memory, 1)

    def _is_taken(self, device: DeviceFact) -> bool:
        """Without counters (an older server) there is one form of a card, and it is held or not."""
        return not device.shape.counters and bool(self.held)

    def _state(self) -> GpuState:
        forms = {one.shape.form for one in self.devices if one.name in self.held}
        for form, state in (
            (WHOLE, GpuState.WHOLE),
            (MIG, GpuState.PARTITIONED),
            (SHARE, GpuState.SHARED),
        ):
            if form in forms:
                return state
        if forms:
            return GpuState.WHOLE
        return GpuState.TAINTED if self.tainted else GpuState.FREE

    def _count_uses(self, account: Account) -> int:
        used = 0
        for one in self.devices:
            for hold in self.held.get(one.name, ()):
                memory, compute = self._taken(one.shape, hold)
                used += memory
                key = (hold.device_class, self.model, one.shape.form)
                account.uses.setdefault(key, Use()).add(Use(1, memory, compute))
        return used

    def _taken(self, shape: Shape, hold: Hold) -> tuple[int, float]:
        if shape.form == SHARE:
            return hold.memory, hold.compute / 100
        if shape.form == MIG:
            total = self.totals.get(PROCESSORS, 0)
            return shape.memory, shape.processors / total if total else 0.0
        return shape.memory, 1.0

    def _count_memory(self, account: Account, used: int, available: Sequence[DeviceFact]) -> None:
        held = min(used, self.memory)
        rest = self.memory - held
        within = 0 if self.tainted else min(rest, self._reachable(available, rest))
        account.memory[self.model, MemoryState.HELD] += held
        account.memory[self.model, MemoryState.FREE] += within
        lost = MemoryState.TAINTED if self.tainted else MemoryState.STRANDED
        account.memory[self.model, lost] += rest - within

    def _reachable(self, available: Sequence[DeviceFact], rest: int) -> int:
        """Bytes of the rest of the card that some device could still give out."""
        if not self.held or not available:
            return rest if available else 0
        shared = [self._room(one) for one in available if one.shape.form == SHARE]
        if shared:
            return max(shared)
        slices = [name for name in self.totals if name.startswith(MEMORY_SLICE)]
        free = {
            name
            for one in available
            for name in one.shape.counters
            if name.startswith(MEMORY_SLICE)
        }
        if slices:
            # What a part has is a little less than its slices; the last of them takes the rest.
            left = sum(self.left.get(name, 0) > 0 for name in slices)
            return rest if len(free) >= left else self.memory * len(free) // len(slices)
        return max((one.shape.memory for one in available), default=0)
