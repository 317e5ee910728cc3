# SPDX-License-Identifier: Apache-2.0
"""Declared cards: what a file says is published, what it says wrong is refused by line and field."""

from pathlib import Path

import pytest

from gpudra.api.errors import DeviceGoneError, InputError
from gpudra.api.resource_v1 import NO_SCHEDULE
from gpudra.api.semver import Semver
from gpudra.driver.core.allocatable import allocatable_devices
from gpudra.driver.core.health import HealthPolicy, HealthState, after_reading
from gpudra.driver.core.healthview import device_taints
from gpudra.driver.core.resourceslices import ALL_FEATURES, DesiredPool, build_pool
from gpudra.driver.devicelib.declared import DeclaredLib
from gpudra.driver.devicelib.open import Backend, Source, open_device_lib

ASCEND = """\
apiVersion: gpudra.io/v1alpha1
kind: DeviceInventory
metadata: {name: atlas-800}
spec:
  vendor: huawei
  driver:
    version: "24.1.0"
    readyFiles: [/dev/davinci_manager]
  common:
    deviceNodes: [/dev/davinci_manager, {path: /dev/devmm_svm, permissions: rwm}]
    mounts: [{hostPath: /usr/local/Ascend/driver}]
    env: {ASCEND_RUNTIME: "1"}
  devices:
    - name: npu-0
      productName: Ascend 910B
      memory: 64Gi
      numaNode: 0
      linkDomain: hccs
      deviceNodes: [/dev/davinci0]
      env: {ASCEND_VISIBLE_DEVICES: "0"}
      attributes: {aiCores: 24, generation: {version: 9.1.0}, cube: true}
      capacity: {hbmBandwidth: 392G}
    - name: npu-1
      productName: Ascend 910B
      memory: 64Gi
      linkDomain: hccs
      pci: {busId: "0000:c1:00.0"}
      deviceNodes: [/dev/davinci1]
"""


def host(folder: Path, *nodes: str) -> Path:
    """A host with these device files."""
    (folder / "dev").mkdir(exist_ok=True)
    for node in ("davinci_manager", *nodes):
        (folder / "dev" / node).touch()
    return folder


def declared(folder: Path, text: str = ASCEND, node_name: str = "n1") -> DeclaredLib:
    """The library on a file with this text."""
    path = folder / "inventory.yaml"
    path.write_text(text)
    return DeclaredLib(path, host_root=host(folder, "davinci0", "davinci1"), node_name=node_name)


def published(lib: DeclaredLib) -> DesiredPool:
    """The node's pool."""
    return build_pool(lib.discover(), node_name="n1", features=ALL_FEATURES)


def test_declared_cards_are_published_like_any_other(tmp_path: Path) -> None:
    """The same attributes, the selector ``vendor``, and whatever else was declared."""
    pool = published(declared(tmp_path))
    assert pool.problems == ()
    devices = {device.name: device for device in pool.devices}
    assert set(devices) == {"npu-0", "npu-1"}
    assert {
        "type": "gpu",
        "vendor": "huawei",
        "productName": "Ascend 910B",
        "driverVersionFull": "24.1.0",
        "resource.kubernetes.io/numaNode": 0,
        "aiCores": 24,
        "cube": True,
        "generation": Semver.parse("9.1.0"),
    }.items() <= devices["npu-0"].attributes.items()
    assert devices["npu-0"].capacity["memory"].value.value == 64 * 2**30
    assert devices["npu-0"].capacity["hbmBandwidth"].value.value == 392 * 10**9
    assert devices["npu-1"].attributes["resource.kubernetes.io/pciBusID"] == "0000:c1:00.0"


def test_linked_cards_share_a_domain_that_no_other_node_has(tmp_path: Path) -> None:
    """Declared names repeat on every node, the domains must not."""
    domains = {
        node: {
            device.attributes["nvlinkDomain"]
            for device in published(declared(tmp_path, node_name=node)).devices
        }
        for node in ("n1", "n2")
    }
    assert all(len(found) == 1 for found in domains.values())
    assert domains["n1"] != domains["n2"]


def test_a_container_gets_what_was_declared(tmp_path: Path) -> None:
    """Common and own parts; a mount without a container path lies where it does on the host."""
    lib = declared(tmp_path)
    common, own = lib.common_edits(), lib.gpu_edits("npu-0")
    assert [node.path for node in common.device_nodes] == ["/dev/davinci_manager", "/dev/devmm_svm"]
    assert common.mounts[0].container_path == "/usr/local/Ascend/driver"
    assert common.env == (("ASCEND_RUNTIME", "1"),)
    assert ([node.path for node in own.device_nodes], own.env) == (
        ["/dev/davinci0"],
        (("ASCEND_VISIBLE_DEVICES", "0"),),
    )
    with pytest.raises(InputError, match="is not declared"):
        lib.gpu_edits("npu-9")


def test_a_card_without_its_device_file_is_tainted_with_the_reason(tmp_path: Path) -> None:
    """The rest of the node stays; the taint goes when the file comes."""
    lib = declared(tmp_path)
    before = lib.fingerprint()
    (tmp_path / "dev/davinci1").unlink()
    assert lib.fingerprint() != before
    inventory = lib.discover()
    state = after_reading(HealthState(), inventory, HealthPolicy(), 0)
    taints = device_taints(state, allocatable_devices(inventory), HealthPolicy(), "d")
    (mark,) = taints["npu-1"]
    assert (mark.key, mark.value, mark.effect) == ("d/missing-file", "davinci1", NO_SCHEDULE)
    assert "npu-0" not in taints
    assert state.causes("npu-1")[0].message == "/dev/davinci1 does not exist"
    with pytest.raises(DeviceGoneError, match="davinci1"):
        lib.gpu_edits("npu-1")
    (tmp_path / "dev/davinci1").touch()
    assert after_reading(state, lib.discover(), HealthPolicy(), 0).causes("npu-1") == ()


def test_the_driver_is_ready_when_its_files_are_there(tmp_path: Path) -> None:
    """Until then nothing is published."""
    lib = declared(tmp_path)
    assert lib.readiness().ready
    (tmp_path / "dev/davinci_manager").unlink()
    found = lib.readiness()
    assert (found.ready, found.reason) == (False, "DriverMissing")
    assert "/dev/davinci_manager" in found.message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory: 64Gi\n      numaNode", "memory: -1Gi\n      numaNode", ":16: spec.devices[0].memory: "),
        ("aiCores: 24", "type: mine", ":14: spec.devices[0]: attribute type is not for declaring"),
        ("productName: Ascend 910B\n      memory: 64Gi\n      numa", "productname: x\n      memory: 64Gi\n      numa",
         ":15: spec.devices[0].productname: is not a field here"),
        ("name: npu-1", "name: npu-0", ":23: spec.devices[1].name: name npu-0 is that of device npu-0 already"),
        ("/dev/davinci1]", "/dev/davinci0]", "device file /dev/davinci0 is that of device npu-0 already"),
        ("/dev/davinci1]", "dev/davinci1]", "spec.devices[1].deviceNodes[0].path"),
        ("name: npu-0", "name: NPU_0", "spec.devices[0].name"),
        ("0000:c1:00.0", "c1:00.0", "spec.devices[1].pci.busId"),
        ("version: 9.1.0", "version: nine", "spec.devices[0].attributes.generation"),
        ("hbmBandwidth: 392G", "hbmBandwidth: fast", "spec.devices[0].capacity.hbmBandwidth"),
        ("vendor: huawei", "vendor: Huawei Inc", ":5: spec.vendor"),
        ("numaNode: 0", "numaNode: -1", "spec.devices[0].numaNode"),
        ("kind: DeviceInventory", "kind: Hardware", ":2: kind"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_file_line_and_field(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """So that it can be corrected without reading our code."""
    assert old in ASCEND
    with pytest.raises(InputError) as caught:
        declared(tmp_path, ASCEND.replace(old, new, 1))
    assert str(caught.value).startswith(str(tmp_path / "inventory.yaml"))
    assert message in str(caught.value)


def test_a_changed_file_counts_and_a_wrong_one_leaves_the_last_good_in_force(
    tmp_path: Path,
) -> None:
    """Nobody loses a device since somebody mistyped."""
    lib = declared(tmp_path)
    path = tmp_path / "inventory.yaml"
    path.write_text(ASCEND.replace("64Gi", "32Gi", 1))
    assert lib.discover().gpus[0].memory_bytes == 32 * 2**30
    path.write_text(ASCEND.replace("vendor", "vender"))
    for _ in range(2):
        found = lib.discover()
        assert found.gpus[0].memory_bytes == 32 * 2**30
        (problem,) = found.problems
        assert "inventory.yaml:5: spec.vender: is not a field here" in problem.message
    assert lib.readiness().ready
    path.write_text(ASCEND)
    assert lib.discover().gpus[0].memory_bytes == 64 * 2**30
    assert lib.discover().problems == ()


def test_a_missing_file_is_said_at_once(tmp_path: Path) -> None:
    """The factory raises before the agent starts to serve."""
    source = Source(backend=Backend.DECLARED, hardware=str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read"):
        open_device_lib(source)
    with pytest.raises(InputError, match="needs a file"):
        open_device_lib(Source(backend=Backend.DECLARED))
