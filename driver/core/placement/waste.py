# SPDX-License-Identifier: Apache-2.0
"""Our policy, ``gpudra``: a request goes where the expected never-filled GPU amount grows least.

Every node has a potential in cards: the waste expected on its cards (table),
the CPU and memory shortage that will keep cards idle (newsvendor loss), the
free cards no group can use any more, and broken NVLink sets. The cost of a
placement is the potential after minus before, plus the price of the card
model. Formulas, sources and figures: docs/placement.md.
"""

import numpy as np

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.prices import ModelPrices
from gpudra.driver.core.placement.rows import FloatArray, Row, RowPlacer
from gpudra.driver.core.placement.state import ClusterState, IntArray
from gpudra.driver.core.placement.tables import (
    WasteTables,
    expected_shortage,
    mig_waste,
    waste_tables,
)
from gpudra.driver.core.placement.topology import Sets, TopologyTerm
from gpudra.driver.core.placement.types import (
    FULL_CARD,
    MIG_SLICES,
    MigTable,
    Placement,
    Request,
    Weights,
)

_WASTE, _CPU, _CPU_VARIANCE, _MEMORY, _MEMORY_VARIANCE = range(5)


class WastePlacer(RowPlacer):
    """The waste-potential policy for one cluster, one demand mix and one set of weights."""

    name = "gpudra"

    def __init__(self, state: ClusterState, mix: DemandMix, weights: Weights) -> None:
        super().__init__(state)
        self.weights = weights
        self._mix = mix
        widest = state.compute.shape[1]
        self._tables: WasteTables = waste_tables(mix, widest, weights.horizon)
        self._columns = self._tables.columns.copy()
        self._columns[FULL_CARD, _WASTE] += weights.fresh
        self._prices = ModelPrices(state.models, mix)
        self._topology = TopologyTerm(self._tables.group_demand)
        self._mig_tables: dict[MigTable, FloatArray] = {}
        count = len(state)
        self._card: FloatArray = np.zeros((count, widest, 5))
        self._sum: FloatArray = np.zeros((count, 5))
        self._free: IntArray = np.zeros(count, dtype=np.int64)
        self._base: FloatArray = np.zeros(count)
        self._model_free: IntArray = np.zeros(len(state.models), dtype=np.int64)
        self._node_free: IntArray = np.zeros(count, dtype=np.int64)
        self._skewed = _has_skew(state, mix)
        self._renew(np.arange(count))

    def potential(self, node: int) -> float:
        """The node's potential now, in cards (without topology and MIG parts)."""
        return float(self._sum[node, _WASTE] + self._base[node])

    def commit(self, request: Request, placement: Placement) -> None:
        """See the protocol; notes when shares stop being the same in compute and memory."""
        self._skewed |= request.card_milli != request.card_memory_milli
        super().commit(request, placement)

    def _touch(self, node: int) -> None:
        super()._touch(node)
        self._renew(np.array([node]))

    def _level(self, nodes: IntArray) -> IntArray:
        """[D, G]: free milli-cards that shares can use: the lesser of compute and memory, 0 under MIG."""
        level = np.minimum(self.state.compute[nodes], self.state.card_memory[nodes])
        return np.where(self.state.mig[nodes] == 0, level, 0) if self.state.has_mig else level

    def _renew(self, nodes: IntArray) -> None:
        """Brings the kept columns of the nodes up to date."""
        state = self.state
        level = self._level(nodes)
        cards = self._columns[level]
        self._card[nodes] = cards
        self._sum[nodes] = total = cards.sum(axis=1)
        self._free[nodes] = free = (level == FULL_CARD).sum(axis=1)
        self._base[nodes] = self._shortage(state.cpu[nodes], state.memory[nodes], total)
        self._base[nodes] += self.weights.group * self._tables.groups[free]
        if self._prices.needed:
            amount = level.sum(axis=1)
            change = amount - self._node_free[nodes]
            np.add.at(self._model_free, state.model[nodes], change)
            self._node_free[nodes] = amount

    def _shortage(self, cpu: IntArray, memory: IntArray, total: FloatArray) -> FloatArray:
        """CPU and memory parts of the potential; ``total`` [..., 5] are sums over the cards."""
        weights, tables = self.weights, self._tables
        spread = weights.spread * np.sqrt(np.maximum(total[..., _CPU_VARIANCE], 0.0))
        lack = expected_shortage(cpu, weights.need * total[..., _CPU], spread)
        memory_spread = np.sqrt(np.maximum(total[..., _MEMORY_VARIANCE], 0.0))
        memory_lack = expected_shortage(memory, total[..., _MEMORY], memory_spread)
        return np.asarray(
            lack * (weights.shortage / tables.cpu_per_card)
            + memory_lack * (weights.memory / tables.memory_per_card)
        )

    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        if request.mig_profile:
            return self._evaluate_mig(request, nodes)
        cpu = self.state.cpu[nodes] - request.cpu_milli
        memory = self.state.memory[nodes] - request.memory_mib
        if not request.cards:
            after = self._shortage(cpu, memory, self._sum[nodes])
            after += self.weights.group * self._tables.groups[self._free[nodes]]
            return after - self._base[nodes], np.zeros(len(nodes), dtype=np.int64)
        if request.whole:
            return self._evaluate_whole(request, nodes, cpu, memory)
        return self._evaluate_share(request, nodes, cpu, memory)

    def _evaluate_whole(
        self, request: Request, nodes: IntArray, cpu: IntArray, memory: IntArray
    ) -> tuple[FloatArray, IntArray]:
        change = request.cards * (self._columns[0] - self._columns[FULL_CARD])
        total = self._sum[nodes] + change
        cost = change[_WASTE] + self._shortage(cpu, memory, total) - self._base[nodes]
        cost += self.weights.group * self._tables.groups[self._free[nodes] - request.cards]
        mask = np.zeros(len(nodes), dtype=np.int64)
        if self.state.has_topology:
            for row, node in enumerate(nodes):
                extra, mask[row] = self._topology.best_group(
                    self._sets(int(node)), self._free_mask(int(node)), request.cards, request.linked
                )
                cost[row] += self.weights.topology * extra
        return cost, mask

    def _evaluate_share(
        self, request: Request, nodes: IntArray, cpu: IntArray, memory: IntArray
    ) -> tuple[FloatArray, IntArray]:
        before = self._level(nodes)
        compute = self.state.compute[nodes] - request.card_milli
        card_memory = self.state.card_memory[nodes] - request.card_memory_milli
        after = np.minimum(compute, card_memory)
        change = self._columns[np.maximum(after, 0)] - self._card[nodes]
        total = self._sum[nodes][:, None, :] + change
        cost = change[..., _WASTE] + self._shortage(cpu[:, None], memory[:, None], total)
        untouched = before == FULL_CARD
        free = self._free[nodes][:, None] - (untouched & (after < FULL_CARD))
        cost += self.weights.group * self._tables.groups[np.maximum(free, 0)]
        cost -= self._base[nodes][:, None]
        if self._skewed or request.card_milli != request.card_memory_milli:
            old = np.abs(self.state.compute[nodes] - self.state.card_memory[nodes])
            cost += self.weights.skew * (np.abs(compute - card_memory) - old) / FULL_CARD
        if self.state.has_topology:
            cost += self.weights.topology * self._single_costs(nodes, untouched)
        cost = np.where(self.open_cards(request, nodes), cost, np.inf)
        card = cost.argmin(axis=1)
        return cost[np.arange(len(nodes)), card], card

    def _evaluate_mig(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        """Cost and code (card * slices + start) of the best position for a MIG instance."""
        cost = np.full(len(nodes), np.inf)
        code = np.zeros(len(nodes), dtype=np.int64)
        for row, node in enumerate(map(int, nodes)):
            total = self._sum[node]
            for card in self.state.open_cards(request, node):
                taken = int(self.state.mig[node, card])
                extra = self._best_start(request, node, card)
                left = total if taken else total + self._columns[0] - self._columns[FULL_CARD]
                cpu = self.state.cpu[node] - request.cpu_milli
                memory = self.state.memory[node] - request.memory_mib
                change = extra[0] + float(self._shortage(cpu, memory, left)) - self._base[node]
                free = int(self._free[node]) - (not taken)
                change += self.weights.group * self._tables.groups[free]
                if not taken and self.state.has_topology:
                    mask, sets = self._free_mask(node), self._sets(node)
                    change += self.weights.topology * self._topology.single(sets, mask, card)
                if change < cost[row]:
                    cost[row], code[row] = change, card * MIG_SLICES + extra[1]
        return cost, code

    def _best_start(self, request: Request, node: int, card: int) -> tuple[float, int]:
        """Growth of the expected unused part, and the start that keeps it smallest."""
        table = self.state.nodes[node].mig
        waste = self._mig_tables.get(table)
        if waste is None:
            waste = mig_waste(table, self._mix, self.weights.horizon)
            self._mig_tables[table] = waste
        taken = int(self.state.mig[node, card])
        width = table.width(request.mig_profile)
        after = [
            (float(waste[taken | width << start]), start)
            for start in self.state.mig_starts(request, node, card)
        ]
        least, start = min(after)
        return least - float(waste[taken]), start

    def _sets(self, node: int) -> Sets:
        width = int(self.state.width[node])
        linked, switch = self.state.linked[node, :width], self.state.switch[node, :width]
        return tuple(map(int, linked)), tuple(map(int, switch))

    def _free_mask(self, node: int) -> int:
        level = self._level(np.array([node]))[0]
        return sum(1 << card for card, free in enumerate(level) if free == FULL_CARD)

    def _single_costs(self, nodes: IntArray, untouched: IntArray) -> FloatArray:
        cost = np.zeros(untouched.shape)
        for row, node in enumerate(map(int, nodes)):
            sets, mask = self._sets(node), self._free_mask(node)
            for card in np.flatnonzero(untouched[row]):
                cost[row, card] = self._topology.single(sets, mask, int(card))
        return cost

    def _pick(self, request: Request, row: Row) -> int:
        if not self._prices.needed or not request.cards:
            return int(row.cost.argmin())
        free = tuple(int(cards) for cards in self._model_free // FULL_CARD)
        price = self._prices.at(free)
        amount = max(request.amount_milli, 1) / FULL_CARD * self.weights.price
        return int((row.cost + (amount * price)[self.state.model]).argmin())

    def _placement(self, request: Request, node: int, first: int) -> Placement:
        if request.mig_profile:
            return Placement(node, (first // MIG_SLICES,), first % MIG_SLICES)
        if request.whole and self.state.has_topology:
            return Placement(node, tuple(c for c in range(first.bit_length()) if first >> c & 1))
        return super()._placement(request, node, first)


def _has_skew(state: ClusterState, mix: DemandMix) -> bool:
    """Whether memory and compute of any card differ, in the state or in what may come."""
    differs = any(r.card_milli != r.card_memory_milli for r in mix.kinds)
    return differs or bool((state.compute != state.card_memory).any())
