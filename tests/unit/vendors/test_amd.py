# SPDX-License-Identifier: Apache-2.0
"""AMD cards, from trees laid out as amdgpu shows them."""

from pathlib import Path

import pytest

from gpudra.api.errors import DeviceGoneError, HardwareError, InputError
from gpudra.controller.ctl.main import main
from gpudra.driver.core.resourceslices import ALL_FEATURES, build_pool
from gpudra.driver.core.topologymatrix import matrix, places
from gpudra.driver.devicelib.amd import AmdLib
from tests.support.amdtree import lay_out


@pytest.fixture
def mi300x(tmp_path: Path) -> AmdLib:
    """Eight MI300X."""
    return AmdLib(host_root=lay_out("mi300x-8x", tmp_path))


def test_what_a_card_tells_becomes_attributes_and_capacity(mi300x: AmdLib) -> None:
    """The same names as for NVIDIA's cards, so that selectors differ in the vendor only."""
    pool = build_pool(mi300x.discover(), node_name="n1", features=ALL_FEATURES)
    assert pool.problems == ()
    assert len(pool.devices) == 8
    device = next(one for one in pool.devices if one.attributes["index"] == 0)
    assert device.name.startswith("gpu-c5ecf1a9-")
    assert {
        "vendor": "amd",
        "type": "gpu",
        "uuid": "GPU-c5ecf1a9b0d0e371",
        "productName": "AMD Instinct MI300X OAM",
        "architecture": "gfx942",
        "driverVersionFull": "6.10.5",
        "resource.kubernetes.io/pciBusID": "0000:05:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:01",
        "resource.kubernetes.io/numaNode": 0,
    }.items() <= device.attributes.items()
    assert device.capacity["memory"].value.value == 206141652992
    assert len({one.attributes["nvlinkDomain"] for one in pool.devices}) == 1


def test_a_hive_is_one_domain(mi300x: AmdLib) -> None:
    """Each card reaches each other over XGMI, by the links that the compute driver lists."""
    cells = matrix(places(mi300x.discover()))
    assert {cell for row in cells for cell in row} == {"X", "NV1"}


def test_without_listed_links_the_hive_says_who_belongs_together(tmp_path: Path) -> None:
    """Two of three MI210 are bridged; all share a PCIe switch. Product by id, no version, no NUMA."""
    found = AmdLib(host_root=lay_out("mi210-3x", tmp_path)).discover()
    assert [gpu.product_name for gpu in found.gpus] == ["AMD Instinct MI210"] * 3
    assert [gpu.numa_node for gpu in found.gpus] == [None] * 3
    assert [gpu.driver_version for gpu in found.gpus] == [None] * 3
    assert matrix(places(found))[0] == ("X", "NV1", "PIX")
    assert [gpu.health.uncorrected_ecc for gpu in found.gpus] == [0, 0, 3]


def test_a_card_without_unique_id_goes_by_its_address(tmp_path: Path) -> None:
    """A card that another driver has is told as a problem; another vendor's is left alone."""
    found = AmdLib(host_root=lay_out("workstation", tmp_path)).discover()
    (gpu,) = found.gpus
    assert (gpu.uuid, gpu.key) == (None, "0000:03:00.0")
    (problem,) = found.problems
    assert (problem.gpu, problem.reading) == ("0000:0a:00.0", "drm")
    pool = build_pool(found, node_name="n1", features=ALL_FEATURES)
    assert [device.name for device in pool.devices] == ["gpu-pci-0000-03-00-0"]


def test_a_container_gets_the_cards_nodes_and_the_compute_drivers(mi300x: AmdLib) -> None:
    """/dev/kfd for all, card and render node for each."""
    gpu = mi300x.discover().gpus[2]
    assert [node.path for node in mi300x.common_edits().device_nodes] == ["/dev/kfd"]
    nodes = [node.path for node in mi300x.gpu_edits(gpu.key).device_nodes]
    assert nodes == ["/dev/dri/card3", "/dev/dri/renderD130"]
    with pytest.raises(InputError, match="no card that was found"):
        mi300x.gpu_edits("GPU-x")


def test_a_node_that_is_gone_shows_and_refuses(tmp_path: Path) -> None:
    """As missing in the readings, with another fingerprint, and at once when a claim wants it."""
    lib = AmdLib(host_root=lay_out("mi300x-8x", tmp_path))
    gpu = lib.discover().gpus[0]
    before = lib.fingerprint()
    assert lib.fingerprint() == before
    (tmp_path / "dev/dri/renderD128").unlink()
    assert lib.fingerprint() != before
    with pytest.raises(DeviceGoneError, match="renderD128"):
        lib.gpu_edits(gpu.key)
    assert lib.discover().gpus[0].health.missing_files == ("/dev/dri/renderD128",)


def test_readiness_says_what_is_missing(tmp_path: Path) -> None:
    """The module, a card that it drives, and the compute driver's node."""
    lib = AmdLib(host_root=tmp_path)
    assert lib.readiness().reason == "DriverMissing"
    with pytest.raises(HardwareError, match="not loaded"):
        lib.fingerprint()
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert lib.readiness().reason == "NoDevices"
    lay_out("workstation", tmp_path)
    (tmp_path / "dev/kfd").unlink()
    assert lib.readiness().reason == "SelfTestFailed"
    (tmp_path / "dev/kfd").touch()
    assert lib.readiness().ready


def test_this_machines_amd_cards_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gpudra devices --local amd`, with the matrix."""
    lay_out("mi210-3x", tmp_path)
    monkeypatch.setenv("GPUDRA_HOST_ROOT", str(tmp_path))
    assert main(["devices", "--local", "amd"]) == 0
    text = capsys.readouterr().out
    assert text.count("AMD Instinct MI210") == 3
    assert "GPU0   X      NV1    PIX" in text
