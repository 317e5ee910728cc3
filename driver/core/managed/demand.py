# SPDX-License-Identifier: Apache-2.0
"""The demand mix of a live cluster: what its managed pods ask for, running and waiting.

A function of the present state alone, so a restart changes nothing. Sizes are rounded up and
frequencies are read in powers of four of the most frequent kind: the tables of the potential are
made anew only when the mix has really changed.
"""

from collections import Counter, OrderedDict
from dataclasses import replace

from gpudra.driver.core.gangs.ground import Ground
from gpudra.driver.core.gangs.potential import MIB, Potential
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.types import FULL_CARD, NodeSpec, Request, Weights

_KINDS = 32
_KEPT = 64
_RAREST = 4  # powers of four below the most frequent kind; what is rarer decides nothing
_CPU, _MEMORY, _SHARE = 4000, 16 * 1024, 50  # milli-cores, MiB, thousandths of a card


class Demand:
    """Counts requests, and makes the potential of what was counted."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._counts: Counter[Request] = Counter()
        self._of: dict[str, Request] = {}
        self._made: OrderedDict[frozenset[tuple[Request, int]], Potential] = OrderedDict()

    def set_weights(self, weights: Weights) -> None:
        """Other weights from now on."""
        if weights != self._weights:
            self._weights = weights
            self._made.clear()

    def put(self, uid: str, request: Request) -> None:
        """A pod asks for this."""
        self.remove(uid)
        kind = _rounded(request)
        self._of[uid] = kind
        self._counts[kind] += 1

    def remove(self, uid: str) -> None:
        """A pod is gone."""
        request = self._of.pop(uid, None)
        if request is not None:
            self._counts[request] -= 1
            if not self._counts[request]:
                del self._counts[request]

    def mix(self) -> DemandMix:
        """The mix, in coarse frequencies."""
        return DemandMix.weighted({r: float(4**level) for r, level in self._levels()})

    def _levels(self) -> frozenset[tuple[Request, int]]:
        most = max(self._counts.values(), default=0)
        found = (
            (request, _RAREST - ((most // count).bit_length() - 1) // 2)
            for request, count in self._counts.items()
        )
        return frozenset((request, level) for request, level in found if level >= 0)

    def potential(self) -> Potential:
        """The potential of the present mix; the same object as long as the mix is the same."""
        key = self._levels()
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Potential(self.mix().coarse(_KINDS), self._weights)
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return found


def _rounded(request: Request) -> Request:
    """The request among its like; whole cards stay whole."""
    return replace(
        request,
        cpu_milli=_up(request.cpu_milli, _CPU),
        memory_mib=_up(request.memory_mib, _MEMORY),
        card_milli=min(FULL_CARD, _up(request.card_milli, _SHARE)),
        card_memory_milli=min(FULL_CARD, _up(request.card_memory_milli, _SHARE)),
    )


def _up(amount: int, step: int) -> int:
    return -(-amount // step) * step


def node_specs(ground: Ground) -> list[NodeSpec]:
    """The nodes as the placement simulator knows them, for calibration."""
    found = []
    for name in ground.names:
        cell = ground.cell(name)
        for record in cell.view.records if cell is not None and cell.view is not None else ():
            layout = ground.layouts.of(record.pool)
            if layout is None or not layout.cards or cell is None:
                continue
            model = next((cost.model for cost in layout.costs if cost.model), "")
            found.append(
                NodeSpec(
                    name,
                    cell.facts.cpu_milli,
                    cell.facts.memory_bytes // MIB,
                    layout.cards,
                    model,
                    layout.sets[0],
                    layout.sets[1],
                    layout.mig,
                )
            )
    return found
