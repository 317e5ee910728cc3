# SPDX-License-Identifier: Apache-2.0
"""Cordoning one GPU: rules for all of its forms, once, and away again."""

import pytest

from gpudra.api.errors import InputError
from gpudra.api.resource_v1 import DeviceTaintRule, ResourceSlice
from gpudra.controller.ctl.cluster import list_taint_rules
from gpudra.controller.ctl.cordon import (
    LABEL,
    TAINT_KEY,
    cordon,
    cordon_rules,
    find_target,
    with_rules,
)
from gpudra.controller.ctl.uncordon import uncordon
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.resources import DEVICE_TAINT_RULES
from tests.support.storeapi import StoreApi

DRIVER = "gpu.gpudra.io"
UUID = "GPU-1"


def node_slice(node: str, *devices: tuple[str, str, str]) -> ResourceSlice:
    """A slice with devices: name, type, uuid of the card."""
    return ResourceSlice.from_dict(
        {
            "metadata": {"name": node},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {
                        "name": name,
                        "attributes": {
                            "type": {"string": kind},
                            "parentUUID" if kind == "mig" else "uuid": {"string": uuid},
                        },
                    }
                    for name, kind, uuid in devices
                ],
            },
        }
    )


CARD = node_slice(
    "n1",
    ("gpu-1", "gpu", UUID),
    ("gpu-1-mig-1g10gb-0", "mig", UUID),
    ("gpu-1-share", "share", UUID),
    ("gpu-1-monitor", "monitor", UUID),
    ("gpu-1-2", "gpu", "GPU-other"),
)
FORMS = ("gpu-1", "gpu-1-mig-1g10gb-0", "gpu-1-share")


@pytest.mark.parametrize("gpu", ["gpu-1", UUID])
def test_a_card_is_all_of_its_forms_but_for_the_monitor(gpu: str) -> None:
    """By name or uuid; a card whose name begins alike is another."""
    target = find_target([CARD], gpu, DRIVER, None)
    assert (target.pool, target.uuid, target.devices) == ("n1", UUID, FORMS)


def test_one_form_can_be_meant_alone() -> None:
    """The name of a MIG device means it and nothing else."""
    assert find_target([CARD], "gpu-1-share", DRIVER, None).devices == ("gpu-1-share",)


def test_a_name_on_two_nodes_has_to_be_told_apart() -> None:
    """The message names the nodes; --node decides."""
    both = [node_slice("n1", ("npu-0", "gpu", "a")), node_slice("n2", ("npu-0", "gpu", "b"))]
    with pytest.raises(InputError, match="several nodes: n1, n2; name one with --node"):
        find_target(both, "npu-0", DRIVER, None)
    assert find_target(both, "npu-0", DRIVER, "n2").pool == "n2"


def test_an_unknown_gpu_is_said_to_be_unknown() -> None:
    """With what to do about it."""
    with pytest.raises(InputError, match="has this name or uuid on node n2"):
        find_target([CARD], "gpu-1", DRIVER, "n2")


async def test_cordoning_twice_is_cordoning_once() -> None:
    """The second call writes nothing; a stronger effect is written over."""
    api = StoreApi(VirtualClock())
    target = find_target([CARD], "gpu-1", DRIVER, None)
    said = await cordon(api, target, effect="NoSchedule")
    assert said == f"gpu-1 on n1: cordoned, effect NoSchedule on {', '.join(FORMS)}"
    writes = len(api.writes)
    assert await cordon(api, target, effect="NoSchedule") == "gpu-1 on n1: already cordoned"
    assert len(api.writes) == writes
    await cordon(api, target, effect="NoExecute")
    rules = api.objects.list(DEVICE_TAINT_RULES, label_selector=LABEL)
    assert {rule["spec"]["taint"]["effect"] for rule in rules} == {"NoExecute"}
    assert len(rules) == len(FORMS)


@pytest.mark.parametrize("gpu", ["gpu-1", UUID])
async def test_uncordoning_works_for_a_card_that_is_gone(gpu: str) -> None:
    """The rules know the uuid; rules of others stay."""
    api = StoreApi(VirtualClock())
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "by-somebody-else"},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": "n1", "device": "gpu-1"},
            "taint": {"key": "example.com/x", "effect": "NoSchedule"},
        },
    }
    api.objects.seed(foreign)
    await cordon(api, find_target([CARD], "gpu-1", DRIVER, None), effect="NoSchedule")
    assert await uncordon(api, gpu, driver=DRIVER, node=None) == f"{gpu} on n1: uncordoned"
    (left,) = api.objects.list(DEVICE_TAINT_RULES)
    assert left["metadata"]["name"] == "by-somebody-else"


async def test_uncordoning_what_is_not_cordoned() -> None:
    """Fine if the GPU exists, an error if nothing has this name."""
    api = StoreApi(VirtualClock())
    api.objects.seed(CARD.to_dict())
    assert await uncordon(api, "gpu-1", driver=DRIVER, node=None) == "gpu-1 on n1: is not cordoned"
    with pytest.raises(InputError, match="no GPU"):
        await uncordon(api, "gpu-9", driver=DRIVER, node=None)


def test_rules_show_as_taints() -> None:
    """`gpudra devices` shows what the scheduler goes by."""
    rules = [
        DeviceTaintRule.from_dict(rule)
        for rule in cordon_rules(find_target([CARD], "gpu-1", DRIVER, None), effect="NoSchedule")
    ]
    (found,) = with_rules([CARD], rules)
    tainted = {one.name for one in found.spec.devices if one.taints}
    assert tainted == set(FORMS)
    assert found.spec.devices[0].taints[0].key == TAINT_KEY


async def test_who_may_not_see_rules_sees_devices_all_the_same() -> None:
    """A user without that right, or a server without the kind, is no error."""
    api = StoreApi(VirtualClock())
    await cordon(api, find_target([CARD], "gpu-1", DRIVER, None), effect="NoSchedule")
    assert len(await list_taint_rules(api)) == len(FORMS)  # type: ignore[arg-type]
    for status, reason in ((403, "Forbidden"), (404, "NotFound")):
        api.faults.fail(verb="list", resource="devicetaintrules", status=status, reason=reason)
        assert await list_taint_rules(api) == []  # type: ignore[arg-type]
