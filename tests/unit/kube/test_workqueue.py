# SPDX-License-Identifier: Apache-2.0
"""The work queue, on virtual time."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.errors import TooManyRequestsError
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.driver.kube.workqueue import QueueClosed, WorkQueue


def make(clock: VirtualClock | None = None) -> WorkQueue[str]:
    """A queue with a fixed seed."""
    return WorkQueue(clock=clock or VirtualClock(), rng=random.Random(0), base=1.0, cap=8.0)


async def test_a_key_waits_once() -> None:
    """However often a key is added before it is taken, it comes once, in order of arrival."""
    queue = make()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_an_add_during_the_work_means_one_more_run() -> None:
    """Adds while a worker has the key give exactly one more run, after it is done."""
    queue = make()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    taker = asyncio.create_task(queue.get())
    await settle()
    assert not taker.done()
    queue.done(key)
    assert await taker == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_the_earliest_of_several_times_counts() -> None:
    """Of several delays for one key the earliest wins, and it comes once."""
    clock = VirtualClock()
    queue = make(clock)
    for delay in (10.0, 3.0, 5.0):
        queue.add_after("a", delay)
    assert queue.delayed == 1
    await clock.advance(2.9)
    assert len(queue) == 0
    await clock.advance(0.1)
    assert len(queue) == 1
    await clock.advance(20)
    assert len(queue) == 1


async def test_delays_grow_per_key_until_forgotten() -> None:
    """Each key has its own growing delay, up to the cap; `forget` starts it anew."""
    queue = make()
    delays = [queue.add_rate_limited("a") for _ in range(6)]
    assert all(
        low <= delay <= 2 * low for low, delay in zip((0.5, 1, 2, 4, 4, 4), delays, strict=True)
    )
    assert queue.add_rate_limited("b") <= 1.0
    assert queue.retries("a") == 6
    queue.forget("a")
    assert queue.add_rate_limited("a") <= 1.0


async def test_shut_down_hands_out_the_rest_and_then_ends() -> None:
    """After `shut_down` what waits is still handed out, delayed keys are not, and takers end."""
    queue = make()
    queue.add("a")
    queue.add_after("later", 5)
    queue.shut_down()
    queue.add("b")
    assert await queue.get() == "a"
    with pytest.raises(QueueClosed):
        await queue.get()


async def test_shut_down_wakes_those_who_wait() -> None:
    """Takers that wait when the queue is shut down end."""
    queue = make()
    takers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle()
    queue.shut_down()
    results = await asyncio.gather(*takers, return_exceptions=True)
    assert all(isinstance(result, QueueClosed) for result in results)


async def test_a_cancelled_taker_loses_no_key() -> None:
    """A key that was meant for a taker who is cancelled at that moment goes to the next."""
    queue = make()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await settle()
    queue.add("a")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await asyncio.wait_for(second, 5) == "a"


async def test_process_retries_failures_and_honours_requests_for_more() -> None:
    """A failing key comes back later, one that returns seconds comes back then, others are done."""
    clock = VirtualClock()
    queue = make(clock)
    runs: list[tuple[float, str]] = []
    errors: list[str] = []

    async def handle(key: str) -> float | None:
        runs.append((clock.monotonic(), key))
        seen = [name for _, name in runs].count(key)
        if key == "throttled" and seen == 1:
            raise TooManyRequestsError("slow down", retry_after=30.0)
        if key == "fails" and seen < 3:
            raise ValueError("no")
        return 100.0 if key == "again" and seen == 1 else None

    task = asyncio.create_task(
        queue.process(handle, workers=2, on_error=lambda key, _: errors.append(key))
    )
    for key in ("throttled", "fails", "again", "fine"):
        queue.add(key)
    await clock.advance(120)
    queue.shut_down()
    await task
    times = {key: [at for at, name in runs if name == key] for _, key in runs}
    assert times["throttled"] == [0, 30]
    assert len(times["fails"]) == 3
    assert times["again"] == [0, 100]
    assert times["fine"] == [0]
    assert sorted(errors) == ["fails", "fails", "throttled"]
    assert queue.retries("fails") == 0


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "after", "limited", "advance"]),
        st.sampled_from(["a", "b", "c"]),
        st.floats(0.1, 5),
    ),
    max_size=30,
)


@given(operations, st.integers(1, 3), st.integers(0, 1000))
def test_no_key_is_lost_and_none_is_with_two_workers(
    done: list[tuple[str, str, float]], workers: int, seed: int
) -> None:
    """Whatever is added in whatever way is handled at least once after its last add, never twice at a time."""

    async def scenario() -> None:
        clock = VirtualClock()
        queue: WorkQueue[str] = WorkQueue(clock=clock, rng=random.Random(seed), base=0.5, cap=2)
        working: set[str] = set()
        finished: dict[str, float] = {}
        added: dict[str, float] = {}

        async def handle(key: str) -> None:
            assert key not in working
            working.add(key)
            started = clock.monotonic()
            await clock.sleep(1)
            working.discard(key)
            finished[key] = started

        task = asyncio.create_task(queue.process(handle, workers=workers))
        for what, key, number in done:
            if what == "advance":
                await clock.advance(number)
                continue
            added[key] = clock.monotonic()
            if what == "add":
                queue.add(key)
            elif what == "after":
                queue.add_after(key, number)
            else:
                queue.add_rate_limited(key)
        await clock.advance(60)
        assert len(queue) == 0
        assert queue.delayed == 0
        assert all(finished[key] >= at for key, at in added.items())
        queue.shut_down()
        await task

    asyncio.run(scenario())
