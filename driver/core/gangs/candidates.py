# SPDX-License-Identifier: Apache-2.0
"""The nodes for one kind of pods, cheapest first, while a plan puts pods onto them."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gpudra.driver.core.allocator import Deadline
from gpudra.driver.core.gangs.ground import Cell, Sketch
from gpudra.driver.core.gangs.kinds import Entry, Filter, Kind


class Rows(Protocol):
    """Another beginning than the ground: what its nodes are to a kind."""

    def of(self, kind: Kind) -> Mapping[str, Entry | str]:
        """Every node, before anything is placed."""

    def entry_of(self, kind: Kind) -> Callable[[Cell, Deadline | None], Entry | str]:
        """How a node is judged afterwards."""


class Candidates:
    """The nodes for a kind on a sketch, cheapest first; follows the sketch.

    Args:
        kind: of the pods to place.
        sketch: where they are to be placed.
        names: only these nodes; None: all.
        deadline: for searches on nodes that have not been looked at.
        rows: what nodes are to a kind before anything changes in the sketch; None: the ground's.
    """

    def __init__(
        self,
        kind: Kind,
        sketch: Sketch,
        names: Iterable[str] | None = None,
        deadline: Deadline | None = None,
        rows: "Rows | None" = None,
    ) -> None:
        self._kind, self._sketch, self._deadline = kind, sketch, deadline
        self._entry = kind.entry if rows is None else rows.entry_of(kind)
        if rows is None:
            kind.row.sync(deadline)
            entries: Mapping[str, Entry | str] = kind.row.entries
        else:
            entries = rows.of(kind)
        self._entries = entries
        self._names = None if names is None else frozenset(names)
        listed = entries if self._names is None else [n for n in self._names if n in entries]
        self._current: dict[str, Entry | str] = {}
        self._heap = [
            (one.cost, name) for name in listed if isinstance(one := entries[name], Entry)
        ]
        heapq.heapify(self._heap)
        self._place = 0

    def entry(self, name: str) -> Entry | str | None:
        """What a node is to the kind as things are; None for a node that does not count."""
        if self._names is not None and name not in self._names:
            return None
        found = self._current.get(name)
        return self._entries.get(name) if found is None else found

    def sync(self) -> None:
        """Takes note of what changed in the sketch."""
        journal = self._sketch.journal
        if self._place == len(journal):
            return
        if self._place == 0 and self._names is not None:
            # A few nodes after a long plan: what differs is known without reading all of it.
            changed = dict.fromkeys(sorted(self._names & self._sketch.cells.keys()))
        else:
            changed = dict.fromkeys(journal[self._place :])
        self._place = len(journal)
        for name in changed:
            if self._names is not None and name not in self._names:
                continue
            cell = self._sketch.cell(name)
            if cell is None:
                continue
            found = self._current[name] = self._entry(cell, self._deadline)
            if isinstance(found, Entry):
                heapq.heappush(self._heap, (found.cost, name))

    def best(self, accept: Filter | None = None) -> tuple[str, Entry] | None:
        """The cheapest node, of equals the first by name; it stays a candidate."""
        self.sync()
        aside: list[tuple[float, str]] = []
        answer = None
        while self._heap:
            cost, name = self._heap[0]
            found = self.entry(name)
            if not isinstance(found, Entry) or found.cost != cost:
                heapq.heappop(self._heap)
                continue
            if accept is None or accept(name):
                answer = name, found
                break
            aside.append(heapq.heappop(self._heap))
        for one in aside:
            heapq.heappush(self._heap, one)
        return answer

    def all(self) -> list[tuple[float, str]]:
        """Every node that can take one, cheapest first."""
        self.sync()
        found = {
            name: one.cost for _, name in self._heap if isinstance(one := self.entry(name), Entry)
        }
        return sorted((cost, name) for name, cost in found.items())

    def refusals(self) -> dict[str, str]:
        """Why the other nodes are none."""
        self.sync()
        names = self._entries if self._names is None else self._names
        found = ((name, self.entry(name)) for name in names)
        return {name: one for name, one in found if isinstance(one, str)}
