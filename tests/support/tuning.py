# SPDX-License-Identifier: Apache-2.0
"""Cards whose compute mode and time slices can be set, and made to refuse."""

from collections.abc import Sequence
from typing import Any

from gpudra.api.errors import GpudraError
from gpudra.driver.devicelib.protocol import ComputeMode, TimeSlice


class FakeTuning:
    """TuningLib in memory. ``error`` is raised by every call while it is set."""

    def __init__(self) -> None:
        self.modes: dict[str, ComputeMode] = {}
        self.slices: dict[str, TimeSlice] = {}
        self.calls: list[tuple[str, ...]] = []
        self.error: GpudraError | None = None

    def compute_mode(self, gpu: str) -> ComputeMode:
        """The mode now."""
        self._answer()
        return self.modes.get(gpu, ComputeMode.DEFAULT)

    def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Sets it."""
        self._answer()
        self.calls.append(("mode", gpu, str(mode)))
        self.modes[gpu] = mode

    def set_time_slice(self, gpus: Sequence[str], length: TimeSlice) -> None:
        """Sets it."""
        self._answer()
        for gpu in gpus:
            self.calls.append(("slice", gpu, str(length)))
            self.slices[gpu] = length

    def _answer(self) -> None:
        if self.error is not None:
            raise self.error


class TunedLib:
    """DeviceLib of which only ``tuning`` is used."""

    name = "fake"
    partitions = None
    health = None
    usage = None

    def __init__(self, tuning: FakeTuning | None) -> None:
        self.tuning = tuning

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a backend of sharing called {name}")
