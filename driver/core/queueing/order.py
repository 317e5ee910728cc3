# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: the next waiting job of the queue that is furthest below its due.

At each level of the tree the queues within their guarantee come first, then those within their
quota, then those that borrow, of which the higher priority goes first. Of equals the smallest
weighted dominant share, past use included. In a queue: priority of the pods, then age.

Asking for the next job costs the depth of the tree times the logarithm of its width: what a
placement changes are the shares of the queues above it, and of no other.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpudra.driver.core.queueing.amounts import NOTHING, Amounts
from gpudra.driver.core.queueing.book import Band, Book
from gpudra.driver.core.queueing.tree import ROOT, Problem

Key = tuple[bool, Band, int, float, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that wants devices.

    Attributes:
        created: seconds since the epoch.
        amounts: what it will be charged, at most: a job that may take one of several devices is
            counted with the dearest.
        first: goes before everything else, such as a gang that lost a member.
    """

    job: str
    queue: str
    priority: int = 0
    created: float = 0.0
    amounts: Amounts = NOTHING
    first: bool = False


@dataclass(slots=True)
class _Node:
    """A queue with something waiting in it or below it."""

    name: str
    parent: str
    jobs: deque[Waiting] = field(default_factory=deque)
    children: list[tuple[Key, int, str]] = field(default_factory=list)
    version: int = 0


class Order:
    """One round. Ask `next`, try, and say `placed` or `blocked`; until None.

    Attributes:
        refused: jobs whose queue may not be used, with the reason; they are not asked for.
        positions: place of each job in its own queue, 1 being the first.
    """

    def __init__(self, book: Book, waiting: Iterable[Waiting]) -> None:
        self._book = book
        self._nodes: dict[str, _Node] = {ROOT: _Node(ROOT, "")}
        self.refused: list[tuple[Waiting, Problem]] = []
        self.positions: dict[str, int] = {}
        by_queue: dict[str, list[Waiting]] = {}
        for one in waiting:
            by_queue.setdefault(one.queue, []).append(one)
        for queue, jobs in sorted(by_queue.items()):
            self._add_queue(queue, jobs)

    def _add_queue(self, queue: str, jobs: list[Waiting]) -> None:
        jobs.sort(key=lambda one: (not one.first, -one.priority, one.created, one.job))
        self.positions.update((one.job, place) for place, one in enumerate(jobs, 1))
        problem = self._book.tree.refusal(queue)
        if problem is not None:
            self.refused += [(one, problem) for one in jobs]
            return
        above = ROOT
        for name in self._book.tree.grants[queue].path:
            self._nodes.setdefault(name, _Node(name, above))
            above = name
        self._nodes[queue].jobs.extend(jobs)
        self._refresh(queue)

    def next(self) -> Waiting | None:
        """The job to try now; the same again until `placed` or `blocked` is said."""
        return self._head(ROOT)

    def placed(self, job: str, amounts: Amounts) -> None:
        """The job of `next` got devices: it is charged, and shares follow."""
        one = self._take(job)
        self._book.charge(job, one.queue, amounts)
        self._refresh(one.queue)

    def blocked(self, job: str) -> None:
        """The job of `next` cannot be served now. It keeps its place; others are asked for."""
        self._refresh(self._take(job).queue)

    def _take(self, job: str) -> Waiting:
        one = self._head(ROOT)
        if one is None or one.job != job:
            raise ValueError(f"job {job} is not the one whose turn it is: {one}")
        return self._nodes[one.queue].jobs.popleft()

    def _head(self, name: str) -> Waiting | None:
        """The best job in a queue or below it."""
        node = self._nodes[name]
        if node.jobs:
            return node.jobs[0]
        while node.children:
            _, version, child = node.children[0]
            if version == self._nodes[child].version and (found := self._head(child)) is not None:
                return found
            heapq.heappop(node.children)
        return None

    def _refresh(self, queue: str) -> None:
        """Puts a queue and those above it into their places."""
        for name in reversed(self._book.tree.grants[queue].path):
            node = self._nodes[name]
            node.version += 1
            head = self._head(name)
            if head is not None:
                entry = (self._key(name, head), node.version, name)
                heapq.heappush(self._nodes[node.parent].children, entry)

    def _key(self, name: str, head: Waiting) -> Key:
        band = self._book.band(name, head.amounts)
        borrowing = band is Band.BORROWING
        share = self._book.share(name, surplus=borrowing) + self._book.history.get(name, 0.0)
        priority = self._book.tree.grants[name].priority if borrowing else 0
        return (not head.first, band, -priority, share, name)


def order(book: Book, waiting: Iterable[Waiting]) -> Order:
    """One round over the waiting jobs; the book is charged as jobs are placed."""
    return Order(book, waiting)
