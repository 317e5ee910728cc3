# SPDX-License-Identifier: Apache-2.0
"""The state of managed mode, and the one who may touch it.

Questions (a plan, what-if, numbers for people) are answered one at a time, in a thread of their own,
each after all changes that the feed has collected until then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol, TypeVar

from gpudra.controller.managed.feed import Change, Feed
from gpudra.controller.managed.pasts import Pasts
from gpudra.driver.core.managed import ManagedState, Plan, PlanOptions
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger

# What one plan may take; what was not looked at by then waits for the next one.
PLAN_SECONDS = 2.0
SEARCH_SECONDS = 1.0  # for the search of one job

T = TypeVar("T")
log = get_logger(__name__)


class Blocking(Protocol):
    """Runs a function somewhere else; `asyncio.to_thread` is one."""

    def __call__(self, function: Callable[..., T], /, *args: Any) -> Awaitable[T]:
        """Its result."""
        ...


class Planner:
    """Owns the state.

    Args:
        driver: whose devices are given out.
        options: see PlanOptions.
        feed: where changes come from.
        clock: for the time of day and time limits.
        blocking: where the work is done.
        pasts: what queues used before; None: it does not count.
    """

    def __init__(
        self,
        driver: str,
        options: PlanOptions,
        feed: Feed,
        *,
        clock: Clock,
        blocking: Blocking = asyncio.to_thread,
        pasts: Pasts | None = None,
    ) -> None:
        self._state = ManagedState(driver, options)
        self._feed = feed
        self._clock = clock
        self._blocking = blocking
        self.pasts = pasts or Pasts()
        self._turn = asyncio.Lock()

    async def plan(self, busy: Collection[str]) -> Plan:
        """What to do now. Everything in it counts as done from here on, until it is dropped.

        Args:
            busy: jobs whose last placement is still under way; nothing is planned for them.
        """
        now = self._clock.now().timestamp()
        limit = self._within(PLAN_SECONDS)

        def work(state: ManagedState) -> Plan:
            found = state.plan(now, deadline=limit, clock=lambda: self._within(SEARCH_SECONDS))
            for one in (*found.placements, *found.repairs):
                if one.job not in busy:
                    state.assume(one)
            return found

        return await self.ask(work)

    def _within(self, seconds: float) -> Callable[[], bool]:
        """Tells when so much time has passed."""
        end = self._clock.monotonic() + seconds
        return lambda: self._clock.monotonic() >= end

    async def ask(self, question: Callable[[ManagedState], T]) -> T:
        """Answers a question about the state as the feed has it now."""
        async with self._turn:
            return await self._blocking(self._answer, self._feed.take(), question)

    def _answer(self, changes: list[Change], question: Callable[[ManagedState], T]) -> T:
        for change in changes:
            try:
                change.apply(self._state)
            except Exception as error:
                # One object that cannot be understood must not stop all the others.
                log.exception("cannot take a change in", object=change.what, error=str(error))
        self.pasts.apply(self._state, self._clock.now().timestamp())
        return question(self._state)
