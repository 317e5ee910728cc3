# SPDX-License-Identifier: Apache-2.0
"""Random interleavings as in test_stateful.py, on cards that can be parted and shared.

The model knows which claims the kubelet believes to run. Whatever happens in whatever order: what
claims hold of a card fits beside each other, a claim that runs keeps its instances, an instance
that somebody else has made is never touched, and in the end nothing is left.
"""

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpudra.driver.core import prepare
from gpudra.driver.core.prepare import MIG_INSTANCE
from gpudra.driver.core.sharing import sharings
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRef
from tests.support.formsnode import FormsNode, hardware, isolation
from tests.support.logs import captured_logs
from tests.support.plugin import Answer, Instance, Killed, uid

R = TypeVar("R")
NONE, SLICES = (isolation("none"),), (isolation("time-slice", timeSlice="long"),)
MIB_OF_CARD = 81559


def claims_of(node: FormsNode) -> dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Devices and configuration by key: all of one card, and a few of a second one."""
    watch = {"device": node.device(0, "monitor"), "adminAccess": True}
    return {
        "whole": ((node.device(0),), ()),
        "left half": ((node.device(0, "3g40gb-0"),), ()),
        "right half": ((node.device(0, "3g40gb-4"),), ()),
        "two parts": ((node.device(0, "1g10gb-0"), node.device(0, "1g10gb-1")), ()),
        "share": ((node.share(0, "30Gi", 1),), NONE),
        "big share": ((node.share(0, "60Gi", 2),), NONE),
        "slice": ((node.share(0, "10Gi", 3),), SLICES),
        "everything": ((node.device(1, "1g10gb-0"), node.share(0, "20Gi", 4)), NONE),
        "monitor": ((watch,), ()),
        "other": ((node.device(1, "1g10gb-1"),), ()),
    }


KEYS = st.sampled_from([
    "big share", "everything", "left half", "monitor", "other", "right half", "share", "slice",
    "two parts", "whole",
])  # fmt: skip


class Bomb:
    """Ends the process after a number of points, if armed."""

    def __init__(self) -> None:
        self.left: int | None = None

    def __call__(self, _point: str) -> None:
        """A point is passed."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


class FormsMachine(RuleBasedStateMachine):
    """The plugin under a kubelet and an API server that do what they like."""

    library: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(captured_logs())
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        found = self.stack.enter_context(hardware(self.library, folder))
        self.node = FormsNode(folder / "node", found.lib)
        self.loop = asyncio.new_event_loop()
        self.claims = claims_of(self.node)
        self.numbers = {key: number for number, key in enumerate(self.claims, start=1)}
        self.refs = {
            key: ClaimRef(uid(number), "default", f"c{number}")
            for key, number in self.numbers.items()
        }
        self.bomb = Bomb()
        self.foreign: set[tuple[int, int]] = set()
        self.before = self.node.picture()
        self.running: set[str] = set()
        self.forgivable: set[str] = set()
        self.instance = self.do(self.started())

    def do(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs to the end."""
        return self.loop.run_until_complete(work)

    async def started(self) -> Instance:
        """A process; the API is looked at before anything else."""
        instance = await self.node.start(observe=self.bomb)
        await instance.recovery.sweep()
        return instance

    def exists(self, key: str) -> bool:
        """Whether the API holds this claim."""
        return f"default/{self.refs[key].name}" in self.node.api.objects

    # --- what the API does ----------------------------------------------------------------------

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5, unique=True))
    def create(self, keys: list[str]) -> None:
        """Claims appear, allocated and reserved."""
        for key in keys:
            devices, config = self.claims[key]
            self.node.claim(self.numbers[key], *devices, config=config)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        """By force: the kubelet may or may not unprepare it later."""
        self.node.api.drop(self.refs[key])

    @rule()
    def a_long_time_passes(self) -> None:
        """Beyond the grace of orphans: those seen gone before are taken back now."""
        self.do(self.instance.recovery.sweep())
        self.do(self.node.clock.advance(200))
        self.forgivable |= {key for key in self.running if not self.exists(key)}
        self.do(self.instance.recovery.sweep())
        self.node.look()

    # --- what the kubelet does ------------------------------------------------------------------

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def prepare(self, keys: list[str]) -> None:
        """One call with several claims."""
        answers = self.do(self.instance.prepare(*(self.refs[key] for key in keys)))
        for key, answer in zip(keys, answers, strict=True):
            self.answered(key, answer)

    def answered(self, key: str, answer: Answer) -> None:
        """What is given is recorded; whom it pushed aside was gone long enough."""
        if not answer.ok:
            return
        assert self.exists(key)
        self.running.add(key)
        self.forgivable.discard(key)
        records = self.instance.state.records
        pushed = {one for one in self.running if self.refs[one].uid not in records}
        assert pushed <= self.forgivable
        self.running -= pushed

    @rule(key=KEYS)
    def unprepare(self, key: str) -> None:
        """Also for claims that were never prepared."""
        (answer,) = self.do(self.instance.unprepare(self.refs[key]))
        assert answer.ok, answer.error
        self.running.discard(key)
        self.forgivable.discard(key)

    # --- what happens to the process and the machine --------------------------------------------

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3, unique=True), after=st.integers(0, 20))
    def killed_while_preparing(self, keys: list[str], after: int) -> None:
        """The answer is lost with the process."""
        self.kill_in(self.instance.prepare(*(self.refs[key] for key in keys)), after)

    @rule(key=KEYS, after=st.integers(0, 14))
    def killed_while_unpreparing(self, key: str, after: int) -> None:
        """The kubelet will ask again."""
        self.kill_in(self.instance.unprepare(self.refs[key]), after)
        self.unprepare(key)

    def kill_in(self, work: Coroutine[Any, Any, Any], after: int) -> None:
        """The process ends at some point of the call, or right after it."""

        async def until_the_end() -> None:
            task = asyncio.ensure_future(work)
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()

        self.bomb.left = after
        self.do(until_the_end())
        self.bomb.left = None
        self.restart()

    @rule()
    def restart(self) -> None:
        """A new process on the same folders."""
        self.instance.end()
        self.forgivable |= {key for key in self.running if not self.exists(key)}
        self.instance = self.do(self.started())

    @rule()
    def reboot(self) -> None:
        """No instance, no mode, no file; what claims held and lost is made again."""
        self.node.boot_id = f"boot-after-{self.node.boot_id}"[:200]
        self.node.reset()
        self.foreign.clear()
        self.restart()

    @rule(card=st.sampled_from([0, 1]), start=st.sampled_from([2, 6]))
    def somebody_else_makes_an_instance(self, card: int, start: int) -> None:
        """Where MIG is on and there is room."""
        key = self.node.cards[card]
        there = self.node.partitions.mig_instances(key)
        taken = {
            number
            for one in there
            for number in range(one.placement.start, one.placement.start + one.placement.size)
        }
        profile = self.node.devices[self.node.device(card, "1g10gb-0")].profile
        assert profile is not None
        room = start not in taken and sum(one.placement.size for one in there) < 7
        if room and self.node.partitions.mig_mode(key):
            self.node.partitions.create_mig_instance(key, profile.id, start)
            self.foreign.add((card, start))

    @rule()
    def somebody_else_destroys_theirs(self) -> None:
        """All of them."""
        for card, start in self.foreign:
            key = self.node.cards[card]
            for one in self.node.partitions.mig_instances(key):
                if (one.placement.start, one.placement.size) == (start, 1):
                    self.node.partitions.destroy_mig_instance(key, one.gpu_instance_id)
        self.foreign.clear()

    # --- what holds at every moment ------------------------------------------------------------

    @invariant()
    def what_is_held_fits(self) -> None:
        """No two claims hold what cannot be had at once; shares have one backend, and fit."""
        records = list(self.instance.state.records.values())
        for left, right in combinations(records, 2):
            for mine in left.holds:
                assert not any(prepare.overlap(mine, theirs) for theirs in right.holds)
        shares = [one for record in records for one in sharings(record.steps)]
        assert len({one.backend for one in shares}) <= 1
        assert sum(one.memory_mib or 0 for one in shares) <= MIB_OF_CARD

    @invariant()
    def instances_are_those_of_records_and_of_others(self) -> None:
        """Nothing leaks, nothing of ours is missing, nothing of others is destroyed."""
        wanted = {
            (self.node.cards.index(str(step.args["card"])), step.args["start"], step.args["size"])
            for record in self.instance.state.records.values()
            for step in record.steps
            if step.kind == MIG_INSTANCE
        } | {(card, start, 1) for card, start in self.foreign}
        found = {
            (card, one.placement.start, one.placement.size)
            for card, there in self.node.instances().items()
            for one in there
        }
        assert found == wanted

    @invariant()
    def who_runs_keeps_what_it_has(self) -> None:
        """Completed record and file, unless the claim is gone and may be taken back."""
        for key in self.running - self.forgivable:
            record = self.instance.state.records.get(self.refs[key].uid)
            assert record is not None, f"{key} lost its record"
            assert record.state == COMPLETED
            assert any(self.refs[key].uid in name for name in self.node.cdi_files()), key

    def teardown(self) -> None:
        """Unpreparing everything leaves the machine as it was."""
        self.somebody_else_destroys_theirs()
        for ref in self.refs.values():
            (answer,) = self.do(self.instance.unprepare(ref))
            assert answer.ok, answer.error
        assert dict(self.instance.state.records) == {}
        picture = self.node.picture()
        # A mode that foreign instances kept on when the last claim of ours went stays on.
        assert {**picture, "modes": []} == {**self.before, "modes": []}
        self.instance.end()
        self.loop.close()
        self.stack.close()


class SimulatedForms(FormsMachine):
    """On simulated cards."""

    library = "simulated"


class NvmlForms(FormsMachine):
    """On the fake NVML."""

    library = "nvml"


_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
TestSimulatedForms = SimulatedForms.TestCase
TestSimulatedForms.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=_SLOW
)
TestNvmlForms = NvmlForms.TestCase
TestNvmlForms.settings = settings(
    max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=_SLOW
)
