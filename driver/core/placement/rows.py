# SPDX-License-Identifier: Apache-2.0
"""Kept scores: one row of costs per kind of request, renewed only where nodes changed.

Every policy derives from :class:`RowPlacer` and says what a request costs on
some nodes; this base keeps the rows, finds the cheapest node and moves the
state. A row is brought up to date when its kind is asked for again, so a
decision costs at most one evaluation of the nodes that changed since, and
never more than one of all nodes, however many kinds there are.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from gpudra.driver.core.placement.state import ClusterState, IntArray
from gpudra.driver.core.placement.types import FULL_CARD, Placement, Request

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

ROW_LIMIT = 1024
"""Rows kept at most; at 10,000 nodes this is about 170 MB, and the trace needs a few hundred."""

TAKEN = float("inf")


class Row:
    """Costs and choices of one kind of request on every node, as of one version of the state."""

    __slots__ = ("card", "cost", "version")

    def __init__(self, nodes: int) -> None:
        self.cost: FloatArray = np.full(nodes, TAKEN, dtype=np.float32)
        self.card: IntArray = np.zeros(nodes, dtype=np.int64)
        self.version = -1


class RowPlacer(ABC):
    """Base of all policies: cheapest node first, ties to the lowest node index."""

    name = ""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._rows: OrderedDict[Request, Row] = OrderedDict()
        self._changed_at: IntArray = np.zeros(len(state), dtype=np.int64)
        self._version = 0
        self._allowed: dict[frozenset[str], BoolArray] = {}

    @abstractmethod
    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        """Cost and first card (or MIG code) on each of ``nodes``, all of which can serve it."""

    def _pick(self, request: Request, row: Row) -> int:
        """Index of the node to take; the row holds infinity where the request does not fit."""
        del request
        return int(row.cost.argmin())

    def choose(self, request: Request) -> Placement | None:
        """See :class:`~gpudra.driver.core.placement.types.Placer`."""
        row = self._row(request)
        node = self._pick(request, row)
        if row.cost[node] == TAKEN:
            return None
        return self._placement(request, node, int(row.card[node]))

    def commit(self, request: Request, placement: Placement) -> None:
        """See :class:`~gpudra.driver.core.placement.types.Placer`."""
        self.state.take(request, placement)
        self._touch(placement.node)

    def release(self, request: Request, placement: Placement) -> None:
        """See :class:`~gpudra.driver.core.placement.types.Placer`."""
        self.state.give(request, placement)
        self._touch(placement.node)

    def cost(self, request: Request, node: int) -> float:
        """Current cost of the request on one node (infinity: does not fit); for explanations."""
        return float(self._row(request).cost[node])

    def _touch(self, node: int) -> None:
        """The node's columns have just changed; policies with columns of their own renew them too."""
        self._version += 1
        self._changed_at[node] = self._version

    def _row(self, request: Request) -> Row:
        row = self._rows.get(request)
        if row is None:
            row = self._rows[request] = Row(len(self.state))
            if len(self._rows) > ROW_LIMIT:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(request)
        if row.version < self._version:
            stale = np.flatnonzero(self._changed_at > row.version)
            fits = self._feasible(request, stale)
            row.cost[stale] = TAKEN
            nodes = stale[fits]
            if nodes.size:
                row.cost[nodes], row.card[nodes] = self._evaluate(request, nodes)
            row.version = self._version
        return row

    def _feasible(self, request: Request, nodes: IntArray) -> BoolArray:
        state = self.state
        ok = (state.cpu[nodes] >= request.cpu_milli) & (state.memory[nodes] >= request.memory_mib)
        if not request.cards:
            return np.asarray(ok)
        if request.models:
            ok &= self._models_allowed(request.models)[nodes]
        ok &= self.open_cards(request, nodes).sum(axis=1) >= request.cards
        return np.asarray(ok)

    def _models_allowed(self, models: frozenset[str]) -> BoolArray:
        allowed = self._allowed.get(models)
        if allowed is None:
            wanted = np.array([m in models for m in self.state.models], dtype=np.bool_)
            allowed = self._allowed[models] = wanted[self.state.model]
        return allowed

    def open_cards(self, request: Request, nodes: IntArray) -> BoolArray:
        """[D, G]: cards that could serve one card of the request (same rule as the state's)."""
        state = self.state
        if request.mig_profile:
            return self._open_mig(request, nodes)
        present = np.arange(state.compute.shape[1])[None, :] < state.width[nodes][:, None]
        floor = FULL_CARD if request.whole else request.card_milli
        memory_floor = FULL_CARD if request.whole else request.card_memory_milli
        ok = present & (state.compute[nodes] >= floor)
        ok &= state.card_memory[nodes] >= memory_floor
        if state.has_mig:
            ok &= state.mig[nodes] == 0
        return np.asarray(ok)

    def _open_mig(self, request: Request, nodes: IntArray) -> BoolArray:
        state = self.state
        ok = np.zeros((len(nodes), state.compute.shape[1]), dtype=np.bool_)
        for row, node in enumerate(nodes):
            ok[row, state.open_cards(request, int(node))] = True
        return ok

    def _placement(self, request: Request, node: int, first: int) -> Placement:
        """Turns the kept choice into cards; whole cards are the first free ones."""
        if not request.cards:
            return Placement(node)
        if request.mig_profile:
            return Placement(node, (first,), self.state.mig_starts(request, node, first)[0])
        if not request.whole:
            return Placement(node, (first,))
        cards = self._whole_cards(request, node)
        return Placement(node, cards)

    def _whole_cards(self, request: Request, node: int) -> tuple[int, ...]:
        return tuple(self.state.open_cards(request, node)[: request.cards])
