# SPDX-License-Identifier: Apache-2.0
"""The prepare plan: which devices, what they hold, what the container sees, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from gpudra.api.errors import ClaimError, InputError
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core import prepare
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.edits import ContainerEdits, DeviceNode
from gpudra.driver.core.inventory import Gpu, MigInfo, MigInstance, MigProfile, Placement
from gpudra.driver.core.prepare import Hold
from tests.support.plugin import DRIVER, NODE, claim_object, uid

GPUS = {f"gpu-{n}": Gpu(uuid=f"GPU-{n}", minor=n) for n in range(4)}
DEVICES = {
    name: AllocatableDevice(name=name, kind=DeviceKind.WHOLE, gpu=gpu) for name, gpu in GPUS.items()
}


def allocation(*devices: Any, config: tuple[Any, ...] = ()) -> prepare.ClaimAllocation:
    """This driver's part of a claim."""
    claim = ResourceClaim.from_dict(claim_object(uid(1), "a", *devices, config=config))
    return prepare.allocation_of(claim, DRIVER)


def plan(*devices: Any, config: tuple[Any, ...] = (), stored: bool = False) -> prepare.PreparePlan:
    """The plan of a claim with these devices."""
    claim = allocation(*devices, config=config)
    return prepare.plan(claim, DEVICES, driver=DRIVER, pool=NODE, stored=stored)


def gpu_config(
    kind: str = "GpuConfig", *, requests: tuple[str, ...] = (), **parameters: Any
) -> Any:
    """One entry of ``allocation.devices.config``."""
    return {
        "source": "FromClaim",
        "requests": list(requests),
        "opaque": {
            "driver": DRIVER,
            "parameters": {"apiVersion": "gpudra.io/v1alpha1", "kind": kind, **parameters},
        },
    }


def test_every_device_answers_with_its_base_request_and_id() -> None:
    """A sub-request's name is cut off, the share id is passed on."""
    found = plan({"request": "main/big", "device": "gpu-0"}, {"request": "b", "device": "gpu-1"})
    assert [(one.requests, one.device, one.cdi_ids) for one in found.devices] == [
        (("main",), "gpu-0", (f"{DRIVER}/claim={uid(1)}-gpu-0",)),
        (("b",), "gpu-1", (f"{DRIVER}/claim={uid(1)}-gpu-1",)),
    ]
    share = uid(7)
    (shared,) = plan({"request": "a", "device": "gpu-0", "shareID": share}).devices
    assert shared.share_id == share
    assert shared.cdi_ids == (f"{DRIVER}/claim={uid(1)}-gpu-0-{share}",)


def test_results_of_other_drivers_are_not_looked_at() -> None:
    """Even a device name that this node has means nothing under another driver."""
    found = plan({"driver": "nic.example.com", "device": "gpu-0"}, "gpu-1")
    assert [one.device for one in found.devices] == ["gpu-1"]


def test_a_claim_without_our_results_needs_nothing() -> None:
    """No devices, no steps, no error."""
    found = plan({"driver": "nic.example.com", "device": "nic-0"})
    assert (found.devices, found.steps, found.holds) == ((), (), ())


def test_admin_access_holds_nothing() -> None:
    """An admin looks at cards that others use."""
    found = plan({"device": "gpu-0", "adminAccess": True})
    assert found.holds == ()
    assert [one.device for one in found.devices] == ["gpu-0"]


def test_one_device_of_two_requests_is_one_answer() -> None:
    """A card got once for use and once to look at is injected once."""
    found = plan(
        {"request": "a", "device": "gpu-0"},
        {"request": "b", "device": "gpu-0", "adminAccess": True},
    )
    ((answer),) = found.devices
    assert answer.requests == ("a", "b")
    assert [hold.card for hold in found.holds] == ["GPU-0"]


def test_an_unallocated_claim_is_refused() -> None:
    """The message says who has to act first."""
    raw = claim_object(uid(1), "a")
    raw["status"] = {}
    with pytest.raises(ClaimError, match="not allocated"):
        prepare.allocation_of(ResourceClaim.from_dict(raw), DRIVER)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"device": "gpu-9"}, "gpu-9, which this node does not have"),
        ({"device": "gpu-0", "pool": "other"}, "pool other, this node serves pool node-a"),
    ],
)
def test_devices_that_are_not_here_are_refused_by_name(device: Any, message: str) -> None:
    """The claim, the request and the device are in the message."""
    with pytest.raises(ClaimError, match=message) as caught:
        plan(device)
    assert str(caught.value).startswith("claim default/a: request gpu has device")


def test_a_lost_card_is_refused() -> None:
    """It cannot be given to a container."""
    lost = AllocatableDevice(name="x", kind=DeviceKind.WHOLE, gpu=Gpu(uuid="GPU-x", lost=True))
    with pytest.raises(ClaimError, match="does not answer"):
        prepare.plan(allocation("x"), {"x": lost}, driver=DRIVER, pool=NODE)


FORMS = {
    kind.value: AllocatableDevice(name=kind.value, kind=kind, gpu=GPUS["gpu-0"])
    for kind in DeviceKind
}


@pytest.mark.parametrize(
    ("device", "admin", "message"),
    [
        ("monitor", False, "monitor monitor without admin access"),
        ("mig", True, "admin access to mig, which exists only for the claim"),
        ("share", True, "admin access to share, which exists only for the claim"),
    ],
)
def test_form_and_access_have_to_go_together(device: str, admin: bool, message: str) -> None:
    """A monitor is for admins; what is made for its user alone is not for them."""
    claim = allocation({"device": device, "adminAccess": admin})
    with pytest.raises(ClaimError, match=message):
        prepare.plan(claim, FORMS, driver=DRIVER, pool=NODE)


def test_a_monitor_holds_nothing_and_makes_nothing() -> None:
    """It stands beside whoever has the card."""
    claim = allocation({"device": "monitor", "adminAccess": True})
    found = prepare.plan(claim, FORMS, driver=DRIVER, pool=NODE)
    assert (found.holds, [step.kind for step in found.steps]) == ((), ["metadata", "cdi-file"])


PROFILE = MigProfile(
    id=19, name="1g.10gb", compute_slices=1, max_instances=7,
    placements=(Placement(start=0, size=1), Placement(start=1, size=1)),
)  # fmt: skip


def mig_gpu(*, enabled: bool = False, needs_reset: bool = False) -> Gpu:
    """A card with MIG."""
    mig = MigInfo(enabled=enabled, needs_reset=needs_reset, profiles=(PROFILE,))
    return Gpu(uuid="GPU-m", minor=0, mig=mig)


def part(start: int, gpu: Gpu) -> AllocatableDevice:
    """A MIG device that is made on demand."""
    return AllocatableDevice(
        name=f"m-{start}", kind=DeviceKind.MIG, gpu=gpu, profile=PROFILE,
        placement=Placement(start=start, size=1),
    )  # fmt: skip


def test_instances_are_made_after_the_mode_and_before_the_file() -> None:
    """One mode for the card, one instance for each device, at its exact place."""
    gpu = mig_gpu()
    devices = {f"m-{start}": part(start, gpu) for start in (0, 1)}
    found = prepare.plan(allocation("m-1", "m-0"), devices, driver=DRIVER, pool=NODE)
    kinds = [step.kind for step in found.steps]
    assert kinds == ["mig-mode", "mig-instance", "mig-instance", "metadata", "cdi-file"]
    assert [step.args.get("start") for step in found.steps[:3]] == [None, 1, 0]
    assert found.steps[0].args["on"] is True


def test_an_instance_that_is_there_is_not_made() -> None:
    """A static MIG device needs its file only."""
    there = MigInstance(
        uuid="MIG-1", profile_id=19, gpu_instance_id=7, compute_instance_id=0,
        placement=Placement(start=0, size=1),
    )  # fmt: skip
    device = replace(part(0, mig_gpu(enabled=True)), instance=there)
    found = prepare.plan(allocation("m-0"), {"m-0": device}, driver=DRIVER, pool=NODE)
    assert [step.kind for step in found.steps] == ["metadata", "cdi-file"]


@pytest.mark.parametrize(("needs_reset", "modes"), [(False, [False]), (True, [False])])
def test_a_whole_card_leaves_mig_mode(needs_reset: bool, modes: list[bool]) -> None:
    """Where the mode was left on and can be switched: the card does not compute as one with it."""
    gpu = mig_gpu(enabled=True, needs_reset=needs_reset)
    device = AllocatableDevice(name="g", kind=DeviceKind.WHOLE, gpu=gpu)
    found = prepare.plan(allocation("g"), {"g": device}, driver=DRIVER, pool=NODE)
    assert [step.args["on"] for step in found.steps if step.kind == "mig-mode"] == modes


@pytest.mark.parametrize(
    ("left", "right", "clash"),
    [
        (Hold(card="a", kind="gpu"), Hold(card="b", kind="gpu"), False),
        (Hold(card="a", kind="gpu"), Hold(card="a", kind="gpu"), True),
        (Hold(card="a", kind="gpu"), Hold(card="a", kind="mig", start=0, size=1), True),
        (Hold(card="a", kind="mig", size=4), Hold(card="a", kind="mig", start=4, size=4), False),
        (Hold(card="a", kind="mig", size=4), Hold(card="a", kind="mig", start=3, size=1), True),
        (Hold(card="a", kind="share"), Hold(card="a", kind="share"), False),
        (Hold(card="a", kind="share"), Hold(card="a", kind="mig", size=1), True),
        (Hold(card="a", kind="future"), Hold(card="a", kind="future"), True),
    ],
)
def test_overlap_is_decided_by_card_and_form(left: Hold, right: Hold, clash: bool) -> None:
    """Whole, MIG and share exclude each other; a form from the future excludes all."""
    assert prepare.overlap(left, right) is clash
    assert prepare.overlap(right, left) is clash


def test_the_devices_placement_is_what_is_held() -> None:
    """A MIG device holds its memory slices."""
    device = AllocatableDevice(
        name="m", kind=DeviceKind.MIG, gpu=GPUS["gpu-0"], placement=Placement(start=2, size=2)
    )
    assert prepare.hold_of(device) == Hold(card="GPU-0", kind="mig", device="m", start=2, size=2)


def test_the_document_names_each_device_in_a_variable_of_its_own() -> None:
    """A container with several GPUs sees all of them, since no two variables share a name."""
    found = plan("gpu-0", "gpu-1")
    edits = {
        name: ContainerEdits(device_nodes=(DeviceNode(path=f"/dev/nvidia{part.gpu.minor}"),))
        for name, part in found.parts.items()
    }
    common = ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidiactl"),))
    document = prepare.document(found.parts, DRIVER, edits, common)
    env = {item for device in document["devices"] for item in device["containerEdits"]["env"]}
    assert env == {"GPUDRA_DEVICE_GPU_0=GPU-0", "GPUDRA_DEVICE_GPU_1=GPU-1"}
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert document["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidiactl"}]
    assert [node["path"] for device in document["devices"] for node in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidia1"]  # fmt: skip


def test_cards_of_other_vendors_get_no_nvidia_variable() -> None:
    """The variable is for NVIDIA's runtime only."""
    parts = {"a": AllocatableDevice(name="x", kind=DeviceKind.WHOLE, gpu=Gpu(declared_name="x", vendor="amd"))}  # fmt: skip
    document = prepare.document(parts, DRIVER, {}, ContainerEdits())
    assert "containerEdits" not in document


def test_a_plan_is_a_function_of_its_input() -> None:
    """Same claim, same devices: the same plan, twice."""
    assert plan("gpu-0", "gpu-1") == plan("gpu-0", "gpu-1")


# --- configuration ---------------------------------------------------------------------------


def test_plain_configuration_is_accepted() -> None:
    """Isolation none is what a whole GPU has anyway."""
    assert plan("gpu-0", config=(gpu_config(sharing={"isolation": "none"}),)).devices
    assert plan("gpu-0", config=(gpu_config(),)).devices


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (gpu_config(sharing={"isolatoin": "none"}), "sharing.isolatoin: is not a known field"),
        (gpu_config(sharing={"timeSlice": "long"}), "only with isolation time-slice"),
        (gpu_config(kind="Gpuconfig"), "'Gpuconfig' is not known here"),
        (gpu_config(kind="MigConfig", requests=("gpu",)), "MigConfig names request gpu"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(config: Any, message: str) -> None:
    """The message names the field or the request; the claim is not prepared half-configured."""
    with pytest.raises(ClaimError, match=message):
        plan("gpu-0", config=(config,))


def test_general_configuration_applies_to_devices_of_its_type_only() -> None:
    """One claim may carry settings for GPUs and MIG devices side by side."""
    assert plan("gpu-0", config=(gpu_config(kind="MigConfig"),)).devices


def test_the_request_beats_the_claim_and_the_claim_beats_the_class() -> None:
    """The last one in precedence decides."""
    general = gpu_config(sharing={"isolation": "mps"})
    named = gpu_config(requests=("gpu",), sharing={"isolation": "none"})
    of_class = {**gpu_config(sharing={"isolation": "time-slice"}), "source": "FromClass"}
    assert decided(general, named, of_class) == "none"
    assert decided(of_class, general) == "mps"
    assert decided({**of_class, "requests": ["gpu"]}, general) == "mps"
    assert decided(of_class) == "time-slice"


def decided(*config: Any) -> str:
    """The isolation that is asked for in the end."""
    (found,) = plan("gpu-0", config=config).chosen.values()
    return str(found.sharing.isolation)


def test_stored_configuration_is_read_leniently() -> None:
    """A field of a newer version does not take a running claim down."""
    newer = gpu_config(sharing={"isolation": "none", "newField": 1}, other=2)
    with pytest.raises(ClaimError):
        plan("gpu-0", config=(newer,))
    assert plan("gpu-0", config=(newer,), stored=True).devices


def test_configuration_of_other_drivers_is_not_looked_at() -> None:
    """Their parameters may be anything."""
    other = {"source": "FromClaim", "opaque": {"driver": "nic.example.com", "parameters": 5}}
    assert plan("gpu-0", config=(other,)).devices


def test_parameters_that_are_no_object_are_refused() -> None:
    """The API server does not look at them, so the plan does."""
    raw = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": None}}
    with pytest.raises(ClaimError, match="is not an object") as caught:
        plan("gpu-0", config=(raw,))
    assert isinstance(caught.value.__cause__, InputError)
