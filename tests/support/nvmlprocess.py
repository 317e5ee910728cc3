# SPDX-License-Identifier: Apache-2.0
"""The node agent as a process on a pretended NVIDIA machine, beside a fake API server."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakenvml.machine import FakeMachine
from tests.support.agentprocess import AgentProcess


@dataclass
class NvmlAgent(AgentProcess):
    """The agent on a machine whose driver may be put in and taken away."""

    machine: FakeMachine = field(kw_only=True)

    @property
    def library(self) -> Path:
        """Where the driver's library lies, if it is installed."""
        return self.folder / "libnvidia-ml.so.1"

    def install(self) -> None:
        """The driver comes."""
        shutil.copy(self.machine.library, self.library)

    def command(self) -> list[str]:
        """How it is started."""
        words = super().command()
        at = words.index("--device-lib")
        del words[at : at + 4]
        return [
            *words, "--device-lib", "nvml", "--nvml-library", str(self.library),
            "--host-root", str(self.machine.root),
        ]  # fmt: skip
