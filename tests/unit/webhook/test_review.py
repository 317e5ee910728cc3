# SPDX-License-Identifier: Apache-2.0
"""Answers to AdmissionReviews, with bodies as the API server sends them."""

from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.configcheck import Rules
from gpudra.controller.webhook import review

DRIVER = "gpu.gpudra.io"
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
GROUP = "resource.k8s.io"
RESOURCES = {
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
    "Pod": "pods",
}


def body(
    kind: str, found: dict[str, Any] | None, operation: str = "CREATE", **more: Any
) -> dict[str, Any]:
    """A whole AdmissionReview."""
    resource = {"group": GROUP, "version": "v1", "resource": RESOURCES[kind]}
    named = {"group": GROUP, "version": "v1", "kind": kind}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": UID,
            "kind": named,
            "resource": resource,
            "requestKind": named,
            "requestResource": resource,
            "name": "training",
            "namespace": "team-a",
            "operation": operation,
            "userInfo": {"username": "jane", "uid": "1", "groups": ["system:authenticated"]},
            "object": found,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **more,
        },
    }


def spec(sharing: dict[str, Any], memory: str = "10Gi") -> dict[str, Any]:
    """A claim's spec with a share and its configuration."""
    parameters = {"apiVersion": "gpudra.io/v1alpha1", "kind": "ShareConfig", "sharing": sharing}
    exactly = {
        "deviceClassName": "share.gpudra.io",
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": {"requests": {f"{DRIVER}/memory": memory}},
    }
    return {
        "devices": {
            "requests": [{"name": "gpu", "exactly": exactly}],
            "config": [
                {"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}
            ],
        }
    }


def made(kind: str, **content: Any) -> dict[str, Any]:
    """An object of a kind, around a claim's spec."""
    meta = {"name": "training", "namespace": "team-a", "uid": "1"}
    inner = spec(**content)
    outer = {
        "ResourceClaim": inner,
        "ResourceClaimTemplate": {"spec": inner},
        "DeviceClass": {"config": [{"opaque": inner["devices"]["config"][0]["opaque"]}]},
    }[kind]
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": meta, "spec": outer}


def answer(raw: Any) -> dict[str, Any]:
    """The response inside the answer, after its frame was looked at."""
    found = review(raw, Rules(driver=DRIVER))
    assert (found["kind"], found["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    assert found["response"]["uid"] == UID
    response: dict[str, Any] = found["response"]
    return response


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
def test_what_nodes_take_is_allowed(kind: str) -> None:
    """With nothing to say about it."""
    good = made(kind, sharing={"isolation": "hami-core"})
    assert answer(body(kind, good)) == {"uid": UID, "allowed": True}


CONFIG = "config[0].opaque.parameters.sharing"
PLACES = {
    "ResourceClaim": f"spec.devices.{CONFIG}",
    "ResourceClaimTemplate": f"spec.spec.devices.{CONFIG}",
    "DeviceClass": f"spec.{CONFIG}",
}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    ("sharing", "field"),
    [
        ({"isolation": "hami"}, ".isolation"),
        ({"isolatoin": "mps"}, ".isolatoin"),
        ({"isolation": "time-slice", "timeSlice": "eternal"}, ".timeSlice"),
    ],
)
def test_a_bad_configuration_is_refused_with_its_field(
    kind: str, sharing: dict[str, Any], field: str
) -> None:
    """The path leads through the whole object that was sent."""
    found = answer(body(kind, made(kind, sharing=sharing)))
    assert found["allowed"] is False
    assert found["status"]["code"] == 422
    assert found["status"]["reason"] == "Invalid"
    assert PLACES[kind] + field in found["status"]["message"]


def test_amounts_of_shares_are_looked_at() -> None:
    """A share of nothing would be refused by the node much later."""
    message = answer(body("ResourceClaim", made("ResourceClaim", sharing={}, memory="0")))[
        "status"
    ]["message"]
    assert "spec.devices.requests[0].exactly.capacity.requests" in message
    assert "is no share" in message


def test_several_problems_come_at_once_up_to_a_bound() -> None:
    """A person should not have to try nine times; a message should stay readable."""
    bad = made("ResourceClaim", sharing={"isolation": "hami"})
    bad["spec"]["devices"]["config"] *= 12
    message = answer(body("ResourceClaim", bad))["status"]["message"]
    assert "config[0]" in message
    assert "config[7]" in message
    assert "config[8]" not in message
    assert message.endswith("and 4 more")


def test_configuration_of_other_drivers_is_none_of_ours() -> None:
    """Whatever it says."""
    other = made("ResourceClaim", sharing={"isolation": "hami"})
    other["spec"]["devices"]["config"][0]["opaque"]["driver"] = "gpu.example.com"
    assert answer(body("ResourceClaim", other))["allowed"] is True


def test_what_was_accepted_before_stays_editable() -> None:
    """A newer version may think otherwise of it; finalizers have to go all the same."""
    old = made("ResourceClaim", sharing={"isolation": "hami"})
    new = {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    assert answer(body("ResourceClaim", new, "UPDATE", oldObject=old))["allowed"] is True


def test_a_class_that_changes_is_looked_at() -> None:
    """Its spec is the only one of the three that can change."""
    old = made("DeviceClass", sharing={"isolation": "mps"})
    new = made("DeviceClass", sharing={"isolation": "hami"})
    assert answer(body("DeviceClass", new, "UPDATE", oldObject=old))["allowed"] is False


def test_deletions_and_other_kinds_are_let_through() -> None:
    """A webhook that is registered too widely does no harm."""
    old = made("ResourceClaim", sharing={"isolation": "hami"})
    assert answer(body("ResourceClaim", None, "DELETE", oldObject=old))["allowed"] is True
    assert answer(body("Pod", {"kind": "Pod", "spec": {}}))["allowed"] is True


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"spec": None},
        {"spec": {"devices": []}},
        {"spec": {"devices": {"requests": 3, "config": "x"}}},
        {"spec": {"devices": {"requests": [None, 7], "config": [{"opaque": None}]}}},
    ],
)
def test_odd_objects_are_left_to_the_api_server(found: dict[str, Any]) -> None:
    """It has rules of its own for their shape, and better words."""
    assert answer(body("ResourceClaim", found))["allowed"] is True


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"request": {}},
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
        {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": UID}},
    ],
)
def test_what_is_no_review_is_an_error(raw: Any) -> None:
    """Said to whoever calls, who then goes by the failure policy."""
    with pytest.raises(InputError, match="no AdmissionReview"):
        review(raw, Rules(driver=DRIVER))
