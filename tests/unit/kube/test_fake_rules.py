# SPDX-License-Identifier: Apache-2.0
"""Selectors, limits and injected trouble of the fake server."""

from typing import Any

import pytest

from gpudra.api.errors import InvalidError, TooManyRequestsError
from gpudra.driver.kube.fakeserver.faults import Faults
from gpudra.driver.kube.fakeserver.selectors import (
    field_predicate,
    label_predicate,
    matches_label_selector,
)
from gpudra.driver.kube.fakeserver.validation import validate_claim, validate_slice
from gpudra.driver.kube.resources import Obj

LABELLED: Obj = {
    "metadata": {"name": "x", "labels": {"app": "gpu", "tier": "1"}},
    "spec": {"on": True},
}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ("", True),
        ("app=gpu", True),
        ("app==gpu,tier=1", True),
        ("app!=gpu", False),
        ("other!=x", True),
        ("app in (cpu, gpu)", True),
        ("app notin (cpu,gpu),tier", False),
        ("other notin (a)", True),
        ("tier", True),
        ("!tier", False),
        ("!other,app", True),
    ],
)
def test_label_selectors(selector: str, fits: bool) -> None:
    """Every form of a label selector is understood."""
    predicate = label_predicate(selector)
    assert (predicate is None or predicate(LABELLED)) == fits


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ("metadata.name=x", True),
        ("metadata.name!=x", False),
        ("metadata.namespace=", True),
        ("spec.on=true", True),
        ("spec.on=true,metadata.name=y", False),
    ],
)
def test_field_selectors(selector: str, fits: bool) -> None:
    """Name and namespace are always selectable, further fields where the kind offers them."""
    predicate = field_predicate(selector, ["spec.on"])
    assert predicate is not None
    assert predicate(LABELLED) == fits


def test_selectors_that_cannot_be_are_refused() -> None:
    """Bad syntax and fields that are not offered answer 400."""
    for make in (
        lambda: label_predicate("a=(b"),
        lambda: field_predicate("spec.node=x", ["spec.nodeName"]),
        lambda: field_predicate("spec.nodeName", ["spec.nodeName"]),
    ):
        with pytest.raises(InvalidError) as caught:
            make()
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "gpu"}}, True),
        ({"matchLabels": {"app": "cpu"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["gpu"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["gpu"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selector_objects(selector: Obj | None, fits: bool) -> None:
    """A selector object means what it means in a disruption budget."""
    assert matches_label_selector(selector, LABELLED["metadata"]["labels"]) == fits


def slice_with(*devices: Obj, **spec: Any) -> Obj:
    """A slice."""
    base = {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    return {"metadata": {"name": "s"}, "spec": {**base, **spec}}


def fields(causes: list[tuple[str, str]]) -> list[str]:
    """The fields that were refused."""
    return [field for field, _ in causes]


def test_a_good_slice_passes() -> None:
    """128 plain devices are fine, 64 with counters too."""
    plain = [{"name": f"d{i}"} for i in range(128)]
    assert validate_slice(slice_with(*plain), None) == []
    counting = [{"name": f"d{i}", "consumesCounters": [{}]} for i in range(64)]
    assert validate_slice(slice_with(*counting), None) == []


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (slice_with(*[{"name": f"d{i}"} for i in range(129)]), "spec.devices"),
        (slice_with(*[{"name": f"d{i}", "taints": [{}]} for i in range(65)]), "spec.devices"),
        (slice_with({"name": "a"}, {"name": "a"}), "spec.devices[1].name"),
        (slice_with({}), "spec.devices[0].name"),
        (
            slice_with({"name": "a", "attributes": {f"a{i}": {} for i in range(33)}}),
            "spec.devices[0]",
        ),
        (
            slice_with({"name": "a", "consumesCounters": [{}] * 3}),
            "spec.devices[0].consumesCounters",
        ),
        (slice_with(sharedCounters=[{"counters": {"a": {}}}] * 9), "spec.sharedCounters"),
        (slice_with(sharedCounters=[{"counters": {}}]), "spec.sharedCounters[0].counters"),
        (slice_with({"name": "a"}, sharedCounters=[{"counters": {"a": {}}}]), "spec"),
        (slice_with(allNodes=True), "spec"),
        (slice_with(driver=""), "spec.driver"),
        (slice_with(pool={}), "spec.pool.name"),
    ],
)
def test_limits_of_a_slice(obj: Obj, field: str) -> None:
    """Each limit and required field of a slice is named when broken."""
    assert field in fields(validate_slice(obj, None))


def test_a_slice_keeps_its_identity() -> None:
    """Driver, pool name and node never change."""
    old = slice_with()
    new = slice_with(driver="e", nodeName="m", pool={"name": "m", "resourceSliceCount": 1})
    assert fields(validate_slice(new, old)) == ["spec.driver", "spec.pool.name", "spec.nodeName"]


def test_a_claim_keeps_spec_and_allocation() -> None:
    """Spec and allocation are immutable; the allocation may be cleared."""
    allocation = {"devices": {"results": [{"driver": "d", "pool": "p", "device": "0"}]}}
    old: Obj = {"metadata": {}, "spec": {"a": 1}, "status": {"allocation": allocation}}
    assert fields(validate_claim({**old, "spec": {"a": 2}}, old)) == ["spec"]
    other = {"allocation": {"devices": {"results": []}}}
    assert fields(validate_claim({**old, "status": other}, old)) == ["status.allocation"]
    assert validate_claim({**old, "status": {}}, old) == []


def test_a_claim_status_is_limited() -> None:
    """Too many results or reservations, foreign devices and late reservations are refused."""
    results = [{"driver": "d", "pool": "p", "device": str(i)} for i in range(33)]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"uid": str(i)} for i in range(257)],
        "devices": [{"driver": "d", "pool": "p", "device": "other"}],
    }
    claim: Obj = {"metadata": {}, "spec": {}, "status": status}
    assert fields(validate_claim(claim, None)) == [
        "status.reservedFor",
        "status.allocation.devices.results",
        "status.devices[0]",
    ]
    going: Obj = {
        "metadata": {"deletionTimestamp": "x"},
        "spec": {},
        "status": {"allocation": {}, "reservedFor": [{"uid": "new"}]},
    }
    before = {"metadata": {}, "spec": {}, "status": {"allocation": {}}}
    assert fields(validate_claim(going, before)) == ["status.reservedFor"]


def test_trouble_comes_as_often_as_ordered() -> None:
    """Rules fit by verb and kind, run out, and are cleared."""
    faults = Faults()
    faults.fail(verb="get", resource="pods", status=429, retry_after=3, times=2)
    assert faults.failure("list", "pods") is None
    assert faults.failure("get", "nodes") is None
    errors = [faults.failure("get", "pods") for _ in range(3)]
    assert isinstance(errors[0], TooManyRequestsError)
    assert errors[0].retry_after == 3
    assert errors[2] is None
    faults.delay(2.0, times=None)
    assert [faults.latency("get", "pods") for _ in range(2)] == [2.0, 2.0]
    faults.unavailable()
    assert faults.failure("get", "x") is not None
    faults.clear()
    assert faults.failure("get", "x") is None
    assert faults.latency("get", "pods") == 0.0
