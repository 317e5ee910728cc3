# SPDX-License-Identifier: Apache-2.0
"""The placement log: every decision of a simulation, one JSON array or object a line.

``{"run": {...}}`` opens a run (policy, protocol, seed, until, load, list
digests), then in order of events ``["p", task, node, [cards]]`` for a placement,
``["d", task]`` for a task that fitted nowhere and ``["r", n]`` for the end of the
n-th placement of the run; with departures each has the time in seconds as last
element. ``{"result": {...}}`` closes the run with its figures. The checker
(``check.py``) reads this and nothing else of the simulation.
"""

import json
from collections.abc import Sequence
from typing import IO

FORMAT = "gpudra-placement-log/1"


class PlacementLog:
    """Writes the log to an open text file; without a file it does nothing."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file

    def _line(self, value: object) -> None:
        if self._file is not None:
            self._file.write(json.dumps(value, separators=(",", ":")) + "\n")

    def begin(self, **facts: object) -> None:
        """Opens a run; ``facts`` are what the checker needs to repeat the stream."""
        self._line({"run": {"format": FORMAT, **facts}})

    def placed(self, task: int, node: int, cards: Sequence[int], at_s: float | None = None) -> None:
        """The task got these cards of the node."""
        if self._file is not None:
            self._line(["p", task, node, list(cards), *_time(at_s)])

    def dropped(self, task: int, at_s: float | None = None) -> None:
        """The task fitted nowhere."""
        if self._file is not None:
            self._line(["d", task, *_time(at_s)])

    def released(self, placement: int, at_s: float) -> None:
        """The ``placement``-th placed task of this run ended."""
        if self._file is not None:
            self._line(["r", placement, at_s])

    def end(self, result: dict[str, object]) -> None:
        """Closes the run with its figures."""
        self._line({"result": result})


def _time(at_s: float | None) -> list[float]:
    return [] if at_s is None else [at_s]
