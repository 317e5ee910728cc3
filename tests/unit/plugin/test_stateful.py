# SPDX-License-Identifier: Apache-2.0
"""Random interleavings of prepare, unprepare, kills, restarts, reboots and deletions.

The model knows which claims the kubelet believes to run. Whatever happens in whatever order: a
device is held by at most one claim, a claim that runs keeps its devices and its file, and in the
end nothing is left.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpudra.kubelet_plugin.records import COMPLETED, ClaimRef
from tests.support.logs import captured_logs
from tests.support.plugin import DRIVER, Answer, Instance, Killed, Node, claim_object, uid

R = TypeVar("R")
# Two claims share a name, two share a card, one takes both cards, one only looks on.
CLAIMS: dict[str, tuple[int, str, tuple[Any, ...]]] = {
    "a": (0xA0000001, "a", ("gpu-0",)),
    "a again": (0xA0000002, "a", ("gpu-1",)),
    "b": (0xB0000001, "b", ("gpu-0",)),
    "both": (3, "both", ("gpu-0", "gpu-1")),
    "other": (4, "other", ("gpu-2",)),
    "admin": (5, "admin", ({"device": "gpu-0", "adminAccess": True},)),
}
KEYS = st.sampled_from(sorted(CLAIMS))


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


class PluginMachine(RuleBasedStateMachine):
    """The plugin under a kubelet and an API server that do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = captured_logs()
        self.logs.__enter__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.node = Node(Path(self.folder.name), cards=3)
        self.refs = {
            key: ClaimRef(uid(number), "default", name) for key, (number, name, _) in CLAIMS.items()
        }
        self.holds = {
            key: {one for one in devices if isinstance(one, str)}
            for key, (_, _, devices) in CLAIMS.items()
        }
        self.bomb = Bomb()
        # What the kubelet believes to run, and since when a deleted claim may be taken back.
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
        """Whether the API holds this very claim."""
        _, name, _ = CLAIMS[key]
        found = self.node.api.objects.get(f"default/{name}")
        return found is not None and found["metadata"]["uid"] == self.refs[key].uid

    # --- what the API does ----------------------------------------------------------------------

    @rule(key=KEYS)
    def create(self, key: str) -> None:
        """The claim appears, allocated and reserved; one of the same name goes."""
        number, name, devices = CLAIMS[key]
        self.node.api.put(claim_object(uid(number), name, *devices))

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        """By force: the kubelet may or may not unprepare it later."""
        if self.exists(key):
            self.node.api.drop(self.refs[key])

    @rule()
    def a_long_time_passes(self) -> None:
        """Beyond the grace of orphans: those seen gone before are taken back now."""
        self.do(self.instance.recovery.sweep())
        self.do(self.node.clock.advance(200))
        self.forgivable |= {key for key in self.running if not self.exists(key)}
        self.do(self.instance.recovery.sweep())

    # --- what the kubelet does ------------------------------------------------------------------

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def prepare(self, keys: list[str]) -> None:
        """One call with several claims."""
        answers = self.do(self.instance.prepare(*(self.refs[key] for key in keys)))
        for key, answer in zip(keys, answers, strict=True):
            self.answered(key, answer)

    def answered(self, key: str, answer: Answer) -> None:
        """Checks one answer against the model."""
        if not answer.ok:
            return
        assert self.exists(key)
        rivals = {
            other
            for other in self.running - {key}
            if self.holds[other] & self.holds[key] and other not in self.forgivable
        }
        assert rivals == set(), f"{key} was given what {rivals} hold"
        for other in [one for one in self.running if self.holds[one] & self.holds[key]]:
            self.running.discard(other)
        self.running.add(key)
        self.forgivable.discard(key)

    @rule(key=KEYS)
    def unprepare(self, key: str) -> None:
        """Also for claims that were never prepared."""
        (answer,) = self.do(self.instance.unprepare(self.refs[key]))
        assert answer.ok, answer.error
        self.running.discard(key)
        self.forgivable.discard(key)

    @rule(key=KEYS, other=KEYS)
    def prepare_while_unpreparing(self, key: str, other: str) -> None:
        """The two calls are in flight at once."""

        async def both() -> list[Answer]:
            task = asyncio.create_task(self.instance.prepare(self.refs[key]))
            await asyncio.sleep(0)
            await self.instance.unprepare(self.refs[other])
            return await task

        (answer,) = self.do(both())
        if other != key:
            self.running.discard(other)
            self.forgivable.discard(other)
            self.answered(key, answer)
        else:
            # Either order is right; a further unprepare makes both the same.
            self.unprepare(key)

    # --- what happens to the process ------------------------------------------------------------

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3, unique=True), after=st.integers(0, 14))
    def killed_while_preparing(self, keys: list[str], after: int) -> None:
        """The answer is lost with the process."""
        self.kill_in(self.instance.prepare(*(self.refs[key] for key in keys)), after)

    @rule(key=KEYS, after=st.integers(0, 8))
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
        """The CDI folder is empty, no container runs."""
        self.node.boot_id = f"boot-after-{self.node.boot_id}"[:200]
        for path in self.node.cdi_dir.iterdir():
            path.unlink()
        self.restart()

    @rule(key=KEYS)
    def a_file_is_removed(self, key: str) -> None:
        """Somebody tidies up the CDI folder; the next prepare writes the file again."""
        path = self.node.cdi_dir / f"{DRIVER}-claim_{self.refs[key].uid}.json"
        if path.exists() and self.exists(key):
            path.unlink()
            self.prepare([key])

    # --- what holds at every moment ------------------------------------------------------------

    @invariant()
    def no_device_is_held_twice(self) -> None:
        """The heart of it."""
        held = [
            hold.device for record in self.instance.state.records.values() for hold in record.holds
        ]
        assert len(held) == len(set(held))

    @invariant()
    def who_runs_keeps_what_it_has(self) -> None:
        """Completed record and file, unless the claim is gone and may be taken back."""
        for key in self.running - self.forgivable:
            record = self.instance.state.records.get(self.refs[key].uid)
            assert record is not None, f"{key} lost its record"
            assert record.state == COMPLETED
            assert any(self.refs[key].uid in name for name in self.node.cdi_files()), key

    @invariant()
    def every_file_belongs_to_a_record(self) -> None:
        """Nothing leaks, not even for a moment between calls."""
        uids = set(self.instance.state.records)
        assert all(any(one in name for one in uids) for name in self.node.cdi_files())
        assert list(self.node.state_dir.glob(".*")) == []

    def teardown(self) -> None:
        """Unpreparing everything leaves nothing."""
        for ref in self.refs.values():
            self.do(self.instance.unprepare(ref))
        assert dict(self.instance.state.records) == {}
        assert self.node.cdi_files() == []
        self.instance.end()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.do(_ended(pending))
        self.loop.close()
        self.folder.cleanup()
        self.logs.__exit__(None, None, None)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    """Waits for cancelled tasks, whatever they raise."""
    await asyncio.gather(*itertools.chain(tasks), return_exceptions=True)


TestPluginMachine = PluginMachine.TestCase
TestPluginMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class ThousandMachine(PluginMachine):
    """The same in many short histories."""


TestThousandInterleavings = ThousandMachine.TestCase
TestThousandInterleavings.settings = settings(
    TestPluginMachine.settings, max_examples=1000, stateful_step_count=10
)
