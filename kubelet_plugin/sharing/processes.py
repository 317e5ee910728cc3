# SPDX-License-Identifier: Apache-2.0
"""Processes that may have been started by an earlier agent, told apart from everybody else's.

A process id alone is reused. A process is known by id, start time and boot; one that was started
just before the agent was killed, and so was never noted, is found by a mark in its environment.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Fields of /proc/PID/stat after the name, counted from 0 (proc_pid_stat(5): state 3, ppid 4,
# starttime 22).
_STATE, _PARENT, _START = 0, 1, 19
_DEAD = frozenset({"Z", "X", "x"})


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever. ``start`` is in clock ticks since the boot."""

    pid: int
    start: int
    boot: str

    def alive(self, proc: Path = PROC) -> bool:
        """Whether exactly this process runs (a zombie does not)."""
        return identify(self.pid, proc) == self


def identify(pid: int, proc: Path = PROC) -> Identity | None:
    """Who has this id now; None if nobody."""
    fields = _stat(pid, proc)
    if fields is None or fields[_STATE] in _DEAD:
        return None
    boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    return Identity(pid, int(fields[_START]), boot)


def marked(mark: str, value: str, proc: Path = PROC) -> tuple[int, ...]:
    """Ids of living processes with ``mark=value`` in the environment that they started with.

    Parents come before their children, as far as both are found.
    """
    wanted = f"{mark}={value}".encode()
    found: dict[int, int] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is not ours to look at
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                fields = _stat(int(entry.name), proc)
                if fields is not None and fields[_STATE] not in _DEAD:
                    found[int(entry.name)] = int(fields[_PARENT])
    return tuple(sorted(found, key=lambda pid: (found[pid] in found, pid)))


def end(pids: Iterable[int], how: int, seconds: float) -> tuple[int, ...]:
    """Sends a signal (0: none) to processes and waits; those that still run are returned.

    The process behind an id is pinned first, so the signal never goes to a successor.
    """
    handles: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = os.pidfd_open(pid)
                signal.pidfd_send_signal(handles[pid], how)
        return tuple(pid for pid, handle in handles.items() if not _ended(handle, seconds))
    finally:
        for handle in handles.values():
            os.close(handle)


def _ended(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _stat(pid: int, proc: Path) -> list[str] | None:
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()
