# SPDX-License-Identifier: Apache-2.0
"""Cluster state as numpy columns: what is free on each node and card.

One place decides feasibility (``fits``) and one pair of methods changes the
state (``take``, ``give``); policies read the columns and never write them.
Rows are nodes in the given order; card columns are padded to the widest node
with cards that have nothing free.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpudra.driver.core.placement.types import (
    FULL_CARD,
    NodeSpec,
    Placement,
    PlacementError,
    Request,
)

IntArray = npt.NDArray[np.int64]


class ClusterState:
    """Free CPU, memory and cards of every node.

    Columns (all int64): ``cpu`` [N] milli-cores, ``memory`` [N] MiB, ``model``
    [N] index into ``models``, ``width`` [N] cards of the node, ``compute`` and
    ``card_memory`` [N, G] free milli-cards, ``mig`` [N, G] bit mask of taken
    MIG slices. ``linked`` and ``switch`` [N, G] are set numbers or -1.
    """

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        if not nodes:
            raise PlacementError("a cluster needs at least one node")
        self.nodes: tuple[NodeSpec, ...] = tuple(nodes)
        self.models: tuple[str, ...] = tuple(sorted({n.model for n in nodes}))
        index = {model: i for i, model in enumerate(self.models)}
        count, widest = len(nodes), max(1, *(n.cards for n in nodes), 1)
        self.cpu: IntArray = np.array([n.cpu_milli for n in nodes], dtype=np.int64)
        self.memory: IntArray = np.array([n.memory_mib for n in nodes], dtype=np.int64)
        self.model: IntArray = np.array([index[n.model] for n in nodes], dtype=np.int64)
        self.width: IntArray = np.array([n.cards for n in nodes], dtype=np.int64)
        present = np.arange(widest)[None, :] < self.width[:, None]
        self.compute: IntArray = np.where(present, FULL_CARD, 0).astype(np.int64)
        self.card_memory: IntArray = self.compute.copy()
        self.mig: IntArray = np.zeros((count, widest), dtype=np.int64)
        self.linked: IntArray = np.full((count, widest), -1, dtype=np.int64)
        self.switch: IntArray = np.full((count, widest), -1, dtype=np.int64)
        for row, node in enumerate(nodes):
            self._check_node(node)
            self.linked[row, : len(node.linked_sets)] = node.linked_sets
            self.switch[row, : len(node.switch_sets)] = node.switch_sets
        self.has_topology = bool((self.linked >= 0).any() or (self.switch >= 0).any())
        self.has_mig = any(n.mig.profiles for n in nodes)
        self.capacity_milli = int(self.width.sum()) * FULL_CARD

    @staticmethod
    def _check_node(node: NodeSpec) -> None:
        if min(node.cpu_milli, node.memory_mib, node.cards) < 0:
            raise PlacementError(f"node {node.name}: negative capacity")
        for label, sets in (("linked_sets", node.linked_sets), ("switch_sets", node.switch_sets)):
            if sets and len(sets) != node.cards:
                raise PlacementError(
                    f"node {node.name}: {label} has {len(sets)} entries for {node.cards} cards"
                )

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def free_milli(self) -> int:
        """Compute not given away, in milli-cards (a MIG card counts by its free slices)."""
        total = int(self.compute.sum())
        if self.has_mig:
            total -= sum(
                FULL_CARD * int(mask).bit_count() // self.nodes[n].mig.slices
                for n, g in zip(*np.nonzero(self.mig), strict=True)
                for mask in (self.mig[n, g],)
            )
        return total

    def allows(self, request: Request, node: int) -> bool:
        """Whether the node's card model is one the request names (or it names none)."""
        return not request.cards or not request.models or self.nodes[node].model in request.models

    def open_cards(self, request: Request, node: int) -> list[int]:
        """Cards of the node that could serve one card of the request right now."""
        cards = range(int(self.width[node]))
        if request.mig_profile:
            return [c for c in cards if self.mig_starts(request, node, c)]
        return [
            c
            for c in cards
            if self.compute[node, c] >= request.card_milli
            and self.card_memory[node, c] >= request.card_memory_milli
            and not self.mig[node, c]
            and (not request.whole or self._untouched_by_shares(node, c))
        ]

    def mig_starts(self, request: Request, node: int, card: int) -> list[int]:
        """Slices at which an instance of the request's profile could begin on the card now."""
        profile = self.nodes[node].mig.find(request.mig_profile)
        if profile is None or not self._untouched_by_shares(node, card):
            return []
        taken = int(self.mig[node, card])
        return [start for start in profile.starts if not taken & profile.mask(start)]

    def _untouched_by_shares(self, node: int, card: int) -> bool:
        return bool(
            self.compute[node, card] == FULL_CARD and self.card_memory[node, card] == FULL_CARD
        )

    def fits(self, request: Request, node: int) -> bool:
        """Whether the node can serve the request now, on any of its cards."""
        if self.cpu[node] < request.cpu_milli or self.memory[node] < request.memory_mib:
            return False
        if not request.cards:
            return True
        if not self.allows(request, node):
            return False
        return len(self.open_cards(request, node)) >= request.cards

    def _check_target(self, request: Request, place: Placement) -> None:
        if not 0 <= place.node < len(self):
            raise PlacementError(f"node index {place.node} is outside 0..{len(self) - 1}")
        cards = place.cards
        if len(cards) != request.cards or len(set(cards)) != len(cards):
            raise PlacementError(f"{request}: needs {request.cards} different cards, got {cards}")
        if any(not 0 <= c < self.width[place.node] for c in cards):
            raise PlacementError(f"node {self.nodes[place.node].name}: no such card in {cards}")

    def take(self, request: Request, place: Placement) -> None:
        """Takes what the request needs; raises PlacementError and changes nothing if it is not free."""
        self._check_target(request, place)
        node, name = place.node, self.nodes[place.node].name
        if self.cpu[node] < request.cpu_milli or self.memory[node] < request.memory_mib:
            raise PlacementError(f"node {name}: not enough CPU or memory for {request}")
        if not self.allows(request, node):
            raise PlacementError(f"node {name}: card model not allowed by {request}")
        open_cards = self.open_cards(request, node)
        if any(c not in open_cards for c in place.cards):
            raise PlacementError(f"node {name}: card of {place.cards} is not free for {request}")
        if request.mig_profile:
            mask = self._mig_mask(request, place)
            if int(self.mig[node, place.cards[0]]) & mask:
                raise PlacementError(f"node {name}: MIG slices at {place.mig_start} are taken")
            self.mig[node, place.cards[0]] |= mask
        self._add(request, place, -1)

    def give(self, request: Request, place: Placement) -> None:
        """Returns what ``take`` took; raises PlacementError when it was not held."""
        self._check_target(request, place)
        node, name = place.node, self.nodes[place.node].name
        over = (
            self.cpu[node] + request.cpu_milli > self.nodes[node].cpu_milli
            or self.memory[node] + request.memory_mib > self.nodes[node].memory_mib
            or any(
                self.compute[node, c] + request.card_milli > FULL_CARD
                or self.card_memory[node, c] + request.card_memory_milli > FULL_CARD
                for c in place.cards
            )
        )
        if over:
            raise PlacementError(f"node {name}: {request} was not held there")
        if request.mig_profile:
            mask = self._mig_mask(request, place)
            if int(self.mig[node, place.cards[0]]) & mask != mask:
                raise PlacementError(f"node {name}: MIG slices at {place.mig_start} were not held")
            self.mig[node, place.cards[0]] &= ~mask
        self._add(request, place, 1)

    def _mig_mask(self, request: Request, place: Placement) -> int:
        profile = self.nodes[place.node].mig.find(request.mig_profile)
        if profile is None or place.mig_start not in profile.starts:
            raise PlacementError(
                f"node {self.nodes[place.node].name}: {request.mig_profile} cannot start "
                f"at slice {place.mig_start}"
            )
        return profile.mask(place.mig_start)

    def _add(self, request: Request, place: Placement, sign: int) -> None:
        node = place.node
        self.cpu[node] += sign * request.cpu_milli
        self.memory[node] += sign * request.memory_mib
        for card in place.cards:
            self.compute[node, card] += sign * request.card_milli
            self.card_memory[node, card] += sign * request.card_memory_milli
