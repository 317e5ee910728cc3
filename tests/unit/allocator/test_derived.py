# SPDX-License-Identifier: Apache-2.0
"""Derived attributes beyond single answers: explanations, relaxations, and what is shared."""

from typing import Any

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.ctl.objects import objects_of
from gpudra.driver.core.allocator import ClusterIndex, Outcome, explain_claims
from gpudra.driver.core.cel import compile_attribute

DRIVER = "gpu.example.com"
NUMA = f'device.attributes["{DRIVER}"].numa'


def _object(kind: str, name: str, spec: Any, version: str = "resource.k8s.io/v1") -> Any:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _index(*attributes: dict[str, Any]) -> ClusterIndex:
    """Nodes node-0, node-1 … with one GPU per value of ``numa`` (None for none)."""
    raws = [_object("DeviceClass", DRIVER, {})]
    for number, own in enumerate(attributes):
        name = f"node-{number}"
        raws.append(_object("Node", name, {}, "v1"))
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [
            {"name": device, "attributes": {} if numa is None else {"numa": {"int": numa}}}
            for device, numa in own.items()
        ]
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        raws.append(_object("ResourceSlice", name, spec))
    found = objects_of(raws)
    return ClusterIndex.of(nodes=found.nodes, slices=found.slices, classes=found.classes)


def _claim(expression: str, count: int = 2) -> ResourceClaim:
    derived = [{"name": "example.com/x", "expression": expression}]
    exactly = {"deviceClassName": DRIVER, "count": count, "derivedAttributes": derived}
    devices = {
        "requests": [{"name": "gpu", "exactly": exactly}],
        "constraints": [{"matchAttribute": "example.com/x"}],
    }
    return objects_of([_object("ResourceClaim", "asks", {"devices": devices})]).claims[0]


def test_explanation_shows_the_derived_value() -> None:
    """An unmet constraint is explained with what the expression gave."""
    found = explain_claims(_index({"a": 0, "b": 1}), [_claim(f"{NUMA} * 10 + 5")], "node-0")
    assert found.binding == (
        "a constraint cannot be met: matchAttribute example.com/x: 1 available devices have 5, "
        "2 are wanted"
    )


def test_explanation_names_the_expression_that_fails() -> None:
    """Devices on which an expression fails are told apart from those that merely do not match."""
    found = explain_claims(_index({"a": 0, "b": None}), [_claim(NUMA)], "node-0")
    assert found.answer.outcome is Outcome.CLAIM_ERROR
    reasons = {one.device.rpartition("/")[2]: one for one in found.reasons}
    assert reasons["b"].reason == "selector-error"
    assert f"derived attribute example.com/x: {NUMA}" in reasons["b"].detail
    assert reasons["a"].reason == "constraint"


def test_relaxation_drops_the_derived_attribute_with_its_constraint() -> None:
    """The API server refuses derived attributes that no constraint compares."""
    found = explain_claims(_index({"a": 0, "b": 1}), [_claim(NUMA)], "node-0", relax=True)
    dropped = [one for one in found.relaxations if one.change.value == "constraint"]
    (text,) = [one.text for one in dropped]
    assert text.endswith(
        "drop the constraint matchAttribute example.com/x and its derivedAttributes"
    )
    exactly = dropped[0].claims[0].spec.devices.requests[0].exactly
    assert exactly is not None
    assert exactly.derived_attributes == ()


def test_claims_that_derive_differently_do_not_share_answers() -> None:
    """The same index answers each expression for itself, in whatever order."""
    index = _index({"a": 0, "b": 1})
    for _ in range(2):
        assert index.allocate([_claim("1")], "node-0").fits
        assert not index.allocate([_claim(NUMA)], "node-0").fits


def test_nodes_that_derive_differently_do_not_share_answers() -> None:
    """Equal patterns of published values may derive to different patterns."""
    index = _index({"a": 0, "b": 1}, {"a": 2, "b": 3}, {"a": 1, "b": 2})
    answers = index.everywhere([_claim(f"{NUMA} / 2")])
    assert answers.fitting() == ["node-0", "node-1"]


def test_costs_of_a_claim_are_added_up() -> None:
    """One expression below the limit is taken, the same one several times is not."""
    own = f'device.attributes["{DRIVER}"].l'
    loops = f'{own}.exists(a, {own}.exists(b, b == "x"))'
    text = f"{loops} || {loops}"
    cost = compile_attribute(text).cost_estimate
    assert cost <= 1_000_000 < 32 * cost
    claim = _claim(text, count=1).to_dict()
    (request,) = claim["spec"]["devices"]["requests"]
    request["exactly"]["derivedAttributes"] = [
        {"name": f"example.com/x{i}", "expression": text} for i in range(1_000_000 // cost)
    ]
    index = _index({"a": 0})
    assert "allowed" not in index.allocate([ResourceClaim.from_dict(claim)], "node-0").message
    request["exactly"]["derivedAttributes"].append({"name": "example.com/y", "expression": text})
    answer = index.allocate([ResourceClaim.from_dict(claim)], "node-0")
    assert answer.outcome is Outcome.CLAIM_ERROR
    assert "1000000 are allowed per claim" in answer.message
