# SPDX-License-Identifier: Apache-2.0
"""HAMi-core's shared region: what is read, and what a hostile container cannot do to the reader."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudra.kubelet_plugin.sharing import region
from gpudra.kubelet_plugin.sharing.region import read_region

GIB = 2**30


class Region:
    """A file as the library writes it."""

    def __init__(self, path: Path, *, minor: int = 2) -> None:
        self.path = path
        path.write_bytes(bytes(region.REGION_BYTES + 1))
        self.put(0, "<iII", region.INITIALISED, region.MAJOR, minor)

    def put(self, offset: int, kind: str, *values: object) -> None:
        """Writes at an offset."""
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(struct.pack(kind, *values))

    def process(self, number: int, pid: int, *, memory: int = 0, sm: int = 0, seq: int = 0) -> None:
        """One slot, using device 1."""
        at = region.AT_SLOTS + number * region.SLOT_BYTES
        self.put(at, "<ii", pid, pid + 1000)
        self.put(at + region.AT_USED + region.USED_BYTES + region.AT_TOTAL, "<Q", memory)
        utilisation = at + region.AT_UTILISATION + region.UTILISATION_BYTES + region.AT_SM
        self.put(utilisation, "<Q", sm)
        self.put(at + region.AT_SEQUENCE, "<Q", seq)
        self.put(region.AT_PROCESSES, "<i", number + 1)


def test_processes_limits_and_cards_are_read(tmp_path: Path) -> None:
    """Sums are by index of the device; a limit of 0 or 100 per cent is none."""
    made = Region(tmp_path / "cache")
    made.put(region.AT_DEVICES, "<Q", 2)
    made.put(region.AT_UUIDS, "<96s", b"GPU-a")
    made.put(region.AT_UUIDS + region.UUID_BYTES, "<96s", b"GPU-b")
    made.put(region.AT_MEMORY_LIMITS, "<QQ", 0, 10 * GIB)
    made.put(region.AT_SM_LIMITS, "<QQ", 100, 30)
    made.process(0, 7, memory=GIB, sm=60)
    made.process(1, 0, memory=5 * GIB)
    made.process(2, 9, memory=2 * GIB, sm=70)
    found = read_region(made.path)
    assert found is not None
    assert found.uuids == {0: "GPU-a", 1: "GPU-b"}
    assert (found.memory_limits, found.sm_limits) == ({1: 10 * GIB}, {1: 30})
    assert [(one.pid, one.host_pid) for one in found.processes] == [(7, 1007), (9, 1009)]
    assert found.memory_bytes() == {1: 3 * GIB}
    assert found.sm_percent() == {1: 100}


def test_the_format_before_is_read_too(tmp_path: Path) -> None:
    """1.1 has zeros where 1.2 has the sequence number; others are not guessed."""
    assert read_region(Region(tmp_path / "old", minor=1).path) is not None
    assert read_region(Region(tmp_path / "new", minor=3).path) is None


def test_a_slot_in_the_middle_of_a_write_is_left_out(tmp_path: Path) -> None:
    """Its number stays odd, so nothing of it is believed."""
    made = Region(tmp_path / "cache")
    made.process(0, 7, memory=GIB, seq=3)
    made.process(1, 8, memory=GIB, seq=4)
    found = read_region(made.path)
    assert found is not None
    assert [one.pid for one in found.processes] == [8]


@pytest.mark.parametrize("kind", ["missing", "short", "link", "pipe", "folder", "zeros"])
def test_what_is_no_region_tells_nothing(tmp_path: Path, kind: str) -> None:
    """A container may put anything there; a pipe is not waited for, a link not followed."""
    path = tmp_path / "cache"
    if kind == "short":
        path.write_bytes(b"x" * 100)
    elif kind == "link":
        path.symlink_to(Region(tmp_path / "real").path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zeros":
        path.write_bytes(bytes(region.REGION_BYTES))
    assert read_region(path) is None


@given(count=st.integers(-(2**31), 2**31 - 1), devices=st.integers(0, 2**64 - 1))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_from_the_container_are_bounded(tmp_path: Path, count: int, devices: int) -> None:
    """No count makes the reader leave the file or run long."""
    made = Region(tmp_path / "cache")
    made.put(region.AT_DEVICES, "<Q", devices)
    made.put(region.AT_PROCESSES, "<i", count)
    found = read_region(made.path)
    assert found is not None
    assert found.processes == ()
    assert len(found.uuids) <= region.DEVICES
