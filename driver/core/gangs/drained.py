# SPDX-License-Identifier: Apache-2.0
"""The cluster as it would be if some of what runs had ended.

Asked for two things: whether a job could ever run (everything has ended), and on which nodes a
blocked job will fit first (everything that managed mode placed has ended).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpudra.driver.core.allocator import Deadline
from gpudra.driver.core.allocator.counters import PoolState
from gpudra.driver.core.allocator.view import NodeView
from gpudra.driver.core.gangs.ground import Cell, Ground, Sketch
from gpudra.driver.core.gangs.kinds import Board, Entry, Kind
from gpudra.driver.core.gangs.noderoom import NO_ROOM_USED
from gpudra.driver.core.gangs.solver import Floor
from gpudra.driver.core.gangs.types import PodView

KeepPod = Callable[[PodView], bool]
KeepClaim = Callable[[str], bool]
Price = Callable[[str], float]


class Drained(Sketch):
    """A sketch from which pods and claims are gone.

    Args:
        ground: the cluster.
        keep_pod: pods that stay.
        keep_claim: claims, by key, whose devices stay in use.
        able: nodes that are cordoned or not ready count as if they were not.
    """

    def __init__(
        self, ground: Ground, keep_pod: KeepPod, keep_claim: KeepClaim, *, able: bool = False
    ) -> None:
        super().__init__(ground)
        self._keep_pod, self._keep_claim, self._able = keep_pod, keep_claim, able

    def fork(self) -> "Drained":
        """See Sketch.fork."""
        other = Drained(self.ground, self._keep_pod, self._keep_claim, able=self._able)
        self._copy_to(other)
        return other

    def cell(self, name: str) -> Cell | None:
        """See Sketch.cell."""
        found = self.cells.get(name)
        if found is None:
            base = self.ground.cell(name)
            if base is None:
                return None
            found = self.cells[name] = self._emptied(base)
        return found

    def _emptied(self, cell: Cell) -> Cell:
        facts, room, view = cell.facts, NO_ROOM_USED, cell.view
        for pod in self.ground.on_node(facts.name).values():
            if self._keep_pod(pod):
                room = room.plus(pod)
        if self._able and (not facts.ready or facts.unschedulable):
            facts = replace(facts, ready=True, unschedulable=False)
        if view is None:
            return Cell(facts, None, room)
        records = []
        for record in view.records:
            own = self.records.get(record.key)
            if own is None:
                own = record
                holds = self.ground.holds(record.key)
                if holds:
                    left = {
                        device: kept
                        for device, held in holds.items()
                        if (kept := tuple(one for one in held if self._keep_claim(one.claim)))
                    }
                    own = record.with_state(PoolState(record.pool, left))
                    self.held[record.key] = left
                    self.records[record.key] = own
            records.append(own)
        return Cell(facts, NodeView(view.node, tuple(records), view.troubles), room)


class DrainedRows:
    """What the nodes of a drained cluster are to a kind; see kinds.Rows.

    Args:
        sketch: the drained cluster, as it was before anything was placed in it.
        price: cost of a node instead of the placement score; None: the score.
    """

    def __init__(self, sketch: Sketch, price: Price | None = None) -> None:
        self._sketch, self._price = sketch, price
        self._known: dict[int, tuple[Kind, dict[str, Entry | str]]] = {}

    def of(self, kind: Kind) -> Mapping[str, Entry | str]:
        """See Rows."""
        found = self._known.get(id(kind))
        if found is None:
            entry = self.entry_of(kind)
            table = {
                name: entry(cell, None)
                for name in self._sketch.ground.names
                if (cell := self._sketch.cell(name)) is not None
            }
            found = self._known[id(kind)] = kind, table
        return found[1]

    def entry_of(self, kind: Kind) -> Callable[[Cell, Deadline | None], Entry | str]:
        """See Rows."""
        price = self._price
        if price is None:
            return kind.entry

        def priced(cell: Cell, deadline: Deadline | None) -> Entry | str:
            found = kind.entry(cell, deadline)
            return found if isinstance(found, str) else replace(found, cost=price(cell.facts.name))

        return priced


def drained_floor(
    board: Board, sketch: Drained, deadline: Deadline | None, price: Price | None = None
) -> Floor:
    """A floor that begins with the drained cluster."""
    return Floor(board, sketch, deadline=deadline, rows=DrainedRows(sketch.fork(), price))
