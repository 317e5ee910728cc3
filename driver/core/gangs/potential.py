# SPDX-License-Identifier: Apache-2.0
"""What a node is still worth: the potential of docs/placement.md, for any kind of claim.

The simulator's policy works in columns over plain requests; managed mode has claims that ask for
anything, so the same tables are read here for one node at a time. The choice of nodes and devices
is what makes this number grow least.
"""

from dataclasses import dataclass
from itertools import combinations
from math import erfc, exp, pi, sqrt

from gpudra.driver.core.gangs.cards import Card, Layout
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.rows import FloatArray
from gpudra.driver.core.placement.tables import mig_waste, waste_tables
from gpudra.driver.core.placement.topology import TopologyTerm
from gpudra.driver.core.placement.types import FULL_CARD, MigTable, Weights

WIDEST = 16
"""Cards of a node up to which groups are counted; more count as so many."""

MIB = 2**20
FULLER = 1e-4
"""Of equals the begun card and the fuller node: what untouched cards of a node, squared, count then."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The potential of a node's cards, and what CPU and memory will be asked for through them.

    Attributes:
        cards: in cards, expected never to fill.
        cpu, cpu_spread: milli-cores, mean and standard deviation.
        memory, memory_spread: MiB.
    """

    cards: float
    cpu: float
    cpu_spread: float
    memory: float
    memory_spread: float


EMPTY = Worth(0.0, 0.0, 0.0, 0.0, 0.0)


class Potential:
    """The tables of one demand mix. Pure; made anew when the mix changes."""

    def __init__(self, mix: DemandMix, weights: Weights) -> None:
        self._mix, self._weights = mix, weights
        tables = waste_tables(mix, WIDEST, weights.horizon)
        self._columns = [tuple(map(float, row)) for row in tables.columns]
        self._groups = [float(one) for one in tables.groups]
        self._cpu_part = weights.shortage / tables.cpu_per_card
        self._memory_part = weights.memory / tables.memory_per_card
        self._topology = TopologyTerm(tables.group_demand)
        self._mig: dict[MigTable, FloatArray] = {}
        # Where nobody reserves compute, free compute is no loss.
        self._both = any(
            r.card_milli and r.card_memory_milli for r in mix.kinds if r.cards and not r.whole
        )

    def worth(self, layout: Layout, cards: tuple[Card, ...]) -> Worth:
        """Of the cards of one pool in this state."""
        total = [0.0] * 5
        free = begun_mig = 0
        for number, (memory, compute, mask) in enumerate(cards):
            if mask:
                begun_mig += 1
                total[0] += self._mig_waste(layout.mig, mask)
                continue
            level = min(memory, compute)
            row = self._columns[level]
            total = [a + b for a, b in zip(total, row, strict=True)]
            if level == FULL_CARD:
                total[0] += self._weights.fresh
                if layout.mig.profiles:
                    # It can still become what wastes less.
                    total[0] += min(0.0, self._mig_waste(layout.mig, 0) - row[0])
                free |= 1 << number
            elif memory != compute and self._both:
                total[0] += self._weights.skew * abs(memory - compute) / FULL_CARD
        total[0] -= FULLER * free.bit_count() ** 2
        total[0] += self._weights.group * self._groups[min(free.bit_count(), WIDEST)]
        if free:
            total[0] += self._weights.topology * self._topology.potential(layout.sets, free)
        return Worth(total[0], total[1], sqrt(total[2]), total[3], sqrt(total[4]))

    def _mig_waste(self, table: MigTable, mask: int) -> float:
        waste = self._mig.get(table)
        if waste is None:
            waste = self._mig[table] = mig_waste(table, self._mix, self._weights.horizon)
        return float(waste[mask]) if mask < len(waste) else 0.0

    def shortage(self, worth: Worth, cpu_milli: int, memory_bytes: int) -> float:
        """Cards that will stay idle for want of the node's CPU and memory, as much as is left."""
        weights = self._weights
        lack = _loss(cpu_milli, weights.need * worth.cpu, weights.spread * worth.cpu_spread)
        scarce = _loss(memory_bytes // MIB, worth.memory, worth.memory_spread)
        return lack * self._cpu_part + scarce * self._memory_part

    def apart(self, layout: Layout, cards: list[int]) -> float:
        """What it costs to give one claim cards that are not linked although others could be."""
        if len(cards) < 2:
            return 0.0
        linked = layout.sets[0]
        pairs = list(combinations(cards, 2))
        broken = sum(1 for a, b in pairs if linked[a] < 0 or linked[a] != linked[b])
        return self._weights.topology * broken / len(pairs)


def _loss(have: float, need: float, deviation: float) -> float:
    """Expected amount asked for beyond ``have`` when demand is normal (newsvendor loss)."""
    spread = max(deviation, 1.0)
    z = (have - need) / spread
    if z > 8.0:
        return 0.0
    if z < -8.0:
        return need - have
    density = exp(-z * z / 2) / sqrt(2 * pi)
    return max(spread * (density - z * 0.5 * erfc(z / sqrt(2))), need - have)
