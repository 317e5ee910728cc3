# SPDX-License-Identifier: Apache-2.0
"""Why a claim waits, in one word."""

from typing import Any

import pytest

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.accounting.facts import SHARE, Hold, Shapes, claim_fact
from gpudra.driver.core.accounting.pending import Judge, Reason
from gpudra.driver.core.accounting.pools import Account, count_pool
from gpudra.driver.core.forms import EVERYTHING

DRIVER = "gpu.gpudra.io"
SHAPES = Shapes(DRIVER)
FACTS = [
    SHAPES.slice_fact(one)
    for one in slices_of_hardware("l4-4x", driver=DRIVER, node_name="node-a", policy=EVERYTHING)
]
CLASSES = {
    DRIVER: (f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"',),
    "share.gpudra.io": (
        f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "share"',
    ),
    "nic.example": ('device.driver == "nic.example"',),
}


def claim(*requests: dict[str, Any], **metadata: str) -> ResourceClaim:
    """A claim that waits."""
    return ResourceClaim.from_dict(
        {
            "metadata": {
                "name": "c",
                "namespace": "n",
                "creationTimestamp": "2026-06-01T12:00:00Z",
                **metadata,
            },
            "spec": {"devices": {"requests": list(requests)}},
        }
    )


def exactly(device_class: str = DRIVER, **fields: Any) -> dict[str, Any]:
    """A request."""
    return {"name": "main", "exactly": {"deviceClassName": device_class, **fields}}


def selecting(expression: str) -> dict[str, Any]:
    """A request with a selector of its own."""
    return exactly(selectors=[{"cel": {"expression": expression}}])


def judged(wanted: ResourceClaim, *holds: Hold) -> Reason | None:
    """Why it waits on four L4, of which some are held."""
    account = Account()
    account.add(count_pool(FACTS, holds))
    return Judge(DRIVER, CLASSES, account).reason(claim_fact(wanted, DRIVER))


def held(form: str, count: int, memory: int = 0) -> list[Hold]:
    """That many devices of a form are held."""
    found = [one for fact in FACTS for one in fact.devices if one.shape.form == form]
    return [Hold("node-a", one.name, "c", memory) for one in found[:count]]


@pytest.mark.parametrize(
    ("wanted", "busy", "reason"),
    [
        (claim(exactly()), 0, Reason.WAITING),
        (claim(exactly()), 3, Reason.WAITING),
        (claim(exactly()), 4, Reason.IN_USE),
        (claim(exactly(count=2)), 3, Reason.IN_USE),
        (claim(exactly(count=5)), 0, Reason.NO_DEVICE),
        (claim(exactly("mine.gpudra.io")), 0, Reason.NO_CLASS),
        (claim(exactly("unheard.example")), 0, None),
        (claim(exactly("nic.example")), 0, None),
        (claim(selecting(f'device.attributes["{DRIVER}"].productName == "x"')), 0, Reason.NO_DEVICE),
        (claim(selecting("this is no CEL")), 0, Reason.NO_DEVICE),
        (claim(exactly(), exactly(count=5)), 0, Reason.NO_DEVICE),
        (claim(exactly(allocationMode="All")), 0, Reason.WAITING),
        (claim(exactly(adminAccess=True)), 4, None),
        (claim(exactly(), deletionTimestamp="2026-06-01T12:00:00Z"), 4, None),
    ],
)  # fmt: skip
def test_the_reason_fits(wanted: ResourceClaim, busy: int, reason: Reason | None) -> None:
    """The most final reason of its requests; nothing for other drivers' claims."""
    assert judged(wanted, *held("gpu", busy)) == reason


def test_of_alternatives_the_best_counts() -> None:
    """FirstAvailable waits as long as its most hopeful alternative."""
    wanted = claim(
        {
            "name": "main",
            "firstAvailable": [
                {"name": "many", "deviceClassName": DRIVER, "count": 9},
                {"name": "one", "deviceClassName": DRIVER},
            ],
        }
    )
    assert judged(wanted) == Reason.WAITING
    assert judged(wanted, *held("gpu", 4)) == Reason.IN_USE


def test_a_share_needs_a_card_with_as_much_left() -> None:
    """Four cards with 4 GiB each left are no room for 8 GiB, and one that is too large never fits."""
    size = next(
        one.shape.memory for fact in FACTS for one in fact.devices if one.shape.form == SHARE
    )
    gib = 2**30
    wanted = claim(exactly("share.gpudra.io", capacity={"requests": {"memory": "8Gi"}}))
    busy = held(SHARE, 4, size - 4 * gib)
    assert judged(wanted) == Reason.WAITING
    assert judged(wanted, *busy) == Reason.IN_USE
    assert judged(wanted, *busy[:3]) == Reason.WAITING
    huge = claim(exactly("share.gpudra.io", capacity={"requests": {"memory": "800Gi"}}))
    assert judged(huge) == Reason.NO_DEVICE


def test_an_allocated_claim_holds_and_does_not_wait() -> None:
    """Devices of ours by class, shares with what they consume; admin access and others' left out."""
    raw = claim(exactly()).to_dict()
    result = {"driver": DRIVER, "pool": "node-a", "device": "gpu-1"}
    raw["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {**result, "request": "main", "consumedCapacity": {f"{DRIVER}/memory": "1Gi"}},
                    {**result, "request": "main", "adminAccess": True},
                    {**result, "request": "main", "driver": "nic.example"},
                ]
            },
            "allocationTimestamp": "2026-06-01T12:00:10Z",
        }
    }
    fact = claim_fact(ResourceClaim.from_dict(raw), DRIVER)
    assert fact.holds == (Hold("node-a", "gpu-1", DRIVER, 2**30, 0),)
    assert (fact.waits, fact.wishes, fact.allocated - fact.created) == (False, (), 10.0)
