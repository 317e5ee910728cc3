# SPDX-License-Identifier: Apache-2.0
"""What the controller writes, and what it leaves alone."""

from gpudra.controller.resourceslices import ReportKind
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES
from tests.unit.resourceslices.harness import DRIVER, NODE, node_object, pool, world


async def test_a_new_pool_is_created_with_owner_count_and_generation() -> None:
    """Every slice of a new pool belongs to the node and tells the true number of slices."""
    it = world()
    async with it.running(pool(3)) as controller:
        assert controller.synced
    uid = it.objects.get(NODES, NODE)["metadata"]["uid"]
    assert it.device_names() == ["gpu-0", "gpu-1", "gpu-2"]
    for one in it.slices():
        assert (one.spec.pool.generation, one.spec.pool.resource_slice_count) == (1, 3)
        (owner,) = one.metadata.owner_references
        assert (owner.kind, owner.name, owner.uid, owner.controller) == ("Node", NODE, uid, True)


async def test_nothing_known_yet_touches_nothing() -> None:
    """Before the first discovery the slices of an earlier run stay as they are."""
    it = world()
    async with it.running(pool(2)):
        pass
    it.client.forget()
    async with it.running(None) as controller:
        await it.rest(60)
        assert not controller.synced
    assert it.client.writes == []


async def test_an_unchanged_pool_is_adopted_after_a_restart() -> None:
    """A restarted agent with the same hardware writes nothing: same names, same generation."""
    it = world()
    async with it.running(pool(5)):
        pass
    before = it.objects.list(RESOURCE_SLICES)
    it.client.forget()
    async with it.running(pool(5)) as controller:
        assert controller.synced
        await it.rest(600)
    assert it.client.writes == []
    assert it.objects.list(RESOURCE_SLICES) == before


async def test_a_taint_on_one_card_rewrites_one_slice_in_place() -> None:
    """A change that concerns one card is one update, without a new generation."""
    it = world()
    async with it.running(pool(8)) as controller:
        it.client.forget()
        controller.set_desired(pool(8, tainted=[5]))
        await it.rest(1)
        assert it.client.writes == [("update", f"{NODE}-{DRIVER}-devices-00005")]
        assert {one.spec.pool.generation for one in it.slices()} == {1}


async def test_taints_keep_their_time_when_the_slice_is_rewritten() -> None:
    """The server's timeAdded survives later rewrites of the same slice."""
    it = world()
    async with it.running(pool(2, tainted=[0])) as controller:
        first = it.slices()[0].spec.devices[0].taints[0].time_added
        await it.rest(3600)
        controller.set_desired(pool(2, tainted=[0], index=lambda number: number + 10))
        await it.rest(1)
    device = it.slices()[0].spec.devices[0]
    assert device.attributes["index"] == 10
    assert first
    assert device.taints[0].time_added == first


async def test_a_shrunken_pool_gets_a_new_generation_and_loses_its_last_slice() -> None:
    """Fewer slices: all are rewritten with a higher generation, the rest is deleted last."""
    it = world()
    async with it.running(pool(4)) as controller:
        it.client.forget()
        controller.set_desired(pool(3))
        await it.rest(1)
        assert controller.synced
    assert [verb for verb, _ in it.client.writes] == ["update"] * 3 + ["delete"]
    assert [one.spec.pool.generation for one in it.slices()] == [2, 2, 2]
    assert {one.spec.pool.resource_slice_count for one in it.slices()} == {3}


async def test_a_slice_deleted_by_hand_is_back_within_two_seconds() -> None:
    """No other trigger is needed, and nothing else is rewritten."""
    it = world()
    async with it.running(pool(4)):
        await it.rest(1)
        name = f"{NODE}-{DRIVER}-devices-00002"
        it.client.forget()
        it.objects.delete(RESOURCE_SLICES, name)
        await it.rest(2)
        assert it.client.writes == [("create", name)]
        assert {one.spec.pool.generation for one in it.slices()} == {1}


async def test_a_slice_deleted_a_second_after_its_creation_is_back_as_well() -> None:
    """The spacing of rounds does not swallow a deletion that follows a write at once."""
    it = world()
    async with it.running(pool(4)):
        it.objects.delete(RESOURCE_SLICES, f"{NODE}-{DRIVER}-devices-00000")
        await it.rest(2)
        assert len(it.slices()) == 4


async def test_a_slice_changed_by_hand_is_put_right() -> None:
    """Whoever edits our slice loses."""
    it = world()
    async with it.running(pool(2)):
        raw = it.slices()[0].to_dict()
        raw["spec"]["devices"][0]["attributes"]["index"] = {"int": 99}
        it.objects.update(RESOURCE_SLICES, raw)
        await it.rest(2)
        assert it.slices()[0].spec.devices[0].attributes["index"] == 0


async def test_all_slices_wiped_come_back_with_no_lower_generation() -> None:
    """The generation never falls while the process runs."""
    it = world()
    async with it.running(pool(3)) as controller:
        controller.set_desired(pool(2))
        await it.rest(1)
        for one in it.slices():
            it.objects.delete(RESOURCE_SLICES, one.metadata.name)
        await it.rest(2)
        assert [one.spec.pool.generation for one in it.slices()] == [2, 2]


async def test_foreign_slices_are_never_touched() -> None:
    """Other drivers, other pools of our driver and other nodes stay as they are."""
    it = world()
    foreign = []
    for name, driver, pool_name, node in (
        ("other-driver", "other.example.com", NODE, NODE),
        ("other-pool", DRIVER, "fabric-1", NODE),
        ("other-node", DRIVER, "node-b", "node-b"),
        ("our-pool-on-another-node", DRIVER, NODE, "node-b"),
    ):
        raw = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": pool_name, "generation": 7, "resourceSliceCount": 1},
            },
        }
        foreign.append(it.objects.create(RESOURCE_SLICES, raw))
    async with it.running(pool(2)) as controller:
        controller.set_desired(pool(1))
        await it.rest(5)
    for one in foreign:
        assert it.objects.get(RESOURCE_SLICES, one["metadata"]["name"]) == one


async def test_doubles_of_our_own_pool_are_deleted() -> None:
    """Slices of an earlier version under other names would list devices twice."""
    it = world()
    async with it.running(pool(2)):
        raw = it.slices()[0].to_dict()
        raw["metadata"] = {"name": "gpu-old-name"}
        it.objects.create(RESOURCE_SLICES, raw)
        await it.rest(2)
        assert it.device_names() == ["gpu-0", "gpu-1"]
        assert {one.spec.pool.generation for one in it.slices()} == {1}


async def test_a_node_made_anew_becomes_the_owner() -> None:
    """After the node object was replaced the slices that the collector took come back for it."""
    it = world()
    async with it.running(pool(2)):
        it.objects.delete(NODES, NODE)
        fresh = it.objects.create(NODES, node_object())
        it.objects.collect_garbage()
        await it.rest(2)
        owners = {one.metadata.owner_references[0].uid for one in it.slices()}
        assert owners == {fresh["metadata"]["uid"]}
        assert len(it.slices()) == 2


async def test_without_a_proven_connection_nothing_is_written() -> None:
    """The kubelet wipes slices of a driver it has lost; writing against it would be a fight."""
    it = world()
    it.connected = False
    async with it.running(pool(2)) as controller:
        await it.rest(30)
        assert it.client.writes == []
        it.connected = True
        controller.trigger()
        await it.rest()
        assert len(it.slices()) == 2
        it.connected = False
        await it.rest(1)
        it.objects.delete(RESOURCE_SLICES, it.slices()[0].metadata.name)
        await it.rest(30)
        assert len(it.slices()) == 1


async def test_the_connection_is_noticed_without_a_trigger() -> None:
    """A missed trigger costs a second, not a hang."""
    it = world()
    it.connected = False
    async with it.running(pool(1)) as controller:
        it.connected = True
        await it.rest(1.5)
        assert controller.synced


async def test_stop_leaves_the_slices_and_delete_takes_them_away() -> None:
    """A restart keeps the pool in the API; an uninstalled driver does not."""
    it = world()
    async with it.running(pool(3)) as controller:
        await controller.stop()
        assert len(it.slices()) == 3
        await controller.stop(delete=True)
    assert it.slices() == []


async def test_an_empty_node_publishes_one_empty_slice() -> None:
    """That the pool is empty is something to say, not something to hide."""
    it = world()
    async with it.running(pool(0)) as controller:
        assert controller.synced
    (only,) = it.slices()
    assert (only.spec.devices, only.spec.pool.resource_slice_count) == ((), 1)


async def test_fields_that_the_server_drops_are_reported_once_and_cause_no_loop() -> None:
    """A gate that is off costs one report per field, and no further writes."""
    it = world()
    it.objects.drop_fields(RESOURCE_SLICES, "spec.devices[*].taints")
    async with it.running(pool(4, tainted=[1])) as controller:
        assert controller.synced
        writes = len(it.client.writes)
        await it.rest(600)
        assert len(it.client.writes) == writes
        controller.set_desired(pool(4, tainted=[1, 2]))
        await it.rest(600)
    (report,) = it.reports
    assert report.kind is ReportKind.FIELDS_DROPPED
    assert "spec.devices[*].taints" in report.message


async def test_a_server_that_changes_what_was_written_is_told_of_and_not_fought() -> None:
    """A webhook that rewrites our slices makes slow retries, not a busy loop."""
    it = world()
    honest = it.objects.create

    def meddle(resource, obj, **options):  # type: ignore[no-untyped-def]
        if resource == RESOURCE_SLICES:
            obj["spec"]["devices"][0]["attributes"]["index"] = {"int": 1000}
        return honest(resource, obj, **options)

    it.objects.create = meddle  # type: ignore[method-assign]
    change = it.objects.update

    def meddle_again(resource, obj, **options):  # type: ignore[no-untyped-def]
        obj["spec"]["devices"][0]["attributes"]["index"] = {"int": 1000}
        return change(resource, obj, **options)

    it.objects.update = meddle_again  # type: ignore[method-assign]
    async with it.running(pool(1)) as controller:
        await it.rest(120)
        assert not controller.synced
        assert len(it.client.writes) < 20
    assert [report.kind for report in it.reports] == [ReportKind.CHANGED_BY_SERVER]
