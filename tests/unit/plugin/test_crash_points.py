# SPDX-License-Identifier: Apache-2.0
"""The process ends at every point that the code passes, and the next one puts things right.

The points come from the code itself: a run is watched once, then repeated and ended at each of
them. A new step is therefore covered from the day it exists.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.codec import Json
from gpudra.driver.core import prepare
from gpudra.driver.core.prepare import PreparePlan, Step
from gpudra.kubelet_plugin.cdi_store import CdiStore
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRef
from gpudra.kubelet_plugin.steps import CdiFileStep, StepHandler
from tests.support.plugin import DRIVER, Instance, Killed, Node, claim_object, uid

INSTANCE = "instance"


class LastingStep:
    """A step with an effect outside of our files, like a MIG instance: one file in a folder."""

    lasting = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Makes it; the name is known before, the number is told by doing it."""
        (self.folder / str(step.args["name"])).touch()
        return {"number": 7}

    def restore(self, step: Step, plan: PreparePlan) -> bool:
        """It is never gone by itself here."""
        return False

    def present(self, step: Step) -> bool:
        """Whether it is there."""
        return (self.folder / str(step.args["name"])).exists()

    def undo(self, step: Step) -> None:
        """Takes it away."""
        (self.folder / str(step.args["name"])).unlink(missing_ok=True)


class World:
    """A node whose claims take a lasting step and a file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.node = Node(folder)
        self.hardware = folder / "hardware"
        self.claim = self.node.api.put(claim_object(uid(1), "a", "gpu-0"))
        self.other = self.node.api.put(claim_object(uid(2), "b", "gpu-0"))

    async def start(self, observe: Any = lambda _point: None) -> Instance:
        """A process of the plugin."""
        handlers: dict[str, StepHandler] = {
            "cdi-file": CdiFileStep(
                CdiStore(self.node.cdi_dir, DRIVER, observe=observe), self.node.lib
            ),
            INSTANCE: LastingStep(self.hardware),
        }
        return await self.node.start(observe=observe, handlers=handlers)

    def leftovers(self) -> list[str]:
        """Every file that belongs to claims, and temporary ones of the checkpoint."""
        temporary = [path.name for path in self.node.state_dir.glob(".*")]
        runtime = [str(path) for path in self.node.run_dir.glob("*/*")]
        hardware = [path.name for path in self.hardware.iterdir()]
        return self.node.cdi_files() + hardware + runtime + temporary


@pytest.fixture(params=["file only", "lasting step and file"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Plans as this version makes them, or with a lasting step before the file."""
    original = prepare.plan

    def longer(claim: Any, *arguments: Any, **options: Any) -> PreparePlan:
        found = original(claim, *arguments, **options)
        step = Step(kind=INSTANCE, args={"name": f"of-{claim.uid}"})
        return PreparePlan(
            claim=found.claim,
            devices=found.devices,
            holds=found.holds,
            steps=(step, *found.steps),
            parts=found.parts,
        )

    if request.param != "file only":
        monkeypatch.setattr(prepare, "plan", longer)
    return str(request.param)


class Bomb:
    """Counts points and raises at the chosen one, by default the end; -1 only watches."""

    def __init__(self, at: int = -1, error: BaseException | None = None) -> None:
        self.seen: list[str] = []
        self.at = at
        self._error = error or Killed()

    def __call__(self, point: str) -> None:
        """A point is passed."""
        self.seen.append(point)
        if len(self.seen) - 1 == self.at:
            raise self._error


async def points_of(folder: Path, call: str) -> list[str]:
    """What a whole run passes."""
    world = World(folder)
    bomb = Bomb()
    instance = await world.start(bomb)
    if call == "unprepare":
        await instance.prepare(world.claim)
    bomb.seen.clear()
    (answer,) = await getattr(instance, call)(world.claim)
    assert answer.ok
    instance.end()
    return bomb.seen


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
@pytest.mark.parametrize("claim_lives", [True, False])
async def test_whatever_the_moment_the_retry_succeeds_and_nothing_leaks(
    tmp_path: Path, steps: str, call: str, claim_lives: bool
) -> None:
    """After the kill: state is healed at start, the kubelet's retry works, the end is clean."""
    seen = await points_of(tmp_path / "watched", call)
    assert len(seen) >= 6
    for number, point in enumerate(seen):
        world = World(tmp_path / str(number))
        bomb = Bomb(-1)
        first = await world.start(bomb)
        if call == "unprepare":
            await first.prepare(world.claim)
        bomb.at = len(bomb.seen) + number
        with pytest.raises(Killed):
            await getattr(first, call)(world.claim)
        first.end()

        if not claim_lives:
            world.node.api.drop(world.claim)
        second = await world.start()
        halves = [one for one in second.state.records.values() if one.state != COMPLETED]
        assert halves == [], point
        await retried(world, second, call, claim_lives=claim_lives)
        assert world.leftovers() == [], point
        assert dict(second.state.records) == {}, point
        (answer,) = await second.prepare(world.other)
        assert answer.ok, (point, answer.error)
        second.end()


async def retried(world: World, instance: Instance, call: str, *, claim_lives: bool) -> None:
    """What the kubelet does next."""
    if not claim_lives:
        await instance.recovery.sweep()
        return
    if call == "prepare":
        (answer,) = await instance.prepare(world.claim)
        assert answer.ok, answer.error
    (answer,) = await instance.unprepare(world.claim)
    assert answer.ok, answer.error


async def test_a_kill_while_healing_is_healed_by_the_next_start(tmp_path: Path, steps: str) -> None:
    """Start itself may be killed at every point, again and again."""
    world = World(tmp_path)
    bomb = Bomb(-1)
    first = await world.start(bomb)
    bomb.at = next(
        n for n, _ in enumerate(await points_of(tmp_path / "watched", "prepare")) if n == 4
    )
    with pytest.raises(Killed):
        await first.prepare(world.claim)
    first.end()
    for number in range(20):
        bomb = Bomb(number)
        try:
            instance = await world.start(bomb)
        except Killed:
            continue
        assert world.leftovers() == []
        assert dict(instance.state.records) == {}
        return
    pytest.fail("start never came to its end")


async def test_failures_at_each_step_are_taken_back_at_once(tmp_path: Path, steps: str) -> None:
    """An error instead of a kill: the answer carries it, and nothing is left behind."""
    for number, point in enumerate(await points_of(tmp_path / "watched", "prepare")):
        world = World(tmp_path / str(number))
        bomb = Bomb(error=OSError(28, "No space left on device"))
        instance = await world.start(bomb)
        bomb.at = len(bomb.seen) + number
        (answer,) = await instance.prepare(world.claim)
        assert not answer.ok, point
        assert world.leftovers() == [], point
        assert dict(instance.state.records) == {}, point
        (answer,) = await instance.prepare(world.other)
        assert answer.ok, (point, answer.error)


def test_the_reference_of_a_claim_names_it() -> None:
    """Events regard the claim by kind, name and uid."""
    found = ClaimRef("u", "ns", "n").as_object()
    assert (found["kind"], found["namespace"], found["name"], found["uid"]) == (
        "ResourceClaim", "ns", "n", "u",
    )  # fmt: skip
