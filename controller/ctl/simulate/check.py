# SPDX-License-Identifier: Apache-2.0
"""The independent checker: replays a placement log against the two lists and recomputes every figure.

It shares no code with the simulation below the CSV reader: streams, capacities
and figures are worked out again in plain Python. A log that places a task
where it does not fit, in another order than the seed gives, or that claims
other figures than its own lines, is refused with its line number.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.trace import Task, Trace
from gpudra.driver.core.placement.types import Request

CARD = 1000
TOLERANCE = 1e-3
"""Figures are written with four decimals; a difference above this is a contradiction."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker found for one run that holds together."""

    policy: str
    seed: int
    placed: int
    dropped: int
    released: int
    allocated_percent: float
    allocated_percent_at_100: float | None


@dataclass(slots=True)
class _Books:
    """Plain books of one run: what every node and card still has."""

    trace: Trace
    facts: dict[str, Any]
    cpu: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    cards: list[list[int]] = field(default_factory=list)
    held: list[tuple[int, int, list[int]] | None] = field(default_factory=list)
    sizes: Counter[str] = field(default_factory=Counter)
    decisions: int = 0
    released: int = 0
    requested: int = 0
    rejected: int = 0
    allocated: int = 0
    at_100: int | None = None
    area: float = 0.0
    last_s: float | None = None
    first_s: float = 0.0
    arrived_s: float = 0.0
    area_at_arrival: float = 0.0
    expected: Iterator[int] | None = None
    full: set[Request] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cpu = [node.cpu_milli for node in self.trace.nodes]
        self.memory = [node.memory_mib for node in self.trace.nodes]
        self.cards = [[CARD] * node.cards for node in self.trace.nodes]
        if self.facts["protocol"] == "published":
            self.expected = _stream(self.trace, self.facts["seed"], self.facts["until"])

    @property
    def capacity(self) -> int:
        return sum(node.cards for node in self.trace.nodes) * CARD


class _FaultError(Exception):
    """What is wrong with the line at hand."""


def _stream(trace: Trace, seed: int, until: float) -> Iterator[int]:
    """The published order, from its description alone."""
    amounts = [t.request.cards * t.request.card_milli for t in trace.tasks]
    capacity = sum(node.cards for node in trace.nodes) * CARD
    rng = random.Random(seed)  # noqa: S311 - repeats the simulation's stream
    queue = list(range(len(amounts)))
    rng.shuffle(queue)
    total = 0
    for index in queue:
        if total >= until * capacity:
            return
        total += amounts[index]
        yield index
    while total < until * capacity:
        index = rng.randrange(len(amounts))
        total += amounts[index]
        yield index


def check_log(path: Path, trace: Trace) -> list[Verdict]:
    """Checks every run of a log; raises InputError with the line of the first contradiction."""
    verdicts: list[Verdict] = []
    books: _Books | None = None
    line = 1
    try:
        with path.open(encoding="utf-8") as file:
            for line, text in enumerate(file, start=1):  # noqa: B007 - the handlers name it
                books = _read(json.loads(text), trace, books, verdicts)
        _ended(books, verdicts)
    except _FaultError as fault:
        raise InputError(str(fault), file=str(path), line=line) from fault
    except (ValueError, KeyError, TypeError, IndexError) as error:
        what = f"not a line of a placement log ({type(error).__name__}: {error})"
        raise InputError(what, file=str(path), line=line) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from error
    return verdicts


def _read(entry: Any, trace: Trace, books: _Books | None, verdicts: list[Verdict]) -> _Books | None:
    """Applies one line; returns the books of the run that is open after it."""
    if isinstance(entry, dict) and "run" in entry:
        return _open_books(trace, entry["run"], books)
    if books is None:
        raise _FaultError("no run is open here")
    if isinstance(entry, dict):
        verdicts.append(_close(books, entry["result"]))
        return None
    _apply(books, entry)
    return books


def _ended(books: _Books | None, verdicts: list[Verdict]) -> None:
    if books is not None or not verdicts:
        raise _FaultError("the log ends in the middle of a run")


def _open_books(trace: Trace, facts: dict[str, Any], before: _Books | None) -> _Books:
    if before is not None:
        raise _FaultError("a run begins before the last one ended")
    if facts["nodes"] != len(trace.nodes) or facts["tasks"] != len(trace.tasks):
        raise _FaultError(
            f"the log is of {facts['nodes']} nodes and {facts['tasks']} tasks, "
            f"the lists have {len(trace.nodes)} and {len(trace.tasks)}"
        )
    return _Books(trace, facts)


def _apply(books: _Books, entry: list[Any]) -> None:
    kind, rest = entry[0], entry[1:]
    timed = books.facts["protocol"] != "published"
    if timed:
        _move_to(books, float(rest.pop()))
    if kind == "r" and timed:
        _release(books, rest[0])
        return
    if kind not in {"p", "d"}:
        raise _FaultError(f"unknown event {kind!r}")
    task = books.trace.tasks[rest[0]]
    _arrive(books, rest[0], task)
    if kind == "p":
        _place(books, rest[0], task, rest[1], rest[2])
    else:
        _drop(books, task)
    _reach(books)


def _move_to(books: _Books, at_s: float) -> None:
    if books.last_s is None:
        books.last_s = books.first_s = at_s
    if at_s < books.last_s:
        raise _FaultError(f"time runs backwards: {at_s} after {books.last_s}")
    books.area += books.allocated * (at_s - books.last_s)
    books.last_s = at_s


def _arrive(books: _Books, index: int, task: Task) -> None:
    if books.expected is not None:
        due = next(books.expected, None)
        if due != index:
            raise _FaultError(f"task {index} arrived where the seed gives {due}")
    books.decisions += 1
    books.requested += task.request.cards * task.request.card_milli
    if books.last_s is not None:
        books.arrived_s, books.area_at_arrival = books.last_s, books.area


def _reach(books: _Books) -> None:
    if books.at_100 is None and books.requested >= books.capacity:
        books.at_100 = books.allocated


def _fits_somewhere(books: _Books, task: Task) -> int | None:
    """First node that could serve the task, for drops that should not have happened."""
    return next((n for n in range(len(books.trace.nodes)) if _room(books, task, n)), None)


def _room(books: _Books, task: Task, node: int) -> bool:
    request = task.request
    wide = sum(1 for free in books.cards[node] if free >= request.card_milli)
    model_ok = not request.models or books.trace.nodes[node].model in request.models
    return (
        books.cpu[node] >= request.cpu_milli
        and books.memory[node] >= request.memory_mib
        and (not request.cards or (model_ok and wide >= request.cards))
    )


def _place(books: _Books, index: int, task: Task, node: int, cards: list[int]) -> None:
    request, spec = task.request, books.trace.nodes[node]
    if node < 0 or len(set(cards)) != request.cards or len(cards) != request.cards:
        raise _FaultError(f"task {index} needs {request.cards} different cards, got {cards}")
    if request.cards and request.models and spec.model not in request.models:
        raise _FaultError(f"task {index} does not allow model {spec.model} of node {spec.name}")
    books.cpu[node] -= request.cpu_milli
    books.memory[node] -= request.memory_mib
    for card in cards:
        if not 0 <= card < spec.cards:
            raise _FaultError(f"node {spec.name} has no card {card}")
        books.cards[node][card] -= request.card_milli
    if min([books.cpu[node], books.memory[node], *books.cards[node]]) < 0:
        raise _FaultError(f"task {index} does not fit on node {spec.name}, cards {cards}")
    books.allocated += request.cards * request.card_milli
    books.held.append((index, node, cards))


def _drop(books: _Books, task: Task) -> None:
    request = task.request
    # Room only shrinks until something is released: what found none before finds none now.
    where = None if request in books.full else _fits_somewhere(books, task)
    if where is not None:
        raise _FaultError(f"{task.name} was dropped but fits on {books.trace.nodes[where].name}")
    books.full.add(request)
    books.rejected += request.cards * request.card_milli
    label = str(request.cards)
    if not request.cards:
        label = "cpu"
    elif request.cards == 1 and request.card_milli < CARD:
        label = "share"
    books.sizes[label] += 1


def _release(books: _Books, number: int) -> None:
    held = books.held[number] if number >= 0 else None
    if held is None:
        raise _FaultError(f"placement {number} ended twice or never began")
    index, node, cards = held
    request = books.trace.tasks[index].request
    books.held[number] = None
    books.full.clear()
    books.released += 1
    books.cpu[node] += request.cpu_milli
    books.memory[node] += request.memory_mib
    for card in cards:
        books.cards[node][card] += request.card_milli
    books.allocated -= request.cards * request.card_milli


def _close(books: _Books, claimed: dict[str, Any]) -> Verdict:
    if books.expected is not None and next(books.expected, None) is not None:
        raise _FaultError("the run ended before the requested amount was reached")
    _conserved(books)
    at_100 = None if books.at_100 is None else 100.0 * books.at_100 / books.capacity
    if books.facts["protocol"] == "published":
        percent = 100.0 * books.allocated / books.capacity
        _same("allocatedPercentAt100", claimed["allocatedPercentAt100"], at_100)
    else:
        span = max(books.arrived_s - books.first_s, 1e-9)
        percent = 100.0 * books.area_at_arrival / span / books.capacity
        rejected = 100.0 * books.rejected / max(1, books.requested)
        _same("rejectedPercent", claimed["rejectedPercent"], rejected)
        _same("arrivals", claimed["arrivals"], books.decisions)
    _same("allocatedPercent", claimed["allocatedPercent"], percent)
    _same("dropped", claimed["dropped"], books.sizes.total())
    if claimed["droppedBySize"] != dict(books.sizes):
        raise _FaultError(
            f"droppedBySize is {claimed['droppedBySize']}, the log gives {books.sizes}"
        )
    facts = books.facts
    return Verdict(
        facts["policy"], facts["seed"], len(books.held), books.sizes.total(), books.released,
        percent, at_100,
    )  # fmt: skip


def _conserved(books: _Books) -> None:
    """What is free plus what is held must be the cluster, card by card."""
    free = [list(cards) for cards in books.cards]
    for held in books.held:
        if held is not None:
            index, node, cards = held
            for card in cards:
                free[node][card] += books.trace.tasks[index].request.card_milli
    if any(card != CARD for cards in free for card in cards):
        raise _FaultError("free and held amounts do not add up to the cluster")


def _same(name: str, claimed: float | None, found: float | None) -> None:
    if (claimed is None) != (found is None) or (
        claimed is not None and found is not None and abs(claimed - found) > TOLERANCE
    ):
        raise _FaultError(f"{name} is {claimed}, the log gives {found}")
