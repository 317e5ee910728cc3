# SPDX-License-Identifier: Apache-2.0
"""The checkpoint: what survives what, who waits for whom, what is noticed as damaged."""

import asyncio
import itertools
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.errors import StateError
from gpudra.driver.core.prepare import Hold, PreparedDevice, Step
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.checkpoint import Checkpoint
from gpudra.kubelet_plugin.checkpoint_file import (
    CheckpointFile,
    DamagedError,
    Encoded,
    decode,
    encode_record,
)
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRecord
from tests.support.plugin import inline, uid


def record(number: int = 1, **changes: Any) -> ClaimRecord:
    """A completed claim."""
    fields: dict[str, Any] = {
        "uid": uid(number),
        "namespace": "default",
        "name": f"c{number}",
        "state": COMPLETED,
        "devices": (PreparedDevice(requests=("r",), pool="p", device="d", cdi_ids=("k=x",)),),
        "holds": (Hold(card=f"GPU-{number}", kind="gpu", device="d"),),
        "steps": (Step(kind="cdi-file", args={"file": "f"}, state="done"),),
    }
    return ClaimRecord(**fields | changes)


def checkpoint(folder: Path, *, blocking: Any = inline, boot_id: str = "boot-1") -> Checkpoint:
    """A checkpoint in a folder."""
    return Checkpoint(
        CheckpointFile(folder), boot_id=boot_id, blocking=blocking, monotonic=lambda: 0.0
    )


async def reloaded(folder: Path) -> dict[str, ClaimRecord]:
    """What a new process finds."""
    fresh = checkpoint(folder)
    fresh.load()
    return dict(fresh.records)


async def test_what_was_committed_is_there_for_the_next_process(tmp_path: Path) -> None:
    """Durable and volatile commits, and removals."""
    first = checkpoint(tmp_path)
    await first.commit({uid(1): record(1)})
    await first.commit({uid(2): record(2)}, durable=False)
    assert await reloaded(tmp_path) == {uid(1): record(1), uid(2): record(2)}
    await first.commit({uid(1): None})
    assert await reloaded(tmp_path) == {uid(2): record(2)}


async def test_a_power_cut_loses_volatile_commits_only(tmp_path: Path) -> None:
    """Where the other file was being written, the safe one is complete as of its last commit."""
    first = checkpoint(tmp_path)
    await first.commit({uid(1): record(1)})
    await first.commit({uid(2): record(2)}, durable=False)
    (tmp_path / "checkpoint.1.json").write_bytes(b"\0" * 100)
    fresh = checkpoint(tmp_path)
    loaded = fresh.load()
    assert dict(fresh.records) == {uid(1): record(1)}
    assert list(loaded.damaged) == [tmp_path / "checkpoint.1.json"]


async def test_the_newer_file_counts(tmp_path: Path) -> None:
    """A durable commit after a volatile one is not undone by the older volatile file."""
    first = checkpoint(tmp_path)
    await first.commit({uid(1): record(1)}, durable=False)
    await first.commit({uid(1): None})
    assert await reloaded(tmp_path) == {}


async def test_unknown_fields_survive(tmp_path: Path) -> None:
    """What a newer version wrote is kept at every level."""
    raw = record(1).to_dict() | {"fromTheFuture": {"a": [1]}}
    raw["steps"][0]["alsoNew"] = True
    body = json.dumps({"bootID": "boot-1", "topLevel": 5, "claims": {uid(1): raw}}).encode()
    crc32 = zlib.crc32(body, zlib.crc32(b"1 7 True"))
    header = {"kind": "gpudra-checkpoint", "version": 1, "sequence": 7, "durable": True, "crc32": f"{crc32:08x}", "extra": 1}  # fmt: skip
    (tmp_path / "checkpoint.0.json").write_bytes(json.dumps(header).encode() + b"\n" + body + b"\n")
    second = checkpoint(tmp_path)
    second.load()
    await second.commit({uid(2): record(2)})
    written = (tmp_path / "checkpoint.1.json").read_bytes().split(b"\n")
    found = json.loads(written[1])
    assert found["topLevel"] == 5
    assert found["claims"][uid(1)]["fromTheFuture"] == {"a": [1]}
    assert found["claims"][uid(1)]["steps"][0]["alsoNew"] is True
    assert json.loads(written[0])["sequence"] == 8


def whole() -> bytes:
    """A good file."""
    return Encoded(3, "boot-1", {uid(1): encode_record(record(1))}, {}).to_bytes()


def test_a_good_file_is_read_back() -> None:
    """Round trip of every part."""
    found = decode(whole(), "x")
    assert (found.sequence, found.boot_id, found.claims) == (3, "boot-1", {uid(1): record(1)})


@settings(deadline=None)
@given(cut=st.integers(min_value=0, max_value=len(whole()) - 2))
def test_a_cut_file_is_noticed(cut: int) -> None:
    """Wherever it ends."""
    with pytest.raises(DamagedError):
        decode(whole()[:cut], "x")


@settings(deadline=None)
@given(place=st.integers(min_value=0, max_value=len(whole()) - 2), flip=st.integers(1, 255))
def test_a_changed_byte_never_changes_a_claim(place: int, flip: int) -> None:
    """One changed byte is noticed, or lies where it means nothing for the claims."""
    raw = bytearray(whole())
    raw[place] ^= flip
    try:
        found = decode(bytes(raw), "x")
    except DamagedError:
        return
    assert (found.sequence, found.claims) == (3, {uid(1): record(1)})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not JSON"),
        (b"[]\n{}\n", "not JSON"),
        (b'{"kind":"other"}\n{}\n', "is not a gpudra-checkpoint"),
        (b'{"kind":"gpudra-checkpoint","version":2}\n{}\n', "has version 2"),
    ],
)
def test_files_that_are_not_ours_or_too_new_are_told_apart(raw: bytes, message: str) -> None:
    """The message says which."""
    with pytest.raises(DamagedError, match=message):
        decode(raw, "checkpoint.0.json")


async def test_commits_in_flight_share_a_write(tmp_path: Path) -> None:
    """64 claims at once do not cost 64 synced writes."""
    writes: list[str] = []

    async def counted(function: Callable[..., Any], *arguments: Any) -> Any:
        writes.append(function.__name__)
        await asyncio.sleep(0)
        return function(*arguments)

    one = checkpoint(tmp_path, blocking=counted)
    await asyncio.gather(*(one.commit({uid(n): record(n)}) for n in range(64)))
    assert len(writes) <= 2
    assert len(await reloaded(tmp_path)) == 64


async def test_a_reservation_is_visible_before_it_is_stored(tmp_path: Path) -> None:
    """Nobody can slip in between the look and the write."""
    one = checkpoint(tmp_path)
    waiting = asyncio.ensure_future(one.commit({uid(1): record(1)}))
    await asyncio.sleep(0)
    assert uid(1) in one.records
    await waiting


async def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    """Each waiter gets the error; memory and disk stay as they were; no temporary file is left."""
    one = checkpoint(tmp_path)
    await one.commit({uid(1): record(1)})
    fail = True

    async def failing(function: Callable[..., Any], *arguments: Any) -> Any:
        if fail:
            raise StateError("cannot write: No space left on device", obj="checkpoint.0.json")
        return function(*arguments)

    two = checkpoint(tmp_path, blocking=failing)
    two.load()
    results = await asyncio.gather(
        two.commit({uid(2): record(2)}), two.commit({uid(1): None}), return_exceptions=True
    )
    assert all(isinstance(one, StateError) for one in results)
    assert dict(two.records) == {uid(1): record(1)} == await reloaded(tmp_path)
    fail = False
    await two.commit({uid(2): record(2)})
    assert len(await reloaded(tmp_path)) == 2


async def test_a_cancelled_waiter_does_not_hold_up_others(tmp_path: Path) -> None:
    """Its change goes to disk all the same; whoever cancelled undoes it by a commit of its own."""
    one = checkpoint(tmp_path)
    first = asyncio.ensure_future(one.commit({uid(1): record(1)}))
    await asyncio.sleep(0)
    first.cancel()
    await one.commit({uid(2): record(2)})
    await one.commit({uid(1): None})
    assert list(await reloaded(tmp_path)) == [uid(2)]


async def test_what_another_instance_wrote_is_taken_over(tmp_path: Path) -> None:
    """And only read if something was written."""
    one, two = checkpoint(tmp_path), checkpoint(tmp_path)
    one.load()
    assert one.refresh() is None
    two.load()
    await two.commit({uid(1): record(1)})
    assert one.refresh() is not None
    assert list(one.records) == [uid(1)]
    await one.commit({uid(2): record(2)})
    assert one.refresh() is None
    assert two.refresh() is not None
    assert len(two.records) == 2


@pytest.mark.parametrize("point", ["checkpoint.1.json:written", "checkpoint.1.json:synced"])
async def test_a_kill_inside_a_write_leaves_the_new_content_readable(
    tmp_path: Path, point: str
) -> None:
    """What a killed process wrote is in the page cache; what it had not begun is not there."""

    class Kill(BaseException):
        pass

    def observe(seen: str) -> None:
        if seen == point:
            raise Kill

    await checkpoint(tmp_path).commit({uid(1): record(1)})
    two = Checkpoint(
        CheckpointFile(tmp_path, observe=observe), boot_id="b", blocking=inline, monotonic=lambda: 0
    )
    two.load()
    with pytest.raises(Kill):
        await two.commit({uid(2): record(2)})
    assert set(await reloaded(tmp_path)) == {uid(1), uid(2)}


def test_the_system_s_errors_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk and a read-only folder are named with the path and a remedy; nothing is left."""
    import errno

    for number, words in ((errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only")):

        def refuse(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(files.os, "write", refuse)
        with pytest.raises(StateError, match=words) as caught:
            files.write_atomically(tmp_path / "f", b"x", sync=True)
        assert str(tmp_path / "f") in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def test_sequence_numbers_come_from_the_newest_file(tmp_path: Path) -> None:
    """A process that took over goes on counting, so its writes are newer."""
    numbers = itertools.count(5)
    file = CheckpointFile(tmp_path)
    for durable in (True, False, True):
        file.save(Encoded(next(numbers), "b", {}, {}), durable=durable)
    content = file.load().content
    assert content is not None
    assert content.sequence == 7


def test_the_last_safe_content_is_never_overwritten(tmp_path: Path) -> None:
    """Whatever mixture of synced and unsynced writes, across processes."""
    safe = 0
    for number, durable in enumerate([True, False, False, True, True, False, True, False], start=1):
        file = CheckpointFile(tmp_path)
        file.load()
        file.save(Encoded(number, "b", {}, {}), durable=durable)
        safe = number if durable else safe
        found = [decode(path.read_bytes(), "x") for path in tmp_path.iterdir()]
        assert safe in {one.sequence for one in found if one.durable}
        assert max(one.sequence for one in found) == number


@settings(deadline=None)
@given(cut=st.integers(min_value=0, max_value=16 * 1024), claims=st.integers(0, 60))
def test_a_power_cut_inside_a_write_leaves_the_content_of_before(cut: int, claims: int) -> None:
    """Any part of the new bytes may have reached the disk: the old content is found, or the new."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = CheckpointFile(folder)
        old = {uid(n): encode_record(record(n)) for n in range(3)}
        new = {uid(n): encode_record(record(n)) for n in range(claims)}
        for number, content in ((1, {}), (2, old), (3, new)):
            before = (folder / "checkpoint.0.json").read_bytes() if number == 3 else b""
            file.save(Encoded(number, "b", content, {}), durable=True)
        path = folder / "checkpoint.0.json"
        path.write_bytes(path.read_bytes()[:cut] + before[cut:])
        found = CheckpointFile(folder).load().content
        assert found is not None
        assert set(found.claims) == set(old if found.sequence == 2 else new)
        assert found.sequence in {2, 3}


def test_in_place_writes_need_no_new_blocks(tmp_path: Path) -> None:
    """The file keeps its length, so a full disk does not keep claims from being unprepared."""
    file = CheckpointFile(tmp_path)
    for number in range(1, 6):
        claims = {uid(n): encode_record(record(n)) for n in range(number % 3 * 5)}
        file.save(Encoded(number, "b", claims, {}), durable=True)
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {16 * 1024}
