# SPDX-License-Identifier: Apache-2.0
"""Two instances on one checkpoint: never both at work, and none kept waiting for ever."""

import asyncio
from pathlib import Path

import pytest

from gpudra.api.errors import StateError
from gpudra.driver.kube.clock import VirtualClock
from gpudra.kubelet_plugin.instance_lock import InstanceLock


def lock(folder: Path, clock: VirtualClock, acquired: list[str], name: str = "x") -> InstanceLock:
    """One instance's lock."""
    return InstanceLock(folder, clock=clock, on_acquired=lambda: acquired.append(name))


async def test_holders_of_one_instance_share_it(tmp_path: Path) -> None:
    """Taken once, let go with the last; then another instance may have written."""
    acquired: list[str] = []
    one = lock(tmp_path, VirtualClock(), acquired)
    async with one.held(), one.held():
        pass
    assert acquired == ["x"]
    async with one.held():
        assert acquired == ["x", "x"]


async def test_another_instance_waits(tmp_path: Path) -> None:
    """Until the first one has finished all it began."""
    clock = VirtualClock()
    acquired: list[str] = []
    one, two = lock(tmp_path, clock, acquired, "one"), lock(tmp_path, clock, acquired, "two")

    async def work() -> None:
        async with two.held():
            pass

    async with one.held():
        waiting = asyncio.create_task(work())
        await clock.advance(1)
        assert not waiting.done()
    await clock.advance(1)
    await waiting
    assert acquired == ["one", "two"]


async def test_an_instance_under_steady_load_lets_the_other_one_in(tmp_path: Path) -> None:
    """While somebody waits, nothing new begins."""
    clock = VirtualClock()
    acquired: list[str] = []
    one, two = lock(tmp_path, clock, acquired, "one"), lock(tmp_path, clock, acquired, "two")
    done: list[str] = []

    async def work(which: InstanceLock, name: str) -> None:
        async with which.held():
            done.append(name)

    async with one.held():
        waiting = asyncio.create_task(work(two, "two"))
        await clock.advance(1)
        newcomer = asyncio.create_task(work(one, "newcomer"))
        await clock.advance(1)
        assert done == []
    await clock.advance(1)
    await asyncio.gather(waiting, newcomer)
    assert sorted(done) == ["newcomer", "two"]


async def test_an_instance_that_hangs_is_named_after_a_while(tmp_path: Path) -> None:
    """Before the kubelet's deadline, so that its event says what is wrong."""
    clock = VirtualClock()
    one, two = lock(tmp_path, clock, []), lock(tmp_path, clock, [])

    async def work() -> None:
        async with two.held():
            pass

    async with one.held():
        waiting = asyncio.create_task(work())
        await clock.advance(36)
        with pytest.raises(StateError, match="held by another instance") as caught:
            await waiting
        assert "serialize.lock" in str(caught.value)


async def test_what_cannot_be_read_does_not_leave_the_lock_taken(tmp_path: Path) -> None:
    """The next one may try."""
    clock = VirtualClock()

    def fail() -> None:
        raise StateError("cannot read")

    one = InstanceLock(tmp_path, clock=clock, on_acquired=fail)
    with pytest.raises(StateError):
        async with one.held():
            pass
    async with lock(tmp_path, clock, []).held():
        pass


async def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    """The kernel frees it with the file."""
    clock = VirtualClock()
    one = lock(tmp_path, clock, [])
    async with one.held():
        one.close()
        async with lock(tmp_path, clock, []).held():
            pass
        one._lock = lock(tmp_path, clock, [])._lock
