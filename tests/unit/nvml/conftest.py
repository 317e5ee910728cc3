# SPDX-License-Identifier: Apache-2.0
"""NVML is one library for the whole process, so each test gets a machine and gives it back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudra.driver.devicelib.nvml import NvmlLib
from tests.fakenvml.machine import FakeMachine

Start = Callable[[str], tuple[NvmlLib, FakeMachine]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes a machine from a profile, and a library that looks at it."""
    libraries: list[NvmlLib] = []

    def make(profile: str) -> tuple[NvmlLib, FakeMachine]:
        machine = FakeMachine(profile, tmp_path)
        monkeypatch.setenv("FAKENVML_STATE", str(machine.state))
        libraries.append(NvmlLib(library=machine.library, host_root=machine.root))
        return libraries[-1], machine

    yield make
    for library in libraries:
        library.close()
