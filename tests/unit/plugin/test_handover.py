# SPDX-License-Identifier: Apache-2.0
"""A card goes from a pod that was deleted by force to the next one within one call of the kubelet."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import HardwareError
from gpudra.driver.core.prepare import Step
from gpudra.driver.kube.clock import settle
from gpudra.kubelet_plugin.cdi_store import CdiStore
from gpudra.kubelet_plugin.handover import HANDOVER
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.steps import CdiFileStep
from tests.support.formsnode import FormsNode, hardware, isolation
from tests.support.plugin import DRIVER, Answer, Instance, Node, claim_object, uid


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two cards."""
    return Node(tmp_path)


def claim(node: Node, number: int, *devices: Any, **options: Any) -> ClaimRef:
    """An allocated claim in the API."""
    return node.api.put(claim_object(uid(number), f"c{number}", *devices, **options))


async def patient(node: Node, **options: Any) -> Instance:
    """A process with the patience of production."""
    return await node.start(handover=HANDOVER, **options)


async def begun(instance: Instance, ref: ClaimRef) -> "asyncio.Task[list[Answer]]":
    """A call of Prepare that has come to rest."""
    call = asyncio.create_task(instance.prepare(ref))
    await settle()
    return call


GONE = {
    "deleted": lambda node, ref: node.api.drop(ref),
    "not reserved": lambda node, ref: claim(node, 1, "gpu-0", reserved=False),
    "allocated elsewhere": lambda node, ref: claim(node, 1, "gpu-1"),
}


@pytest.mark.parametrize("how", ["deleted", "not reserved", "allocated elsewhere"])
async def test_prepare_waits_for_the_unprepare_that_is_due(node: Node, how: str) -> None:
    """The holder's claim is gone, its containers end: the call succeeds as soon as they have."""
    instance = await patient(node)
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    GONE[how](node, holder)
    call = await begun(instance, late)
    await node.clock.advance(HANDOVER - 1)
    assert not call.done()
    assert (await instance.unprepare(holder))[0].ok
    assert (await call)[0].ok
    assert node.cdi_files() == [f"{DRIVER}-claim_{late.uid}.json"]
    assert set(instance.state.records) == {late.uid}


async def test_an_unprepare_that_never_comes_ends_in_a_refusal_by_name(node: Node) -> None:
    """The kubelet gets its answer in time, and the containers keep their card."""
    instance = await patient(node)
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    node.api.drop(holder)
    call = await begun(instance, late)
    await node.clock.advance(HANDOVER)
    (answer,) = await call
    assert f"gpu-0 is in use by claim {holder.uid}" in answer.error
    assert "its containers may still run" in answer.error
    assert set(instance.state.records) == {holder.uid}


async def test_a_holder_that_lives_is_not_waited_for(node: Node) -> None:
    """Nothing would change: the answer is given at once."""
    instance = await patient(node)
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    (answer,) = await instance.prepare(late)
    assert f"in use by claim {holder.uid}" in answer.error
    assert node.clock.pending() == []


async def test_nobody_is_waited_for_on_the_word_of_an_api_that_is_silent(node: Node) -> None:
    """Without an answer about the holder it counts as alive."""
    instance = await patient(node)
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    real = node.api.get

    async def partly(resource: Any, name: str, namespace: str | None = None) -> Any:
        if name == "c1":
            node.api.go_away()
        try:
            return await real(resource, name, namespace)
        finally:
            node.api.error = None

    node.api.get = partly  # type: ignore[method-assign]
    (answer,) = await instance.prepare(late)
    assert f"in use by claim {holder.uid}" in answer.error


async def test_waiting_ends_with_the_claim_that_waits(node: Node) -> None:
    """Its own Unprepare ends the attempt; later nothing is prepared behind anybody's back."""
    instance = await patient(node)
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    node.api.drop(holder)
    call = await begun(instance, late)
    assert (await instance.unprepare(late))[0].ok
    assert "was unprepared while it was being prepared" in (await call)[0].error
    assert (await instance.unprepare(holder))[0].ok
    await node.clock.advance(HANDOVER)
    assert dict(instance.state.records) == {}
    assert node.cdi_files() == []


async def test_whoever_waits_keeps_nobody_else_waiting(node: Node) -> None:
    """Neither other cards nor another instance of the plugin."""
    instance = await patient(node)
    holder, late, other = (
        claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0"), claim(node, 3, "gpu-1"),
    )  # fmt: skip
    await instance.prepare(holder)
    node.api.drop(holder)
    call = await begun(instance, late)
    assert (await instance.prepare(other))[0].ok
    beside = await node.start()
    assert (await beside.unprepare(holder))[0].ok
    # The first instance is not told by the second; it looks.
    await node.clock.advance(1)
    assert (await call)[0].ok
    beside.end()


async def test_the_holders_unprepare_may_need_several_calls(node: Node) -> None:
    """A first one that fails does not end the wait."""
    failures = [HardwareError("busy")]

    class Stubborn(CdiFileStep):
        def undo(self, step: Step) -> None:
            if failures:
                raise failures.pop()
            super().undo(step)

    handlers = {"cdi-file": Stubborn(CdiStore(node.cdi_dir, DRIVER), node.lib)}
    instance = await patient(node, handlers=handlers)
    holder, late = claim(node, 1, "gpu-0"), claim(node, 2, "gpu-0")
    await instance.prepare(holder)
    node.api.drop(holder)
    call = await begun(instance, late)
    assert "busy" in (await instance.unprepare(holder))[0].error
    assert not call.done()
    assert (await instance.unprepare(holder))[0].ok
    assert (await call)[0].ok


async def test_a_share_waits_for_the_backend_of_another_share(tmp_path: Path) -> None:
    """What blocks need not be the device itself: two backends never meet on one card."""
    with hardware("simulated", tmp_path) as found:
        node = FormsNode(tmp_path / "node", found.lib)
        instance = await patient(node)
        first = node.claim(1, node.share(0), config=(isolation("none"),))
        second = node.claim(
            2, node.share(0, share_id=2), config=(isolation("time-slice", timeSlice="long"),)
        )
        assert (await instance.prepare(first))[0].ok
        node.api.drop(first)
        call = await begun(instance, second)
        assert not call.done()
        assert (await instance.unprepare(first))[0].ok
        assert (await call)[0].ok


async def test_an_orphan_that_blocks_by_its_backend_is_taken_back_at_once(tmp_path: Path) -> None:
    """Gone longer than the grace: nobody has to ask for it any more."""
    with hardware("simulated", tmp_path) as found:
        node = FormsNode(tmp_path / "node", found.lib)
        first = node.claim(1, node.share(0), config=(isolation("none"),))
        before = await node.start()
        assert (await before.prepare(first))[0].ok
        before.end()
        node.api.drop(first)
        instance = await patient(node)
        second = node.claim(
            2, node.share(0, share_id=2), config=(isolation("time-slice", timeSlice="long"),)
        )
        assert (await instance.prepare(second))[0].ok
        assert set(instance.state.records) == {second.uid}
