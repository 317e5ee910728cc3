# SPDX-License-Identifier: Apache-2.0
"""Case 30: devices cut into slices. Rows about the running controller use it in virtual time."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import (
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceTaint,
    ResourceSlice,
)
from gpudra.controller.resourceslices import ReportKind
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.core.resourceslices import (
    DesiredPool,
    ServerFeatures,
    build_pool,
    cut_pool,
    resource_slices,
)
from gpudra.driver.core.slicediff import plan_slices
from gpudra.driver.kube.resources import RESOURCE_SLICES
from tests.unit.resourceslices.harness import DRIVER, NODE, pool, world

CASE = Path(__file__).parents[2] / "fixtures/cases/30-devices-cut-into-slices"
ROWS = {row["id"]: row for row in json.loads((CASE / "scenario.json").read_text())["rows"]}
ANSWERS = json.loads((CASE / "expected.json").read_text())["answers"]
TAINT = DeviceTaint(key=f"{DRIVER}/lost", effect="NoSchedule")


def _plain(count: int, tainted: int = 0) -> list[Device]:
    return [
        Device(name=f"dev-{number}", taints=(TAINT,) if number < tainted else ())
        for number in range(count)
    ]


def _cut(devices: list[Device]) -> DesiredPool:
    return cut_pool(driver=DRIVER, pool=NODE, node_name=NODE, groups=[devices])


def _counter_set(name: str, counters: int) -> CounterSet:
    return CounterSet(
        name=name,
        counters={f"c{number}": Counter(value=Quantity.of(1)) for number in range(counters)},
    )


def _cards(row: dict[str, Any]) -> tuple[list[list[Device]], list[CounterSet]]:
    groups, sets = [], []
    for card in range(row["cards"]):
        one = _counter_set(f"gpu-{card}", row["counters_per_card"])
        consumption = (CounterConsumption(counter_set=one.name, counters=one.counters),)
        groups.append(
            [
                Device(name=f"gpu-{card}-{part}", consumes_counters=consumption)
                for part in range(row.get("partitions_per_card", 1))
            ]
        )
        sets.append(one)
    return groups, sets


def test_many_plain_devices_fill_slices_of_128() -> None:
    """Row 130-plain: two slices, none too large, and both tell the true count."""
    answer = ANSWERS["130-plain"]
    slices = resource_slices(_cut(_plain(ROWS["130-plain"]["devices"])))
    assert len(slices) == answer["slices"]
    assert all(len(one.spec.devices) <= answer["each_at_most"] for one in slices)
    assert {one.spec.pool.resource_slice_count for one in slices} == {answer["resourceSliceCount"]}


@pytest.mark.parametrize("place", [0, 30, 64, 80, 99])
def test_a_taint_halves_the_room_of_its_slice(place: int) -> None:
    """Row 100-one-tainted: wherever the tainted device stands, its slice has at most 64."""
    row, answer = ROWS["100-one-tainted"], ANSWERS["100-one-tainted"]
    devices = _plain(row["devices"])
    devices[place] = Device(name=devices[place].name, taints=(TAINT,) * row["tainted"])
    slices = resource_slices(_cut(devices))
    assert len(slices) == answer["slices"] == slices[0].spec.pool.resource_slice_count
    for one in slices:
        if any(device.taints for device in one.spec.devices):
            assert len(one.spec.devices) <= answer["slice_with_the_taint_at_most"]


def test_sixteen_mig_cards_get_counter_slices_of_their_own() -> None:
    """Row 16-mig-cards: eight sets a slice, no slice with devices and counters."""
    answer = ANSWERS["16-mig-cards"]
    groups, sets = _cards(ROWS["16-mig-cards"])
    desired = cut_pool(driver=DRIVER, pool=NODE, node_name=NODE, groups=groups, counter_sets=sets)
    counters = [one for one in desired.slices if one.shared_counters]
    devices = [one for one in desired.slices if one.devices]
    assert len(counters) == answer["counter_slices"]
    assert len(devices) >= answer["device_slices_at_least"]
    assert all(len(one.devices) <= answer["each_at_most"] for one in devices)
    assert not any(one.devices and one.shared_counters for one in desired.slices)
    slices = resource_slices(desired)
    assert {one.spec.pool.resource_slice_count for one in slices} == {len(slices)}


def test_too_many_counters_name_the_card_before_anything_is_sent() -> None:
    """Row too-many-counters."""
    groups, sets = _cards(ROWS["too-many-counters"])
    with pytest.raises(InputError, match=r"counter set gpu-0: counters: has 33 counters"):
        cut_pool(driver=DRIVER, pool=NODE, node_name=NODE, groups=groups, counter_sets=sets)


def test_a_device_of_three_sets_is_named_before_anything_is_sent() -> None:
    """Row three-sets."""
    sets = [
        _counter_set(f"set-{n}", 1) for n in range(ROWS["three-sets"]["device_consumes_from_sets"])
    ]
    device = Device(
        name="gpu-0",
        consumes_counters=tuple(
            CounterConsumption(counter_set=one.name, counters=one.counters) for one in sets
        ),
    )
    with pytest.raises(InputError, match=r"device gpu-0: consumesCounters"):
        cut_pool(driver=DRIVER, pool=NODE, node_name=NODE, groups=[[device]], counter_sets=sets)


def test_a_shrunken_pool_raises_the_generation_and_deletes_the_old_slice() -> None:
    """Row shrink: 130 devices become 127."""
    row, answer = ROWS["shrink"], ANSWERS["shrink"]
    before = list(resource_slices(_cut(_plain(row["devices"])), generation=3))
    plan = plan_slices(_cut(_plain(row["then"])), before)
    assert len(plan.updates) == answer["slices"]
    assert plan.updates[0].spec.pool.resource_slice_count == answer["resourceSliceCount"]
    assert plan.generation > 3
    assert [one.metadata.name for one in plan.deletes] == [before[1].metadata.name]


async def test_a_slice_deleted_by_hand_is_created_without_another_change() -> None:
    """Row deleted-by-hand: a second after its creation."""
    it = world()
    async with it.running(pool(ROWS["deleted-by-hand"]["devices"])):
        await it.rest(1)
        it.objects.delete(RESOURCE_SLICES, it.slices()[0].metadata.name)
        await it.rest(2)
        assert len(it.device_names()) == 4


def test_a_node_without_gpu_shows_that_the_driver_runs() -> None:
    """Row no-gpu: one slice without devices."""
    answer = ANSWERS["no-gpu"]
    desired = build_pool(Inventory(), node_name=NODE, features=ServerFeatures())
    slices = resource_slices(desired)
    assert len(slices) == answer["slices"]
    assert len(slices[0].spec.devices) == answer["devices"]
    assert slices[0].spec.pool.resource_slice_count == answer["resourceSliceCount"]
    # The API refuses an empty list no less than a missing one, so the field is left out.
    assert "devices" not in slices[0].to_dict()["spec"]


async def test_dropped_taints_are_reported_and_do_not_loop() -> None:
    """Row fields-dropped, first half: one report, no further writes."""
    it = world()
    it.objects.drop_fields(RESOURCE_SLICES, "spec.devices[*].taints")
    row = ROWS["fields-dropped"]
    async with it.running(pool(row["devices"], tainted=range(row["tainted"]))):
        written = len(it.client.writes)
        await it.rest(3600)
        assert len(it.client.writes) == written
    assert [report.kind for report in it.reports] == [ReportKind.FIELDS_DROPPED]


def test_a_device_that_must_not_be_used_is_left_out_where_taints_are_dropped() -> None:
    """Row fields-dropped, second half: the probe has told the builder."""
    row = ROWS["fields-dropped"]
    gpus = tuple(
        Gpu(uuid=f"GPU-{number:08x}", lost=number < row["tainted"])
        for number in range(row["devices"])
    )
    features = ServerFeatures(device_taints=False)
    desired = build_pool(Inventory(gpus=gpus), node_name=NODE, features=features)
    assert len(desired.devices) == row["devices"] - row["tainted"]
    kept = build_pool(
        Inventory(gpus=gpus), node_name=NODE, features=ServerFeatures(device_taints=True)
    )
    assert [len(one.taints) for one in kept.devices].count(1) == row["tainted"]


async def test_a_restart_with_unchanged_devices_writes_nothing() -> None:
    """Row restart-unchanged: same names, same generation."""
    it = world()
    desired = _cut(_plain(ROWS["restart-unchanged"]["devices"]))
    async with it.running(desired):
        pass
    it.client.forget()
    async with it.running(_cut(_plain(ROWS["restart-unchanged"]["devices"]))) as controller:
        assert controller.synced
        await it.rest(60)
    assert it.client.writes == []
    assert {
        ResourceSlice.from_dict(raw).spec.pool.generation
        for raw in it.objects.list(RESOURCE_SLICES)
    } == {1}
