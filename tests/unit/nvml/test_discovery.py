# SPDX-License-Identifier: Apache-2.0
"""Discovery through the real pynvml: everything that is there, and nothing lost to one bad reading."""

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpudra.api.errors import HardwareError
from gpudra.driver.core.inventory import Engines, Gpu, HealthReadings
from gpudra.driver.devicelib.nvml import NvmlLib
from gpudra.driver.devicelib.simulated.catalog import profile_names
from tests.fakenvml.machine import FakeMachine
from tests.unit.nvml.conftest import Start

NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 3, 4, 999


def comparable(gpu: Gpu) -> Gpu:
    """Without what only one side can know: totals of engines, and health."""
    fabric = gpu.fabric and replace(gpu.fabric, health_mask=None)
    return replace(gpu, engines=Engines(), health=HealthReadings(), fabric=fabric)


@pytest.mark.parametrize("profile", profile_names())
def test_nvml_tells_what_the_hardware_file_says(start: Start, profile: str) -> None:
    """For every shipped profile, both backends give the same inventory."""
    lib, machine = start(profile)
    found = lib.discover()
    assert [comparable(gpu) for gpu in found.gpus] == [
        comparable(gpu) for gpu in machine.inventory.gpus
    ]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetName", "product_name"),
        ("nvmlDeviceGetBrand", "brand"),
        ("nvmlDeviceGetArchitecture", "architecture"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetMinorNumber", "minor"),
        ("nvmlDeviceGetPciInfo_v3", "pci"),
        ("nvmlDeviceGetMigMode", "mig"),
    ],
)
@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
def test_a_reading_that_fails_costs_only_itself(
    start: Start, call: str, field: str, error: int
) -> None:
    """Any single call may fail on one card: that field is missing there, all else stays."""
    lib, machine = start("dgx-h100-8x80")
    whole = lib.discover()
    victim = machine.inventory.gpus[3]
    machine.ctl("fail", call, error, victim.uuid)
    partly = lib.discover()
    assert getattr(partly.gpus[3], field) is None
    assert [gpu.key for gpu in partly.gpus] == [gpu.key for gpu in whole.gpus]
    assert all(partly.gpus[i] == whole.gpus[i] for i in range(8) if i != 3)
    noted = {(one.gpu, one.message != "") for one in partly.problems}
    assert noted == (set() if error == NOT_SUPPORTED else {(victim.uuid, True)})


def test_no_links_and_no_fabric_are_no_trouble(start: Start) -> None:
    """Cards without NVLink and fabric have none, and nothing is complained about."""
    lib, _ = start("l4-4x")
    inventory = lib.discover()
    assert {(gpu.nvlinks, gpu.fabric, gpu.mig) for gpu in inventory.gpus} == {((), None, None)}
    assert inventory.problems == ()


def test_a_name_that_is_no_utf8_is_shown_and_noted(start: Start, tmp_path: Path) -> None:
    """Odd bytes in a name become replacement characters, and a note."""
    lib, machine = start("t4-1x")
    text = (tmp_path / "machine.json").read_text().replace('"Tesla T4"', '"Tesla \\u00ff T4"')
    (tmp_path / "odd.json").write_text(text)
    machine.ctl("init", tmp_path / "odd.json")
    inventory = lib.discover()
    assert inventory.gpus[0].product_name == "Tesla \ufffd T4"
    assert [one.reading for one in inventory.problems] == ["productName"]


def test_a_lost_card_stays_with_its_last_readings(start: Start) -> None:
    """A card that falls off the bus is reported lost, under its name; the others stay."""
    lib, machine = start("dgx-h100-8x80")
    before = lib.discover()
    victim = before.gpus[2]
    machine.ctl("lost", victim.uuid)
    during = lib.discover()
    assert during.gpu(victim.key) == replace(victim, lost=True)
    assert sum(gpu.lost for gpu in during.gpus) == 1
    machine.ctl("found", victim.uuid)
    assert lib.discover().gpu(victim.key) == victim


def test_an_unplugged_card_is_gone_and_comes_back_under_its_name(start: Start) -> None:
    """Pulling a card and plugging it in elsewhere changes its index and nothing else."""
    lib, machine = start("dgx-h100-8x80")
    before = lib.discover()
    victim = before.gpus[0]
    machine.ctl("remove", victim.uuid)
    assert lib.discover().gpu(victim.key) is None
    machine.ctl("plug", victim.uuid, 8)
    back = lib.discover().gpu(victim.key)
    assert back == replace(victim, index=7)


def test_a_driver_that_comes_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the driver is there, discovery fails as a whole; afterwards it works."""
    monkeypatch.setenv("FAKENVML_STATE", str(tmp_path / "state"))
    machine = FakeMachine("l4-4x", tmp_path / "later")
    lib = NvmlLib(library=machine.library, host_root=machine.root)
    try:
        with pytest.raises(HardwareError, match="NVML cannot be used"):
            lib.discover()
        assert (lib.readiness().ready, lib.readiness().reason) == (False, "DriverMissing")
        machine.state.rename(tmp_path / "state")
        assert len(lib.discover().gpus) == 4
        assert lib.readiness().ready
    finally:
        lib.close()


def test_a_missing_library_is_one_clear_error(tmp_path: Path) -> None:
    """A path without library names the path and what to do."""
    lib = NvmlLib(library=tmp_path / "libnvidia-ml.so.1")
    with pytest.raises(HardwareError, match="install the NVIDIA driver"):
        lib.discover()


def test_a_reloaded_driver_is_started_anew(start: Start) -> None:
    """When the library says that its driver went away, the next discovery loads it again."""
    lib, machine = start("l4-4x")
    assert len(lib.discover().gpus) == 4
    machine.ctl("fail", "nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "*", 1)
    with pytest.raises(HardwareError):
        lib.discover()
    assert len(lib.discover().gpus) == 4


def test_a_driver_without_cards_is_not_ready_while_the_bus_has_some(start: Start) -> None:
    """A driver that is still coming up shows no cards: not ready, with the addresses it misses."""
    lib, machine = start("l4-4x")
    for gpu in machine.inventory.gpus:
        machine.ctl("remove", gpu.uuid)
    readiness = lib.readiness()
    assert (readiness.ready, readiness.reason) == (False, "DevicesNotBound")
    assert machine.inventory.gpus[0].pci is not None
    assert machine.inventory.gpus[0].pci.bus_id in readiness.message


def test_a_card_without_its_device_file_says_so(start: Start) -> None:
    """One card's is a reading of that card; if all miss theirs, the node is not ready."""
    lib, machine = start("l4-4x")
    gpus = lib.discover().gpus
    before = lib.fingerprint()
    (machine.root / f"dev/nvidia{gpus[1].minor}").unlink()
    assert lib.fingerprint() != before
    missing = [gpu.health.missing_files for gpu in lib.discover().gpus]
    assert missing == [(), (f"/dev/nvidia{gpus[1].minor}",), (), ()]
    assert lib.readiness().ready
    (machine.root / "dev/nvidiactl").unlink()
    found = lib.readiness()
    assert (found.ready, found.reason) == (False, "SelfTestFailed")
    assert "/dev/nvidiactl" in found.message


def test_a_look_sees_what_is_worth_reading_again(start: Start) -> None:
    """Recovery action, MIG, loss and hot-plug change it; nothing new does not."""
    lib, machine = start("dgx-h100-8x80")
    uuid = lib.discover().gpus[2].uuid
    seen = {lib.fingerprint()}
    assert lib.fingerprint() in seen
    for words in (
        ("recovery", uuid, 1),
        ("ecc", uuid, "double"),
        ("mig", uuid, 1),
        ("lost", uuid),
        ("remove", uuid),
        ("plug", uuid, 0),
    ):
        machine.ctl(*words)
        look = lib.fingerprint()
        assert look not in seen, words
        seen.add(look)


def test_a_card_new_on_the_bus_makes_nvml_start_again(start: Start) -> None:
    """NVML lists what was there when it was started; the PCI bus shows more."""
    lib, machine = start("l4-4x")
    lib.discover()
    before = lib.fingerprint()
    (machine.root / "sys/bus/pci/devices/0000:ff:00.0").symlink_to("../../../devices")
    after = lib.fingerprint()
    assert after != before
    assert lib.fingerprint() == after
    assert len(lib.discover().gpus) == 4
