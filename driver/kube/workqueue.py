# SPDX-License-Identifier: Apache-2.0
"""A queue of keys for reconcilers: each key once, later, or after a growing delay.

Handlers of reflectors add keys; workers take them. A key is with one worker at a time, and an add
meanwhile means exactly one more run. Used by the slice controller, the agent and the cluster side.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from gpudra.api.errors import TooManyRequestsError
from gpudra.driver.kube.backoff import delay_for
from gpudra.driver.kube.clock import Clock, SystemClock, TimerHandle

K = TypeVar("K", bound=Hashable)

Handler = Callable[[K], Awaitable[float | None]]

log = structlog.get_logger(__name__)


class QueueClosed(Exception):  # noqa: N818 - a state that a worker waits for, not a failure
    """The queue was shut down and everything in it has been taken."""


class WorkQueue(Generic[K]):
    """The queue. Not thread-safe: one event loop.

    Args:
        clock: for delays.
        rng: for jitter.
        base: first delay of `add_rate_limited`, seconds.
        cap: longest delay of `add_rate_limited`, seconds.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        base: float = 0.05,
        cap: float = 60.0,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy
        self._base = base
        self._cap = cap
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, tuple[float, TimerHandle]] = {}
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Keys that could be taken now or as soon as their worker is done; delayed ones not counted."""
        return len(self._ready) + len(self._again)

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return len(self._timers)

    def add(self, key: K) -> None:
        """Have the key handled soon; nothing if it waits already. Ignored after `shut_down`."""
        if self._closed or key in self._queued or key in self._again:
            return
        if key in self._working:
            self._again.add(key)
            return
        self._enqueue(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Add the key when ``seconds`` have passed; of several times the earliest counts."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        known = self._timers.get(key)
        if known is not None:
            if known[0] <= due:
                return
            known[1].cancel()
        self._timers[key] = (due, self._clock.call_later(seconds, lambda: self._due(key)))

    def add_rate_limited(self, key: K, at_least: float = 0.0) -> float:
        """Add the key after its own delay, which doubles with each call until `forget`.

        Returns:
            The delay in seconds, never below ``at_least``.
        """
        attempt = self._failures.get(key, 0)
        self._failures[key] = attempt + 1
        delay = delay_for(attempt, base=self._base, cap=self._cap, rng=self._rng)
        delay = max(delay, at_least)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key worked: its next failure starts from the first delay."""
        self._failures.pop(key, None)

    def retries(self, key: K) -> int:
        """Calls of `add_rate_limited` since the last `forget`."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Take a key; `done` must follow. Raises `QueueClosed` once shut down and drained."""
        while not self._ready:
            if self._closed and not self._again:
                raise QueueClosed
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                elif self._ready:
                    self._wake()  # the key that was meant for us goes to another worker
                raise
        key = self._ready.popleft()
        self._queued.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """The worker is finished with the key, well or not."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._enqueue(key)
        elif self._closed:
            self._wake_all()

    def shut_down(self) -> None:
        """Take nothing more; delayed keys are dropped, waiting ones are still handed out."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._wake_all()

    async def process(
        self,
        handle: Handler[K],
        *,
        workers: int = 1,
        on_error: Callable[[K, Exception], None] | None = None,
    ) -> None:
        """Run ``workers`` workers until `shut_down`.

        Args:
            handle: works on one key. Return None for "done", or seconds after which to look again.
                An exception makes the key come back after its own growing delay, at the earliest
                when the server's Retry-After has passed.
            workers: how many keys at once.
            on_error: told each failure; default: logged.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(handle, on_error))

    async def _work(
        self, handle: Handler[K], on_error: Callable[[K, Exception], None] | None
    ) -> None:
        while True:
            try:
                key = await self.get()
            except QueueClosed:
                return
            try:
                again = await handle(key)
            except Exception as error:  # noqa: BLE001 - one key's failure is not the queue's
                self._failed(key, error, on_error)
            else:
                self.forget(key)
                if again is not None:
                    self.add_after(key, again)
            finally:
                self.done(key)

    def _failed(
        self, key: K, error: Exception, on_error: Callable[[K, Exception], None] | None
    ) -> None:
        at_least = error.retry_after if isinstance(error, TooManyRequestsError) else 0.0
        delay = self.add_rate_limited(key, at_least)
        if on_error is not None:
            on_error(key, error)
        else:
            log.warning("work_failed", key=str(key), error=str(error), retry_in=round(delay, 3))

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _enqueue(self, key: K) -> None:
        self._queued.add(key)
        self._ready.append(key)
        self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake()
