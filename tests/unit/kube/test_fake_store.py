# SPDX-License-Identifier: Apache-2.0
"""The fake server's state: versions, conflicts, subresources, deletion, history."""

from typing import Any

import pytest

from gpudra.api.errors import (
    AlreadyExistsError,
    ConflictError,
    ExpiredError,
    InvalidError,
    NotFoundError,
)
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import ObjectStore, StoreEvent
from gpudra.driver.kube.resources import (
    DEVICE_TAINT_RULES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
    Resource,
)

QUEUES = Resource("gpudra.io", "v1alpha1", "queues", "Queue", namespaced=False)


@pytest.fixture
def store() -> ObjectStore:
    """An empty cluster on virtual time."""
    return ObjectStore(VirtualClock(), seed=1)


def pod(name: str = "p", **meta: Any) -> Obj:
    """A pod."""
    return {"metadata": {"name": name, "namespace": "default", **meta}, "spec": {}}


def claim(name: str = "c", **status: Any) -> Obj:
    """A claim for one device."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.gpudra.io"}}
    obj: Obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    return {**obj, "status": status} if status else obj


def test_create_fills_in_what_the_server_fills_in(store: ObjectStore) -> None:
    """uid, version, time, generation and kind come from the server; seeds make them repeatable."""
    created = store.create(PODS, pod(uid="mine", resourceVersion="9"))
    meta = created["metadata"]
    assert meta["uid"] not in ("", "mine")
    assert meta["resourceVersion"] == str(store.revision)
    assert meta["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert meta["generation"] == 1
    assert (created["apiVersion"], created["kind"]) == ("v1", "Pod")
    assert created["status"] == {"phase": "Pending"}
    again = ObjectStore(VirtualClock(), seed=1).create(PODS, pod())
    assert again["metadata"]["uid"] == meta["uid"]


def test_names_are_generated_and_needed(store: ObjectStore) -> None:
    """`generateName` gets five letters; neither name nor prefix is refused."""
    generated = store.create(PODS, {"metadata": {"generateName": "p-"}})["metadata"]
    assert generated["name"].startswith("p-")
    assert len(generated["name"]) == 7
    assert generated["namespace"] == "default"
    with pytest.raises(InvalidError, match="generateName is required"):
        store.create(PODS, {"metadata": {}})


def test_a_name_exists_once(store: ObjectStore) -> None:
    """A second object of one name is refused; another namespace is another name."""
    store.create(PODS, pod())
    with pytest.raises(AlreadyExistsError, match='pods "p" already exists'):
        store.create(PODS, pod())
    store.create(PODS, {"metadata": {"name": "p", "namespace": "team"}})
    assert store.get(NAMESPACES, "team")["metadata"]["labels"] == {
        "kubernetes.io/metadata.name": "team"
    }


def test_what_comes_out_is_a_copy(store: ObjectStore) -> None:
    """Changing a result or an input changes nothing in the store."""
    given = pod()
    created = store.create(PODS, given)
    created["spec"]["x"] = given["spec"]["y"] = 1
    assert store.get(PODS, "p", "default")["spec"] == {}


def test_a_stale_write_is_a_conflict(store: ObjectStore) -> None:
    """An update with an old version or another uid is refused; without a version it is not."""
    old = store.create(PODS, pod())
    store.patch(PODS, "p", {"spec": {"nodeName": "n1"}}, namespace="default")
    with pytest.raises(ConflictError, match="the object has been modified"):
        store.update(PODS, old)
    del old["metadata"]["resourceVersion"]
    store.update(PODS, old)
    old["metadata"]["uid"] = "another"
    with pytest.raises(ConflictError, match="UID in precondition"):
        store.update(PODS, old)
    stale = {"metadata": {"resourceVersion": "1"}, "spec": {"a": 1}}
    with pytest.raises(ConflictError):
        store.patch(PODS, "p", stale, namespace="default")


def test_a_write_that_changes_nothing_is_none(store: ObjectStore) -> None:
    """An equal update keeps the version and tells nobody."""
    before = store.create(PODS, pod())
    seen: list[StoreEvent] = []
    store.subscribe(seen.append)
    after = store.update(PODS, before)
    assert after == before
    assert seen == []


def test_generation_counts_the_spec(store: ObjectStore) -> None:
    """Spec changes raise the generation, status and labels do not."""
    store.create(PODS, pod())
    for body, subresource, expected in (
        ({"spec": {"a": 1}}, "", 2),
        ({"metadata": {"labels": {"a": "b"}}}, "", 2),
        ({"status": {"phase": "Running"}}, "status", 2),
        ({"spec": {"a": 2}}, "", 3),
    ):
        got = store.patch(PODS, "p", body, namespace="default", subresource=subresource)
        assert got["metadata"]["generation"] == expected
    assert "generation" not in store.create(RESOURCE_CLAIMS, claim())["metadata"]


def test_status_and_the_rest_are_written_apart(store: ObjectStore) -> None:
    """A write to an object ignores its status, a write to the status everything else."""
    created = store.create(PODS, {**pod(), "status": {"phase": "Failed"}})
    assert created["status"] == {"phase": "Pending"}
    both = {**created, "spec": {"a": 1}, "status": {"phase": "Running"}}
    assert store.update(PODS, both)["status"] == {"phase": "Pending"}
    both = store.get(PODS, "p", "default")
    both |= {"spec": {"a": 2}, "status": {"phase": "Running"}}
    both["metadata"] |= {"labels": {"x": "y"}, "finalizers": ["a/b"]}
    written = store.update(PODS, both, subresource="status")
    assert written["spec"] == {"a": 1}
    assert written["status"] == {"phase": "Running"}
    assert written["metadata"]["labels"] == {"x": "y"}
    assert "finalizers" not in written["metadata"]
    store.create(RESOURCE_CLAIMS, claim())
    labels = {"metadata": {"labels": {"x": "y"}}, "status": {}}
    options = {"namespace": "default", "subresource": "status"}
    assert "labels" not in store.patch(RESOURCE_CLAIMS, "c", labels, **options)["metadata"]


def test_finalizers_hold_an_object(store: ObjectStore) -> None:
    """Deletion only marks an object with finalizers; removing the last one removes it."""
    store.create(PODS, pod(finalizers=["a/b"]))
    marked = store.delete(PODS, "p", "default")
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    again = store.delete(PODS, "p", "default")
    assert again["metadata"]["resourceVersion"] == marked["metadata"]["resourceVersion"]
    seen: list[StoreEvent] = []
    store.subscribe(seen.append)
    store.patch(PODS, "p", {"metadata": {"finalizers": None}}, namespace="default")
    assert [event.type for event in seen] == ["DELETED"]
    with pytest.raises(NotFoundError, match='pods "p" not found'):
        store.get(PODS, "p", "default")


def test_deletion_checks_its_preconditions(store: ObjectStore) -> None:
    """Another uid or version in the preconditions is a conflict."""
    meta = store.create(PODS, pod())["metadata"]
    with pytest.raises(ConflictError):
        store.delete(PODS, "p", "default", uid="other")
    with pytest.raises(ConflictError):
        store.delete(PODS, "p", "default", resource_version="1")
    gone = store.delete(PODS, "p", "default", uid=meta["uid"])
    assert int(gone["metadata"]["resourceVersion"]) > int(meta["resourceVersion"])


def test_dry_runs_change_nothing(store: ObjectStore) -> None:
    """A dry run answers like the real thing and leaves no trace."""
    before = store.revision
    assert store.create(PODS, pod(), dry_run=True)["metadata"]["uid"]
    with pytest.raises(NotFoundError):
        store.get(PODS, "p", "default")
    assert store.revision == before
    store.create(PODS, pod())
    before = store.revision
    change = {"spec": {"a": 1}}
    assert store.patch(PODS, "p", change, namespace="default", dry_run=True)["spec"] == {"a": 1}
    store.delete(PODS, "p", "default", dry_run=True)
    assert store.get(PODS, "p", "default")["spec"] == {}
    assert store.revision == before


def test_dropped_fields_vanish_silently(store: ObjectStore) -> None:
    """Fields of a gate that is off are dropped on write, in lists and maps too, until restored."""
    device = {
        "name": "a",
        "taints": [{"key": "k", "effect": "NoSchedule"}],
        "capacity": {"memory": {"value": "1Gi", "requestPolicy": {"default": "1"}}},
    }
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    body: Obj = {
        "metadata": {"name": "s"},
        "spec": {"driver": "d", "nodeName": "n", "pool": pool, "devices": [device]},
    }
    store.drop_fields(
        RESOURCE_SLICES, "spec.devices[*].taints", "spec.devices[*].capacity[*].requestPolicy"
    )
    stored = store.create(RESOURCE_SLICES, body)
    assert stored["spec"]["devices"] == [{"name": "a", "capacity": {"memory": {"value": "1Gi"}}}]
    assert "taints" in body["spec"]["devices"][0]
    store.restore_fields(RESOURCE_SLICES)
    body["metadata"] = stored["metadata"]
    assert store.update(RESOURCE_SLICES, body)["spec"]["devices"][0]["taints"]
    with pytest.raises(ValueError, match="not a field path"):
        store.drop_fields(RESOURCE_SLICES, "spec..devices")


def test_claims_get_their_defaults(store: ObjectStore) -> None:
    """ExactCount, count 1, toleration operators; All has no count; alternatives too."""
    body = claim()
    body["spec"]["devices"]["requests"] += [
        {"name": "all", "exactly": {"deviceClassName": "x", "allocationMode": "All"}},
        {"name": "any", "firstAvailable": [{"name": "a", "tolerations": [{"key": "k"}]}]},
    ]
    requests = store.create(RESOURCE_CLAIMS, body)["spec"]["devices"]["requests"]
    assert requests[0]["exactly"]["allocationMode"] == "ExactCount"
    assert requests[0]["exactly"]["count"] == 1
    assert "count" not in requests[1]["exactly"]
    assert requests[2]["firstAvailable"][0] == {
        "name": "a",
        "allocationMode": "ExactCount",
        "count": 1,
        "tolerations": [{"key": "k", "operator": "Equal"}],
    }


def test_taints_get_their_time(store: ObjectStore) -> None:
    """`timeAdded` is filled in once, and anew when only a rule's effect changes."""
    rule: Obj = {"metadata": {"name": "r"}, "spec": {"taint": {"key": "k", "effect": "NoSchedule"}}}
    created = store.create(DEVICE_TAINT_RULES, rule)
    assert created["spec"]["taint"]["timeAdded"] == "2026-01-01T00:00:00Z"
    assert isinstance(store.clock, VirtualClock)
    store.clock.advance_sync(60)
    created["spec"]["taint"]["effect"] = "NoExecute"
    changed = store.update(DEVICE_TAINT_RULES, created)
    assert changed["spec"]["taint"]["timeAdded"] == "2026-01-01T00:01:00Z"


def test_device_statuses_end_with_the_allocation(store: ObjectStore) -> None:
    """Clearing an allocation drops the device statuses; reservations must be gone before."""
    result = {"request": "gpu", "driver": "d", "pool": "n", "device": "g"}
    allocation = {"devices": {"results": [result]}}
    devices = [{"driver": "d", "pool": "n", "device": "g", "data": {}}]
    store.seed(claim(allocation=allocation, devices=devices, reservedFor=[{"uid": "u"}]))
    clear: Obj = {"status": {"allocation": None}}

    def patch(body: Obj) -> Obj:
        return store.patch(RESOURCE_CLAIMS, "c", body, namespace="default", subresource="status")

    with pytest.raises(InvalidError, match=r"status\.reservedFor"):
        patch(clear)
    clear["status"]["reservedFor"] = None
    assert patch(clear)["status"] == {}


def test_seeding_keeps_the_status(store: ObjectStore) -> None:
    """A snapshot of a cluster goes in with its status; kinds are found by their names."""
    store.seed(
        claim(allocation={"devices": {"results": []}}),
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}},
    )
    assert store.get(RESOURCE_CLAIMS, "c", "default")["status"]["allocation"]
    assert store.get(NODES, "n")
    with pytest.raises(NotFoundError, match="no resource for x/v1 Y"):
        store.seed({"apiVersion": "x/v1", "kind": "Y", "metadata": {"name": "n"}})


def test_history_replays_and_expires(store: ObjectStore) -> None:
    """Changes after a version are replayed; expired versions answer 410, new ones do not."""
    start = store.revision
    store.create(PODS, pod())
    store.delete(PODS, "p", "default")
    assert [event.type for event in store.events_since(PODS, start)] == ["ADDED", "DELETED"]
    store.expire()
    with pytest.raises(ExpiredError, match="too old resource version"):
        store.events_since(PODS, store.revision - 1)
    assert store.events_since(PODS, store.revision) == []


def test_history_is_bounded() -> None:
    """Beyond its limit the history forgets the oldest, and says so."""
    store = ObjectStore(VirtualClock(), history=3)
    start = store.revision
    for number in range(5):
        store.create(PODS, pod(f"p{number}"))
    with pytest.raises(ExpiredError):
        store.events_since(PODS, start)
    assert len(store.events_since(PODS, store.revision - 3)) == 3


def test_pages_are_cut_from_one_moment(store: ObjectStore) -> None:
    """Pages of one list do not see later changes; an expired or foreign token is refused."""
    for number in range(5):
        store.create(PODS, pod(f"p{number}"))
    first = store.page(PODS, None, None, limit=2)
    store.delete(PODS, "p3", "default")
    second = store.page(PODS, None, None, limit=2, continue_token=first.continue_token)
    third = store.page(PODS, None, None, limit=2, continue_token=second.continue_token)
    names = [i.obj["metadata"]["name"] for page in (first, second, third) for i in page.items]
    assert names == ["p0", "p1", "p2", "p3", "p4"]
    assert (first.remaining, second.remaining, third.continue_token) == (3, 1, "")
    assert first.revision == third.revision
    with pytest.raises(InvalidError, match="continue key is not valid"):
        store.page(PODS, None, None, continue_token="%%%")
    store.expire()
    with pytest.raises(ExpiredError):
        store.page(PODS, None, None, continue_token=first.continue_token)


def test_kinds_come_and_go(store: ObjectStore) -> None:
    """A kind is unknown until registered and after it is removed; other versions are unknown."""
    with pytest.raises(NotFoundError):
        store.list(QUEUES)
    store.register(QUEUES, selectable=["spec.parent"])
    store.create(QUEUES, {"metadata": {"name": "q"}, "spec": {"parent": "root"}})
    assert len(store.list(QUEUES, field_selector="spec.parent=root")) == 1
    store.unregister(QUEUES)
    with pytest.raises(NotFoundError):
        store.list(QUEUES)
    with pytest.raises(NotFoundError):
        store.list(Resource("", "v2", "pods", "Pod", namespaced=True))


def test_another_kind_in_the_body_is_refused(store: ObjectStore) -> None:
    """An object of another kind or version does not go into this collection."""
    with pytest.raises(InvalidError, match="not a v1 Pod"):
        store.create(PODS, {**pod(), "kind": "Node"})


def test_garbage_goes_with_its_owner(store: ObjectStore) -> None:
    """Objects whose owners are all gone are collected, and then what they own."""
    node = store.create(NODES, {"metadata": {"name": "n"}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node["metadata"]["uid"]}
    middle = store.create(PODS, pod("a", ownerReferences=[owner]))
    nested = {"kind": "Pod", "apiVersion": "v1", "name": "a", "uid": middle["metadata"]["uid"]}
    store.create(PODS, pod("b", ownerReferences=[nested]))
    store.create(EVENTS, {"metadata": {"name": "e", "namespace": "default"}})
    assert store.collect_garbage() == 0
    store.delete(NODES, "n")
    assert store.collect_garbage() == 2
    assert store.list(PODS) == []
    assert len(store.list(EVENTS)) == 1
