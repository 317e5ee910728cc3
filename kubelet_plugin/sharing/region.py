# SPDX-License-Identifier: Apache-2.0
"""What HAMi-core's processes write about themselves: memory and compute of each, in a mapped file.

Format 1.2 of the shared region on 64-bit machines, offsets as measured on the library itself; 1.1
has the same layout with zeros where 1.2 has a sequence number. Every container writes this file, so
nothing in it is trusted: numbers are bounded, and a file that cannot be read tells nothing.

A writer makes a slot's sequence number odd, writes, and makes it even again; a reader takes a slot
only if the number was even and the same before and after.
"""

import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

REGION_BYTES = 2008952
INITIALISED = 19920718
MAJOR = 1
MINORS = frozenset({1, 2})
DEVICES = 16
SLOTS = 1024
UUID_BYTES = 96

AT_VERSION = 4
AT_DEVICES = 56
AT_UUIDS = 64
AT_MEMORY_LIMITS = 1600
AT_SM_LIMITS = 1728
AT_SLOTS = 1856
SLOT_BYTES = 1960
AT_PROCESSES = 2008896

# In a slot.
AT_HOST_PID = 4
AT_USED = 8
USED_BYTES = 64
AT_TOTAL = 32
AT_UTILISATION = 1160
UTILISATION_BYTES = 48
AT_SM = 16
AT_STATUS = 1928
AT_SEQUENCE = 1936

_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """One process.

    Attributes:
        pid: in its container.
        host_pid: on the host; 0 while the library has not learnt it.
        memory_bytes: by index of the device.
        sm_percent: by index of the device, as the library last saw it.
    """

    pid: int
    host_pid: int
    memory_bytes: Mapping[int, int]
    sm_percent: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUsage:
    """One claim's cache.

    Attributes:
        uuids: by index of the device; empty until a process has asked NVML.
        memory_limits: bytes by index; only where there is one.
        sm_limits: per cent by index.
        processes: those that have not ended properly; one that was killed stays until another
            starts.
    """

    uuids: Mapping[int, str] = field(default_factory=dict)
    memory_limits: Mapping[int, int] = field(default_factory=dict)
    sm_limits: Mapping[int, int] = field(default_factory=dict)
    processes: tuple[ProcessUsage, ...] = ()

    def memory_bytes(self) -> Mapping[int, int]:
        """The sum over processes, by index of the device."""
        found: dict[int, int] = {}
        for process in self.processes:
            for index, amount in process.memory_bytes.items():
                found[index] = found.get(index, 0) + amount
        return found

    def sm_percent(self) -> Mapping[int, int]:
        """The sum over processes, at most 100, by index of the device."""
        found: dict[int, int] = {}
        for process in self.processes:
            for index, amount in process.sm_percent.items():
                found[index] = min(100, found.get(index, 0) + amount)
        return found


def read_region(path: Path) -> ClaimUsage | None:
    """What the file says; None if there is none, or none that can be understood.

    A container can put anything there, a link or a pipe too: only plain files are opened.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode) or info.st_size < REGION_BYTES:
            return None
        # A copy, not a map: the container may cut the file off, and a map would end us then.
        return _parse(_Reader(file))
    except (OSError, struct.error):
        return None
    finally:
        os.close(file)


class _Reader:
    """Pieces of the file, read when they are asked for."""

    def __init__(self, file: int) -> None:
        self._file = file

    def bytes(self, offset: int, size: int) -> bytes:
        return os.pread(self._file, size, offset)

    def numbers(self, kind: str, offset: int) -> tuple[int, ...]:
        return struct.unpack(kind, self.bytes(offset, struct.calcsize(kind)))


def _parse(reader: _Reader) -> ClaimUsage | None:
    flag, major, minor = reader.numbers("<iII", 0)
    if flag != INITIALISED or major != MAJOR or minor not in MINORS:
        return None
    (devices,) = reader.numbers("<Q", AT_DEVICES)
    (count,) = reader.numbers("<i", AT_PROCESSES)
    memory = reader.numbers(f"<{DEVICES}Q", AT_MEMORY_LIMITS)
    compute = reader.numbers(f"<{DEVICES}Q", AT_SM_LIMITS)
    return ClaimUsage(
        uuids=dict(_uuids(reader, min(devices, DEVICES))),
        memory_limits={index: limit for index, limit in enumerate(memory) if limit},
        sm_limits={index: limit for index, limit in enumerate(compute) if 0 < limit < 100},
        processes=tuple(_processes(reader, max(0, min(count, SLOTS)))),
    )


def _uuids(reader: _Reader, count: int) -> Iterator[tuple[int, str]]:
    for index in range(count):
        text = reader.bytes(AT_UUIDS + index * UUID_BYTES, UUID_BYTES).partition(b"\0")[0]
        yield index, text.decode("ascii", "replace")


def _processes(reader: _Reader, count: int) -> Iterator[ProcessUsage]:
    for number in range(count):
        slot = _stable_slot(reader, AT_SLOTS + number * SLOT_BYTES)
        if slot is None:
            continue
        pid, host_pid = struct.unpack_from("<ii", slot)
        if pid <= 0:
            continue
        yield ProcessUsage(
            pid=pid,
            host_pid=max(0, host_pid),
            memory_bytes=_by_device(slot, AT_USED + AT_TOTAL, USED_BYTES),
            sm_percent=_by_device(slot, AT_UTILISATION + AT_SM, UTILISATION_BYTES),
        )


def _stable_slot(reader: _Reader, offset: int) -> bytes | None:
    """A slot that nobody was writing; None if somebody always was."""
    for _ in range(_TRIES):
        slot = reader.bytes(offset, SLOT_BYTES)
        (before,) = struct.unpack_from("<Q", slot, AT_SEQUENCE)
        (after,) = reader.numbers("<Q", offset + AT_SEQUENCE)
        if before == after and not before & 1:
            return slot
    return None


def _by_device(slot: bytes, offset: int, size: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for index in range(DEVICES):
        (amount,) = struct.unpack_from("<Q", slot, offset + index * size)
        if amount:
            found[index] = amount
    return found
