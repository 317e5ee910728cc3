# SPDX-License-Identifier: Apache-2.0
"""MIG through the real pynvml."""

import pytest

from gpudra.api.errors import HardwareError
from gpudra.driver.core.inventory import MigProfile, Placement
from gpudra.driver.devicelib.nvml.migreadings import profile_name
from gpudra.driver.devicelib.simulated.catalog import board_catalog
from tests.unit.nvml.conftest import Start

IN_USE = 19


def profile(lib_profiles: tuple[MigProfile, ...], name: str) -> MigProfile:
    """The profile of that name."""
    return next(one for one in lib_profiles if one.name == name)


def test_an_instance_lives_from_creation_to_destruction(start: Start) -> None:
    """Mode on, instance at the exact place, seen by discovery, destroyed, mode off: all as before."""
    lib, machine = start("dgx-h100-8x80")
    before = machine.dump()
    gpu = lib.discover().gpus[1]
    assert gpu.mig is not None
    assert lib.partitions.set_mig_mode(gpu.key, enabled=True)
    wanted = profile(gpu.mig.profiles, "3g.40gb")
    made = lib.partitions.create_mig_instance(gpu.key, wanted.id, 4)
    assert (made.profile_id, made.placement) == (wanted.id, Placement(start=4, size=4))
    seen = lib.discover().gpus[1].mig
    assert seen is not None
    assert (seen.enabled, seen.instances) == (True, (made,))
    lib.partitions.destroy_mig_instance(gpu.key, made.gpu_instance_id)
    lib.partitions.destroy_mig_instance(gpu.key, made.gpu_instance_id)
    assert lib.partitions.set_mig_mode(gpu.key, enabled=False)
    assert machine.dump() == before


def test_a_place_that_is_taken_is_refused(start: Start) -> None:
    """Overlapping instances are refused, and the refusal leaves nothing behind."""
    lib, machine = start("dgx-h100-8x80")
    gpu = lib.discover().gpus[0]
    assert gpu.mig is not None
    lib.partitions.set_mig_mode(gpu.key, enabled=True)
    lib.partitions.create_mig_instance(gpu.key, profile(gpu.mig.profiles, "3g.40gb").id, 0)
    before = machine.dump()
    with pytest.raises(HardwareError, match="Insufficient Resources"):
        lib.partitions.create_mig_instance(gpu.key, profile(gpu.mig.profiles, "1g.10gb").id, 2)
    assert machine.dump() == before


@pytest.mark.parametrize("call", ["nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetInfo"])
def test_half_an_instance_is_taken_back(start: Start, call: str) -> None:
    """When the second half of a creation fails, the first half is undone."""
    lib, machine = start("dgx-h100-8x80")
    gpu = lib.discover().gpus[0]
    assert gpu.mig is not None
    lib.partitions.set_mig_mode(gpu.key, enabled=True)
    before = machine.dump()
    machine.ctl("fail", call, 999, "*", 1)
    with pytest.raises(HardwareError):
        lib.partitions.create_mig_instance(gpu.key, profile(gpu.mig.profiles, "2g.20gb").id, 2)
    assert machine.dump() == before


def test_an_instance_in_use_is_not_destroyed(start: Start) -> None:
    """A running process keeps its instance; the error says that it is in use."""
    lib, machine = start("dgx-h100-8x80")
    gpu = lib.discover().gpus[0]
    assert gpu.mig is not None
    lib.partitions.set_mig_mode(gpu.key, enabled=True)
    made = lib.partitions.create_mig_instance(gpu.key, profile(gpu.mig.profiles, "1g.10gb").id, 0)
    machine.ctl("process", gpu.uuid, 4711, 2**20, made.gpu_instance_id, made.compute_instance_id)
    with pytest.raises(HardwareError, match=r"[Ii]n use"):
        lib.partitions.destroy_mig_instance(gpu.key, made.gpu_instance_id)
    assert lib.partitions.mig_instances(gpu.key) == (made,)


def test_ampere_switches_its_mode_only_at_a_reset(start: Start) -> None:
    """On A100 the driver resets an idle card; on one in use the switch is pending until then."""
    lib, machine = start("dgx-a100-8x40")
    gpu, idle = lib.discover().gpus[:2]
    assert lib.partitions.set_mig_mode(idle.key, enabled=True)
    assert lib.partitions.mig_mode(idle.key)
    machine.ctl("process", gpu.uuid, 4711, 2**20)
    assert not lib.partitions.set_mig_mode(gpu.key, enabled=True)
    pending = lib.discover().gpus[0].mig
    assert pending is not None
    assert (pending.enabled, pending.pending, pending.needs_reset) == (False, True, True)
    machine.ctl("reset", gpu.uuid)
    after = lib.discover().gpus[0].mig
    assert after is not None
    assert after.enabled


def test_capability_nodes_of_an_instance_are_handed_out(start: Start) -> None:
    """A container gets the parent's node and the two capability nodes of its instance."""
    lib, _ = start("dgx-h100-8x80")
    gpu = lib.discover().gpus[1]
    lib.partitions.set_mig_mode(gpu.key, enabled=True)
    made = lib.partitions.create_mig_instance(gpu.key, 19, 0)
    paths = [node.path for node in lib.partitions.mig_edits(gpu.key, made).device_nodes]
    assert paths == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap35",
        "/dev/nvidia-caps/nvidia-cap36",
    ]


def test_who_watches_sees_instances_and_cannot_make_any(start: Start) -> None:
    """The monitor's capability node, which one host has for all cards; never the one of config."""
    lib, machine = start("dgx-h100-8x80")
    gpu = lib.discover().gpus[1].key
    (node,) = lib.partitions.monitor_edits(gpu).device_nodes
    assert node.path == "/dev/nvidia-caps/nvidia-cap2"
    (machine.root / "dev/nvidia-caps/nvidia-cap2").unlink()
    assert lib.partitions.monitor_edits(gpu).device_nodes == ()
    (machine.root / "proc/driver/nvidia/capabilities/mig/monitor").unlink()
    assert lib.partitions.monitor_edits(gpu).device_nodes == ()


# The memory of GB200's profiles is known from one listing for each of two SKUs, rounded.
NAMED_BY_RULE = [
    name for name, one in board_catalog().items() if one.mig and not name.startswith("gb200")
]


@pytest.mark.parametrize("board", NAMED_BY_RULE)
def test_the_naming_rule_gives_the_published_names(board: str) -> None:
    """Where the driver gives no name, the rule gives that of the tables, for every board."""
    card = board_catalog()[board]
    assert card.mig is not None
    assert card.memory is not None
    for one in card.mig.profiles:
        media = one.name.endswith("+me")
        assert profile_name(one.slices, one.memory, card.memory, media=media) == one.name
