# SPDX-License-Identifier: Apache-2.0
"""Limits in configuration of claims, and the page that is made from its models."""

from typing import Any

import pytest

from gpudra.api.config.v1alpha1 import API_VERSION, decode_stored, decode_user
from gpudra.api.errors import ClaimError, InputError
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.sharing import Ask, Backend, ask_of, plan_sharing
from tests.support.sharing import EVERYTHING, allocation, card, device, parts_of, share
from tools import config_docs

UUID = "GPU-0f01d861-80c1-5881-8bfc-0ebb3e92ac5e"


def mps(kind: str = "GpuConfig", **limits: Any) -> dict[str, Any]:
    """Parameters that ask for MPS."""
    sharing = {"isolation": "mps", "mps": limits}
    return {"apiVersion": API_VERSION, "kind": kind, "sharing": sharing}


@pytest.mark.parametrize(
    ("limits", "field", "told"),
    [
        ({"activeThreadPercentage": 0}, "activeThreadPercentage", "greater than or equal to 1"),
        ({"activeThreadPercentage": 101}, "activeThreadPercentage", "less than or equal to 100"),
        ({"activeThreadPercentage": "30"}, "activeThreadPercentage", "valid integer"),
        ({"activeThreadPercentage": 30.5}, "activeThreadPercentage", "valid integer"),
        ({"pinnedMemoryLimit": "10GB"}, "pinnedMemoryLimit", "write it as 512Mi or 10Gi"),
        ({"pinnedMemoryLimit": "10G"}, "pinnedMemoryLimit", "no whole number of MiB"),
        ({"pinnedMemoryLimit": "0"}, "pinnedMemoryLimit", "less than 1Mi"),
        ({"pinnedMemoryLimit": "-1Gi"}, "pinnedMemoryLimit", "less than 1Mi"),
        ({"pinnedMemoryLimit": 1024}, "pinnedMemoryLimit", "valid string"),
        ({"pinnedMemoryLimit": None}, "pinnedMemoryLimit", "is null"),
        ({"pinnedMemoryLimits": {"0": "1Gi"}}, "pinnedMemoryLimits.0.[key]", "not the uuid"),
        ({"pinnedMemoryLimits": {UUID: "1"}}, f"pinnedMemoryLimits.{UUID}", "no whole number"),
    ],
)
def test_each_wrong_limit_is_named(limits: dict[str, Any], field: str, told: str) -> None:
    """By its field, with what to write instead."""
    for kind in ("GpuConfig", "MigConfig"):
        with pytest.raises(InputError, match=told) as raised:
            decode_user(mps(kind, **limits))
        assert raised.value.field == f"sharing.mps.{field}"


def test_limits_go_with_their_backend_only() -> None:
    """Elsewhere they would be dropped without a word."""
    for name, value, isolation in (("mps", {}, "none"), ("timeSlice", "long", "mps")):
        raw = mps() | {"sharing": {"isolation": isolation, name: value}}
        with pytest.raises(InputError, match="means something only with isolation") as raised:
            decode_user(raw)
        assert raised.value.field == f"sharing.{name}"


def test_stored_limits_of_a_newer_version_are_read() -> None:
    """Unknown fields inside a nested object are dropped, too."""
    found = decode_stored(mps(activeThreadPercentage=30, novelty=1))
    assert ask_of(found) == Ask(isolation=Backend.MPS, compute=30)


def test_limits_reach_the_client_of_a_whole_card() -> None:
    """One device's own limit goes before the common one."""
    claim = allocation(share(0, kind=DeviceKind.WHOLE))
    parts = parts_of(claim, [device(0, DeviceKind.WHOLE, uuid=UUID)])
    ask = ask_of(
        decode_user(
            mps(
                activeThreadPercentage=50,
                pinnedMemoryLimit="10Gi",
                pinnedMemoryLimits={UUID: "20Gi"},
            )
        )
    )
    plan = plan_sharing(claim, parts, node=EVERYTHING, asks=dict.fromkeys(parts, ask))
    env = dict(next(iter(plan.edits.values())).env)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"


def test_a_limit_for_a_card_that_the_claim_did_not_get_is_refused() -> None:
    """It would limit nothing; the uuid is named."""
    claim = allocation(share(0, kind=DeviceKind.WHOLE))
    parts = parts_of(claim, [device(0, DeviceKind.WHOLE)])
    assert card(0).uuid != UUID
    ask = Ask(isolation=Backend.MPS, memory_by_uuid={UUID: 1})
    with pytest.raises(ClaimError, match=f"names {UUID}, which is none of the claim's"):
        plan_sharing(claim, parts, node=EVERYTHING, asks=dict.fromkeys(parts, ask))


def test_no_configuration_asks_for_nothing() -> None:
    """The node decides."""
    assert ask_of(None) == Ask()
    raw = {"apiVersion": API_VERSION, "kind": "ShareConfig", "sharing": {"isolation": "hami-core"}}
    assert ask_of(decode_user(raw)) == Ask(isolation=Backend.HAMI_CORE)
    raw["sharing"] = {"isolation": "time-slice", "timeSlice": "short"}
    assert ask_of(decode_user(raw)) == Ask(isolation=Backend.TIME_SLICE, time_slice="short")


def test_the_page_is_what_the_models_say() -> None:
    """Stale: run python -m tools.config_docs."""
    assert config_docs.PAGE.read_text(encoding="utf-8") == config_docs.page()


def test_every_field_is_explained_and_every_kind_has_an_example() -> None:
    """The examples are checked by the models while the page is made."""
    rows = [row for row in config_docs.section().splitlines() if row.startswith("| `")]
    assert rows
    assert not [row for row in rows if row.endswith("|  |")]
