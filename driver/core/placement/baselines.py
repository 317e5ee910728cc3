# SPDX-License-Identifier: Apache-2.0
"""The plain policies: first fit, best fit, random, spread and dot-product packing.

They are the yardsticks of ``gpudra simulate`` and the fallbacks a NodePolicy
may name. Each is one cost formula on the columns of the cluster state.
"""

import numpy as np

from gpudra.driver.core.placement.rows import FloatArray, Row, RowPlacer
from gpudra.driver.core.placement.state import ClusterState, IntArray
from gpudra.driver.core.placement.types import FULL_CARD, Request


def tightest_card(placer: RowPlacer, request: Request, nodes: IntArray) -> IntArray:
    """Per node the open card with the least free compute (lowest index on ties)."""
    free = placer.state.compute[nodes]
    open_cards = placer.open_cards(request, nodes)
    return np.asarray(np.where(open_cards, free, FULL_CARD + 1).argmin(axis=1))


class FirstFit(RowPlacer):
    """The first node in list order that can serve the request, its first open card."""

    name = "first-fit"

    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        return np.zeros(len(nodes)), self.open_cards(request, nodes).argmax(axis=1)


class BestFit(RowPlacer):
    """Least left over: the weighted sum of free CPU, memory and GPU after placing.

    Each resource is measured against the largest node of the cluster, GPUs count
    double; the card is the one with the least free share that still fits.
    """

    name = "best-fit"

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self._largest = _largest(state)

    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        free = _free(self.state, nodes) / self._largest
        return free @ np.array([0.25, 0.25, 0.5]), tightest_card(self, request, nodes)


class Spread(RowPlacer):
    """The emptiest node by GPU (then CPU) share, its emptiest card."""

    name = "spread"

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self._largest = _largest(state)

    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        state = self.state
        whole = np.maximum(state.width[nodes], 1) * FULL_CARD
        gpu = state.compute[nodes].sum(axis=1) / whole
        cpu = state.cpu[nodes] / self._largest[0]
        open_cards = self.open_cards(request, nodes)
        card = np.where(open_cards, state.compute[nodes], -1).argmax(axis=1)
        return -(gpu + 0.001 * cpu), card


class DotProduct(RowPlacer):
    """Alignment packing: smallest dot product of the request and what the node has free.

    Both vectors are (CPU, memory, GPU) over the largest node. A node whose free
    resources point away from the request in size is left for others
    (Grandl et al., Tetris, SIGCOMM'14, in the packing direction of the FGD paper).
    """

    name = "dot-product"

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self._largest = _largest(state)

    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        asked = np.array([request.cpu_milli, request.memory_mib, request.amount_milli])
        free = _free(self.state, nodes) / self._largest
        return free @ (asked / self._largest), tightest_card(self, request, nodes)


class RandomFit(RowPlacer):
    """Any node that can serve the request, all equally likely; a random open card on it."""

    name = "random"

    def __init__(self, state: ClusterState, seed: int = 0) -> None:
        super().__init__(state)
        self._random = np.random.default_rng(seed)

    def _evaluate(self, request: Request, nodes: IntArray) -> tuple[FloatArray, IntArray]:
        # Drawn when a row is renewed; the draw that counts is the node's, in _pick.
        open_cards = self.open_cards(request, nodes)
        key = np.where(open_cards, self._random.random(open_cards.shape), -1.0)
        return np.zeros(len(nodes)), key.argmax(axis=1)

    def _pick(self, request: Request, row: Row) -> int:
        del request
        fitting = np.flatnonzero(row.cost == 0.0)
        return int(self._random.choice(fitting)) if fitting.size else 0


def _largest(state: ClusterState) -> FloatArray:
    """The largest capacity of any node per resource: of the nodes, not of what is free now."""
    sizes = [(n.cpu_milli, n.memory_mib, n.cards * FULL_CARD) for n in state.nodes]
    return np.asarray(np.maximum(1.0, np.array(sizes, dtype=np.float64).max(axis=0)))


def _free(state: ClusterState, nodes: IntArray) -> FloatArray:
    gpu = state.compute[nodes].sum(axis=1)
    return np.stack([state.cpu[nodes], state.memory[nodes], gpu], axis=1).astype(np.float64)
