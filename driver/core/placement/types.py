# SPDX-License-Identifier: Apache-2.0
"""Words of placement: what is asked for, where it may go, and who decides.

Used by the policies beside this file, by the trace simulator
(``controller/ctl/simulate``), by ``live.py``, and for its tables by managed mode (``gangs/potential.py``).
Units are integers throughout: milli-cores, MiB, and thousandths of a card
("milli-cards"), so that no rounding can create or lose capacity.
"""

from dataclasses import dataclass, field
from typing import Protocol

from gpudra.api.errors import GpudraError

FULL_CARD = 1000
"""Milli-cards of one whole card; a share above this does not exist."""


class PlacementError(GpudraError):
    """A caller broke a contract of this package: the message names object and number."""


@dataclass(frozen=True, slots=True)
class Request:
    """One pod (or claim) to place on one node.

    ``cards`` cards are needed, ``card_milli`` of the compute and
    ``card_memory_milli`` of the memory of each; with ``cards`` > 1 or
    ``card_milli`` == 1000 the cards are taken whole. ``cards`` == 0 asks for
    CPU and memory only. ``models`` empty means any card model.
    ``mig_profile`` names a profile of the node's :class:`MigTable`; then
    ``cards`` is 1 and the two milli fields are 0.
    ``linked`` asks for cards of one NVLink set where a set of that size exists.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    cards: int = 0
    card_milli: int = 0
    card_memory_milli: int = 0
    models: frozenset[str] = frozenset()
    mig_profile: str = ""
    linked: bool = False

    def __post_init__(self) -> None:
        """Refuses numbers that no node could ever serve consistently."""
        if min(self.cpu_milli, self.memory_mib, self.cards) < 0:
            raise PlacementError(f"request {self}: negative amounts cannot be placed")
        if not 0 <= max(self.card_milli, self.card_memory_milli) <= FULL_CARD:
            raise PlacementError(
                f"request {self}: a share is 0 to {FULL_CARD} thousandths of a card"
            )
        if min(self.card_milli, self.card_memory_milli) < 0:
            raise PlacementError(
                f"request {self}: a share is 0 to {FULL_CARD} thousandths of a card"
            )
        if self.mig_profile and (self.cards != 1 or self.card_milli or self.card_memory_milli):
            raise PlacementError(f"request {self}: a MIG request names one card and no share")
        if not self.cards and (self.card_milli or self.card_memory_milli):
            raise PlacementError(f"request {self}: a share needs a number of cards")

    @property
    def whole(self) -> bool:
        """Whether the cards are taken whole (no other request may join them)."""
        return self.cards > 1 or (
            self.cards == 1 and min(self.card_milli, self.card_memory_milli) == FULL_CARD
        )

    @property
    def amount_milli(self) -> int:
        """GPU amount in milli-cards: what the published figures count."""
        return self.cards * self.card_milli


def share(
    milli: int, *, memory_milli: int | None = None, cpu_milli: int = 0, memory_mib: int = 0
) -> Request:
    """A request for a part of one card; memory follows compute unless said otherwise."""
    memory = milli if memory_milli is None else memory_milli
    return Request(cpu_milli, memory_mib, 1, milli, memory)


def whole_cards(
    cards: int, *, cpu_milli: int = 0, memory_mib: int = 0, linked: bool = False
) -> Request:
    """A request for ``cards`` whole cards on one node."""
    return Request(cpu_milli, memory_mib, cards, FULL_CARD, FULL_CARD, linked=linked)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes: node index, card indices on it, MIG start (or -1)."""

    node: int
    cards: tuple[int, ...] = ()
    mig_start: int = -1


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile of a card model: width in memory slices and where it may start."""

    name: str
    slices: int
    starts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuses profiles that cannot be drawn on a card of eight slices."""
        if self.slices < 1 or not self.starts or min(self.starts) < 0:
            raise PlacementError(f"MIG profile {self.name}: needs slices >= 1 and starts >= 0")
        if max(self.starts) + self.slices > MIG_SLICES:
            raise PlacementError(f"MIG profile {self.name}: reaches past slice {MIG_SLICES - 1}")

    def mask(self, start: int) -> int:
        """Bits of the memory slices taken when the instance begins at ``start``."""
        return ((1 << self.slices) - 1) << start


MIG_SLICES = 8
"""Memory slices of a MIG card (A100, H100, B200); an A30 uses the first four."""


@dataclass(frozen=True, slots=True)
class MigTable:
    """The profiles one card model offers."""

    profiles: tuple[MigProfile, ...] = ()
    slices: int = MIG_SLICES

    def width(self, name: str) -> int:
        """Bits of an instance of that profile that begins at slice 0; 0 where not offered."""
        profile = self.find(name)
        return (1 << profile.slices) - 1 if profile else 0

    def find(self, name: str) -> MigProfile | None:
        """The profile of that name, or None where the model does not offer it."""
        return next((p for p in self.profiles if p.name == name), None)


@dataclass(frozen=True, slots=True)
class Weights:
    """Constants of our policy; docs/placement.md says where each value comes from.

    ``horizon`` is the chance per arrival that nothing more comes; ``fresh`` the
    bonus for opening an untouched card (in cards); ``shortage``, ``need`` and
    ``spread`` weigh the CPU shortage term, ``memory`` the same for memory,
    ``group`` the multi-card term, ``topology`` broken NVLink sets, ``skew`` the
    difference between free memory and free compute of a shared card,
    ``price`` the scarcity of a card model.
    """

    horizon: float = 0.01
    fresh: float = 0.07
    shortage: float = 2.0
    need: float = 0.85
    spread: float = 1.0
    memory: float = 0.5
    group: float = 0.4
    topology: float = 0.3
    skew: float = 0.5
    price: float = 2.0


class Placer(Protocol):
    """A placement policy bound to one cluster state.

    ``choose`` changes nothing; the caller then calls ``commit`` with the answer
    (or with another placement it decided on) and ``release`` when the request
    ends. Implementations keep scores between calls and renew those of changed
    nodes only, so every change of the state must pass through these methods.
    """

    name: str

    def choose(self, request: Request) -> Placement | None:
        """The best feasible placement, or None when the request fits nowhere."""

    def commit(self, request: Request, placement: Placement) -> None:
        """Takes the capacity. Raises PlacementError when it is not free."""

    def release(self, request: Request, placement: Placement) -> None:
        """Gives the capacity back. Raises PlacementError when it was not held."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node as plain columns; the lists have one entry a card.

    ``linked_sets`` and ``switch_sets`` number the NVLink set and the PCIe
    switch of each card (-1: none); empty means "no topology known".
    """

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str
    linked_sets: tuple[int, ...] = ()
    switch_sets: tuple[int, ...] = ()
    mig: MigTable = field(default_factory=MigTable)
