# SPDX-License-Identifier: Apache-2.0
"""Who uses a card, as NVML tells it."""

import pytest

from gpudra.api.errors import HardwareError
from gpudra.driver.devicelib.protocol import GpuProcess
from tests.unit.nvml.conftest import Start

GIB = 2**30
NOT_FOUND, NOT_SUPPORTED, UNKNOWN = 6, 3, 999


def test_processes_tell_memory_and_how_busy_they_are(start: Start) -> None:
    """Ascending by pid; whoever has not run kept nothing busy."""
    lib, machine = start("dgx-h100-8x80")
    card = machine.inventory.gpus[0].uuid
    assert card is not None
    assert lib.usage.processes(card) == ()
    machine.ctl("process", card, 20, 2 * GIB)
    machine.ctl("process", card, 10, GIB)
    machine.ctl("runs", card, 20, 70)
    expected = (
        GpuProcess(pid=10, memory_bytes=GIB, compute_percent=0),
        GpuProcess(pid=20, memory_bytes=2 * GIB, compute_percent=70),
    )
    assert lib.usage.processes(card) == expected
    assert lib.usage.processes(card) == expected, "the second look is at newer samples"
    assert lib.usage.usage(card).gpu_percent == 70


def test_parts_tell_their_instance_and_no_rates(start: Start) -> None:
    """Under MIG the driver has no rates, which is not the same as idle."""
    lib, machine = start("dgx-h100-8x80")
    card = machine.inventory.gpus[0].uuid
    assert card is not None
    machine.ctl("mig", card, 1)
    machine.ctl("process", card, 10, GIB, 7, 0)
    (found,) = lib.usage.processes(card)
    assert found == GpuProcess(pid=10, memory_bytes=GIB, gpu_instance_id=7)
    assert lib.usage.usage(card).gpu_percent is None


@pytest.mark.parametrize("error", [NOT_SUPPORTED, UNKNOWN])
def test_without_rates_memory_is_told_all_the_same(start: Start, error: int) -> None:
    """One reading that fails costs only itself."""
    lib, machine = start("dgx-h100-8x80")
    card = machine.inventory.gpus[0].uuid
    assert card is not None
    machine.ctl("process", card, 10, GIB)
    machine.ctl("fail", "nvmlDeviceGetProcessUtilization", error)
    assert lib.usage.processes(card) == (GpuProcess(pid=10, memory_bytes=GIB),)


def test_calls_are_timed_and_say_whether_they_were_answered(start: Start) -> None:
    """Also those that fail: a driver that is slow to refuse is slow."""
    told: list[tuple[float, bool]] = []
    lib, machine = start("dgx-h100-8x80", lambda seconds, fine: told.append((seconds, fine)))
    card = machine.inventory.gpus[0].uuid
    assert card is not None
    lib.usage.processes(card)
    assert told
    assert all(answered for _, answered in told)
    machine.ctl("fail", "nvmlDeviceGetComputeRunningProcesses_v3", UNKNOWN)
    with pytest.raises(HardwareError, match="processes of GPU"):
        lib.usage.processes(card)
    assert told[-1][1] is False
    assert all(seconds >= 0 for seconds, _ in told)
