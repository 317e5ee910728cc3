# SPDX-License-Identifier: Apache-2.0
"""Start and sweep: what is healed, rebuilt, removed, and what is left alone."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRef
from tests.support.logs import Captured
from tests.support.plugin import DRIVER, Node, claim_object, uid


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two cards."""
    return Node(tmp_path)


def claim(node: Node, number: int, *devices: Any) -> ClaimRef:
    """An allocated claim in the API."""
    return node.api.put(claim_object(uid(number), f"c{number}", *devices))


async def prepared(node: Node, *refs: ClaimRef) -> None:
    """A process prepares claims and ends."""
    instance = await node.start()
    assert all(answer.ok for answer in await instance.prepare(*refs))
    instance.end()


def damage(node: Node) -> None:
    """The checkpoint is not what it was."""
    for path in node.state_dir.glob("checkpoint.*.json"):
        path.write_bytes(b"{")


async def test_a_rebuild_without_the_api_holds_every_device_that_has_a_file(node: Node) -> None:
    """Files alone say which devices are in use; names and owners are learned later."""
    ref = claim(node, 1, "gpu-0")
    await prepared(node, ref)
    damage(node)
    node.api.go_away()
    instance = await node.start()
    (record,) = instance.state.records.values()
    assert (record.uid, record.name, record.cards) == (ref.uid, "", {"GPU-00000000"})
    node.api.error = None
    late = claim(node, 2, "gpu-0")
    assert f"in use by claim {ref.uid}" in (await instance.prepare(late))[0].error
    await instance.recovery.sweep()
    (record,) = instance.state.records.values()
    assert (record.name, record.state) == ("c1", COMPLETED)
    assert (await instance.unprepare(ref))[0].ok
    assert (await instance.prepare(late))[0].ok


async def test_a_rebuilt_claim_that_the_api_does_not_know_is_undone(node: Node) -> None:
    """As soon as the API can be asked."""
    ref = claim(node, 1, "gpu-0")
    await prepared(node, ref)
    damage(node)
    node.api.go_away()
    instance = await node.start()
    node.api.error = None
    node.api.drop(ref)
    await instance.recovery.sweep()
    assert dict(instance.state.records) == {}
    assert node.cdi_files() == []


async def test_a_lost_checkpoint_is_rebuilt_like_a_damaged_one(node: Node) -> None:
    """Somebody removed the state folder's files; running claims keep their devices."""
    alive, gone = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    await prepared(node, alive, gone)
    node.api.drop(gone)
    for path in node.state_dir.glob("checkpoint*"):
        path.unlink()
    instance = await node.start()
    assert list(instance.state.records) == [alive.uid]
    assert node.cdi_files() == [f"{DRIVER}-claim_{alive.uid}.json"]


async def test_a_rebuild_copes_with_a_broken_cdi_file_and_a_vanished_card(node: Node) -> None:
    """Both claims stay known, so that Unprepare cleans up."""
    broken, vanished = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    await prepared(node, broken, vanished)
    damage(node)
    (node.cdi_dir / f"{DRIVER}-claim_{broken.uid}.json").write_text("{")
    card = node.devices.pop("gpu-1")
    instance = await node.start()
    assert set(instance.state.records) == {broken.uid, vanished.uid}
    node.devices["gpu-1"] = card
    late = claim(node, 3, "gpu-1")
    assert f"in use by claim {vanished.uid}" in (await instance.prepare(late))[0].error
    document = orjson.loads((node.cdi_dir / f"{DRIVER}-claim_{broken.uid}.json").read_bytes())
    assert document["devices"][0]["name"] == f"{broken.uid}-gpu-0"
    await instance.unprepare(broken, vanished)
    assert node.cdi_files() == []


async def test_files_of_others_are_not_touched(node: Node) -> None:
    """Another driver's CDI files and anything that only looks similar stay."""
    others = ["nic.example.com-claim_x.json", f"{DRIVER}-gpu.json", ".hidden"]
    for name in others:
        (node.cdi_dir / name).write_text("{}")
    stray = f"{DRIVER}-claim_{uid(5)}.json"
    (node.cdi_dir / stray).write_text("{}")
    (node.cdi_dir / f".{DRIVER}-claim_{uid(6)}.json.tmp").write_text("half")
    await prepared(node, claim(node, 1, "gpu-0"))
    assert set(node.cdi_files()) == {*others, f"{DRIVER}-claim_{uid(1)}.json"}


async def test_a_reboot_reads_the_device_numbers_anew(node: Node) -> None:
    """What the library says today is written, not what it said before."""
    ref = claim(node, 1, "gpu-0")
    await prepared(node, ref)
    node.boot_id = "boot-2"
    for path in node.cdi_dir.iterdir():
        path.unlink()
    node.lib._cards = {"GPU-00000000": 1, "GPU-00000001": 0}
    await node.start()
    (path,) = node.cdi_dir.iterdir()
    document = orjson.loads(path.read_bytes())
    assert document["devices"][0]["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidia1"


async def test_a_vanished_card_does_not_keep_the_plugin_from_starting(
    node: Node, logs: Captured
) -> None:
    """Its claim stays held until the kubelet unprepares it."""
    ref, other = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    await prepared(node, ref)
    del node.devices["gpu-0"]
    instance = await node.start()
    assert ref.uid in instance.state.records
    assert logs.event("could not heal a claim, will try again")["claim"] == "default/c1"
    assert (await instance.prepare(ref))[0].ok, "its file is there, its pod may do other things"
    (node.cdi_dir / f"{DRIVER}-claim_{ref.uid}.json").unlink()
    assert "which this node does not have" in (await instance.prepare(ref))[0].error
    assert (await instance.prepare(other))[0].ok
    assert (await instance.unprepare(ref))[0].ok


async def test_it_starts_on_a_full_disk(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that run must not lose their plugin because somebody filled the disk."""
    ref = claim(node, 1, "gpu-0")
    await prepared(node, ref)
    node.boot_id = "boot-2"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "_write", full)
        patched.setattr(files, "_pwrite", full)
        instance = await node.start()
        assert ref.uid in instance.state.records
    assert (await instance.prepare(ref))[0].ok


async def test_the_sweep_runs_every_minute_and_outlives_errors(
    node: Node, monkeypatch: pytest.MonkeyPatch, logs: Captured
) -> None:
    """A claim whose undoing fails is tried again a minute later; others are not held up."""
    import asyncio

    instance = await node.start()
    one, two = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    await instance.prepare(one, two)
    runner = asyncio.create_task(instance.recovery.run())
    await node.clock.advance(1)
    node.api.drop(one)
    node.api.drop(two)
    await node.clock.advance(60)
    assert len(instance.state.records) == 2, "the grace runs"

    def busy(name: str) -> bool:
        if one.uid in name:
            raise files.StateError("cannot remove: Read-only file system", obj=name)
        return files.remove(node.cdi_dir / name)

    store = instance.recovery._store
    with monkeypatch.context() as patched:
        patched.setattr(store, "remove", busy)
        handler = instance.state.runner._handlers["cdi-file"]
        patched.setattr(handler._store, "remove", busy)  # type: ignore[attr-defined]
        await node.clock.advance(120)
    assert list(instance.state.records) == [one.uid]
    assert logs.event("could not undo a claim, will try again")["claim_uid"] == one.uid
    await node.clock.advance(60)
    assert dict(instance.state.records) == {}
    runner.cancel()


async def test_damage_by_another_instance_is_survived_from_memory(node: Node) -> None:
    """The running process still knows everything and writes it again."""
    instance = await node.start()
    one, two = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    await instance.prepare(one)
    damage(node)
    assert (await instance.prepare(two))[0].ok
    assert instance.warnings[0][0] == "CheckpointDamaged"
    instance.end()
    second = await node.start()
    assert set(second.state.records) == {one.uid, two.uid}


async def test_start_asks_the_api_for_nothing_when_all_is_well(node: Node) -> None:
    """Thousands of agents that start together must not list claims."""
    await prepared(node, claim(node, 1, "gpu-0"))
    node.api.calls.clear()
    instance = await node.start()
    assert node.api.calls == []
    await instance.recovery.sweep()
    assert node.api.calls == ["get default/c1"]


async def test_a_rebuild_on_a_full_disk_is_kept_in_memory(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is given a device that runs, although the checkpoint can neither be read nor written."""
    ref = claim(node, 1, "gpu-0")
    await prepared(node, ref)
    damage(node)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "_pwrite", full)
        instance = await node.start()
        late = claim(node, 2, "gpu-0")
        assert f"in use by claim {ref.uid}" in (await instance.prepare(late))[0].error
    assert (await instance.unprepare(ref))[0].ok
    assert (await instance.prepare(late))[0].ok


async def test_a_stray_that_cannot_be_removed_does_not_keep_the_plugin_from_starting(
    node: Node, monkeypatch: pytest.MonkeyPatch, logs: Captured
) -> None:
    """A read-only CDI folder is told; the next start tries again."""
    (node.cdi_dir / f"{DRIVER}-claim_{uid(5)}.json").write_text("{}")

    def read_only(path: Path) -> bool:
        raise files.StateError("cannot remove: Read-only file system", obj=str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "remove", read_only)
        await node.start()
    assert logs.event("could not remove a CDI file of no claim")
    await node.start()
    assert node.cdi_files() == []


async def test_odd_claims_of_others_do_not_disturb_a_rebuild(node: Node) -> None:
    """Claims without allocation, of other drivers, other nodes, or of a shape from the future."""
    ref = claim(node, 1, "gpu-0")
    await prepared(node, ref)
    damage(node)
    for number, change in enumerate(
        (
            {},
            {"allocation": {"devices": {"results": [{"driver": "nic.example.com"}]}}},
            {"allocation": {"devices": {"results": [{"driver": DRIVER}]}}},
            {"allocation": {"devices": {"results": [{"driver": DRIVER, "request": "r", "pool": "node-b", "device": "gpu-0"}]}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]},
            {"allocation": {"devices": {"results": [{"driver": DRIVER, "request": "r", "pool": "node-a", "device": "gpu-1"}]}}},
        )
    ):  # fmt: skip
        raw = claim_object(uid(100 + number), f"odd{number}", "gpu-0")
        raw["status"] = change
        node.api.put(raw)
    instance = await node.start()
    assert list(instance.state.records) == [ref.uid]


async def test_what_another_instance_did_last_is_found_again_when_its_write_is_damaged(
    node: Node,
) -> None:
    """Two instances run; the file that the other one wrote last cannot be read."""
    mine = await node.start()
    one, two, three = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1"), claim(node, 3, "gpu-1")
    await mine.prepare(one)
    other = await node.start()
    await other.prepare(two)
    newest = max(
        node.state_dir.glob("checkpoint.*.json"),
        key=lambda path: orjson.loads(path.read_bytes().splitlines()[0])["sequence"],
    )
    newest.write_bytes(b"{")
    await mine.recovery.sweep()
    async with mine.instances.held():
        pass
    await mine.recovery.sweep()
    assert set(mine.state.records) == {one.uid, two.uid}
    assert "in use" in (await mine.prepare(three))[0].error


async def test_the_other_instance_s_newer_state_counts_although_the_older_file_is_damaged(
    node: Node,
) -> None:
    """A damaged file that holds nothing new costs nothing."""
    mine = await node.start()
    one, two = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    await mine.prepare(one)
    other = await node.start()
    await other.prepare(two)
    oldest = min(
        node.state_dir.glob("checkpoint.*.json"),
        key=lambda path: orjson.loads(path.read_bytes().splitlines()[0])["sequence"],
    )
    oldest.write_bytes(b"{")
    assert (await mine.unprepare(two))[0].ok
    assert set(mine.state.records) == {one.uid}
    mine.end()
    third = await node.start()
    assert set(third.state.records) == {one.uid}
