# SPDX-License-Identifier: Apache-2.0
"""What each backend enforces, in the words of the condition ``Isolated``.

Honest above all: a limit that a program can lift by itself is named as such. docs/isolation.md says
the same at length; a test holds both together.
"""

from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.sharing.types import Backend, IsolationReport, Sharing

REASONS = {
    Backend.MPS: "MPS",
    Backend.HAMI_CORE: "HamiCore",
    Backend.TIME_SLICE: "TimeSlice",
    Backend.NONE: "NoIsolation",
}


def exclusive_report(kind: DeviceKind) -> IsolationReport:
    """For a device that one claim has for itself."""
    if kind is DeviceKind.MIG:
        return IsolationReport(
            reason="MIG",
            isolated=True,
            enforced=("memory and compute by the hardware",),
        )
    if kind is DeviceKind.MONITOR:
        return IsolationReport(
            reason="Monitor",
            isolated=False,
            not_enforced=("anything: a monitor sees the card beside its users",),
        )
    return IsolationReport(
        reason="Exclusive", isolated=True, enforced=("the card belongs to this claim alone",)
    )


def sharing_report(one: Sharing) -> IsolationReport:
    """For a device that is shared."""
    return _REPORTS[one.backend](one)


def _mps(one: Sharing) -> IsolationReport:
    enforced, missing = [], []
    if one.memory_mib is not None:
        enforced.append(f"{one.memory_mib} MiB of memory for each process by the MPS server")
        missing.append("the sum over several processes of one container")
        missing.append("a process that changes its own MPS variables gets up to the largest share")
    else:
        missing.append("memory")
    if one.compute:
        enforced.append(f"at most {one.compute} % of the multiprocessors by the MPS server")
    else:
        missing.append("compute, of which none was reserved")
    missing.append("fault containment: a fatal fault of one client can end the others")
    return IsolationReport(
        reason=REASONS[Backend.MPS],
        isolated=one.memory_mib is not None,
        enforced=tuple(enforced),
        not_enforced=tuple(missing),
    )


def _hami_core(one: Sharing) -> IsolationReport:
    enforced = [f"{one.memory_mib} MiB of memory by libvgpu.so inside the container"]
    missing = ["memory from stream-ordered pools and CUDA arrays"]
    if one.compute:
        enforced.append(f"about {one.compute} % of kernel time by libvgpu.so")
    else:
        missing.append("compute, of which none was reserved")
    missing.append("a program that takes the library out of its own environment")
    return IsolationReport(
        reason=REASONS[Backend.HAMI_CORE],
        isolated=True,
        enforced=tuple(enforced),
        not_enforced=tuple(missing),
    )


def _time_slice(one: Sharing) -> IsolationReport:
    return IsolationReport(
        reason=REASONS[Backend.TIME_SLICE],
        isolated=False,
        enforced=(f"turns of length {one.time_slice} by the driver",),
        not_enforced=("memory", "a fixed part of compute"),
    )


def _none(_one: Sharing) -> IsolationReport:
    return IsolationReport(
        reason=REASONS[Backend.NONE], isolated=False, not_enforced=("memory", "compute")
    )


_REPORTS = {
    Backend.MPS: _mps,
    Backend.HAMI_CORE: _hami_core,
    Backend.TIME_SLICE: _time_slice,
    Backend.NONE: _none,
}
