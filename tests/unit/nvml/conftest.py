# SPDX-License-Identifier: Apache-2.0
"""NVML is one library for the whole process, so each test gets a machine and gives it back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from gpudra.driver.devicelib.nvml import NvmlLib
from gpudra.driver.devicelib.nvml.session import OnCall
from tests.fakenvml.machine import FakeMachine


class Start(Protocol):
    """See ``start``."""

    def __call__(
        self, profile: str, on_call: OnCall | None = None
    ) -> tuple[NvmlLib, FakeMachine]: ...


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes a machine from a profile, and a library that looks at it."""
    libraries: list[NvmlLib] = []

    def make(profile: str, on_call: OnCall | None = None) -> tuple[NvmlLib, FakeMachine]:
        machine = FakeMachine(profile, tmp_path)
        monkeypatch.setenv("FAKENVML_STATE", str(machine.state))
        found = NvmlLib(library=machine.library, host_root=machine.root, on_call=on_call)
        libraries.append(found)
        return libraries[-1], machine

    yield make
    for library in libraries:
        library.close()
