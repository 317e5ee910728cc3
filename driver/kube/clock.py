# SPDX-License-Identifier: Apache-2.0
"""Time as an argument: every edge of ``driver.kube`` takes a `Clock`, tests and simulations a virtual one.

``monotonic`` measures and decides; ``now`` is only written into objects. Called by everything in
this package, by the slice controller, the agent and the cluster side.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

# Tasks that a timer wakes may need several turns of the loop before they come to rest.
SETTLE_TURNS = 25


class TimerHandle(Protocol):
    """A timer that has been set."""

    def cancel(self) -> None:
        """Unset the timer; harmless when it has fired."""


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """Wall-clock time, aware, UTC. Only for what is written into objects."""

    def monotonic(self) -> float:
        """Seconds that never run backwards. For every measurement and deadline."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call ``callback`` once, after ``seconds``."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``; at the earliest after one turn of the loop."""


class SystemClock:
    """The real clock. ``call_later`` and ``sleep`` need a running event loop."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """See `Clock.call_later`."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await asyncio.sleep(max(0.0, seconds))


class _VirtualTimer:
    __slots__ = ("callback", "cancelled", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """A clock that moves only when told; timers fire in the order of their due times."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def now(self) -> datetime:
        """See `Clock.now`."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._elapsed

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """See `Clock.call_later`."""
        timer = _VirtualTimer(self._elapsed + max(0.0, seconds), callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def advance_sync(self, seconds: float) -> None:
        """Move on and fire what falls due, without giving tasks a turn (for code without a loop)."""
        until = self._elapsed + seconds
        while (timer := self._pop_due(until)) is not None:
            self._elapsed = max(self._elapsed, timer.due)
            timer.callback()
        self._elapsed = until

    async def advance(self, seconds: float) -> None:
        """Move on by ``seconds``; after each timer the tasks that it woke run until they rest."""
        until = self._elapsed + seconds
        await settle()
        while (timer := self._pop_due(until)) is not None:
            self._elapsed = max(self._elapsed, timer.due)
            timer.callback()
            await settle()
        self._elapsed = until

    def pending(self) -> list[float]:
        """Seconds until each timer that is set, ascending."""
        return sorted(due - self._elapsed for due, _, timer in self._timers if not timer.cancelled)

    async def until_sleeping(self, count: int = 1) -> None:
        """Give real I/O the loop until at least ``count`` timers are set. For tests with sockets."""
        while len(self.pending()) < count:  # noqa: ASYNC110 - a poll lets sockets be served
            await asyncio.sleep(0.001)

    def _pop_due(self, until: float) -> _VirtualTimer | None:
        while self._timers and self._timers[0][0] <= until:
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                return timer
        return None


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, R]) -> R:
    """Result of ``work``, which is cancelled when it takes longer.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(work)
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = clock.call_later(seconds, expire)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if expired and (current is None or not current.cancelling()):
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        task.cancel()
        raise
    finally:
        timer.cancel()


async def settle(turns: int = SETTLE_TURNS) -> None:
    """Give every ready task ``turns`` turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


def rfc3339(moment: datetime) -> str:
    """Time as Kubernetes writes ``metav1.Time``: whole seconds, UTC, ``Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """Time as Kubernetes writes ``metav1.MicroTime``: six digits of a second, UTC, ``Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """A time that Kubernetes wrote, aware. Raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time without a zone: {text!r}")
    return moment
