# SPDX-License-Identifier: Apache-2.0
"""Virtual and real clocks, and bounding work by them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gpudra.driver.kube.clock import (
    SystemClock,
    VirtualClock,
    parse_time,
    rfc3339,
    rfc3339_micro,
    settle,
    within,
)


async def test_timers_fire_in_order_of_their_time() -> None:
    """Timers and sleepers wake in the order of their due times, whenever they were set."""
    clock = VirtualClock()
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(clock.monotonic())

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3.0, 1.0, 2.0)]
    await clock.advance(2.5)
    assert woken == [1.0, 2.0]
    assert clock.pending() == [0.5]
    await clock.advance(1)
    assert woken == [1.0, 2.0, 3.0]
    await asyncio.gather(*tasks)


async def test_what_a_timer_sets_fires_within_the_same_advance() -> None:
    """A loop that sleeps again and again is served as often as the time allows."""
    clock = VirtualClock()
    ticks: list[float] = []

    async def ticking() -> None:
        while True:
            await clock.sleep(10)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(ticking())
    await clock.advance(35)
    task.cancel()
    assert ticks == [10, 20, 30]
    assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=35)


def test_a_cancelled_timer_does_not_fire() -> None:
    """Without a loop timers work too, and cancelled ones are forgotten."""
    clock = VirtualClock()
    fired: list[int] = []
    timer = clock.call_later(1, lambda: fired.append(1))
    clock.call_later(2, lambda: fired.append(2))
    timer.cancel()
    clock.advance_sync(5)
    assert fired == [2]
    assert clock.monotonic() == 5


async def test_work_within_its_time_gives_its_result() -> None:
    """`within` returns the result and leaves no timer behind."""
    clock = VirtualClock()

    async def work() -> str:
        await clock.sleep(1)
        return "done"

    task = asyncio.create_task(within(clock, 2, work()))
    await clock.advance(1)
    assert await task == "done"
    assert clock.pending() == []


async def test_work_that_takes_too_long_is_cancelled() -> None:
    """`within` cancels the work and raises TimeoutError."""
    clock = VirtualClock()
    ended: list[str] = []

    async def work() -> None:
        try:
            await clock.sleep(100)
        finally:
            ended.append("cancelled")

    task = asyncio.create_task(within(clock, 2, work()))
    await clock.advance(2)
    with pytest.raises(TimeoutError, match="within 2 s"):
        await task
    assert ended == ["cancelled"]


async def test_cancelling_the_caller_is_not_a_timeout() -> None:
    """A cancellation from outside stays one and reaches the work."""
    clock = VirtualClock()
    task = asyncio.create_task(within(clock, 2, clock.sleep(100)))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.pending() == []


async def test_the_real_clock_goes_forward() -> None:
    """The real clock's times are aware and its sleeps end."""
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(-1)
    fired = asyncio.Event()
    clock.call_later(0, fired.set)
    await fired.wait()
    assert clock.monotonic() >= before
    assert clock.now().tzinfo is UTC


def test_times_are_written_as_kubernetes_does() -> None:
    """Seconds and microseconds, UTC, and back."""
    moment = datetime(2026, 2, 3, 4, 5, 6, 70000, tzinfo=UTC)
    assert rfc3339(moment) == "2026-02-03T04:05:06Z"
    assert rfc3339_micro(moment) == "2026-02-03T04:05:06.070000Z"
    assert parse_time(rfc3339_micro(moment)) == moment
    with pytest.raises(ValueError, match="zone"):
        parse_time("2026-02-03T04:05:06")
