# SPDX-License-Identifier: Apache-2.0
"""What the agent writes into its node object, and when it refuses to publish."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from gpudra.driver.core.inventory import Gpu, Inventory, MigInfo, MigProfile, Placement
from gpudra.driver.core.nodestate import (
    CONDITION,
    FEATURE_MARK,
    MANAGED_LABEL,
    STARTUP_TAINT,
    node_labels,
)
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.driver.kube.resources import NODES, Obj
from gpudra.kubelet_plugin.node_reporter import NodeReporter, Sources
from tests.support.storeapi import StoreApi

NODE = "node-a"
MIG = MigInfo(
    enabled=False,
    profiles=(
        MigProfile(
            id=19,
            name="1g",
            compute_slices=1,
            max_instances=7,
            placements=(Placement(start=0, size=1),),
        ),
    ),
)
CARD = Gpu(uuid="GPU-a", product_name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, mig=MIG)


@dataclass
class World:
    """A node, its reporter, and what the reporter is told."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    inventory: Inventory | None = field(default_factory=lambda: Inventory(gpus=(CARD,)))
    hardware_problem: str | None = None
    publish_problem: str | None = None
    sick: dict[str, str] = field(default_factory=dict)
    managed: bool | None = None
    withheld: list[str | None] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = StoreApi(self.clock)

    def seed(self, **fields: Any) -> None:
        """The node as it is at first."""
        base: Obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self.api.objects.seed({**base, **fields})

    def reporter(self, **options: Any) -> NodeReporter:
        """A fresh one."""
        sources = Sources(
            inventory=lambda: self.inventory,
            hardware_problem=lambda: self.hardware_problem,
            publish_problem=lambda: self.publish_problem,
            sick=lambda: self.sick,
            managed=lambda: self.managed,
        )
        return NodeReporter(
            self.api,  # type: ignore[arg-type]
            NODE,
            sources,
            withhold=self.withheld.append,
            warn=lambda reason, _note: self.warnings.append(reason),
            clock=self.clock,
            rng=random.Random(1),
            **options,
        )

    @property
    def node(self) -> Obj:
        """As it is now."""
        return self.api.objects.get(NODES, NODE)

    @property
    def labels(self) -> dict[str, str]:
        """Of the node."""
        return dict(self.node["metadata"].get("labels", {}))

    @property
    def condition(self) -> dict[str, Any]:
        """GPUsReady of the node."""
        (found,) = [one for one in self.node["status"]["conditions"] if one["type"] == CONDITION]
        return dict(found)


async def test_a_ready_node_says_what_it_has_and_loses_its_start_up_taint() -> None:
    """Labels, condition, taint; what others wrote stays, and a second look writes nothing."""
    world = World()
    foreign = {"key": "example.com/mine", "effect": "NoSchedule"}
    world.seed(
        metadata={"name": NODE, "labels": {"gpudra.io/gpu.gone": "x", "gpudra.io/managed": "true"}},
        spec={"taints": [foreign, {"key": STARTUP_TAINT, "effect": "NoSchedule"}]},
        status={"conditions": [{"type": "Ready", "status": "True"}]},
    )
    reporter = world.reporter()
    assert await reporter.look()
    assert world.labels == {
        "gpudra.io/managed": "true",
        "gpudra.io/gpu.count": "1",
        "gpudra.io/gpu.vendor": "nvidia",
        "gpudra.io/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "gpudra.io/gpu.memory": "81920",
        "gpudra.io/gpu.mig-capable": "true",
    }
    assert world.node["spec"]["taints"] == [foreign]
    assert (world.condition["status"], world.condition["reason"]) == ("True", "GPUsReady")
    assert [one["type"] for one in world.node["status"]["conditions"]] == ["Ready", CONDITION]
    assert world.withheld == [None]
    writes = len(world.api.writes)
    await reporter.look()
    assert len(world.api.writes) == writes


async def test_the_taint_stays_until_the_devices_are_published() -> None:
    """Pods must not come before their devices do."""
    world = World(hardware_problem="DriverMissing: no library", inventory=None)
    world.seed(spec={"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]})
    reporter = world.reporter()
    await reporter.look()
    assert world.node["spec"]["taints"]
    assert (world.condition["status"], world.condition["reason"]) == ("False", "DriverMissing")
    assert world.condition["message"] == "no library"
    world.hardware_problem, world.inventory = None, Inventory(gpus=(CARD,))
    world.publish_problem = "not yet"
    await world.clock.advance(20)
    assert not await reporter.look()
    assert world.condition["reason"] == "NotPublished"
    world.publish_problem = None
    await reporter.look()
    assert world.node["spec"].get("taints", []) == []


async def test_a_restart_of_the_agent_does_not_make_the_node_unready() -> None:
    """What is published already takes a moment to be proven; the condition waits for it."""
    world = World()
    world.seed()
    await world.reporter().look()
    before = world.condition
    world.publish_problem = "nothing has been published yet"
    task = asyncio.create_task(world.reporter().run())
    await world.clock.advance(3)
    assert world.condition == before
    world.publish_problem = None
    await world.clock.advance(10)
    task.cancel()
    assert world.condition == before


async def test_nothing_is_published_beside_a_device_plugin() -> None:
    """Said in condition, event and to the publisher; over as soon as the plugin's offer is zero."""
    world = World()
    allocatable = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "2", "cpu": "8"}
    world.seed(status={"allocatable": allocatable})
    reporter = world.reporter()
    await reporter.look()
    (why,) = world.withheld
    assert why is not None
    assert "nvidia.com/mig-1g.10gb" in why
    assert "nvidia.com/gpu," not in why
    assert (world.condition["status"], world.condition["reason"]) == ("False", "DevicePluginActive")
    assert world.warnings == ["DevicePluginActive"]
    await reporter.look()
    assert world.warnings == ["DevicePluginActive"]
    world.api.objects.patch(
        NODES, NODE, {"status": {"allocatable": {"nvidia.com/mig-1g.10gb": "0"}}}, subresource="status"
    )  # fmt: skip
    await reporter.look()
    assert world.withheld[-1] is None
    assert world.condition["status"] == "True"


async def test_a_device_plugin_of_another_vendor_is_none_of_our_business() -> None:
    """Its cards are others."""
    world = World()
    world.seed(status={"allocatable": {"amd.com/gpu": "8"}})
    await world.reporter().look()
    assert world.withheld == [None]


async def test_sick_cards_are_named_and_all_sick_is_not_ready() -> None:
    """One of two: ready, with the reason; both: not ready. The time of change moves only then."""
    world = World()
    world.seed()
    reporter = world.reporter()
    await reporter.look()
    since = world.condition["lastTransitionTime"]
    await world.clock.advance(60)
    world.inventory = Inventory(gpus=(CARD, Gpu(uuid="GPU-b")))
    world.sick = {"GPU-b": "xid-79 (XID 79)"}
    await reporter.look()
    assert world.condition["status"] == "True"
    assert world.condition["message"] == "1 of 2 GPUs are not well: GPU-b: xid-79 (XID 79)"
    assert world.condition["lastTransitionTime"] == since
    world.sick["GPU-a"] = "lost"
    await reporter.look()
    assert (world.condition["status"], world.condition["reason"]) == ("False", "GPUsUnhealthy")
    assert world.condition["lastTransitionTime"] != since


async def test_labels_go_when_they_are_no_longer_true() -> None:
    """No driver, no labels; those of others under foreign names stay."""
    world = World()
    world.seed(metadata={"name": NODE, "labels": {"nvidia.com/gpu.product": "by-somebody-else"}})
    reporter = world.reporter()
    await reporter.look()
    assert "gpudra.io/gpu.count" in world.labels
    world.hardware_problem = "DriverMissing: gone"
    await reporter.look()
    assert world.labels == {"nvidia.com/gpu.product": "by-somebody-else"}


async def test_a_managed_node_has_the_label_until_it_is_not_managed_any_more() -> None:
    """Written for a managed policy, taken away for another one, left alone while none is known."""
    world = World()
    world.seed()
    reporter = world.reporter()
    for managed, label in ((None, None), (True, "true"), (None, "true"), (False, None)):
        world.managed = managed
        await reporter.look()
        assert world.labels.get(MANAGED_LABEL) == label, managed


async def test_feature_names_are_written_on_request_and_taken_back() -> None:
    """With a mark, so that a later agent without the request knows that they are ours."""
    world = World()
    world.seed()
    await world.reporter(feature_names=True).look()
    assert world.labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert world.labels[FEATURE_MARK] == "true"
    await world.reporter().look()
    assert not [name for name in world.labels if name.startswith("nvidia.com/")]
    assert FEATURE_MARK not in world.labels


async def test_without_the_right_to_write_the_node_is_left_alone() -> None:
    """Another agent on the node speaks for it; the look for device plugins stays."""
    world = World()
    world.seed(status={"allocatable": {"nvidia.com/gpu": "8"}})
    await world.reporter(write=False).look()
    assert world.api.writes == []
    assert world.withheld[0]


async def test_trouble_with_the_api_is_overcome() -> None:
    """A refused write is tried again with growing pauses."""
    world = World()
    world.seed()
    world.api.faults.fail(verb="patch", resource="nodes", status=503, times=3)
    task = asyncio.create_task(world.reporter().run())
    await settle()
    await world.clock.advance(30)
    task.cancel()
    assert world.condition["status"] == "True"
    assert "gpudra.io/gpu.count" in world.labels


def test_every_shipped_profile_has_valid_labels() -> None:
    """Values within 63 characters, of the letters that labels may have."""
    for profile in ("dgx-h100-8x80", "gb200-nvl72-4x", "mixed"):
        labels = node_labels(build_inventory(load_hardware(profile)), feature_names=True)
        for value in labels.values():
            assert 0 < len(value) <= 63
            assert value[0].isalnum()
            assert value[-1].isalnum()
    assert labels["gpudra.io/gpu.product"] == "mixed"
