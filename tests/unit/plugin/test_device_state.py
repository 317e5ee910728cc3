# SPDX-License-Identifier: Apache-2.0
"""The state machine: who waits for whom, who is refused, what a call leaves when things fail."""

import asyncio
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.codec import Json
from gpudra.api.errors import HardwareError
from gpudra.driver.core.prepare import PreparePlan, Step
from gpudra.kubelet_plugin.cdi_store import CdiStore
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.steps import CdiFileStep
from tests.support.logs import Captured
from tests.support.plugin import DRIVER, Node, claim_object, uid


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two cards."""
    return Node(tmp_path)


def claim(node: Node, number: int, *devices: Any, **options: Any) -> ClaimRef:
    """An allocated claim in the API."""
    return node.api.put(claim_object(uid(number), f"c{number}", *devices, **options))


class GatedStep(CdiFileStep):
    """The CDI step, which waits at a gate of each card."""

    def __init__(self, node: Node) -> None:
        super().__init__(CdiStore(node.cdi_dir, DRIVER), node.lib)
        self.gates: dict[str, threading.Event] = {}
        self.entered: list[str] = []
        self.busy: set[str] = set()

    def gate(self, card: str) -> threading.Event:
        """Opens for one card."""
        return self.gates.setdefault(card, threading.Event())

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Waits, then writes."""
        (card,) = plan.cards
        assert card not in self.busy, "two operations on one card at once"
        self.busy.add(card)
        self.entered.append(card)
        self.gate(card).wait(timeout=30)
        self.busy.discard(card)
        return super().do(step, plan)


async def entered(step: GatedStep, count: int) -> None:
    """Waits until so many operations are inside."""
    while len(step.entered) < count:  # noqa: ASYNC110 - worker threads come in
        await asyncio.sleep(0.001)


async def test_claims_of_different_cards_go_in_parallel(node: Node) -> None:
    """A slow card does not hold up another one."""
    step = GatedStep(node)
    instance = await node.start(handlers={"cdi-file": step}, blocking=asyncio.to_thread)
    one, two = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    slow = asyncio.create_task(instance.prepare(one))
    await entered(step, 1)
    step.gate("GPU-00000001").set()
    (answer,) = await instance.prepare(two)
    assert answer.ok
    assert not slow.done()
    step.gate("GPU-00000000").set()
    assert (await slow)[0].ok


async def test_claims_of_one_card_go_one_after_the_other(node: Node) -> None:
    """The second waits for the lock, then finds the card held and is told by whom."""
    step = GatedStep(node)
    instance = await node.start(handlers={"cdi-file": step}, blocking=asyncio.to_thread)
    one, two = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    first = asyncio.create_task(instance.prepare(one))
    await entered(step, 1)
    second = asyncio.create_task(instance.prepare(two))
    await asyncio.sleep(0.01)
    assert not second.done()
    step.gate("GPU-00000000").set()
    assert (await first)[0].ok
    assert f"gpu-0 is in use by claim {one.uid} (default/c1)" in (await second)[0].error


async def test_a_second_prepare_joins_the_first(node: Node) -> None:
    """The kubelet gave up and asks again: one attempt, one answer."""
    step = GatedStep(node)
    instance = await node.start(handlers={"cdi-file": step}, blocking=asyncio.to_thread)
    ref = claim(node, 1, "gpu-0")
    first = asyncio.create_task(instance.prepare(ref))
    await entered(step, 1)
    first.cancel()
    second = asyncio.create_task(instance.prepare(ref))
    await asyncio.sleep(0.01)
    step.gate("GPU-00000000").set()
    assert (await second)[0].ok
    assert step.entered == ["GPU-00000000"]


async def test_unprepare_ends_an_attempt_and_leaves_nothing(node: Node) -> None:
    """It waits for the step that runs in a thread, then everything is undone."""
    step = GatedStep(node)
    instance = await node.start(handlers={"cdi-file": step}, blocking=asyncio.to_thread)
    ref = claim(node, 1, "gpu-0")
    attempt = asyncio.create_task(instance.prepare(ref))
    await entered(step, 1)
    unprepare = asyncio.create_task(instance.unprepare(ref))
    await asyncio.sleep(0.01)
    assert not unprepare.done(), "the thread still writes"
    step.gate("GPU-00000000").set()
    assert (await unprepare)[0].ok
    assert "was unprepared while it was being prepared" in (await attempt)[0].error
    assert node.cdi_files() == []
    assert dict(instance.state.records) == {}


async def test_the_disk_is_asked_for_one_synced_write_per_phase(node: Node) -> None:
    """64 claims of one call share their writes."""
    node = Node(node.folder / "big", cards=64) if (node.folder / "big").mkdir() is None else node
    writes: list[bool] = []
    instance = await node.start()
    save = instance.checkpoint.file.save

    def counted(content: Any, *, durable: bool) -> None:
        writes.append(durable)
        save(content, durable=durable)

    instance.checkpoint.file.save = counted  # type: ignore[method-assign]
    refs = [claim(node, number, f"gpu-{number}") for number in range(64)]
    answers = await instance.prepare(*refs)
    assert all(answer.ok for answer in answers)
    assert writes.count(True) <= 3
    assert writes.count(False) <= 3
    writes.clear()
    await instance.unprepare(*refs)
    assert len(writes) <= 3


async def test_a_claim_of_another_driver_only_is_a_success_without_devices(node: Node) -> None:
    """The kubelet asks every driver that is named; nothing is stored for nothing."""
    instance = await node.start()
    ref = claim(node, 1, {"driver": "nic.example.com", "device": "nic-0"})
    (answer,) = await instance.prepare(ref)
    assert answer.ok
    assert answer.devices == []
    assert dict(instance.state.records) == {}


async def test_a_claim_with_devices_of_two_drivers_gets_ours(node: Node) -> None:
    """Results of others are theirs."""
    instance = await node.start()
    ref = claim(node, 1, {"driver": "nic.example.com", "device": "gpu-0"}, "gpu-1")
    (answer,) = await instance.prepare(ref)
    assert [device[2] for device in answer.devices] == ["gpu-1"]


async def test_admin_access_goes_beside_the_owner(node: Node) -> None:
    """Prepared without exclusivity, before or after the owner."""
    instance = await node.start()
    owner, admin = claim(node, 1, "gpu-0"), claim(node, 2, {"device": "gpu-0", "adminAccess": True})
    assert [answer.ok for answer in await instance.prepare(owner, admin)] == [True, True]
    assert len(node.cdi_files()) == 2
    await instance.unprepare(owner)
    assert node.cdi_files() == [f"{DRIVER}-claim_{admin.uid}.json"]


async def test_a_new_allocation_of_the_same_claim_replaces_the_old_one(node: Node) -> None:
    """Deallocated and allocated again without an Unprepare in between."""
    instance = await node.start()
    ref = claim(node, 1, "gpu-0")
    await instance.prepare(ref)
    claim(node, 1, "gpu-1")
    (answer,) = await instance.prepare(ref)
    assert [device[2] for device in answer.devices] == ["gpu-1"]
    assert (await instance.prepare(claim(node, 2, "gpu-0")))[0].ok
    assert len(node.cdi_files()) == 2


async def test_a_removed_cdi_file_is_written_again(node: Node) -> None:
    """Prepare answers only when the file is there."""
    instance = await node.start()
    ref = claim(node, 1, "gpu-0")
    first = await instance.prepare(ref)
    (path,) = node.cdi_dir.iterdir()
    content = path.read_bytes()
    path.unlink()
    assert await instance.prepare(ref) == first
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["status"].pop("reservedFor"), "is not reserved for any pod"),
        (lambda raw: raw.update(status={}), "is not allocated"),
        (lambda raw: raw["status"].update(allocation={"devices": {"results": 5}}), "has a shape that is not understood"),
        (lambda raw: raw["metadata"].update(uid=uid(99)), f"has another uid now: {uid(99)}"),
    ],
)  # fmt: skip
async def test_claims_that_are_not_ready_are_refused_and_others_served(
    node: Node, change: Any, message: str
) -> None:
    """Each claim gets its own answer."""
    raw = claim_object(uid(1), "c1", "gpu-0")
    ref = node.api.put(raw)
    change(raw)
    instance = await node.start()
    bad, good = await instance.prepare(ref, claim(node, 2, "gpu-1"))
    assert message in bad.error
    assert good.ok
    assert instance.report.outcomes[0] == ("prepare", "refused")


async def test_a_uid_that_is_no_uid_touches_no_file(node: Node) -> None:
    """What comes over the socket is not trusted."""
    instance = await node.start()
    for call in (instance.prepare, instance.unprepare):
        (answer,) = await call(ClaimRef("../../etc/passwd", "default", "x"))
        assert "is not the uid of a claim" in answer.error


async def test_an_unknown_device_is_named(node: Node) -> None:
    """A device that does not exist on this node."""
    instance = await node.start()
    (answer,) = await instance.prepare(claim(node, 1, "gpu-7"))
    assert (
        "claim default/c1: request gpu has device gpu-7, which this node does not have"
        in answer.error
    )


async def test_errors_carry_the_operation_id_of_their_log_lines(node: Node, logs: Captured) -> None:
    """From the pod's event to the log."""
    instance = await node.start()
    (answer,) = await instance.prepare(claim(node, 1, "gpu-7"))
    line = logs.event("could not prepare")
    assert answer.error.endswith(f"(op {line['op']})")
    assert (line["claim"], line["claim_uid"]) == ("default/c1", uid(1))
    assert instance.report.failures == [(uid(1), answer.error)]


async def test_a_bug_met_by_one_claim_costs_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception becomes the answer of that claim."""
    instance = await node.start()
    real = node.lib.gpu_edits

    def broken(card: str) -> Any:
        if card == "GPU-00000000":
            raise ZeroDivisionError
        return real(card)

    monkeypatch.setattr(node.lib, "gpu_edits", broken)
    bad, good = await instance.prepare(claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1"))
    assert "internal error: ZeroDivisionError" in bad.error
    assert good.ok
    assert instance.report.in_flight == 0


async def test_hardware_that_does_not_answer_is_told_to_be_retried(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays; the next try works."""
    instance = await node.start()
    ref = claim(node, 1, "gpu-0")

    def silent(card: str) -> Any:
        raise HardwareError("does not answer", obj=f"GPU {card}")

    with monkeypatch.context() as patched:
        patched.setattr(node.lib, "gpu_edits", silent)
        assert "does not answer" in (await instance.prepare(ref))[0].error
    assert dict(instance.state.records) == {}
    assert (await instance.prepare(ref))[0].ok


@pytest.mark.parametrize("folder", ["cdi_dir", "run_dir"])
async def test_a_read_only_folder_is_named_with_a_remedy(
    node: Node, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The answer names the path and says what to do; other claims and later tries work."""
    import errno

    from gpudra.kubelet_plugin import files

    instance = await node.start()
    real, damaged = os.open, getattr(node, folder)

    def read_only(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if str(damaged) in str(path) and flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **options)

    ref = claim(node, 1, "gpu-0")
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", read_only)
        (answer,) = await instance.prepare(ref)
    assert str(damaged) in answer.error
    assert "mount it writable" in answer.error
    assert dict(instance.state.records) == {}
    assert (await instance.prepare(ref))[0].ok


@pytest.mark.parametrize(
    ("number", "words"), [(28, "disk is full"), (5, "the disk reports an error")]
)
async def test_what_could_not_be_taken_back_is_undone_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """The disk fails between the file and the completion, and goes on failing for a while."""
    from gpudra.kubelet_plugin import files

    instance = await node.start()
    ref = claim(node, 1, "gpu-0")

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fdatasync", failing)
        (answer,) = await instance.prepare(ref)
        assert words in answer.error
    assert node.cdi_files() == []
    await instance.recovery.sweep()
    assert dict(instance.state.records) == {}
    assert (await instance.prepare(ref))[0].ok


async def test_the_api_server_may_be_away_for_what_is_prepared(node: Node) -> None:
    """A repeated Prepare is answered from the checkpoint; a new claim is told to be retried."""
    instance = await node.start()
    known, new = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-1")
    first = await instance.prepare(known)
    node.api.go_away()
    again = asyncio.create_task(instance.prepare(known, new))
    for _ in range(20):
        await node.clock.advance(5)
    answers = await again
    assert answers[0] == first[0]
    assert "no connection" in answers[1].error


async def test_a_holder_that_cannot_be_looked_up_is_believed(node: Node) -> None:
    """Without an answer of the API nobody loses a device."""
    instance = await node.start()
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    node.api.drop(holder)
    real = node.api.get

    async def partly(resource: Any, name: str, namespace: str | None = None) -> Any:
        if name == "c1":
            node.api.go_away()
            try:
                return await real(resource, name, namespace)
            finally:
                node.api.error = None
        return await real(resource, name, namespace)

    node.api.get = partly  # type: ignore[method-assign]
    await node.clock.advance(1000)
    (answer,) = await instance.prepare(late)
    assert f"in use by claim {holder.uid}" in answer.error


async def test_a_holder_gone_while_we_run_keeps_its_device_for_the_grace(node: Node) -> None:
    """Its containers may still run: the kubelet gets two of its clean-up rounds."""
    instance = await node.start()
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    node.api.drop(holder)
    (answer,) = await instance.prepare(late)
    assert "that claim is gone from the API; its containers may still run" in answer.error
    await node.clock.advance(119)
    assert not (await instance.prepare(late))[0].ok
    await node.clock.advance(1)
    assert (await instance.prepare(late))[0].ok
    assert node.cdi_files() == [f"{DRIVER}-claim_{late.uid}.json"]


async def test_a_claim_that_lost_its_allocation_is_an_orphan_too(node: Node) -> None:
    """The claim object lives on, but it does not have the device any more."""
    first = await node.start()
    ref = claim(node, 1, "gpu-0")
    await first.prepare(ref)
    first.end()
    node.api.put(claim_object(ref.uid, "c1", "gpu-1"))
    second = await node.start()
    await second.recovery.sweep()
    assert dict(second.state.records) == {}


async def test_a_prepare_waits_for_an_unprepare_of_the_same_claim(node: Node) -> None:
    """The kubelet's calls may cross: the pod that comes next gets its device again."""
    gate = threading.Event()
    inside = threading.Event()

    class SlowUndo(CdiFileStep):
        def undo(self, step: Step) -> None:
            inside.set()
            gate.wait(timeout=30)
            super().undo(step)

    step = SlowUndo(CdiStore(node.cdi_dir, DRIVER), node.lib)
    instance = await node.start(handlers={"cdi-file": step}, blocking=asyncio.to_thread)
    ref = claim(node, 1, "gpu-0")
    await instance.prepare(ref)
    unprepare = asyncio.create_task(instance.unprepare(ref))
    await asyncio.to_thread(inside.wait, 30)
    again = asyncio.create_task(instance.prepare(ref))
    second = asyncio.create_task(instance.unprepare(claim(node, 2, "gpu-1")))
    assert (await second)[0].ok
    assert not again.done()
    drained = asyncio.create_task(instance.state.drain())
    gate.set()
    assert (await unprepare)[0].ok
    assert (await again)[0].ok
    await drained
    assert len(node.cdi_files()) == 1
