# SPDX-License-Identifier: Apache-2.0
"""Case 29: odd readings of cards become devices. How the NVML binding reads them is tested with it;
here an odd reading is what it leaves behind in the inventory.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device
from gpudra.api.semver import Semver
from gpudra.driver.core.inventory import (
    FabricInfo,
    FabricState,
    Gpu,
    Inventory,
    MigInfo,
    MigInstance,
    PciInfo,
    Placement,
)
from gpudra.driver.core.resourceslices import ALL_FEATURES, DesiredPool, build_pool

CASE = Path(__file__).parents[2] / "fixtures/cases/29-gpu-readings-to-devices"
ROWS = {row["id"]: row for row in json.loads((CASE / "scenario.json").read_text())["rows"]}
ANSWERS = json.loads((CASE / "expected.json").read_text())["answers"]


def _value(reading: Any) -> Any:
    """What a backend keeps of a reading: nothing of one that raised, text of bytes."""
    if isinstance(reading, str) and reading.startswith("raises "):
        return None
    if isinstance(reading, dict) and "bytes" in reading:
        return reading["bytes"]
    return reading


def _gpu(row: dict[str, Any], **more: Any) -> Gpu:
    mode = _value(row.get("mig_mode"))
    return Gpu(
        uuid=_value(row.get("uuid", "GPU-00000000-0000-0000-0000-0000000000ff")),
        product_name=_value(row.get("name")),
        memory_bytes=_value(row.get("memory")),
        unified_memory=row.get("memory") == "raises NotSupported" or None,
        driver_version=row.get("driver_version"),
        cuda_version=row.get("cuda_version"),
        mig=MigInfo(enabled=bool(mode[0])) if mode else None,
        **more,
    )


def _pool(*gpus: Gpu) -> DesiredPool:
    return build_pool(Inventory(gpus=gpus), node_name="node-a", features=ALL_FEATURES)


def _device(row_id: str, **more: Any) -> Device:
    (device,) = _pool(_gpu(ROWS[row_id], **more)).devices
    return device


def _attribute_forms(device: Device) -> dict[str, Any]:
    return dict(device.to_dict()["attributes"])


def test_a_card_with_unified_memory_is_published_without_capacity() -> None:
    """Row unified-memory: what is not known is left out, not published as 0."""
    device = _device("unified-memory")
    assert device.capacity == {}
    assert device.attributes["unifiedMemory"] is True
    assert device.attributes["type"] == "gpu"


@pytest.mark.parametrize("row_id", ["consumer-card", "mig-wanted-not-possible"])
def test_a_card_without_mig_brings_no_counter_set(row_id: str) -> None:
    """Rows consumer-card and mig-wanted-not-possible: a whole card, and no empty counter set."""
    pool = _pool(_gpu(ROWS[row_id]))
    (device,) = pool.devices
    assert not any(one.shared_counters for one in pool.slices)
    assert device.attributes["migCapable"] is False
    assert device.consumes_counters == ()
    assert device.capacity["memory"].value == Quantity.bytes(ROWS[row_id]["memory"])


def test_bytes_and_text_are_the_same_name() -> None:
    """Row name-as-bytes."""
    device = _device("name-as-bytes")
    assert device.attributes["productName"] == "NVIDIA H100 80GB HBM3"
    assert device.attributes["uuid"] == "GPU-00000000-0000-0000-0000-000000000004"


def test_a_name_that_is_no_text_costs_only_the_name() -> None:
    """Row name-not-text."""
    device = _device("name-not-text")
    assert "productName" not in device.attributes
    assert device.capacity["memory"].value == Quantity.bytes(25757220864)


@pytest.mark.parametrize(
    "row_id", ["version-leading-zero", "version-four-parts", "version-two-parts"]
)
def test_driver_versions_become_semantic_versions(row_id: str) -> None:
    """Rows version-…: three numbers without leading zeros, and the text beside them."""
    published = _attribute_forms(_device(row_id))
    for name, form in ANSWERS[row_id].items():
        assert published[name] == form


def test_a_version_that_is_none_is_left_out() -> None:
    """A driver version such as "unknown" keeps only its text."""
    (device,) = _pool(Gpu(uuid="GPU-1", driver_version="r580 (beta)")).devices
    assert "driverVersion" not in device.attributes
    assert device.attributes["driverVersionFull"] == "r580 (beta)"
    assert Semver.parse("1.0.0") not in device.attributes.values()


def test_long_names_are_cut_to_what_the_api_takes() -> None:
    """Row long-name: 64 characters; a character of several bytes is never cut in two."""
    name = ROWS["long-name"]["name"]
    assert _device("long-name").attributes["productName"] == name[:64]
    (device,) = _pool(Gpu(uuid="GPU-1", product_name="ä" * 40)).devices
    assert device.attributes["productName"] == "ä" * 32


def test_a_lost_card_never_renames_the_others() -> None:
    """Row lost-card: the other keeps its name; the lost one is left out, or tainted."""
    lost, well = ROWS["lost-card"]["cards"]
    gpus = [Gpu(uuid=card["uuid"], memory_bytes=42949672960) for card in (lost, well)]
    before = [one.name for one in _pool(*gpus).devices]
    without = [one.name for one in _pool(gpus[1]).devices]
    assert without == [before[1]]
    tainted = _pool(Gpu(uuid=lost["uuid"], lost=True), gpus[1]).devices
    assert [one.name for one in tainted] == before
    assert [[taint.effect for taint in one.taints] for one in tainted] == [["NoSchedule"], []]
    assert tainted[0].taints[0].key == "gpu.gpudra.io/lost"


def test_names_follow_the_uuid_when_the_order_changes() -> None:
    """Row order-changes: b keeps its name in all three lists, a gets its old name back."""
    row = ROWS["order-changes"]
    names = {
        step: {
            gpu.uuid: device.name
            for gpu in (Gpu(uuid=uuid, index=place) for place, uuid in enumerate(row[step]))
            for device in _pool(gpu).devices
        }
        for step in ("before", "after", "then")
    }
    (b_uuid,) = row["after"]
    assert names["before"][b_uuid] == names["after"][b_uuid] == names["then"][b_uuid]
    assert names["before"] == names["then"]
    assert len(set(names["before"].values())) == 2


def _fabric(row_id: str) -> FabricInfo | None:
    states = {"completed": FabricState.COMPLETED, "in progress": FabricState.IN_PROGRESS}
    raw = _value(ROWS[row_id]["fabric"])
    if raw is None:
        return None
    status = {None: None, "success": 0}.get(raw.get("status"), 999)
    return FabricInfo(
        state=states[raw["state"]],
        status=status,
        cluster_uuid=raw.get("cluster"),
        clique_id=raw.get("clique"),
    )


def test_a_finished_fabric_is_published() -> None:
    """Row fabric-done: cluster, clique, and the domain that is made of them."""
    device = _device("fabric-done", fabric=_fabric("fabric-done"))
    raw = ROWS["fabric-done"]["fabric"]
    assert device.attributes["fabricCluster"] == raw["cluster"]
    assert device.attributes["fabricClique"] == raw["clique"]
    assert device.attributes["nvlinkDomain"] == f"{raw['cluster']}.{raw['clique']}"


@pytest.mark.parametrize("row_id", ["fabric-starting", "fabric-done-with-error", "fabric-none"])
def test_an_unfinished_fabric_costs_only_its_attributes(row_id: str) -> None:
    """Rows fabric-…: the device is published without them."""
    device = _device(row_id, fabric=_fabric(row_id))
    assert {"fabricCluster", "fabricClique", "nvlinkDomain"}.isdisjoint(device.attributes)


def test_a_zero_cluster_is_no_cluster() -> None:
    """Row fabric-done-with-error: also with success, as boards without a rack fabric report."""
    zero = FabricInfo(
        state=FabricState.COMPLETED,
        status=0,
        cluster_uuid="00000000-0000-0000-0000-000000000000",
        clique_id=0,
    )
    assert "fabricCluster" not in _device("fabric-none", fabric=zero).attributes


def test_a_parent_that_cannot_be_read_is_still_a_device() -> None:
    """Row parent-not-readable: instances without readings of the parent crash nothing."""
    instance = MigInstance(
        uuid="MIG-1",
        profile_id=19,
        gpu_instance_id=1,
        compute_instance_id=0,
        placement=Placement(start=0, size=1),
    )
    gpu = Gpu(uuid="GPU-1", mig=MigInfo(enabled=True, instances=(instance,)))
    (device,) = _pool(gpu).devices
    assert device.capacity == {}


def test_a_card_that_breaks_a_limit_costs_only_itself() -> None:
    """The rule of the case: one odd card never takes the node's other cards away."""
    odd = Gpu(declared_name="Not_A_Label")
    nameless = Gpu(product_name="no uuid, no address")
    crowded = Gpu(uuid="GPU-2", attributes={f"extra{number}": number for number in range(40)})
    pool = _pool(Gpu(uuid="GPU-1"), odd, nameless, crowded)
    assert [one.attributes["uuid"] for one in pool.devices] == ["GPU-1"]
    assert len(pool.problems) == 3
    assert any("Not_A_Label" in problem for problem in pool.problems)


def test_a_card_without_uuid_goes_by_its_address() -> None:
    """A uuid that cannot be read is one missing reading, not a missing card."""
    (device,) = _pool(Gpu(pci=PciInfo(bus_id="0000:1b:00.0"))).devices
    assert device.name == "gpu-pci-0000-1b-00-0"
    assert "uuid" not in device.attributes
