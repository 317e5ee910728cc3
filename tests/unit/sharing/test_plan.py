# SPDX-License-Identifier: Apache-2.0
"""Limits, variables, mounts and reports of shares."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.errors import ClaimError, DeviceInUseError, StateError
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.prepare import Step
from gpudra.driver.core.sharing import (
    Backend,
    NodeSharing,
    Places,
    Preload,
    Sharing,
    SharingPlan,
    exclusive_report,
    plan_sharing,
    replan,
    sharings,
)
from tests.support.plugin import uid
from tests.support.sharing import (
    EVERYTHING,
    allocation,
    asking,
    consumer,
    device,
    parts_of,
    share,
)

CARDS = [device(number) for number in range(3)]


def planned(
    *results: Mapping[str, Any],
    backend: Backend = Backend.HAMI_CORE,
    node: NodeSharing = EVERYTHING,
    devices: list[AllocatableDevice] | None = None,
    **more: Any,
) -> SharingPlan:
    """The plan of a claim whose devices all ask for one backend."""
    claim = allocation(*results)
    parts = parts_of(claim, devices or CARDS)
    return plan_sharing(claim, parts, node=node, asks=asking(parts, backend), **more)


def env_of(plan: SharingPlan) -> dict[str, str]:
    """The variables that a container sees which gets every device."""
    return {name: value for one in plan.edits.values() for name, value in one.env}


def test_a_hami_container_gets_its_limits_library_and_cache() -> None:
    """Exactly these variables and mounts, limits in MiB."""
    plan = planned(share(memory="10Gi", compute="30"))
    assert env_of(plan) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "10240m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/run/gpudra/hami-core/cache/usage.cache",
    }
    (edits,) = plan.edits.values()
    assert [(one.host_path, one.container_path, one.options[0]) for one in edits.mounts] == [
        ("/opt/libvgpu.so", "/run/gpudra/hami-core/libvgpu.so", "ro"),
        (f"/run/gpudra/hami-core/{uid(1)}/cache", "/run/gpudra/hami-core/cache", "rw"),
        (f"/run/gpudra/hami-core/{uid(1)}/ld.so.preload", "/etc/ld.so.preload", "ro"),
    ]


def test_the_library_can_come_by_variable() -> None:
    """Then /etc/ld.so.preload is left alone."""
    places = replace(EVERYTHING.places, preload=Preload.ENV)
    plan = planned(share(), node=replace(EVERYTHING, places=places))
    assert env_of(plan)["LD_PRELOAD"] == "/run/gpudra/hami-core/libvgpu.so"
    (edits,) = plan.edits.values()
    assert "/etc/ld.so.preload" not in [one.container_path for one in edits.mounts]


def test_no_compute_reserved_means_no_compute_variable() -> None:
    """0 would be read as a limit by one version and as none by another."""
    for amount in ("0", None):
        assert not [name for name in env_of(planned(share(compute=amount))) if "SM_LIMIT" in name]


def test_limits_are_numbered_as_cuda_numbers_the_cards() -> None:
    """By bus address; gpu-2 has the lowest one here. Different compute: one variable per card."""
    plan = planned(
        share(0, "10Gi", "10", request="a"),
        share(1, "20Gi", "0", request="b"),
        share(2, "30Gi", "50", request="c"),
    )
    env = env_of(plan)
    assert [env[f"CUDA_DEVICE_MEMORY_LIMIT_{index}"] for index in range(3)] == [
        "30720m",
        "20480m",
        "10240m",
    ]
    limits = {name: value for name, value in env.items() if "SM_LIMIT" in name}
    assert limits == {"CUDA_DEVICE_SM_LIMIT_0": "50", "CUDA_DEVICE_SM_LIMIT_2": "10"}
    assert len({one.env for one in plan.edits.values()}) == 1, "every device says the same"


def test_a_whole_card_beside_a_share_counts_for_the_index() -> None:
    """The share of gpu-0 is CUDA's second device, the whole gpu-1 has no limit."""
    claim = allocation(share(0), share(1, kind=DeviceKind.WHOLE, request="whole"))
    parts = parts_of(claim, [device(0), device(1, DeviceKind.WHOLE)])
    first = next(iter(parts))
    plan = plan_sharing(claim, parts, node=EVERYTHING, asks=asking([first], Backend.HAMI_CORE))
    env = env_of(plan)
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in env
    assert env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "10240m"
    assert len(plan.edits) == 2, "a container sees both, so both carry the variables"


def test_the_view_of_one_request_leaves_out_the_others() -> None:
    """A container that names request b sees one card, number 0."""
    uses = consumer(uses={"claim-1": ["b"]})
    plan = planned(share(0, request="a"), share(1, "1Gi", request="b"), consumers=[uses])
    assert env_of(plan)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    assert "CUDA_DEVICE_MEMORY_LIMIT_1" not in env_of(plan)
    assert [name for name in plan.edits if "gpu-1" in name] == list(plan.edits)


def test_two_shares_of_one_card_in_one_claim_add_up() -> None:
    """A container that sees both may use the sum; without a limit on one there is none."""
    two = [share(0, "10Gi", "30", request="a"), share(0, "5Gi", "20", request="b", share_id=2)]
    plan = planned(*two)
    assert [(one.memory_mib, one.compute) for one in plan.shares] == [(15 * 1024, 50)]
    assert len(plan.edits) == 2
    unlimited = planned(two[0], share(0, "5Gi", "0", request="b", share_id=2))
    assert unlimited.shares[0].compute == 0
    only = planned(*two, consumers=[consumer(uses={"claim-1": ["b"]})])
    assert [(one.memory_mib, one.compute) for one in only.shares] == [(5 * 1024, 20)]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (share(memory="0"), r"request gpu takes 0 of memory .*1Mi or more"),
        (share(memory=None), "takes no memory"),
        (share(memory="1000000"), "no whole number of MiB"),
        (share(memory="81Gi"), "has 81920Mi"),
        (share(compute="101"), "takes 101 of compute"),
        (share(compute="500m"), "whole per cent"),
        (share(compute="-1"), "takes -1 of compute"),
    ],
)
def test_amounts_that_cannot_be_are_refused(result: Mapping[str, Any], why: str) -> None:
    """A limit of nothing would be no limit at all, so nothing is guessed."""
    with pytest.raises(ClaimError, match=why) as raised:
        planned(result)
    assert "claim default/claim-1" in str(raised.value)


def test_an_mps_client_gets_pipe_shared_memory_and_its_limits() -> None:
    """The daemon serves one card, so it is always number 0."""
    plan = planned(share(1, "10Gi", "30"), backend=Backend.MPS)
    assert env_of(plan) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/gpudra/mps/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    (edits,) = plan.edits.values()
    assert [(one.host_path, one.container_path) for one in edits.mounts] == [
        ("/run/gpudra/mps/gpu-1-share/pipe", "/run/gpudra/mps/pipe"),
        ("/run/gpudra/mps/gpu-1-share/shm", "/dev/shm"),
    ]


def test_backends_without_limits_need_no_variables() -> None:
    """Time slices are the driver's, none is none."""
    for backend in (Backend.TIME_SLICE, Backend.NONE):
        plan = planned(share(), backend=backend)
        assert plan.edits == {}
        assert [one.kind for one in plan.steps] == [f"share-{backend}"]


def held(backend: Backend, time_slice: str = "default", card: str = "GPU-0") -> Any:
    """Another claim that shares a card."""
    one = Sharing(
        backend=backend,
        device="gpu-0-share",
        card=card,
        target=card,
        claim_uid=uid(2),
        memory_mib=1024,
        time_slice=time_slice,
    )
    return [("claim 2 (default/other)", [one.step(), Step(kind="cdi-file", args={})])]


def test_one_card_has_one_backend() -> None:
    """The second claim is refused, the holder named; other cards do not matter."""
    with pytest.raises(DeviceInUseError, match=r"by isolation mps for claim 2 \(default/other\)"):
        planned(share(), held=held(Backend.MPS))
    planned(share(), held=held(Backend.HAMI_CORE))
    planned(share(), held=held(Backend.MPS, card="GPU-9"))
    with pytest.raises(DeviceInUseError, match=r"time slices of length long for claim 2"):
        planned(share(), backend=Backend.TIME_SLICE, held=held(Backend.TIME_SLICE, "long"))


def test_one_claim_may_not_ask_for_two_backends_of_one_card() -> None:
    """Nor put a container under HAMi-core and MPS at once."""
    claim = allocation(share(0, request="a"), share(0, request="b", share_id=2))
    parts = parts_of(claim, CARDS)
    first, second = parts
    asks = asking([first], Backend.HAMI_CORE) | asking([second], Backend.NONE)
    with pytest.raises(ClaimError, match="shared by hami-core and by none"):
        plan_sharing(claim, parts, node=EVERYTHING, asks=asks)


def test_reports_tell_what_holds_and_what_does_not() -> None:
    """Isolated is true only where memory is limited."""
    told = {
        backend: next(iter(planned(share(compute="20"), backend=backend).reports.values()))
        for backend in Backend
    }
    assert {one: report.isolated for one, report in told.items()} == {
        Backend.MPS: True,
        Backend.HAMI_CORE: True,
        Backend.TIME_SLICE: False,
        Backend.NONE: False,
    }
    assert "10240 MiB" in told[Backend.HAMI_CORE].message
    assert "20 %" in told[Backend.MPS].message
    assert told[Backend.NONE].message == "not enforced: memory, compute"
    assert all(one.reason.isalpha() for one in told.values()), "no dash in a condition's reason"
    assert exclusive_report(DeviceKind.MIG).isolated
    assert not exclusive_report(DeviceKind.MONITOR).isolated


def test_a_plan_can_be_made_again_from_its_steps() -> None:
    """After a reboot nothing is chosen anew, and the edits are the same."""
    claim = allocation(share(0, "10Gi", "30", request="a"), share(1, request="b"))
    parts = parts_of(claim, CARDS)
    before = plan_sharing(claim, parts, node=EVERYTHING, asks=asking(parts, Backend.HAMI_CORE))
    after = replan(claim, parts, before.steps, EVERYTHING.places)
    assert after == before


@given(
    st.builds(
        Sharing,
        backend=st.sampled_from(Backend),
        device=st.text(),
        card=st.text(),
        target=st.text(),
        claim_uid=st.text(),
        memory_mib=st.none() | st.integers(min_value=1),
        compute=st.integers(0, 100),
        time_slice=st.text(),
        requests=st.lists(st.text()).map(tuple),
        partition=st.booleans(),
    )
)
def test_a_step_says_everything(one: Sharing) -> None:
    """Through the checkpoint's JSON and back."""
    step = Step.from_dict(one.step().to_dict())
    assert sharings([step]) == (one,)


def test_a_step_from_the_future_is_not_guessed() -> None:
    """An unknown backend or a missing field stops whoever would undo it."""
    for step in (Step(kind="share-magic", args={}), Step(kind="share-mps", args={"device": "a"})):
        with pytest.raises(StateError, match="cannot be understood"):
            sharings([step])


def test_places_are_below_one_folder() -> None:
    """What the agent has to mount is one path."""
    places = Places(runtime_dir="/r")
    assert places.hami_folder("u") == "/r/hami-core/u"
    assert places.mps_folder("d") == "/r/mps/d"
    assert places.time_slice_folder("d") == "/r/time-slice/d"
