# SPDX-License-Identifier: Apache-2.0
"""One line a claim: its state, what it asked for, what it got."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.ctl.claims import age_text, claim_row, on_node, state_of

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
RESULT = {"request": "main", "driver": "gpu.gpudra.io", "pool": "n1", "device": "gpu-a"}
USER = {"resource": "pods", "name": "p", "uid": "1"}


def claim(status: dict[str, Any] | None = None, **metadata: Any) -> ResourceClaim:
    """A claim for two GPUs, or one of another kind."""
    request = {"deviceClassName": "gpu.gpudra.io", "allocationMode": "ExactCount", "count": 2}
    choices = [
        {"name": "big", "deviceClassName": "a"},
        {"name": "all", "deviceClassName": "b", "allocationMode": "All"},
    ]
    return ResourceClaim.from_dict(
        {
            "metadata": {"name": "c", "namespace": "default", **metadata},
            "spec": {
                "devices": {
                    "requests": [
                        {"name": "main", "exactly": request},
                        {"name": "extra", "firstAvailable": choices},
                    ]
                }
            },
            "status": status or {},
        }
    )


@pytest.mark.parametrize(
    ("status", "metadata", "state"),
    [
        ({}, {}, "Pending"),
        ({"allocation": {"devices": {"results": [RESULT]}}}, {}, "Allocated"),
        ({"allocation": {}, "reservedFor": [USER]}, {}, "InUse"),
        ({"allocation": {}}, {"deletionTimestamp": "2026-11-30T00:00:00Z"}, "Deleting"),
    ],
)
def test_the_state_is_one_word(
    status: dict[str, Any], metadata: dict[str, Any], state: str
) -> None:
    """Pending, Allocated, InUse, Deleting, in the order of a claim's life."""
    assert state_of(claim(status, **metadata)) == state


def test_a_row_tells_requests_devices_and_users() -> None:
    """Requests with amount and class, devices with pool and what they take, pods by name."""
    result = {**RESULT, "consumedCapacity": {"memory": "10Gi"}}
    row = claim_row(
        claim(
            {"allocation": {"devices": {"results": [result]}}, "reservedFor": [USER]},
            creationTimestamp="2026-11-30T11:50:00Z",
        ),
        NOW,
    )
    assert row == (
        "default",
        "c",
        "InUse",
        "main: 2 gpu.gpudra.io, extra: 1 a or all b",
        "n1/gpu-a[memory=10Gi]",
        "p",
        "10m",
    )


def test_a_claim_belongs_to_the_nodes_of_its_devices() -> None:
    """``--node`` shows claims with a device of that pool."""
    held = claim({"allocation": {"devices": {"results": [RESULT]}}})
    assert on_node(held, "n1")
    assert not on_node(held, "n2")
    assert not on_node(claim(), "n1")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200_000, "2d")]
)
def test_age_is_told_in_its_largest_unit(seconds: int, text: str) -> None:
    """As kubectl does; a clock that runs ahead gives zero."""
    created = (NOW - timedelta(seconds=seconds)).isoformat()
    assert age_text(created, NOW) == text
    assert age_text((NOW + timedelta(seconds=9)).isoformat(), NOW) == "0s"
