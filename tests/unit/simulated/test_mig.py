# SPDX-License-Identifier: Apache-2.0
"""MIG on simulated cards follows the rules of the hardware."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.errors import HardwareError, InputError, StateError
from gpudra.driver.core.inventory import MigInstance
from gpudra.driver.devicelib.protocol import PartitionLib
from gpudra.driver.devicelib.simulated import SimulatedLib, open_simulated
from gpudra.driver.devicelib.simulated.catalog import board_catalog
from gpudra.driver.devicelib.simulated.mig import fits
from gpudra.driver.devicelib.simulated.model import CardState, mig_instance
from gpudra.driver.devicelib.simulated.state import MIG_FILE

ONE, ONE_MEDIA, ONE_DOUBLE, TWO, THREE, FOUR, SEVEN = 19, 20, 15, 14, 9, 5, 0
BOARDS = [name for name, board in board_catalog().items() if board.mig]


def _open(folder: Path, profile: str = "dgx-h100-8x80") -> tuple[SimulatedLib, PartitionLib, str]:
    lib = open_simulated(profile, state_dir=folder, node_name="n")
    uuid = lib.discover().gpus[0].uuid
    assert lib.partitions is not None
    assert uuid is not None
    return lib, lib.partitions, uuid


def _layout(instances: tuple[MigInstance, ...]) -> list[tuple[int, int]]:
    return [(one.profile_id, one.placement.start) for one in instances]


@pytest.mark.parametrize(
    "layout",
    [
        [(THREE, 0), (THREE, 4)],
        [(FOUR, 0), (THREE, 4)],
        [(ONE, start) for start in range(7)],
        [(ONE_DOUBLE, 0), (ONE_DOUBLE, 2), (ONE_DOUBLE, 4), (ONE_DOUBLE, 6)],
        [(TWO, 0), (TWO, 2), (TWO, 4), (ONE, 6)],
        [(SEVEN, 0)],
        [(ONE_MEDIA, 3), (THREE, 4), (ONE, 0)],
    ],
)
def test_layouts_that_the_hardware_has(tmp_path: Path, layout: list[tuple[int, int]]) -> None:
    """The combinations of the vendor's guide can be made, each at its exact place."""
    lib, partitions, uuid = _open(tmp_path)
    assert partitions.set_mig_mode(uuid, enabled=True)
    for profile, start in layout:
        made = partitions.create_mig_instance(uuid, profile, start)
        assert (made.profile_id, made.placement.start) == (profile, start)
    assert _layout(partitions.mig_instances(uuid)) == layout
    mig = lib.discover().gpus[0].mig
    assert mig is not None
    assert mig.enabled
    assert mig.instances == partitions.mig_instances(uuid)
    assert len({one.uuid for one in mig.instances or ()}) == len(layout)


@pytest.mark.parametrize(
    ("present", "profile", "start", "message"),
    [
        ([(THREE, 0)], ONE, 2, "memory slices 2 to 2 are taken by instance 1"),
        ([(ONE_MEDIA, 0)], ONE_MEDIA, 1, r"holds 1 instances of 1g.10gb\+me already"),
        ([(FOUR, 0), (TWO, 4)], TWO, 4, "are taken"),
        ([(TWO, 0), (TWO, 2), (TWO, 4)], ONE_DOUBLE, 6, None),
        ([(FOUR, 0), (TWO, 4), (ONE, 6)], ONE, 6, "are taken"),
        ([(ONE, start) for start in range(6)], ONE_DOUBLE, 6, None),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path,
    present: list[tuple[int, int]],
    profile: int,
    start: int,
    message: str | None,
) -> None:
    """Slices, numbers of instances and engines are limits of their own."""
    _, partitions, uuid = _open(tmp_path)
    partitions.set_mig_mode(uuid, enabled=True)
    for one, place in present:
        partitions.create_mig_instance(uuid, one, place)
    if message is None:
        partitions.create_mig_instance(uuid, profile, start)
        return
    with pytest.raises(HardwareError, match=message):
        partitions.create_mig_instance(uuid, profile, start)
    assert _layout(partitions.mig_instances(uuid)) == present


def test_places_that_no_table_has_are_a_mistake(tmp_path: Path) -> None:
    """4g starts at 0 only."""
    _, partitions, uuid = _open(tmp_path)
    partitions.set_mig_mode(uuid, enabled=True)
    with pytest.raises(InputError, match="profile 5 cannot start at 4"):
        partitions.create_mig_instance(uuid, FOUR, 4)


def test_the_mode_comes_first_and_goes_last(tmp_path: Path) -> None:
    """No instance without MIG mode, and no end of it while there are instances."""
    _, partitions, uuid = _open(tmp_path)
    with pytest.raises(HardwareError, match="MIG is off"):
        partitions.create_mig_instance(uuid, ONE, 0)
    partitions.set_mig_mode(uuid, enabled=True)
    made = partitions.create_mig_instance(uuid, ONE, 0)
    with pytest.raises(HardwareError, match="has MIG instances"):
        partitions.set_mig_mode(uuid, enabled=False)
    partitions.destroy_mig_instance(uuid, made.gpu_instance_id)
    partitions.destroy_mig_instance(uuid, made.gpu_instance_id)
    assert partitions.set_mig_mode(uuid, enabled=False)


def test_ampere_switches_while_idle(tmp_path: Path) -> None:
    """The driver resets a card that nobody uses, and a simulated card is used by nobody."""
    _, partitions, uuid = _open(tmp_path, "dgx-a100-8x40")
    assert partitions.set_mig_mode(uuid, enabled=True)
    _, partitions, _ = _open(tmp_path, "dgx-a100-8x40")
    assert partitions.create_mig_instance(uuid, ONE, 0).gpu_instance_id == 1


def test_instances_outlive_the_process(tmp_path: Path) -> None:
    """As on a real card, with the same uuids."""
    _, partitions, uuid = _open(tmp_path)
    partitions.set_mig_mode(uuid, enabled=True)
    made = partitions.create_mig_instance(uuid, THREE, 4)
    _, again, _ = _open(tmp_path)
    assert again.mig_instances(uuid) == (made,)


def test_damaged_state_is_named(tmp_path: Path) -> None:
    """Never silently an empty card."""
    (tmp_path / MIG_FILE).write_text("{")
    with pytest.raises(StateError, match=r"mig\.json: cannot be read"):
        _open(tmp_path)


def test_cards_without_mig_say_so(tmp_path: Path) -> None:
    """On a mixed node each card answers for itself."""
    lib, partitions, _ = _open(tmp_path, "mixed")
    l4 = lib.discover().gpus[2].uuid
    assert l4 is not None
    with pytest.raises(InputError, match="has no MIG"):
        partitions.set_mig_mode(l4, enabled=True)


def test_an_instance_is_mapped_with_its_parent_and_its_capabilities(tmp_path: Path) -> None:
    """The parent's file and two capability files, different for every instance."""
    _, partitions, uuid = _open(tmp_path)
    partitions.set_mig_mode(uuid, enabled=True)
    files = [
        [node.path for node in partitions.mig_edits(uuid, made).device_nodes]
        for made in (partitions.create_mig_instance(uuid, ONE, start) for start in (0, 1))
    ]
    assert all(one[0] == "/dev/nvidia0" and len(one) == 3 for one in files)
    assert not set(files[0][1:]) & set(files[1][1:])


@settings(max_examples=60)
@given(st.sampled_from(BOARDS), st.data())
def test_what_fits_together_fits_in_any_order(board_name: str, data: st.DataObject) -> None:
    """Whether a set of instances can exist does not depend on the order of their making."""
    mig = board_catalog()[board_name].mig
    assert mig is not None
    places = [(one.id, start) for one in mig.profiles for start in one.placements.starts]
    chosen = data.draw(st.lists(st.sampled_from(places), max_size=5, unique=True))

    def possible(order: list[tuple[int, int]]) -> bool:
        card = CardState(mig_enabled=True)
        for number, (profile, start) in enumerate(order, start=1):
            if not fits(mig, card, profile, start):
                return False
            made = mig_instance("GPU-1", mig, profile, start, number)
            card = CardState(mig_enabled=True, instances=(*card.instances, made))
        return True

    assert possible(chosen) == possible(data.draw(st.permutations(chosen)))
