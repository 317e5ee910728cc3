# SPDX-License-Identifier: Apache-2.0
"""What the controller does when the API is slow, away, or of another opinion."""

import dataclasses

import pytest

from gpudra.api.errors import (
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from gpudra.controller.resourceslices import ReportKind
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES
from tests.unit.resourceslices.harness import DRIVER, NODE, node_object, pool, world


async def test_an_api_server_that_is_away_is_asked_again_with_growing_delays() -> None:
    """An hour of outage costs some hundred tries, and ends with the pool published."""
    it = world()
    it.client.away = True
    async with it.running(pool(2)) as controller:
        await it.rest(3600)
        tries = len(it.client.calls)
        assert 60 < tries < 400
        it.client.away = False
        await it.rest(60)
        assert controller.synced
    assert it.device_names() == ["gpu-0", "gpu-1"]


async def test_an_outage_between_writes_is_reported_once_and_healed() -> None:
    """What is unwritten when the server goes away is written when it is back."""
    it = world()
    async with it.running(pool(2)) as controller:
        it.client.fail("update", *[UnavailableError("no answer") for _ in range(6)])
        controller.set_desired(pool(2, index=lambda number: number + 5))
        await it.rest(60)
        assert controller.synced
        assert [one.spec.devices[0].attributes["index"] for one in it.slices()] == [5, 6]
    assert [report.kind for report in it.reports] == [ReportKind.UNAVAILABLE]


async def test_a_busy_server_gets_the_time_it_asks_for() -> None:
    """Retry-After is a lower bound of the delay."""
    it = world()
    async with it.running(pool(1)) as controller:
        it.client.fail("update", TooManyRequestsError("slow down", retry_after=20))
        controller.set_desired(pool(1, index=lambda _: 9))
        await it.rest(19)
        assert not controller.synced
        await it.rest(2)
        assert controller.synced


async def test_a_stale_watch_does_not_make_the_same_writes_twice() -> None:
    """Rounds between a write and its echo go by the server's answers."""
    it = world()
    async with it.running(pool(3)) as controller:
        it.client.hold_watch()
        controller.set_desired(pool(2))
        await it.rest(1)
        writes = list(it.client.writes)
        controller.trigger()
        await it.rest(1)
        controller.trigger()
        await it.rest(1)
        assert it.client.writes == writes
        it.client.release_watch()
        await it.rest(5)
        assert it.client.writes == writes
        assert controller.synced


async def test_a_deletion_right_after_our_write_is_noticed() -> None:
    """Our own answers count only until the watch has caught up with them."""
    it = world()
    async with it.running(pool(2)) as controller:
        it.client.hold_watch()
        controller.set_desired(pool(2, index=lambda number: number + 5))
        await it.rest(1)
        it.objects.delete(RESOURCE_SLICES, it.slices()[0].metadata.name)
        it.client.release_watch()
        await it.rest(2)
        assert len(it.slices()) == 2


async def test_a_conflict_is_resolved_from_the_present_object() -> None:
    """Somebody else wrote first: look again, then write once more, without a warning."""
    it = world()
    async with it.running(pool(1)) as controller:
        it.client.hold_watch()
        raw = it.slices()[0].to_dict()
        raw["metadata"]["labels"] = {"touched": "yes"}
        it.objects.update(RESOURCE_SLICES, raw)
        controller.set_desired(pool(1, index=lambda _: 7))
        await it.rest(2)
        assert controller.synced
        assert it.slices()[0].spec.devices[0].attributes["index"] == 7
        assert it.slices()[0].metadata.labels == {"touched": "yes"}
    assert it.reports == []


async def test_a_write_whose_answer_was_lost_is_recognised() -> None:
    """A slice that exists already, as it should be, is adopted."""
    it = world()
    async with it.running(None) as controller:
        it.client.hold_watch()
        honest = it.client.create
        lost = []

        async def create(resource, obj, namespace=None, **options):  # type: ignore[no-untyped-def]
            await honest(resource, obj, namespace, **options)
            if not lost:
                lost.append(obj)
                raise UnavailableError("the answer was lost")
            return it.objects.get(resource, obj["metadata"]["name"])

        it.client.create = create  # type: ignore[method-assign]
        controller.set_desired(pool(2))
        await it.rest(10)
        assert controller.synced
    assert len(it.slices()) == 2


async def test_a_slice_deleted_while_it_is_updated_is_created_again() -> None:
    """404 on update is not the end."""
    it = world()
    async with it.running(pool(2)) as controller:
        it.client.hold_watch()
        it.objects.delete(RESOURCE_SLICES, it.slices()[0].metadata.name)
        controller.set_desired(pool(2, index=lambda number: number + 5))
        await it.rest(5)
        assert [one.spec.devices[0].attributes["index"] for one in it.slices()] == [5, 6]
        it.client.release_watch()
        await it.rest(15)
        assert controller.synced
        assert len(it.slices()) == 2


async def test_a_name_that_belongs_to_somebody_else_is_reported_and_left_alone() -> None:
    """A foreign slice under our name is named in the report and survives."""
    it = world()
    raw = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{NODE}-{DRIVER}-devices-00000"},
        "spec": {
            "driver": "other.example.com",
            "nodeName": NODE,
            "pool": {"name": "theirs", "generation": 1, "resourceSliceCount": 1},
        },
    }
    foreign = it.objects.create(RESOURCE_SLICES, raw)
    async with it.running(pool(1)) as controller:
        await it.rest(300)
        assert not controller.synced
        assert len(it.client.writes) < 30
        it.objects.delete(RESOURCE_SLICES, foreign["metadata"]["name"])
        await it.rest(60)
        assert controller.synced
    (report,) = it.reports
    assert report.kind is ReportKind.NAME_TAKEN
    assert "other.example.com" in report.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ForbiddenError("may not create resourceslices", status=403), ReportKind.FORBIDDEN),
        (InvalidError("spec.devices: Invalid value"), ReportKind.REFUSED),
    ],
)
async def test_a_refusal_is_reported_once_and_retried_slowly(
    error: Exception, kind: ReportKind
) -> None:
    """A refused slice is not written again and again; mended permissions are noticed."""
    it = world()
    it.client.failures["create"] = [error] * 20  # type: ignore[list-item]
    async with it.running(pool(1)) as controller:
        await it.rest(100)
        assert len(it.client.writes) < 16
        await it.rest(600)
        assert controller.synced
    assert [report.kind for report in it.reports] == [kind]


async def test_a_missing_node_object_delays_publishing() -> None:
    """Without the node there is no owner, and without an owner slices would stay for ever."""
    it = world()
    it.objects.delete(NODES, NODE)
    async with it.running(pool(1)) as controller:
        await it.rest(60)
        assert it.client.writes == []
        assert [report.kind for report in it.reports] == [ReportKind.NOT_FOUND]
        it.objects.create(NODES, node_object())
        await it.rest(60)
        assert controller.synced


async def test_a_crash_between_the_writes_of_a_new_generation_is_finished() -> None:
    """The next process completes the generation; readers never see a mixture."""
    it = world()
    async with it.running(pool(4)):
        pass
    for one in it.slices()[:2]:
        spec = one.spec
        newer = dataclasses.replace(spec.pool, generation=2, resource_slice_count=3)
        device = dataclasses.replace(spec.devices[0], name=spec.devices[0].name)
        changed = dataclasses.replace(spec, pool=newer, devices=(device,))
        it.objects.update(RESOURCE_SLICES, dataclasses.replace(one, spec=changed).to_dict())
    async with it.running(pool(3)) as controller:
        assert controller.synced
    assert [one.spec.pool.generation for one in it.slices()] == [2, 2, 2]
    assert it.device_names() == ["gpu-0", "gpu-1", "gpu-2"]


async def test_new_wishes_during_a_round_are_not_lost() -> None:
    """What is asked for while writes are under way is written right after."""
    it = world()
    async with it.running(None) as controller:
        honest = it.client.create

        async def create(resource, obj, namespace=None, **options):  # type: ignore[no-untyped-def]
            controller.set_desired(pool(3))
            return await honest(resource, obj, namespace, **options)

        it.client.create = create  # type: ignore[method-assign]
        controller.set_desired(pool(2))
        await it.rest(3)
        assert controller.synced
        assert len(it.slices()) == 3


async def test_deleting_a_slice_that_is_gone_already_is_fine() -> None:
    """Two cleaners may meet."""
    it = world()
    async with it.running(pool(2)) as controller:
        it.client.fail("delete", NotFoundError("not found", status=404))
        controller.set_desired(pool(1))
        await it.rest(30)
        assert it.reports == []


async def test_a_pool_of_another_driver_is_refused() -> None:
    """A controller keeps one pool; another one is a mistake of the program."""
    it = world()
    with pytest.raises(ValueError, match="node-b"):
        it.controller().set_desired(pool(1, node="node-b"))
