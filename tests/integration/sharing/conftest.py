# SPDX-License-Identifier: Apache-2.0
"""A node with one or two cards whose MPS program is the stand-in, with real processes."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudra.driver.core.sharing import Backend, Sharing
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.kubelet_plugin.sharing.launch import MARK, MpsLaunch
from gpudra.kubelet_plugin.sharing.mps import MpsBackend
from gpudra.kubelet_plugin.sharing.processes import end, marked
from tests.fakemps import FakeMps, installed
from tests.support.plugin import uid
from tests.support.tuning import FakeTuning, TunedLib

DEVICE = "gpu-0-share"


class MpsNode:
    """The node, and agents that come and go on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mps"
        self.tuning = FakeTuning()
        self.fake = FakeMps(self.folder / DEVICE, folder)
        self.launch = MpsLaunch(
            program=str(installed(folder / "bin")),
            own_shm=False,
            start_seconds=30,
            answer_seconds=30,
            stop_seconds=30,
        )
        self._agents: list[MpsBackend] = []

    def agent(self, **patience: float) -> MpsBackend:
        """A new agent. Those before it are kept: a process of Python must not forget children."""
        lib: DeviceLib = TunedLib(self.tuning)
        launch = MpsLaunch(
            program=self.launch.program,
            own_shm=False,
            start_seconds=patience.get("start", 30),
            answer_seconds=patience.get("answer", 30),
            stop_seconds=patience.get("stop", 30),
        )
        self._agents.append(MpsBackend(self.folder, lib, launch))
        return self._agents[-1]

    def daemons(self, device: str = DEVICE) -> tuple[int, ...]:
        """Processes of the device's daemon, servers included."""
        return marked(MARK, str(self.folder / device))

    def share(self, claim: int = 1, memory: int | None = 1024, compute: int = 0) -> Sharing:
        """What one claim takes."""
        return Sharing(
            backend=Backend.MPS,
            device=DEVICE,
            card="GPU-0",
            target="GPU-0",
            claim_uid=uid(claim),
            memory_mib=memory,
            compute=compute,
            requests=("gpu",),
        )

    def kill(self) -> None:
        """As the kernel does when memory is short; waits until it is gone."""
        assert end(self.daemons(), signal.SIGKILL, 30) == ()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsNode]:
    """The node; nothing of it runs afterwards."""
    for name, value in FakeMps.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    made = MpsNode(tmp_path)
    yield made
    if made.folder.exists():
        for folder in made.folder.iterdir():
            end(made.daemons(folder.name), signal.SIGKILL, 30)
    for agent in made._agents:
        for daemon in agent._daemons.values():
            if daemon._child is not None:
                daemon._child.wait(30)
