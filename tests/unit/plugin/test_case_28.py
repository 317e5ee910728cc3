# SPDX-License-Identifier: Apache-2.0
"""The kubelet's call sequences of case 28: each row is a public bug of such a plugin."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.plugin import Answer, Instance, Killed, Node, claim_object

CASE = Path(__file__).parents[2] / "fixtures/cases/28-kubelet-plugin-calls"
SCENARIO = json.loads((CASE / "scenario.json").read_text())
EXPECTED = json.loads((CASE / "expected.json").read_text())["answers"]


class Play:
    """One sequence, step by step. Steps told in prose are methods named in ``PROSE``."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        self.claims = SCENARIO["claims"]
        self.refs = {key: self.node.api.put(self.object(key)) for key in ("A", "B", "C")}
        self.refs["A2"] = self.refs["A"].__class__(self.claims["A2"]["uid"], "default", "a")
        self.instances: dict[int, Instance] = {}
        self.attempt: asyncio.Task[list[Answer]] | None = None

    def object(self, key: str) -> dict[str, Any]:
        """The claim as the API holds it."""
        claim = self.claims[key]
        return claim_object(claim["uid"], claim["name"], claim["device"])

    async def instance(self, number: int = 1) -> Instance:
        """The process, started if it is not running."""
        if number not in self.instances:
            self.instances[number] = await self.node.start()
        return self.instances[number]

    def end(self, number: int = 1) -> None:
        """The process ends."""
        self.instances.pop(number).end()

    async def step(self, step: dict[str, Any]) -> dict[str, Answer] | None:
        """Carries out one step; the answers of a call by claim."""
        number = step.get("instance", 1)
        for call in ("prepare", "unprepare"):
            if call in step and "inside" not in step:
                method = getattr(await self.instance(number), call)
                answers = await method(*(self.refs[key] for key in step[call]))
                return dict(zip(step[call], answers, strict=True))
        text = next(value for value in step.values() if isinstance(value, str))
        await PROSE[text](self, number)
        return None

    async def delete_a(self, _number: int) -> None:
        self.node.api.drop(self.refs["A"])

    async def nothing(self, _number: int) -> None:
        """Both claims are in the API from the start."""

    async def stop(self, number: int) -> None:
        self.end(number)

    async def restart(self, number: int) -> None:
        if number in self.instances:
            self.end(number)
        self.instances[number] = await self.node.start()

    async def replace_a(self, _number: int) -> None:
        self.node.api.put(self.object("A2"))

    async def files_of_a2(self, _number: int) -> None:
        assert self.node.cdi_files() == [f"gpu.example.com-claim_{self.refs['A2'].uid}.json"]

    async def wait_inside(self, _number: int) -> None:
        instance = await self.instance()
        self.node.api.go_away()
        self.attempt = asyncio.create_task(instance.prepare(self.refs["A"]))
        await self.node.clock.until_sleeping()
        self.attempt.cancel()
        await asyncio.wait((self.attempt,))
        assert self.node.clock.pending(), "the attempt goes on by itself"

    async def becomes_ready(self, _number: int) -> None:
        assert not self.node.clock.pending(), "the attempt inside has ended"
        await self.node.clock.advance(60)
        assert dict((await self.instance()).state.records) == {}
        assert self.node.cdi_files() == []

    async def delete_a_while_waiting(self, _number: int) -> None:
        self.node.api.error = None
        self.node.api.drop(self.refs["A"])

    async def killed_before_the_file(self, _number: int) -> None:
        def observe(point: str) -> None:
            if point == "do:cdi-file:before":
                raise Killed

        instance = await self.node.start(observe=observe)
        with pytest.raises(Killed):
            await instance.prepare(self.refs["A"])
        instance.end()
        assert self.node.cdi_files() == []

    async def cut(self, _number: int) -> None:
        for path in self.node.state_dir.glob("checkpoint.*.json"):
            raw = path.read_bytes().rstrip()
            path.write_bytes(raw[: len(raw) // 2])

    async def reboot(self, _number: int) -> None:
        self.end()
        self.node.boot_id = "boot-2"
        for path in self.node.cdi_dir.iterdir():
            path.unlink()


Prose = Callable[[Play, int], Awaitable[None]]
PROSE: dict[str, Prose] = {
    "pod and claim A are force-deleted; B is allocated gpu-0 and reserved": Play.delete_a,
    "pod and claim A are force-deleted while the plugin is down; the kubelet forgets A; "
    "B is allocated gpu-0 and reserved": Play.delete_a,
    "stop": Play.stop,
    "start": Play.restart,
    "restart": Play.restart,
    "start beside 1": Play.restart,
    "B is allocated gpu-0 as well": Play.nothing,
    "B is allocated gpu-0 and reserved": Play.nothing,
    "B is allocated gpu-0 as well, while A is still reserved by a running pod": Play.nothing,
    "claim A is deleted and created again under the same name as A2": Play.replace_a,
    "claim A is deleted and created again under the same name as A2, before the kubelet's call "
    "for the uid of A arrives": Play.replace_a,
    "files of A2": Play.files_of_a2,
    "the plugin waits for something and retries on its own; the kubelet's deadline passes": (
        Play.wait_inside
    ),
    "what the plugin waited for becomes ready": Play.becomes_ready,
    "pod and claim A are deleted; B is allocated gpu-0 and reserved": Play.delete_a_while_waiting,
    "state 'started' is stored, then the process is killed before the CDI file exists": (
        Play.killed_before_the_file
    ),
    "pod and claim A are deleted": Play.delete_a,
    "the checkpoint is cut after half of its bytes": Play.cut,
    "reboot: the CDI folder is empty, the checkpoint is kept": Play.reboot,
}


def check(expected: str, answer: Answer) -> None:
    """Compares one claim's answer with the sentence of the case."""
    if expected.startswith("ok"):
        assert answer.ok, answer.error
        return
    what = expected.removeprefix("error, ").replace("the claim has", "has").rstrip(".")
    assert what.rstrip("-.") in answer.error


@pytest.mark.parametrize("name", SCENARIO["sequences"])
async def test_each_sequence_gives_the_answers_of_the_case(name: str, tmp_path: Path) -> None:
    """Every call of every sequence is answered, claim by claim, as the case demands."""
    play = Play(tmp_path)
    for step, expected in zip(SCENARIO["sequences"][name], EXPECTED[name], strict=True):
        answers = await play.step(step)
        if isinstance(expected, dict) and answers is not None:
            assert set(answers) == set(expected)
            for key, sentence in expected.items():
                check(sentence, answers[key])


def test_every_prose_step_of_the_case_is_played() -> None:
    """A sentence that the case gains or changes is not passed over in silence."""
    told = {
        value
        for steps in SCENARIO["sequences"].values()
        for step in steps
        for value in step.values()
        if isinstance(value, str)
    }
    assert told == set(PROSE)


async def test_a_repeated_prepare_gives_the_same_answer(tmp_path: Path) -> None:
    """The answer after a restart is equal to the first one, device by device."""
    play = Play(tmp_path)
    (first,) = await (await play.instance()).prepare(play.refs["A"])
    play.end()
    (second,) = await (await play.instance()).prepare(play.refs["A"])
    assert first == second
    ((requests, pool, device, ids),) = first.devices
    assert (requests, pool, device) == (["gpu"], "node-a", "gpu-0")
    assert ids == [f"gpu.example.com/claim={play.refs['A'].uid}-gpu-0"]


async def test_a_damaged_checkpoint_is_kept_and_told(tmp_path: Path) -> None:
    """The broken file stays for a person to look at, and an Event says where."""
    play = Play(tmp_path)
    await (await play.instance()).prepare(play.refs["A"])
    play.end()
    await play.cut(1)
    instance = await play.instance()
    kept = sorted(play.node.state_dir.glob("checkpoint.*.json.damaged-*"))
    assert len(kept) == len(instance.warnings) == 2
    for path, (reason, note) in zip(kept, instance.warnings, strict=True):
        assert reason == "CheckpointDamaged"
        assert str(path) in note
        assert re.fullmatch(r"checkpoint\.[01]\.json\.damaged-\d{8}T\d{6}Z", path.name)


async def test_a_reboot_writes_the_file_before_any_call(tmp_path: Path) -> None:
    """After a reboot the CDI file is there as soon as the plugin has started."""
    play = Play(tmp_path)
    await (await play.instance()).prepare(play.refs["A"])
    before = play.node.cdi_files()
    await play.reboot(1)
    await play.instance()
    assert play.node.cdi_files() == before
