# SPDX-License-Identifier: Apache-2.0
"""MIG devices, shares and monitors, prepared and taken back on two libraries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpudra.api.errors import HardwareError
from tests.support.formsnode import FormsNode, decoy_library, hardware, isolation
from tests.support.plugin import DRIVER, uid


@pytest.fixture(params=["simulated", "nvml"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FormsNode]:
    """Eight cards that can be everything."""
    with hardware(request.param, tmp_path) as found:
        yield FormsNode(tmp_path / "node", found.lib)


def document(node: FormsNode, number: int) -> dict[str, Any]:
    """The CDI file of a claim."""
    path = node.cdi_dir / f"{DRIVER}-claim_{uid(number)}.json"
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    return found


def edits(node: FormsNode, number: int) -> list[dict[str, Any]]:
    """What each device of a claim brings into a container."""
    return [one["containerEdits"] for one in document(node, number)["devices"]]


async def test_an_instance_lies_at_its_exact_place_and_goes_with_its_claim(
    node: FormsNode,
) -> None:
    """Mode on, instance with compute instance, capability nodes; all of it taken back."""
    before = node.picture()
    plugin = await node.start()
    ref = node.claim(1, node.device(0, "3g40gb-4"))
    (answer,) = await plugin.prepare(ref)
    assert answer.ok, answer.error
    ((made,),) = node.instances().values()
    assert (made.placement.start, made.placement.size) == (4, 4)
    assert made.compute_instance_id is not None
    (found,) = edits(node, 1)
    assert (
        f"GPUDRA_DEVICE_{node.device(0, '3g40gb-4').upper().replace('-', '_')}={made.uuid}"
        in (found["env"])
    )
    paths = [one["path"] for one in found["deviceNodes"]]
    assert len([path for path in paths if "nvidia-cap" in path]) == 2
    (answer,) = await plugin.unprepare(ref)
    assert answer.ok, answer.error
    assert node.picture() == before


async def test_claims_side_by_side_on_one_card_and_in_one_claim(node: FormsNode) -> None:
    """Three instances of two claims; MIG mode goes with the last of them."""
    before = node.picture()
    plugin = await node.start()
    first = node.claim(1, node.device(0, "1g10gb-0"), node.device(0, "1g10gb-1"))
    second = node.claim(2, node.device(0, "3g40gb-4"))
    answers = await plugin.prepare(first, second)
    assert [one.error for one in answers] == ["", ""]
    assert len(node.instances()[0]) == 3
    await plugin.unprepare(first)
    assert [one.placement.start for one in node.instances()[0]] == [4]
    assert node.partitions.mig_mode(node.cards[0])
    await plugin.unprepare(second)
    assert node.picture() == before


async def test_other_forms_of_a_parted_card_are_refused_by_name(node: FormsNode) -> None:
    """Whole, share and overlapping places name the holder; another place and a monitor do not."""
    plugin = await node.start()
    await plugin.prepare(node.claim(1, node.device(0, "3g40gb-0")))
    others = [
        node.claim(2, node.device(0)),
        node.claim(3, node.share(0), config=(isolation("none"),)),
        node.claim(4, node.device(0, "1g10gb-2")),
    ]
    for answer in await plugin.prepare(*others):
        assert f"is in use by claim {uid(1)} (default/c1)" in answer.error
    fine = [
        node.claim(5, node.device(0, "1g10gb-4")),
        node.claim(6, {"device": node.device(0, "monitor"), "adminAccess": True}),
    ]
    assert [one.error for one in await plugin.prepare(*fine)] == ["", ""]


async def test_foreign_instances_and_a_foreign_mode_stay(node: FormsNode) -> None:
    """What an administrator has made is in the way, and is never destroyed."""
    card = node.cards[0]
    profile = node.devices[node.device(0, "1g10gb-0")].profile
    assert profile is not None
    node.partitions.set_mig_mode(card, enabled=True)
    node.partitions.create_mig_instance(card, profile.id, 0)
    before = node.picture()
    plugin = await node.start()
    taken, beside = (
        node.claim(1, node.device(0, "1g10gb-0")),
        node.claim(2, node.device(0, "1g10gb-1")),
    )
    first, second = await plugin.prepare(taken, beside)
    assert not first.ok
    assert second.ok, second.error
    await plugin.unprepare(taken, beside)
    assert node.picture() == before


async def test_a_whole_card_leaves_mig_mode_and_gets_it_back(node: FormsNode) -> None:
    """Somebody left the mode on: the claim gets a card that computes, then all is as it was."""
    node.partitions.set_mig_mode(node.cards[0], enabled=True)
    node.look()
    before = node.picture()
    plugin = await node.start()
    ref = node.claim(1, node.device(0))
    (answer,) = await plugin.prepare(ref)
    assert answer.ok, answer.error
    assert not node.partitions.mig_mode(node.cards[0])
    await plugin.unprepare(ref)
    assert node.picture() == before


async def test_a_monitor_sees_the_card_and_holds_nothing(node: FormsNode) -> None:
    """The card's own node, beside whoever has it, and the one that shows instances."""
    plugin = await node.start()
    watched = {"device": node.device(0, "monitor")}
    refs = [
        node.claim(1, node.device(0)),
        node.claim(2, {**watched, "adminAccess": True}),
        node.claim(3, watched),
    ]
    owner, monitor, other = await plugin.prepare(*refs)
    assert owner.ok, owner.error
    assert monitor.ok, monitor.error
    assert "without admin access" in other.error
    (card,), seen = edits(node, 1)[0]["deviceNodes"], edits(node, 2)[0]["deviceNodes"]
    assert seen[0] == card
    # What shows the instances of all cards; not nvidia-cap1, which makes and destroys them.
    assert [one["path"] for one in seen[1:]] == ["/dev/nvidia-caps/nvidia-cap2"]


async def test_shares_of_one_card_have_one_backend_and_fit(node: FormsNode, tmp_path: Path) -> None:
    """The second backend and what does not fit are refused with the holder; limits are exact."""
    node.hami_library = str(decoy_library(tmp_path))
    before = node.picture()
    plugin = await node.start()
    first = node.claim(1, node.share(0, "30Gi", 1))
    (answer,) = await plugin.prepare(first)
    assert answer.ok, answer.error
    (found,) = edits(node, 1)
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=30720m" in found["env"]
    assert any(one["containerPath"].endswith("libvgpu.so") for one in found["mounts"])
    other = node.claim(2, node.share(0, "10Gi", 2), config=(isolation("time-slice"),))
    large = node.claim(3, node.share(0, "60Gi", 3))
    fits = node.claim(4, node.share(0, "40Gi", 4))
    second, third, fourth = await plugin.prepare(other, large, fits)
    assert f"is shared by isolation hami-core for claim {uid(1)}" in second.error
    assert f"claim {uid(1)} (default/c1) has 30720Mi" in third.error
    assert fourth.ok, fourth.error
    await plugin.unprepare(first, other, large, fits)
    assert node.picture() == before


async def test_a_share_without_a_backend_is_refused_unless_asked_so(node: FormsNode) -> None:
    """Nothing weaker is taken in silence."""
    plugin = await node.start()
    silent, asked = node.claim(1, node.share(0)), node.claim(2, node.share(0, share_id=2), config=(isolation("none"),))  # fmt: skip
    refused, done = await plugin.prepare(silent, asked)
    assert "nothing on this node keeps the users" in refused.error
    assert done.ok, done.error


async def test_time_slices_are_set_and_put_back(node: FormsNode) -> None:
    """The length is the card's; the default comes back with the last user."""
    plugin = await node.start()
    ref = node.claim(1, node.share(0), config=(isolation("time-slice", timeSlice="long"),))
    (answer,) = await plugin.prepare(ref)
    assert answer.ok, answer.error
    assert list(node.picture()["slices"]) == [node.cards[0]]
    await plugin.unprepare(ref)
    assert node.picture()["slices"] == {}


async def test_what_cannot_be_made_is_taken_back(
    node: FormsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second instance of a claim fails: the first one and the mode go again."""
    before = node.picture()
    plugin = await node.start()
    real, calls = node.partitions.create_mig_instance, []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise HardwareError("no")
        return real(*arguments)

    monkeypatch.setattr(node.partitions, "create_mig_instance", failing)
    ref = node.claim(1, node.device(0, "1g10gb-0"), node.device(0, "1g10gb-1"))
    (answer,) = await plugin.prepare(ref)
    assert not answer.ok
    assert len(calls) == 2
    assert node.picture() == before
    assert dict(plugin.state.records) == {}


async def test_a_lost_checkpoint_costs_neither_instances_nor_limits(
    node: FormsNode, tmp_path: Path
) -> None:
    """Rebuilt from files, API and hardware: the instance is ours again, the share is limited."""
    node.hami_library = str(decoy_library(tmp_path))
    before = node.picture()
    plugin = await node.start()
    refs = [node.claim(1, node.device(0, "3g40gb-0")), node.claim(2, node.share(1))]
    await plugin.prepare(*refs)
    there = node.picture()
    plugin.end()
    for path in node.state_dir.glob("checkpoint*"):
        path.unlink()
    again = await node.start()
    assert node.picture() == there
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=10240m" in edits(node, 2)[0]["env"]
    await again.unprepare(*refs)
    # Who had switched the mode on is not known any more, so it stays.
    assert {**node.picture(), "modes": []} == {**before, "modes": []}


async def test_after_a_reboot_everything_is_made_again(node: FormsNode, tmp_path: Path) -> None:
    """Instances, settings and files are gone; the start makes them anew for claims that live."""
    node.hami_library = str(decoy_library(tmp_path))
    before = node.picture()
    plugin = await node.start()
    refs = [
        node.claim(1, node.device(0, "3g40gb-0")),
        node.claim(2, node.share(1), config=(isolation("hami-core"),)),
        node.claim(3, node.device(2)),
    ]
    await plugin.prepare(*refs)
    there = node.instances()
    plugin.end()
    node.boot_id = "boot-2"
    node.reset()
    again = await node.start()
    assert [one.placement for one in node.instances()[0]] == [one.placement for one in there[0]]
    answers = await again.prepare(*refs)
    assert [one.error for one in answers] == ["", "", ""]
    assert len(node.cdi_files()) == 3
    await again.unprepare(*refs)
    assert node.picture() == before
