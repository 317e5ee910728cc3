# SPDX-License-Identifier: Apache-2.0
"""Compute mode through NVML; time slices through nvidia-smi, since NVML has no setter for them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pynvml

from gpudra.api.errors import HardwareError
from gpudra.driver.devicelib.nvml.session import Session
from gpudra.driver.devicelib.protocol import ComputeMode, TimeSlice

_MODES = {
    ComputeMode.DEFAULT: pynvml.NVML_COMPUTEMODE_DEFAULT,
    ComputeMode.PROHIBITED: pynvml.NVML_COMPUTEMODE_PROHIBITED,
    ComputeMode.EXCLUSIVE_PROCESS: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
}
_NAMES = {number: mode for mode, number in _MODES.items()}
_LENGTHS = {TimeSlice.DEFAULT: 0, TimeSlice.SHORT: 1, TimeSlice.MEDIUM: 2, TimeSlice.LONG: 3}
_PATIENCE_SECONDS = 20.0


class NvmlTuning:
    """TuningLib on NVML. See the protocol for the contract."""

    def __init__(self, session: Session, nvidia_smi: Path) -> None:
        self._session = session
        self._nvidia_smi = nvidia_smi

    def compute_mode(self, gpu: str) -> ComputeMode:
        """The mode now; a mode that no driver offers any more reads as the default."""
        handle = self._session.handle(gpu)
        with self._session.calling(f"compute mode of GPU {gpu}"):
            return _NAMES.get(pynvml.nvmlDeviceGetComputeMode(handle), ComputeMode.DEFAULT)

    def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Sets it."""
        handle = self._session.handle(gpu)
        with self._session.calling(f"compute mode of GPU {gpu}"):
            pynvml.nvmlDeviceSetComputeMode(handle, _MODES[mode])

    def set_time_slice(self, gpus: Sequence[str], length: TimeSlice) -> None:
        """Sets the length of a time slice on these cards.

        Raises:
            HardwareError: nvidia-smi is missing, or refuses (cards before Volta cannot).
        """
        command = [
            str(self._nvidia_smi),
            "compute-policy",
            "-i",
            ",".join(gpus),
            "--set-timeslice",
            str(_LENGTHS[length]),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HardwareError(
                f"nvidia-smi cannot be run ({error})", obj=str(self._nvidia_smi)
            ) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise HardwareError(
                f"nvidia-smi refused the time slice: {said[-1] if said else done.returncode}",
                obj=f"GPUs {', '.join(gpus)}",
            )
