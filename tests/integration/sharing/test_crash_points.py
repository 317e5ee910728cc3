# SPDX-License-Identifier: Apache-2.0
"""The agent ends at every point while it shares a card, and the next one puts things right.

The points come from the code itself, as in tests/unit/plugin/test_crash_points.py. For MPS, whose
daemons are real processes, those around its own step are enough.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpudra.driver.core import prepare
from gpudra.driver.core.prepare import PreparePlan
from gpudra.driver.core.sharing import Backend, Sharing
from gpudra.driver.devicelib.protocol import ComputeMode, TimeSlice
from gpudra.kubelet_plugin.cdi_store import CdiStore
from gpudra.kubelet_plugin.records import COMPLETED
from gpudra.kubelet_plugin.sharing import Backends, SharingSettings, open_backends
from gpudra.kubelet_plugin.sharing.hami_core import HOOKS
from gpudra.kubelet_plugin.steps import CdiFileStep
from tests.integration.sharing.conftest import MpsNode
from tests.support.plugin import DRIVER, Instance, Killed, Node, claim_object, uid
from tests.support.tuning import TunedLib


class World:
    """A node whose only claim shares a card by one backend."""

    def __init__(self, folder: Path, mps: MpsNode, library: Path) -> None:
        folder.mkdir()
        self.node = Node(folder)
        self.claim = self.node.api.put(claim_object(uid(1), "a", "gpu-0"))
        self._folder = folder
        self._mps = mps
        self._settings = SharingSettings(
            runtime_dir=mps.folder.parent, hami_library=str(library), mps=mps.launch
        )
        self._opened: list[Backends] = []

    async def start(self, observe: Any = lambda _point: None) -> Instance:
        """An agent."""
        self._opened.append(open_backends(self._settings, TunedLib(self._mps.tuning)))
        store = CdiStore(self.node.cdi_dir, DRIVER, observe=observe)
        handlers = {
            "cdi-file": CdiFileStep(store, self.node.lib),
            **self._opened[-1].handlers(),
        }
        return await self.node.start(observe=observe, handlers=handlers)

    def leftovers(self) -> list[str]:
        """What a claim leaves behind, settings of the card included."""
        found = [
            str(path) for name in Backend for path in self._settings.runtime_dir.glob(f"{name}/*")
        ]
        if self._mps.tuning.modes.get("GPU-0", ComputeMode.DEFAULT) is not ComputeMode.DEFAULT:
            found.append("compute mode")
        if self._mps.tuning.slices.get("GPU-0", TimeSlice.DEFAULT) is not TimeSlice.DEFAULT:
            found.append("time slice")
        return [*found, *map(str, self._mps.daemons()), *self.node.cdi_files()]

    def end(self) -> None:
        """No process of Python may be forgotten with a child that still runs."""
        for backends in self._opened:
            for daemon in backends._by_name[Backend.MPS]._daemons.values():
                if daemon._child is not None:
                    daemon._child.wait(30)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A decoy of HAMi-core."""
    source = tmp_path / "decoy.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in HOOKS))
    made = tmp_path / "libvgpu.so"
    command = ["gcc", "-shared", "-fPIC", "-fno-builtin", "-o", made, source]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(params=list(Backend))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Plans with a step of sharing before the file."""
    original = prepare.plan
    chosen: Backend = request.param

    def longer(claim: Any, *arguments: Any, **options: Any) -> PreparePlan:
        found = original(claim, *arguments, **options)
        one = Sharing(
            backend=chosen,
            device="gpu-0-share",
            card="GPU-0",
            target="GPU-0",
            claim_uid=claim.uid,
            memory_mib=1024,
            time_slice="long",
            requests=("gpu",),
        )
        return PreparePlan(
            claim=found.claim,
            devices=found.devices,
            holds=found.holds,
            steps=(one.step(), *found.steps),
            parts=found.parts,
        )

    monkeypatch.setattr(prepare, "plan", longer)
    return chosen


class Bomb:
    """Counts points and ends the process at the chosen one; -1 only watches."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.at = -1

    def __call__(self, point: str) -> None:
        """A point is passed."""
        self.seen.append(point)
        if len(self.seen) - 1 == self.at:
            raise Killed


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
async def test_whatever_the_moment_nothing_of_sharing_is_left(
    tmp_path: Path, node: MpsNode, library: Path, backend: Backend, call: str
) -> None:
    """The retry succeeds, and its end leaves folders, daemons and settings as they were."""
    points = await watched(World(tmp_path / "watched", node, library), call)
    assert any(point.startswith(f"do:share-{backend}") for point in points) == (call == "prepare")
    for number, point in enumerate(points):
        if backend is Backend.MPS and "share" not in point:
            continue
        world = World(tmp_path / str(number), node, library)
        bomb = Bomb()
        first = await world.start(bomb)
        if call == "unprepare":
            await first.prepare(world.claim)
        bomb.at = len(bomb.seen) + number
        with pytest.raises(Killed):
            await getattr(first, call)(world.claim)
        first.end()
        second = await world.start()
        assert [one for one in second.state.records.values() if one.state != COMPLETED] == []
        if call == "prepare":
            (answer,) = await second.prepare(world.claim)
            assert answer.ok, (point, answer.error)
        (answer,) = await second.unprepare(world.claim)
        assert answer.ok, (point, answer.error)
        assert world.leftovers() == [], point
        second.end()
        world.end()


async def watched(world: World, call: str) -> list[str]:
    """What a whole run passes."""
    bomb = Bomb()
    instance = await world.start(bomb)
    if call == "unprepare":
        await instance.prepare(world.claim)
    bomb.seen.clear()
    (answer,) = await getattr(instance, call)(world.claim)
    assert answer.ok, answer.error
    seen = list(bomb.seen)
    await instance.unprepare(world.claim)
    assert world.leftovers() == []
    instance.end()
    world.end()
    return seen
