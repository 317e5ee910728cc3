# SPDX-License-Identifier: Apache-2.0
"""Case 35: an API server that misbehaves while we list and watch, over real loopback connections."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpudra.driver.kube.client import ClientOptions
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.reflector import Event, Reflector, ReflectorOptions
from gpudra.driver.kube.resources import RESOURCE_SLICES, Obj
from tests.support.apiscript import (
    Answer,
    ApiScript,
    bookmark,
    event,
    failed,
    listed,
    slice_object,
    status_of,
    watched,
)

CASE = Path(__file__).parents[2] / "fixtures" / "cases" / "35-watch-goes-wrong"
ANSWERS: dict[str, dict[str, Any]] = json.loads((CASE / "expected.json").read_text())["answers"]
ROWS = {row["id"] for row in json.loads((CASE / "scenario.json").read_text())["rows"]}

# Real time, but so short that nobody waits: what is tested is the order, not the length.
QUICK = ReflectorOptions(backoff_base=0.001, backoff_cap=0.002)
s1, s2, s3 = (slice_object(name) for name in ("s1", "s2", "s3"))
EXPIRED = event("ERROR", status_of(410, "Expired", "too old resource version: 100 (400)"))


class Mirror:
    """A reflector under test and what it told."""

    def __init__(self, reflector: Reflector[Obj]) -> None:
        self.reflector = reflector
        self.told: list[str] = []

    def on_event(self, what: Event[Obj]) -> None:
        self.told.append(f"{what.kind.value} {what.object['metadata']['name']}")


@asynccontextmanager
async def mirroring(
    script: ApiScript,
    options: ReflectorOptions = QUICK,
    client_options: ClientOptions | None = None,
) -> AsyncIterator[Mirror]:
    """A reflector of all slices, running."""
    client = await script.client(client_options)
    clock = client_options.clock if client_options else None
    reflector = Reflector(
        client,
        RESOURCE_SLICES,
        lambda raw: raw,
        options=options,
        clock=clock,
        rng=random.Random(1),
    )
    mirror = Mirror(reflector)
    reflector.add_handler(mirror.on_event)
    task = asyncio.create_task(reflector.run())
    try:
        yield mirror
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_every_row_of_the_case_has_its_test() -> None:
    """No row of the scenario is left out."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_case35_*.py")]
    tests = {
        name.replace("_", "-") for text in texts for name in re.findall(r"def test_(\w+)", text)
    }
    assert all(any(name.startswith(row) for name in tests) for row in ROWS)


async def test_expired_in_stream() -> None:
    """A 410 inside the stream leads to a new list, its differences, and a watch from its version."""
    script = ApiScript(
        listed("100", s1, s2),
        watched(event("MODIFIED", slice_object("s1", version="101")), EXPIRED, end="close"),
        listed("500", slice_object("s1", version="101"), s3),
    )
    async with script, mirroring(script) as mirror:
        asked = await script.asked_for(4)
        assert asked == ANSWERS["expired-in-stream"]["requests"]
        assert mirror.told == ANSWERS["expired-in-stream"]["events"]


async def test_expired_in_stream_with_another_form_of_an_object_tells_the_update() -> None:
    """The new list tells an update for an object that differs from the one in the store."""
    script = ApiScript(
        listed("100", s1),
        watched(EXPIRED, end="close"),
        listed("500", slice_object("s1", version="7")),
    )
    async with script, mirroring(script) as mirror:
        await script.asked_for(4)
        assert mirror.told == ["add s1", "update s1"]


async def test_expired_as_http() -> None:
    """A watch refused with HTTP 410 leads to a new list, without inventing a version."""
    script = ApiScript(listed("100", s1), failed(410, "Expired"), listed("500", s1))
    async with script, mirroring(script) as mirror:
        asked = await script.asked_for(4)
        assert asked == ANSWERS["expired-as-http"]["requests"]
        assert mirror.told == ["add s1"]


@pytest.mark.parametrize(
    "status",
    [
        {"kind": "Status", "code": 410},
        {"kind": "Status", "reason": "Gone"},
        {"kind": "Status", "status": {"code": 410, "reason": "Expired"}},
        {"type": "ERROR", "object": status_of(410, "Expired")},
    ],
    ids=["code only", "reason only", "nested in status", "nested event"],
)
async def test_expired_in_any_form(status: Obj) -> None:
    """410 is understood however the Status is wrapped or shortened."""
    script = ApiScript(
        listed("100", s1), watched(event("ERROR", status), end="close"), listed("500", s1)
    )
    async with script, mirroring(script):
        assert await script.asked_for(4) == ["LIST", "WATCH 100", "LIST", "WATCH 500"]


async def test_expired_again_and_again_is_slowed_down() -> None:
    """A server that answers 410 to every watch is listed once at once, then with growing pauses."""
    clock = VirtualClock()
    answers: list[Answer] = []
    for round_ in range(4):
        answers += [listed(str(100 + round_), s1), failed(410, "Expired")]
    script = ApiScript(*answers)
    options = ClientOptions(clock=clock)
    async with script, mirroring(script, ReflectorOptions(), options):
        await script.asked_for(4)
        await clock.until_sleeping()
        first = clock.pending()[0]
        assert 0.1 <= first <= 0.4
        await clock.advance(first)
        await script.asked_for(6)
        await clock.until_sleeping()
        assert clock.pending()[0] > first


async def test_expired_page() -> None:
    """A continue token that has expired starts the list anew; the store never holds half of it."""
    script = ApiScript(
        listed("100", s1, s2, token="t1"),
        failed(410, "Expired", "The provided continue parameter is too old"),
        listed("120", s1, s2, token="t2"),
        listed("120", s3),
    )
    async with script, mirroring(script) as mirror:
        asked = await script.asked_for(5)
        assert asked == ["LIST", "LIST t1", "LIST", "LIST t2", "WATCH 120"]
        assert mirror.told == ANSWERS["expired-page"]["events"]


async def test_three_pages() -> None:
    """All pages are read, and the watch starts at the version of the first."""
    names = [f"s{i:04}" for i in range(1253)]
    items = [slice_object(name) for name in names]
    script = ApiScript(
        listed("900", *items[:500], token="t1"),
        listed("901", *items[500:1000], token="t2"),
        listed("902", *items[1000:]),
    )
    async with script, mirroring(script) as mirror:
        asked = await script.asked_for(4)
        expected = ANSWERS["three-pages"]
        assert asked == ["LIST", "LIST t1", "LIST t2", f"WATCH {expected['watch_from']}"]
        assert len(mirror.reflector.store) == expected["items"]
        assert mirror.reflector.store.keys() == names


async def test_silent_peer() -> None:
    """A watch on which nothing comes is given up a little after its time, and opened again."""
    clock = VirtualClock()
    script = ApiScript(listed("100", s1), watched())
    options = ClientOptions(clock=clock, watch_grace=15.0)
    async with script, mirroring(script, ReflectorOptions(watch_timeout=60), options) as mirror:
        await script.asked_for(2)
        await clock.until_sleeping()
        deadline = clock.pending()[0]
        assert 30 + 15 <= deadline <= 60 + 15
        await clock.advance(deadline)
        await clock.until_sleeping()
        await clock.advance(1.0)
        assert await script.asked_for(3) == ["LIST", "WATCH 100", "WATCH 100"]
        assert mirror.told == ["add s1"]


async def test_cut_in_the_middle() -> None:
    """Half a line is no event; the watch goes on from the last whole one."""
    half = event("MODIFIED", slice_object("s1", version="102"))[:40]
    script = ApiScript(
        listed("100", s1),
        watched(event("MODIFIED", slice_object("s1", version="101")), half, end="reset"),
    )
    async with script, mirroring(script) as mirror:
        assert await script.asked_for(3) == ["LIST", "WATCH 100", "WATCH 101"]
        assert mirror.told == ["add s1", "update s1"]


async def test_an_event_cut_into_pieces_is_whole_again() -> None:
    """Where the network cuts lines means nothing."""
    line = event("ADDED", s2) + event("DELETED", slice_object("s1", version="103"))
    pieces = [line[at : at + 7] for at in range(0, len(line), 7)]
    script = ApiScript(listed("100", s1), watched(*pieces, end="close"))
    async with script, mirroring(script) as mirror:
        assert await script.asked_for(3) == ["LIST", "WATCH 100", "WATCH 103"]
        assert mirror.told == ["add s1", "add s2", "delete s1"]


async def test_quiet_watch() -> None:
    """A bookmark moves the version from which the next watch starts."""
    script = ApiScript(listed("100"), watched(bookmark("400"), end="close"))
    async with script, mirroring(script):
        asked = await script.asked_for(3)
        assert asked[2] == f"WATCH {ANSWERS['quiet-watch']['second_watch_from']}"


async def test_null_list() -> None:
    """Slices whose devices are null or missing are ordinary slices, as is a null list of items."""
    nothing = Answer(body=b'{"metadata":{"resourceVersion":"90"},"items":null}')
    script = ApiScript(
        nothing, watched(EXPIRED), listed("100", slice_object("s1", devices=None), s2)
    )
    async with script, mirroring(script) as mirror:
        await script.asked_for(4)
        assert mirror.told == ["add s1", "add s2"]
        assert not mirror.reflector.undecodable


async def test_deleted_while_away() -> None:
    """What vanished meanwhile is told as deleted, and another uid under one name is another object."""
    script = ApiScript(
        listed("100", s1, s2),
        watched(end="reset"),
        failed(410, "Expired"),
        listed("500", slice_object("s2", uid="another")),
    )
    async with script, mirroring(script) as mirror:
        await script.asked_for(5)
        assert mirror.told == ["add s1", "add s2", "delete s1", "delete s2", "add s2"]
        assert mirror.reflector.store.by_uid("uid-s2") is None
        assert mirror.reflector.store.by_uid("another") is not None


async def test_versions_are_never_invented() -> None:
    """Whatever goes wrong, only versions that the server gave are sent back."""
    script = ApiScript(
        listed("100", s1),
        failed(500, "InternalError"),
        failed(400, "BadRequest", "resourceVersion: Invalid value"),
        listed("500", s1),
        watched(b"not json\n", end="close"),
        watched(b"\n", end="close"),
        watched(event("ERROR", {"message": "strange"}), end="close"),
    )
    async with script, mirroring(script):
        asked = await script.asked_for(8)
        versions = {line.split()[1] for line in asked if line.startswith("WATCH")}
        assert versions == {"100", "500"}
