# SPDX-License-Identifier: Apache-2.0
"""The cards behind published devices, and how much of each is free.

A pool lists the forms of its cards (whole, share, MIG places); what is left of a node has to be
read by card. Layouts are read once per kind of node: pools of equal content share one object.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.resource_v1 import CounterSet, Device
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.allocator.holdings import Hold
from gpudra.driver.core.allocator.pools import Pool
from gpudra.driver.core.partitions import MEMORY_SLICE
from gpudra.driver.core.placement.live import LINK_ATTRIBUTES
from gpudra.driver.core.placement.types import FULL_CARD, MIG_SLICES, MigProfile, MigTable
from gpudra.driver.core.queueing import DeviceCost, pool_costs

Card = tuple[int, int, int]
"""Free memory and free compute in thousandths, and the MIG slices that are taken (bits)."""

UNTOUCHED: Card = (FULL_CARD, FULL_CARD, 0)
_PERCENT = 10**9 * 100  # nanos of all compute of a card, in percent points


@dataclass(frozen=True, slots=True)
class Form:
    """What one device is of its card.

    Attributes:
        card: index of the card in the pool; -1: of none (a monitor).
        share: may be given out in parts.
        mask: memory slices of a MIG device; 0 for a whole card or a share.
        memory: nanos that are all of the card's memory, for shares.
    """

    card: int
    share: bool = False
    mask: int = 0
    memory: int = 0


@dataclass(eq=False, slots=True)
class Layout:
    """The cards of a pool; equal pools share one, so it is compared by identity.

    Attributes:
        forms: per device.
        cards: number of cards.
        marks: per device, equal for cards in the same NVLink set and behind the same switch.
        sets: per card, number of its NVLink set and of its PCIe switch; -1: none.
        mig: the profiles that the cards offer.
        costs: per device.
        samples: devices that differ in form, model or size, with their index.
        number: for ordering and as a key.
    """

    forms: tuple[Form, ...]
    cards: int
    marks: tuple[int, ...]
    sets: tuple[tuple[int, ...], tuple[int, ...]]
    mig: MigTable
    costs: tuple[DeviceCost, ...]
    samples: tuple[tuple[int, Device], ...]
    number: int = 0
    used: dict[Any, tuple[Card, ...]] = field(default_factory=dict)

    def state(self, held: Mapping[int, Sequence[Hold]]) -> tuple[Card, ...]:
        """What is free of each card while these devices are held."""
        cards = [UNTOUCHED] * self.cards
        for index, holds in held.items():
            form = self.forms[index]
            if form.card >= 0:
                for hold in holds:
                    cards[form.card] = _held(cards[form.card], form, hold)
        return tuple(cards)

    def given(self, cards: list[Card], index: int, amounts: Mapping[str, int] | None) -> None:
        """One device more is given out: exclusively, or so much of its memory and compute."""
        form = self.forms[index]
        if form.card >= 0:
            cards[form.card] = _take(cards[form.card], form, amounts)


def _held(card: Card, form: Form, hold: Hold) -> Card:
    if not hold.shared:
        return _take(card, form, None)
    return _take(card, form, {name: amount for (_, name), amount in hold.amounts.items()})


def _take(card: Card, form: Form, amounts: Mapping[str, int] | None) -> Card:
    memory, compute, mask = card
    if form.mask:
        return memory, compute, mask | form.mask
    if amounts is None or not form.share:
        return 0, 0, mask
    taken = _part(amounts.get("memory", 0), form.memory)
    busy = _part(amounts.get("compute", 0), _PERCENT)
    return max(0, memory - taken), max(0, compute - busy), mask


def _part(amount: int, of: int) -> int:
    """Thousandths, rounded up; an amount of something unknown is taken for everything."""
    if not amount:
        return 0
    return FULL_CARD if of <= 0 else min(FULL_CARD, -(-amount * FULL_CARD // of))


class Layouts:
    """Reads layouts, and finds the one of a pool again. One per cluster state."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._known: dict[Any, Layout] = {}
        self._of_pool: dict[int, tuple[Pool, Layout | None]] = {}

    def of(self, pool: Pool) -> Layout | None:
        """The layout of a pool; None for pools of other drivers and those that cannot be used."""
        found = self._of_pool.get(id(pool))
        if found is not None and found[0] is pool:
            return found[1]
        layout = None
        if pool.ready and pool.key[0] == self._driver:
            layout = self._intern(pool.devices)
        self._of_pool[id(pool)] = pool, layout
        return layout

    def forget(self, pools: Iterable[Pool]) -> None:
        """Pools that are no more."""
        for pool in pools:
            self._of_pool.pop(id(pool), None)

    def keep(self, pools: Sequence[Pool]) -> None:
        """Forgets all pools but these, when many have been forgotten by everybody else."""
        if len(self._of_pool) > 2 * len(pools) + 64:
            ids = {id(pool) for pool in pools}
            self._of_pool = {key: one for key, one in self._of_pool.items() if key in ids}

    def _intern(self, devices: Sequence[Device]) -> Layout:
        by_card = _cards(devices)
        forms = tuple(_form(device, by_card) for device in devices)
        sets = _sets(devices, forms, len(set(by_card.values())))
        key = (
            forms,
            sets,
            tuple([_kind(device) for device in devices]),
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _layout(devices, forms, sets, len(self._known))
        return found


def _layout(
    devices: Sequence[Device],
    forms: tuple[Form, ...],
    sets: tuple[tuple[int, ...], tuple[int, ...]],
    number: int,
) -> Layout:
    costs = pool_costs(devices, _counter_sets(devices))
    samples: dict[Any, tuple[int, Device]] = {}
    for index, device in enumerate(devices):
        samples.setdefault(_kind(device), (index, device))
    return Layout(
        forms=forms,
        cards=len(sets[0]),
        marks=tuple(
            0 if form.card < 0 else (sets[0][form.card] + 1) * 256 + sets[1][form.card] + 1
            for form in forms
        ),
        sets=sets,
        mig=_mig_table(devices, forms),
        costs=tuple(costs[device.name] for device in devices),
        samples=tuple(samples.values()),
        number=number,
    )


def _kind(device: Device) -> tuple[Any, ...]:
    """What tells devices apart for people and prices: type, model, profile, sizes."""
    return (
        _text(device, "type"),
        _text(device, "productName"),
        _text(device, "profile"),
        tuple((name, one.value.nanos) for name, one in device.capacity.items()),
    )


def _counter_sets(devices: Sequence[Device]) -> list[CounterSet]:
    """The counters of each card as far as its devices name them: the widest device has them all."""
    sets: dict[str, dict[str, Any]] = {}
    for device in devices:
        for one in device.consumes_counters:
            known = sets.setdefault(one.counter_set, {})
            for name, counter in one.counters.items():
                if name not in known or counter.value.nanos > known[name].value.nanos:
                    known[name] = counter
    return [CounterSet(name=name, counters=counters) for name, counters in sets.items()]


def _cards(devices: Sequence[Device]) -> dict[str, int]:
    """Number of each card, by uuid, or by name where a device tells none."""
    found: dict[str, int] = {}
    for device in devices:
        if _text(device, "type") != DeviceKind.MONITOR:
            found.setdefault(_card(device), len(found))
    return found


def _card(device: Device) -> str:
    return _text(device, "parentUUID") or _text(device, "uuid") or device.name


def _form(device: Device, cards: Mapping[str, int]) -> Form:
    kind = _text(device, "type")
    if kind == DeviceKind.MONITOR:
        return Form(-1)
    number = cards[_card(device)]
    if device.allow_multiple_allocations:
        memory = device.capacity.get("memory")
        return Form(number, share=True, memory=memory.value.nanos if memory else 0)
    if kind != DeviceKind.MIG:
        return Form(number)
    mask = 0
    for one in device.consumes_counters:
        for name in one.counters:
            place = name.removeprefix(MEMORY_SLICE)
            if place != name and place.isdigit() and int(place) < MIG_SLICES:
                mask |= 1 << int(place)
    return Form(number, mask=mask)


def _sets(
    devices: Sequence[Device], forms: Sequence[Form], cards: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    linked, switch = [""] * cards, [""] * cards
    for device, form in zip(devices, forms, strict=True):
        if form.card >= 0 and not linked[form.card]:
            linked[form.card] = next((t for a in LINK_ATTRIBUTES if (t := _text(device, a))), "")
        if form.card >= 0 and not switch[form.card]:
            switch[form.card] = _text(device, "pcieSwitch")
    return _numbers(linked), _numbers(switch)


def _numbers(names: Sequence[str]) -> tuple[int, ...]:
    known: dict[str, int] = {}
    return tuple(known.setdefault(text, len(known)) if text else -1 for text in names)


def _mig_table(devices: Sequence[Device], forms: Sequence[Form]) -> MigTable:
    profiles: dict[tuple[str, int], set[int]] = {}
    for device, form in zip(devices, forms, strict=True):
        if form.mask:
            start = (form.mask & -form.mask).bit_length() - 1
            width = form.mask.bit_length() - start
            profiles.setdefault((_text(device, "profile"), width), set()).add(start)
    return MigTable(
        tuple(
            MigProfile(name, width, tuple(sorted(starts)))
            for (name, width), starts in sorted(profiles.items())
        ),
        max((max(starts) + width for (_, width), starts in profiles.items()), default=MIG_SLICES),
    )


def _text(device: Device, attribute: str) -> str:
    value = device.attributes.get(attribute)
    return value if isinstance(value, str) else ""
