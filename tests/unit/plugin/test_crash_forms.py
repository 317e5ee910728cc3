# SPDX-License-Identifier: Apache-2.0
"""The process ends at every point that the code passes, for claims of every form.

As tests/unit/plugin/test_crash_points.py, on cards that can be parted and shared: after the kill
the next process heals, the kubelet's retry works, and in the end the hardware, the folders and the
checkpoint are as they were before the claim.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudra.driver.core.sharing import Backend
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRef
from tests.support.formsnode import FormsNode, decoy_library, hardware, isolation
from tests.support.plugin import Instance, Killed

Ask = Callable[[FormsNode], ClaimRef]
SLOW = {"timeSlice": "long"}


def whole(node: FormsNode, *config: Any) -> ClaimRef:
    """A claim of one card."""
    return node.claim(1, node.device(0), config=config)


def mig(node: FormsNode, *config: Any) -> ClaimRef:
    """A claim of two parts of one card."""
    return node.claim(1, node.device(0, "1g10gb-0"), node.device(0, "3g40gb-4"), config=config)


def share(node: FormsNode, *config: Any) -> ClaimRef:
    """A claim of a share."""
    return node.claim(1, node.share(0), config=config)


FORMS: dict[str, Ask] = {
    "whole": whole,
    "whole mps": lambda node: whole(node, isolation("mps", "GpuConfig")),
    "whole time-slice": lambda node: whole(node, isolation("time-slice", "GpuConfig", **SLOW)),
    "whole none": lambda node: whole(node, isolation("none", "GpuConfig")),
    "monitor": lambda node: node.claim(
        1, {"device": node.device(0, "monitor"), "adminAccess": True}
    ),
    "mig": mig,
    # Each instance has a daemon of its own, and a container talks to one.
    "mig mps": lambda node: node.claim(
        1, node.device(0, "3g40gb-4"), config=(isolation("mps", "MigConfig"),)
    ),
    "mig none": lambda node: mig(node, isolation("none", "MigConfig")),
    "share mps": lambda node: share(node, isolation("mps")),
    "share hami-core": lambda node: share(node, isolation("hami-core")),
    "share time-slice": lambda node: share(node, isolation("time-slice", **SLOW)),
    "share none": lambda node: share(node, isolation("none")),
    "mig and share and whole": lambda node: node.claim(
        1, node.device(0, "1g10gb-0"), node.share(1), node.device(2), config=(isolation("none"),)
    ),
}
REFUSED: dict[str, Ask] = {
    "whole hami-core": lambda node: whole(node, isolation("hami-core", "GpuConfig")),
    "mig hami-core": lambda node: mig(node, isolation("hami-core", "MigConfig")),
    "mig time-slice": lambda node: mig(node, isolation("time-slice", "MigConfig")),
}
LIBRARIES = ("simulated", "nvml")
# Daemons are real processes, which take their time: with one library they are the same as with two.
CASES = [
    (library, form)
    for form in FORMS
    for library in (("nvml",) if form.endswith("mps") else LIBRARIES)
]


class Bomb:
    """Notes points; ends the process at the chosen one."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.at = -1

    def __call__(self, point: str) -> None:
        """A point is passed."""
        self.seen.append(point)
        if len(self.seen) - 1 == self.at:
            raise Killed


@pytest.fixture(params=LIBRARIES)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A node with every backend: a library that looks like HAMi-core, a stand-in for MPS."""
    with hardware(request.param, tmp_path) as found:
        made = FormsNode(tmp_path / "node", found.lib)
        made.hami_library = str(decoy_library(tmp_path))
        made.has_mps()
        yield made
        made.end()


async def called(plugin: Instance, call: str, ref: ClaimRef) -> None:
    """One call that is answered."""
    (answer,) = await getattr(plugin, call)(ref)
    assert answer.ok, answer.error


async def points_of(node: FormsNode, ref: ClaimRef, call: str) -> list[str]:
    """What a whole run passes; the node is as before afterwards."""
    bomb = Bomb()
    plugin = await node.start(observe=bomb)
    if call == "unprepare":
        await called(plugin, "prepare", ref)
    bomb.seen.clear()
    await called(plugin, call, ref)
    seen = list(bomb.seen)
    await called(plugin, "unprepare", ref)
    plugin.end()
    return seen


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
@pytest.mark.parametrize(("node", "form"), CASES, indirect=["node"])
async def test_whatever_the_moment_the_retry_succeeds_and_nothing_leaks(
    node: FormsNode, form: str, call: str
) -> None:
    """State is healed at start, the call succeeds, and the end is as the beginning."""
    ref = FORMS[form](node)
    before = node.picture()
    points = await points_of(node, ref, call)
    assert node.picture() == before
    for number, point in enumerate(points):
        bomb = Bomb()
        first = await node.start(observe=bomb)
        if call == "unprepare":
            await called(first, "prepare", ref)
        bomb.at = len(bomb.seen) + number
        with pytest.raises(Killed):
            await getattr(first, call)(ref)
        first.end()
        second = await node.start()
        assert [one for one in second.state.records.values() if one.state != COMPLETED] == [], point
        await called(second, call, ref)
        await called(second, "unprepare", ref)
        assert node.picture() == before, point
        assert dict(second.state.records) == {}, point
        second.end()


class Disk:
    """The checkpoint as it is on the disk: what was never synced is lost with the power."""

    def __init__(self, plugin: Instance) -> None:
        self._folder = plugin.node.state_dir
        self.synced: dict[str, bytes] = {}
        self.count = 0
        save = plugin.checkpoint.file.save

        def kept(content: Any, *, durable: bool) -> None:
            save(content, durable=durable)
            if durable:
                self.count += 1
                self._look()

        plugin.checkpoint.file.save = kept  # type: ignore[method-assign]
        self._look()

    def _look(self) -> None:
        files = self._folder.glob("checkpoint.*.json")
        self.synced = {path.name: path.read_bytes() for path in files}

    def power_cut(self) -> None:
        """What is in memory only is gone."""
        for path in self._folder.glob("checkpoint.*.json"):
            path.unlink()
        for name, content in self.synced.items():
            (self._folder / name).write_bytes(content)


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
@pytest.mark.parametrize("form", ["whole", "mig", "share time-slice", "mig and share and whole"])
async def test_a_power_cut_at_any_moment_leaks_nothing(
    node: FormsNode, form: str, call: str
) -> None:
    """As a kill, but files that were not synced are lost, and so is what a reboot resets."""
    ref = FORMS[form](node)
    before = node.picture()
    points = await points_of(node, ref, call)
    for number, point in enumerate(points):
        bomb = Bomb()
        first = await node.start(observe=bomb)
        disk = Disk(first)
        if call == "unprepare":
            await called(first, "prepare", ref)
        bomb.at = len(bomb.seen) + number
        with pytest.raises(Killed):
            await getattr(first, call)(ref)
        first.end()
        disk.power_cut()
        node.reset()
        node.boot_id += "+"
        second = await node.start()
        await called(second, call, ref)
        await called(second, "unprepare", ref)
        assert node.picture() == before, point
        assert dict(second.state.records) == {}, point
        second.end()


@pytest.mark.parametrize(("form", "syncs"), [("whole", 1), ("mig", 2), ("share time-slice", 2)])
async def test_a_claim_waits_for_the_disk_as_often_as_it_must(
    node: FormsNode, form: str, syncs: int
) -> None:
    """Once for the answer, and before that once for the reservation of what outlives a cut."""
    ref = FORMS[form](node)
    plugin = await node.start()
    disk = Disk(plugin)
    await called(plugin, "prepare", ref)
    assert disk.count == syncs
    await called(plugin, "unprepare", ref)
    assert disk.count == syncs + 1
    plugin.end()


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
async def test_neighbours_on_the_card_outlive_every_kill(node: FormsNode, call: str) -> None:
    """A foreign instance, a claim of ours, and MIG mode which both need, stay as they are."""
    card = node.cards[0]
    profile = node.devices[node.device(0, "1g10gb-6")].profile
    assert profile is not None
    keeper = await node.start()
    await called(keeper, "prepare", node.claim(9, node.device(0, "1g10gb-5")))
    node.partitions.create_mig_instance(card, profile.id, 6)
    keeper.end()
    ref = node.claim(1, node.device(0, "3g40gb-0"))
    before = node.picture()
    points = await points_of(node, ref, call)
    for number, point in enumerate(points):
        bomb = Bomb()
        first = await node.start(observe=bomb)
        if call == "unprepare":
            await called(first, "prepare", ref)
        bomb.at = len(bomb.seen) + number
        with pytest.raises(Killed):
            await getattr(first, call)(ref)
        first.end()
        node.api.drop(ref)
        second = await node.start()
        await second.recovery.sweep()
        assert node.picture() == before, point
        second.end()
        node.claim(1, node.device(0, "3g40gb-0"))


@pytest.mark.parametrize("node", ["nvml"], indirect=True)
async def test_the_points_name_every_kind_of_step(node: FormsNode) -> None:
    """A new kind of step that no form here takes has to be added to FORMS."""
    plugin = await node.start()
    known = set(plugin.state.runner.kinds)
    plugin.end()
    seen: set[str] = set()
    for ask in FORMS.values():
        seen |= set(await points_of(node, ask(node), "prepare"))
    assert {f"do:{kind}:before" for kind in known} <= seen


def test_every_form_meets_every_backend() -> None:
    """A new backend has to be added, to FORMS or to REFUSED."""
    wanted = {f"{form} {backend}" for form in ("whole", "mig", "share") for backend in Backend}
    assert wanted <= set(FORMS) | set(REFUSED)


@pytest.mark.parametrize("node", ["simulated"], indirect=True)
@pytest.mark.parametrize("form", REFUSED)
async def test_what_a_form_cannot_have_is_refused_by_name(node: FormsNode, form: str) -> None:
    """Nothing weaker is taken instead, and nothing is left."""
    before = node.picture()
    plugin = await node.start()
    (answer,) = await plugin.prepare(REFUSED[form](node))
    assert "sharing.isolation: Input should be" in answer.error
    assert node.picture() == before
    plugin.end()
