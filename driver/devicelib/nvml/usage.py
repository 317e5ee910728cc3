# SPDX-License-Identifier: Apache-2.0
"""How busy a card is, and by whom."""

from typing import Any

import pynvml

from gpudra.driver.devicelib.nvml.session import Asker, Session
from gpudra.driver.devicelib.protocol import GpuProcess, GpuUsage

_NO_INSTANCE = 0xFFFFFFFF
# "No process has run since": an answer, although it comes as an error.
_NONE_RAN = {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND}


class NvmlUsage:
    """UsageLib on NVML. See the protocol for the contract."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Time of the newest sample seen, by card, in the driver's microseconds.
        self._seen: dict[str, int] = {}

    def usage(self, gpu: str) -> GpuUsage:
        """Readings now, each optional."""
        handle = self._session.handle(gpu)
        asker = Asker(gpu)
        with self._session.calling(f"GPU {gpu}"):
            memory = asker.ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
            rates = asker.ask("utilization", pynvml.nvmlDeviceGetUtilizationRates, handle)
            return GpuUsage(
                memory_used_bytes=int(memory.used) if memory is not None else None,
                gpu_percent=rates.gpu if rates is not None else None,
                memory_percent=rates.memory if rates is not None else None,
                power_milliwatts=asker.ask("power", pynvml.nvmlDeviceGetPowerUsage, handle),
                temperature_celsius=asker.ask(
                    "temperature",
                    pynvml.nvmlDeviceGetTemperature,
                    handle,
                    pynvml.NVML_TEMPERATURE_GPU,
                ),
            )

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Compute processes on the card, ascending by pid."""
        handle = self._session.handle(gpu)
        with self._session.calling(f"processes of GPU {gpu}"):
            found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            percents = self._percents(gpu, handle)
        processes = (
            GpuProcess(
                pid=one.pid,
                memory_bytes=one.usedGpuMemory,
                gpu_instance_id=None if one.gpuInstanceId == _NO_INSTANCE else one.gpuInstanceId,
                # What has not run since the last look kept nothing busy.
                compute_percent=None if percents is None else percents.get(one.pid, 0),
            )
            for one in found
        )
        return tuple(sorted(processes, key=lambda process: process.pid))

    def _percents(self, gpu: str, handle: Any) -> dict[int, int] | None:
        """By pid, the mean of the samples since the last look; None where there are none to be had.

        Raises:
            pynvml.NVMLError: the card is lost.
        """
        seen = self._seen.get(gpu, 0)
        samples = Asker(gpu).ask("process utilization", _samples_since, handle, seen)
        return None if samples is None else self._means(gpu, samples)

    def _means(self, gpu: str, samples: Any) -> dict[int, int]:
        by_pid: dict[int, list[int]] = {}
        for one in samples:
            # The buffer of the driver may hold entries that were never filled.
            if one.timeStamp > self._seen.get(gpu, 0) and one.smUtil <= 100:
                by_pid.setdefault(one.pid, []).append(one.smUtil)
        self._seen[gpu] = max((one.timeStamp for one in samples), default=self._seen.get(gpu, 0))
        return {pid: round(sum(each) / len(each)) for pid, each in by_pid.items()}


def _samples_since(handle: Any, seen: int) -> Any:
    """What ran since; nothing is no error here.

    Raises:
        pynvml.NVMLError: the driver does not tell.
    """
    try:
        return pynvml.nvmlDeviceGetProcessUtilization(handle, seen)
    except pynvml.NVMLError as error:
        if error.value in _NONE_RAN:
            return []
        raise
