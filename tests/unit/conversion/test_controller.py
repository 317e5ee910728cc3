# SPDX-License-Identifier: Apache-2.0
"""The controller's side of conversion, over a pretended API in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gpudra.api.errors import UnavailableError
from gpudra.controller.conversion import FRESH_SECONDS, LOOK_AGAIN_SECONDS, REFUSED, Conversion
from gpudra.driver.core.conversion.pods import convert_pod
from gpudra.driver.core.conversion.templates import CARD_SIZES, template_of
from gpudra.driver.core.conversion.types import Ask, Form
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.resources import (
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    Obj,
)
from gpudra.driver.observability.metrics import Component, Metrics
from tests.support.storeclient import StoreClient

DRIVER = "gpu.gpudra.io"
HALF = "gpudra-nvidia-1x-share-f5000"
SHARE = "gpudra-nvidia-1x-share-m3000"


@dataclass
class World:
    """What a test acts on."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    events: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objects = ObjectStore(self.clock)
        self.client = StoreClient(self.objects)
        self.conversion = Conversion(
            self.client,
            driver=DRIVER,
            metrics=Metrics(Component.CONTROLLER, process=False),
            events=self,
            clock=self.clock,
            rng=random.Random(1),
        )

    def event(self, regarding: Obj, type: str, reason: str, note: str) -> None:  # noqa: A002
        """Takes what the controller says about a pod."""
        assert type == "Warning"
        self.events.append((regarding["name"], reason, note))

    def namespace(self, name: str = "team", mode: str = "stock") -> None:
        """A namespace that is opted in."""
        metadata = {"name": name, "labels": {"gpudra.io/convert": mode}}
        self.objects.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        )

    def pod(
        self, name: str, limits: dict[str, str], *, converted: bool = True, node: str = ""
    ) -> None:
        """A pod as it comes out of admission, or as it was before."""
        raw: Obj = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        }
        made = convert_pod(raw).pod if converted else raw
        if node:
            made["spec"]["nodeName"] = node
            made["status"] = {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "x"}]}
            self.objects.seed(made)
        else:
            self.objects.create(PODS, made)

    def cards(self, *sizes: str) -> None:
        """Cards that can be shared, one a slice."""
        for index, size in enumerate(sizes):
            attributes = {"type": {"string": "share"}, "vendor": {"string": "nvidia"}}
            device = {
                "name": "gpu-share",
                "attributes": attributes,
                "capacity": {"memory": {"value": size}},
            }
            self.objects.create(
                RESOURCE_SLICES,
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": f"s-{index}-{size.lower()}"},
                    "spec": {
                        "driver": DRIVER,
                        "nodeName": "n",
                        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                        "devices": [device],
                    },
                },
            )

    def templates(self) -> dict[str, Obj]:
        """All of them."""
        found = self.objects.list(RESOURCE_CLAIM_TEMPLATES, "team")
        return {one["metadata"]["name"]: one for one in found}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A controller that runs."""
    made = World()
    made.namespace()
    task = asyncio.ensure_future(made.conversion.run())
    await settle()
    yield made
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_template_of_a_converted_pod_is_made(world: World) -> None:
    """From the name alone, once for two pods that ask for the same."""
    for name in ("a", "b"):
        world.pod(name, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})
    await settle()
    (template,) = world.templates().values()
    assert template["metadata"]["name"] == SHARE
    request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert request["capacity"] == {"requests": {"memory": "3000Mi"}}
    assert world.events == []


async def test_namespaces_that_are_not_opted_in_are_not_looked_at(world: World) -> None:
    """A pod elsewhere is nobody's business, and of one that opts in later it is."""
    raw = {"gpu-memory": "1000"}
    pod = convert_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "other", "annotations": raw},
            "spec": {"containers": [{"name": "c"}]},
        }
    ).pod
    world.objects.create(PODS, pod)
    await settle()
    assert world.objects.list(RESOURCE_CLAIM_TEMPLATES) == []
    labels = {"metadata": {"labels": {"gpudra.io/convert": "managed"}}}
    world.objects.patch(NAMESPACES, "other", labels)
    await settle()
    (made,) = world.objects.list(RESOURCE_CLAIM_TEMPLATES)
    assert made["metadata"]["namespace"] == "other"


async def test_another_content_under_the_name_is_left_and_told(world: World) -> None:
    """Somebody's own template is not changed; its difference is named on the pod, once."""
    mine = template_of(Ask(form=Form.SHARE, memory=3000), namespace="team")
    mine["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    world.objects.create(RESOURCE_CLAIM_TEMPLATES, mine)
    world.pod("a", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})
    await settle()
    await world.clock.advance(3 * LOOK_AGAIN_SECONDS)
    assert world.templates()[SHARE]["spec"]["spec"]["devices"] == mine["spec"]["spec"]["devices"]
    ((pod, reason, note),) = world.events
    assert (pod, reason) == ("a", REFUSED)
    assert f"template {SHARE} exists with other content and is left as it is" in note
    assert "spec.spec.devices.requests[0].exactly.count is 2, not 1" in note


async def test_a_pod_that_was_quicker_than_we_is_told_as_well(world: World) -> None:
    """Bound by somebody else's template before we saw it: told; and no template is made for it."""
    mine = template_of(Ask(form=Form.SHARE, memory=3000), namespace="team")
    mine["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    world.objects.create(RESOURCE_CLAIM_TEMPLATES, mine)
    for name, limits in (("a", {"nvidia.com/gpumem": "3000"}), ("b", {"nvidia.com/gpu": "1"})):
        world.pod(name, limits, node="n")
    await settle()
    ((pod, _, note),) = world.events
    assert pod == "a"
    assert "count is 2, not 1" in note
    assert list(world.templates()) == [SHARE]


async def test_a_part_of_a_card_says_which_cards_were_considered(world: World) -> None:
    """The template lists them; when others come it is made anew, since pods still wait for it."""
    world.pod("a", {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"})
    await settle()
    ((_, _, note),) = world.events
    assert f"template {HALF} cannot be made" in note
    world.cards("40Gi")
    await settle()
    assert world.templates()[HALF]["metadata"]["annotations"] == {CARD_SIZES: "40Gi"}
    world.cards("80Gi")
    await settle()
    template = world.templates()[HALF]
    assert template["metadata"]["annotations"] == {CARD_SIZES: "40Gi,80Gi"}
    ways = template["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
    amounts = [one["capacity"]["requests"]["memory"] for one in ways]
    assert amounts == ["20480Mi", "40960Mi"]


async def test_what_cannot_be_had_is_told_with_field_and_value(world: World) -> None:
    """A pod that the policy left alone is left alone here, too."""
    world.pod("a", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"}, converted=False)
    await settle()
    ((pod, reason, note),) = world.events
    assert (pod, reason) == ("a", REFUSED)
    assert "spec.containers[0].resources.limits[nvidia.com/gpumem]: '16Gi'" in note
    assert world.templates() == {}


async def test_a_pod_from_before_is_told_to_be_made_anew(world: World) -> None:
    """It could be converted, but nobody can change a pod."""
    world.pod("a", {"nvidia.com/gpu": "1"}, converted=False)
    await settle()
    ((_, _, note),) = world.events
    assert "delete it and create it anew" in note


async def test_a_deleted_template_is_made_again_while_a_pod_waits(world: World) -> None:
    """At the next look; not after Kubernetes has made the claim."""
    world.pod("a", {"nvidia.com/gpu": "1"})
    await settle()
    (name,) = world.templates()
    world.objects.delete(RESOURCE_CLAIM_TEMPLATES, name, "team")
    await world.clock.advance(LOOK_AGAIN_SECONDS + 1)
    assert name in world.templates()
    status = {"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "x"}]}}
    world.objects.patch(PODS, "a", status, namespace="team", subresource="status")
    await world.clock.advance(FRESH_SECONDS + LOOK_AGAIN_SECONDS + 1)
    world.objects.delete(RESOURCE_CLAIM_TEMPLATES, name, "team")
    await world.clock.advance(3 * LOOK_AGAIN_SECONDS)
    assert world.templates() == {}


async def test_a_failing_server_delays_one_pod_only(world: World) -> None:
    """It is tried again until it works."""
    world.client.fail("create", UnavailableError("no answer"))
    world.pod("a", {"nvidia.com/gpu": "1"})
    await settle()
    assert world.templates() == {}
    await world.clock.advance(60)
    assert list(world.templates()) == ["gpudra-nvidia-1x-gpu"]


async def test_a_pod_on_a_node_is_history(world: World) -> None:
    """Whatever it had asked for: nothing is said and nothing is made."""
    raw: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "old", "namespace": "team"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": "16Gi"}}}],
        },
    }
    world.objects.create(PODS, raw)
    await settle()
    assert world.events == []
