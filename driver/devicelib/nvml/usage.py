# SPDX-License-Identifier: Apache-2.0
"""How busy a card is, and by whom."""

import pynvml

from gpudra.driver.devicelib.nvml.session import Asker, Session
from gpudra.driver.devicelib.protocol import GpuProcess, GpuUsage

_NO_INSTANCE = 0xFFFFFFFF


class NvmlUsage:
    """UsageLib on NVML. See the protocol for the contract."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
        return tuple(
            sorted(
                (
                    GpuProcess(
                        pid=one.pid,
                        memory_bytes=one.usedGpuMemory,
                        gpu_instance_id=None
                        if one.gpuInstanceId == _NO_INSTANCE
                        else one.gpuInstanceId,
                    )
                    for one in found
                ),
                key=lambda process: process.pid,
            )
        )
