# SPDX-License-Identifier: Apache-2.0
"""Patches of the fake server, and field ownership."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.errors import ConflictError, InvalidError
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.fakeserver.patches import json_patch, merge_patch, strategic_patch
from gpudra.driver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, Obj


# Appendix A of RFC 7386: original, patch, result.
@pytest.mark.parametrize(
    ("original", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
    ],
)
def test_merge_patch_follows_its_rfc(original: Any, patch: Any, result: Any) -> None:
    """The examples of RFC 7386 come out as written there."""
    assert merge_patch(original, patch) == result


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_a_merge_patch_onto_nothing_has_no_nulls(patch: Any) -> None:
    """Applied twice a merge patch gives the same as once."""
    once = merge_patch({}, copy.deepcopy(patch))
    assert merge_patch(copy.deepcopy(once), copy.deepcopy(patch)) == once


@pytest.mark.parametrize(
    ("original", "operations", "result"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1}, [{"op": "remove", "path": "/a"}], {}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": 5}], {"a": 5}),
        ({"a": [1]}, [{"op": "replace", "path": "/a/0", "value": 5}], {"a": [5]}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": 1, "b": 1}),
        ({"a/b": {"~": 1}}, [{"op": "test", "path": "/a~1b/~0", "value": 1}], {"a/b": {"~": 1}}),
        ({"a": 1}, [{"op": "add", "path": "", "value": {"n": 1}}], {"n": 1}),
    ],
)
def test_json_patch_knows_its_operations(original: Any, operations: Any, result: Any) -> None:
    """The operations of RFC 6902 do what they say."""
    assert json_patch(original, operations) == result


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ({"op": "add"}, "is a list"),
        ([{"op": "test", "path": "/a", "value": 2}], "testing value /a failed"),
        ([{"op": "remove", "path": "/x"}], "does not exist"),
        ([{"op": "replace", "path": "/x", "value": 1}], "does not exist"),
        ([{"op": "add", "path": "/l/9", "value": 1}], "out of bounds"),
        ([{"op": "add", "path": "/a/b", "value": 1}], "neither a map nor a list"),
        ([{"op": "add", "path": "a", "value": 1}], "not a JSON pointer"),
        ([{"op": "jump", "path": "/a"}], "unknown operation"),
    ],
)
def test_json_patch_refuses_what_cannot_be(operations: Any, message: str) -> None:
    """Each impossible operation is named."""
    with pytest.raises(InvalidError, match=message):
        json_patch({"a": 1, "l": []}, operations)


def test_strategic_patch_merges_keyed_lists() -> None:
    """Items with the same key merge, new ones are added, ``$patch: delete`` removes, sets unite."""
    target = {
        "metadata": {"finalizers": ["a"]},
        "status": {
            "devices": [
                {"driver": "d", "pool": "p", "device": "0", "data": 1},
                {"driver": "d", "pool": "p", "device": "1"},
            ]
        },
        "spec": {"plain": [1, 2]},
    }
    patch = {
        "metadata": {"finalizers": ["a", "b"]},
        "status": {
            "devices": [
                {"driver": "d", "pool": "p", "device": "0", "conditions": []},
                {"driver": "d", "pool": "p", "device": "1", "$patch": "delete"},
                {"driver": "d", "pool": "p", "device": "1", "shareID": "s"},
            ]
        },
        "spec": {"plain": [3], "new": {"x": 1}},
    }
    result = strategic_patch(target, patch)
    assert result["metadata"]["finalizers"] == ["a", "b"]
    assert result["status"]["devices"] == [
        {"driver": "d", "pool": "p", "device": "0", "data": 1, "conditions": []},
        {"driver": "d", "pool": "p", "device": "1", "shareID": "s"},
    ]
    assert result["spec"] == {"plain": [3], "new": {"x": 1}}


@pytest.fixture
def store() -> ObjectStore:
    """A cluster with one node that somebody else made."""
    store = ObjectStore(VirtualClock())
    store.create(NODES, {"metadata": {"name": "n", "labels": {"theirs": "1"}}})
    return store


def apply(store: ObjectStore, manager: str, labels: Obj, *, force: bool = False) -> dict[str, str]:
    """Apply labels to the node; returns its labels."""
    body = {"metadata": {"labels": labels}}
    node = store.patch(NODES, "n", body, patch_type="apply", field_manager=manager, force=force)
    found: dict[str, str] = node["metadata"].get("labels", {})
    return found


def test_apply_removes_what_is_not_wanted_any_more(store: ObjectStore) -> None:
    """A field that a manager stops applying goes, unless another owns it too."""
    assert apply(store, "us", {"a": "1", "b": "1"}) == {"theirs": "1", "a": "1", "b": "1"}
    apply(store, "them", {"b": "1"})
    assert apply(store, "us", {}) == {"theirs": "1", "b": "1"}
    assert apply(store, "them", {}) == {"theirs": "1"}


def test_apply_conflicts_unless_forced(store: ObjectStore) -> None:
    """Another value for another's field is a conflict that names both; force takes it over."""
    apply(store, "us", {"a": "1"})
    with pytest.raises(ConflictError, match=r'conflict with "us": \.metadata\.labels\.a'):
        apply(store, "them", {"a": "2"})
    with pytest.raises(ConflictError, match="before-first-apply"):
        apply(store, "us", {"a": "1", "theirs": "2"})
    assert apply(store, "them", {"a": "2"}, force=True)["a"] == "2"
    assert apply(store, "us", {})["a"] == "2"


def test_ordinary_writes_own_what_they_change(store: ObjectStore) -> None:
    """After a patch by someone else the field is theirs, and applying another value conflicts."""
    apply(store, "us", {"a": "1"})
    store.patch(NODES, "n", {"metadata": {"labels": {"a": "9"}}}, field_manager="kubectl")
    with pytest.raises(ConflictError, match="kubectl"):
        apply(store, "us", {"a": "1"})


def test_equal_applies_change_nothing(store: ObjectStore) -> None:
    """Applying the same again keeps the version; two managers may share equal values."""
    apply(store, "us", {"a": "1"})
    before = store.revision
    apply(store, "us", {"a": "1"})
    assert store.revision == before
    apply(store, "them", {"a": "1"})
    managers = {f["manager"] for f in store.get(NODES, "n")["metadata"]["managedFields"]}
    assert managers == {"before-first-apply", "us", "them"}


def test_apply_needs_a_manager_and_creates(store: ObjectStore) -> None:
    """Without a manager it is refused; a missing object is created in one step."""
    with pytest.raises(InvalidError, match="fieldManager is required"):
        store.patch(NODES, "n", {}, patch_type="apply")
    pod = store.patch(
        PODS, "p", {"spec": {"a": 1}}, namespace="x", patch_type="apply", field_manager="us"
    )
    assert pod["metadata"]["namespace"] == "x"
    assert len(store.events_since(PODS, 0)) == 1
    dry = {"patch_type": "apply", "field_manager": "us", "dry_run": True}
    store.patch(PODS, "q", {"spec": {}}, namespace="x", **dry)  # type: ignore[arg-type]
    assert len(store.list(PODS)) == 1


def test_device_statuses_of_two_drivers_do_not_clash(store: ObjectStore) -> None:
    """Each driver applies its own entry of status.devices and keeps the other's."""
    results = [{"request": "r", "driver": d, "pool": "p", "device": "0"} for d in ("a", "b")]
    store.seed(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "default"},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}},
        }
    )

    def report(driver: str, *devices: str, data: int = 0) -> list[Any]:
        entries = [{"driver": driver, "pool": "p", "device": d, "data": data} for d in devices]
        claim = store.patch(
            RESOURCE_CLAIMS,
            "c",
            {"status": {"devices": entries}},
            namespace="default",
            patch_type="apply",
            subresource="status",
            field_manager=driver,
        )
        found: list[Any] = claim["status"].get("devices", [])
        return found

    report("a", "0")
    assert len(report("b", "0", data=1)) == 2
    assert report("a", "0", data=5)[0]["data"] == 5
    assert [entry["driver"] for entry in report("a")] == ["b"]
