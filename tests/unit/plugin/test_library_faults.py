# SPDX-License-Identifier: Apache-2.0
"""The device library fails or hangs, at every place where preparing and unpreparing call it.

The places come from the code: a run is watched once, then repeated with a fault at each call.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import HardwareError
from gpudra.kubelet_plugin.dra_service import ANSWER_WITHIN
from gpudra.kubelet_plugin.records import ClaimRef
from tests.support.formsnode import FormsNode, hardware, isolation
from tests.support.plugin import Answer, Instance, inline

Ask = Callable[[FormsNode], ClaimRef]
SLOW = {"timeSlice": "long"}
FORMS: dict[str, Ask] = {
    "mig": lambda node: node.claim(1, node.device(0, "1g10gb-0"), node.device(0, "3g40gb-4")),
    "whole": lambda node: node.claim(
        1, node.device(0), config=(isolation("time-slice", "GpuConfig", **SLOW),)
    ),
    "share": lambda node: node.claim(
        1, node.share(0), config=(isolation("time-slice", **SLOW),)
    ),
    "monitor": lambda node: node.claim(
        1, {"device": node.device(0, "monitor"), "adminAccess": True}
    ),
}  # fmt: skip
LIBRARY = ("common_edits", "gpu_edits")
MIG = (
    "mig_mode", "set_mig_mode", "mig_instances", "create_mig_instance", "destroy_mig_instance",
    "mig_edits", "monitor_edits",
)  # fmt: skip
TUNING = ("compute_mode", "set_compute_mode", "set_time_slice")


@pytest.fixture(params=["simulated", "nvml"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FormsNode]:
    """A node whose cards can be everything."""
    with hardware(request.param, tmp_path) as found:
        made = FormsNode(tmp_path / "node", found.lib)
        yield made
        made.end()


class Fuse:
    """Something happens at the chosen one of all calls to the library."""

    def __init__(self, node: FormsNode, patch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:  # fmt: skip
        self.calls = 0
        self._at = -1
        self._after = False
        self._fault = fault
        for owner, names in ((node.lib, LIBRARY), (node.partitions, MIG), (node.tuning, TUNING)):
            for name in names:
                patch.setattr(owner, name, self._wrapped(getattr(owner, name)), raising=False)

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            blown = self.calls - 1 == self._at
            if blown and not self._after:
                self._fault()
            found = real(*arguments, **options)
            if blown and self._after:
                self._fault()
            return found

        return call

    def arm(self, at: int = -1, *, after: bool = False) -> None:
        """The call of that number, counted from now; before or after it was carried out."""
        self.calls, self._at, self._after = 0, at, after

    def reached(self) -> bool:
        """Whether there was such a call."""
        return self.calls > self._at


async def called(plugin: Instance, call: str, ref: ClaimRef) -> None:
    """One call that is answered."""
    (answer,) = await getattr(plugin, call)(ref)
    assert answer.ok, answer.error


async def ready(node: FormsNode, call: str, ref: ClaimRef, blocking: Any = inline) -> Instance:
    """A process that is about to get the call."""
    plugin = await node.start(blocking=blocking)
    if call == "unprepare":
        await called(plugin, "prepare", ref)
    return plugin


async def to_the_end(node: FormsNode, plugin: Instance, call: str, ref: ClaimRef) -> None:
    """The kubelet's next calls work, and leave nothing."""
    await called(plugin, call, ref)
    await called(plugin, "unprepare", ref)
    assert dict(plugin.state.records) == {}
    plugin.end()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["prepare", "unprepare"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_failing_call_leaks_nothing(
    node: FormsNode, monkeypatch: pytest.MonkeyPatch, form: str, call: str, after: bool
) -> None:
    """The claim gets an error, the retry succeeds, and the end is clean."""
    ref = FORMS[form](node)
    before = node.picture()

    def fail() -> None:
        raise HardwareError("the library fails")

    fuse = Fuse(node, monkeypatch, fail)
    for number in range(60):
        fuse.arm()
        plugin = await ready(node, call, ref)
        fuse.arm(number, after=after)
        (answer,) = await getattr(plugin, call)(ref)
        reached = fuse.reached()
        fuse.arm()
        assert answer.ok is not reached
        await to_the_end(node, plugin, call, ref)
        assert node.picture() == before, number
        if not reached:
            assert number > 0 or call == "unprepare"
            return
    pytest.fail("the library is called without end")


class Gate:
    """Where a call into the library hangs."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> None:
        """Hangs until it is opened."""
        self.inside.set()
        self._open.wait(timeout=60)

    def open(self) -> None:
        """Lets the call go on."""
        self._open.set()

    def close(self) -> None:
        """For the next one."""
        self.inside.clear()
        self._open.clear()


async def hangs_or_ends(gate: Gate, call: "asyncio.Task[list[Answer]]") -> bool:
    """Whether the call has come to the gate, once it has either done so or ended."""
    while not (gate.inside.is_set() or call.done()):  # noqa: ASYNC110 - a worker thread comes in
        await asyncio.sleep(0.001)
    return gate.inside.is_set()


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_hanging_call_costs_its_own_card_only(
    node: FormsNode, monkeypatch: pytest.MonkeyPatch, form: str, call: str
) -> None:
    """Claims of the same call get their answers, this one is told in time, and nothing is lost."""
    ref, other = FORMS[form](node), node.claim(2, node.device(3))
    before = node.picture()
    gate = Gate()
    fuse = Fuse(node, monkeypatch, gate)
    for number in range(60):
        fuse.arm()
        gate.close()
        plugin = await ready(node, call, ref, asyncio.to_thread)
        fuse.arm(number)
        hung = asyncio.create_task(getattr(plugin, call)(ref))
        if not await hangs_or_ends(gate, hung):
            assert (await hung)[0].ok
            fuse.arm()
            await to_the_end(node, plugin, call, ref)
            assert node.picture() == before, number
            assert number > 0 or call == "unprepare"
            return
        fuse.arm()
        await called(plugin, "prepare", other)
        await called(plugin, "unprepare", other)
        await node.clock.advance(ANSWER_WITHIN)
        (answer,) = await hung
        assert "is not done after 40 s and goes on" in answer.error
        gate.open()
        await to_the_end(node, plugin, call, ref)
        assert node.picture() == before, number
    pytest.fail("the library is called without end")
