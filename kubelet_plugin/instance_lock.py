# SPDX-License-Identifier: Apache-2.0
"""Keeps two instances of the plugin from preparing at once during a rolling update.

Both share the checkpoint, so whoever works on claims holds ``serialize.lock``; inside one instance
any number of claims share the hold. Who has to wait shows it by holding ``serialize.wanted``: the
other instance then finishes what it has begun and lets go before it begins anything new.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from gpudra.api.errors import StateError
from gpudra.driver.kube.clock import Clock
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.spent import Phase, spending

LOCK_NAME = "serialize.lock"
WANTED_NAME = "serialize.wanted"
_POLL = 0.02
# Looking whether somebody waits costs two system calls; an instance may be kept waiting this long.
_FAIR_AFTER = 0.5


class FileLock:
    """An exclusive lock of one file; freed by the kernel when the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.explained(path, "open the lock file"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_acquire(self) -> bool:
        """Takes the lock if it is free."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Lets go; nothing happens if it is not held."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Lets go for good."""
        os.close(self._file)


class InstanceLock:
    """The hold on the shared checkpoint.

    Args:
        folder: where the lock files lie.
        clock: for waiting.
        on_acquired: called each time the lock was taken, before anybody works: re-reads what
            another instance may have written.
        timeout: seconds to wait for another instance; less than the kubelet's 45 s a call.
    """

    def __init__(
        self, folder: Path, *, clock: Clock, on_acquired: Callable[[], object], timeout: float = 35
    ) -> None:
        self._lock = FileLock(folder / LOCK_NAME)
        self._wanted = FileLock(folder / WANTED_NAME)
        self._clock = clock
        self._on_acquired = on_acquired
        self._timeout = timeout
        self._holders = 0
        self._since = 0.0
        self._entry = asyncio.Lock()
        self._free = asyncio.Event()
        self._free.set()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Holds the lock, alone among instances, together with others of this one.

        Raises:
            StateError: another instance did not let go in time, or its checkpoint is unreadable.
        """
        with spending(Phase.LOCK):
            await self._enter()
        try:
            yield
        finally:
            self._holders -= 1
            if self._holders == 0:
                self._lock.release()
                self._free.set()

    async def _enter(self) -> None:
        deadline = self._clock.monotonic() + self._timeout
        async with self._entry:
            if self._holders and self._somebody_waits():
                await self._free.wait()
            if self._holders == 0:
                await self._acquire(deadline)
                self._since = self._clock.monotonic()
                try:
                    self._on_acquired()
                except BaseException:
                    self._lock.release()
                    raise
            # From here on the lock is ours until the last holder leaves.
            self._holders += 1
            self._free.clear()

    def _somebody_waits(self) -> bool:
        if self._clock.monotonic() - self._since < _FAIR_AFTER:
            return False
        if self._wanted.try_acquire():
            self._wanted.release()
            return False
        return True

    async def _acquire(self, deadline: float) -> None:
        if self._lock.try_acquire():
            return
        try:
            while not self._lock.try_acquire():
                self._wanted.try_acquire()
                if self._clock.monotonic() >= deadline:
                    raise StateError(
                        f"is held by another instance of the plugin for over {self._timeout:g} s",
                        obj=str(self._lock.path),
                        hint="end the other instance; the kubelet will try again",
                    )
                await self._clock.sleep(_POLL)
        finally:
            self._wanted.release()

    def close(self) -> None:
        """Closes the files."""
        self._lock.close()
        self._wanted.close()
