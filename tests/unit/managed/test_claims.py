# SPDX-License-Identifier: Apache-2.0
"""Which write a claim needs next: from every state that a crash can leave."""

from typing import Any

import pytest

from gpudra.api.resource_v1 import FINALIZER, AllocationResult, ResourceClaim
from gpudra.controller.managed.claims import Refused, Step, next_step, undo_step
from gpudra.driver.core.managed import ClaimPlacement, PodRef

DEVICE = {"request": "gpu", "driver": "gpu.gpudra.io", "pool": "n", "device": "gpu-0"}
ALLOCATION = AllocationResult.from_dict({"devices": {"results": [DEVICE]}})
OTHER = AllocationResult.from_dict({"devices": {"results": [{**DEVICE, "device": "gpu-1"}]}})
WANTED = ClaimPlacement("team", "c", "u", ALLOCATION, (PodRef("p", "pod-1"), PodRef("q", "pod-2")))


def claim(
    *pods: str, finalizer: bool = True, allocation: AllocationResult | None = None, **meta: Any
) -> ResourceClaim:
    """A claim as it may be found."""
    status: dict[str, Any] = {
        "reservedFor": [{"resource": "pods", "name": one, "uid": one} for one in pods]
    }
    if allocation is not None:
        status["allocation"] = allocation.to_dict()
    metadata = {
        "name": "c",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "7",
        "finalizers": [FINALIZER] if finalizer else [],
        **meta,
    }
    return ResourceClaim.from_dict({"metadata": metadata, "spec": {}, "status": status})


def step(found: object) -> Step:
    """The step that it is."""
    assert isinstance(found, Step), found
    return found


def test_the_finalizer_comes_first_and_others_stay() -> None:
    """Its patch names the version that it was decided upon."""
    found = step(next_step(claim(finalizer=False, finalizers=["x/y"]), WANTED))
    assert not found.status
    assert found.body == {"metadata": {"resourceVersion": "7", "finalizers": ["x/y", FINALIZER]}}


def test_then_devices_and_pods_in_one_write() -> None:
    """Allocation and reservations go together: neither is ever seen alone."""
    found = step(next_step(claim(), WANTED))
    assert found.status
    assert found.allocates
    status = found.body["status"]
    assert status["allocation"] == ALLOCATION.to_dict()
    assert [one["uid"] for one in status["reservedFor"]] == ["pod-1", "pod-2"]
    assert found.body["metadata"] == {"resourceVersion": "7"}


def test_a_claim_that_another_leader_has_written_is_done() -> None:
    """The same devices for the same pods need no write at all."""
    assert next_step(claim("pod-1", "pod-2", allocation=ALLOCATION), WANTED) is None


def test_a_claim_in_use_gets_the_new_pods_only() -> None:
    """The allocation is not written again, and nobody loses his reservation."""
    found = step(next_step(claim("pod-9", "pod-1", allocation=ALLOCATION), WANTED))
    assert not found.allocates
    assert "allocation" not in found.body["status"]
    assert [one["uid"] for one in found.body["status"]["reservedFor"]] == [
        "pod-9",
        "pod-1",
        "pod-2",
    ]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (claim("pod-1", allocation=OTHER), "allocated otherwise"),
        (claim(deletionTimestamp="2026-01-01T00:00:00Z"), "being deleted"),
    ],
)
def test_what_cannot_be_had_is_refused(found: ResourceClaim, why: str) -> None:
    """Nothing is written over."""
    refused = next_step(found, WANTED)
    assert isinstance(refused, Refused)
    assert why in refused.reason


def test_taking_back_clears_what_only_these_pods_have() -> None:
    """In one write, since the API refuses reservations without an allocation."""
    found = undo_step(claim("pod-1", "pod-2", allocation=ALLOCATION), {"pod-1", "pod-2"})
    assert found is not None
    assert found.status
    assert found.body["status"] == {"reservedFor": None, "allocation": None}


def test_taking_back_leaves_others_what_they_use() -> None:
    """A pod of another job keeps its devices."""
    found = undo_step(claim("pod-1", "pod-9", allocation=ALLOCATION), {"pod-1"})
    assert found is not None
    assert [one["uid"] for one in found.body["status"]["reservedFor"]] == ["pod-9"]
    assert "allocation" not in found.body["status"]


def test_nothing_to_take_back_is_no_write() -> None:
    """Neither from a claim without devices nor from one that only others use."""
    assert undo_step(claim(), {"pod-1"}) is None
    assert undo_step(claim("pod-9", allocation=ALLOCATION), {"pod-1"}) is None
