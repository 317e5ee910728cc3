# SPDX-License-Identifier: Apache-2.0
"""The cluster side's side of NodePolicies, over a pretended API in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from gpudra.api.errors import UnavailableError
from gpudra.controller.nodepolicies import PolicyStatuses
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.resources import NODE_POLICIES, NODES, Obj, Resource
from gpudra.driver.observability.metrics import Component, Metrics
from tests.support.storeclient import StoreClient


class Client(StoreClient):
    """Knows the subresource, and tells which kinds there are."""

    served = True

    async def api_resources(self, group: str, version: str) -> list[Obj]:
        """Of our own group."""
        return [{"name": "nodepolicies"}] if self.served else []

    async def patch(self, resource: Resource, name: str, body: Any, **options: Any) -> Obj:
        """Of the status."""
        assert options == {"subresource": "status"}
        self._ask("patch", resource, name)
        return self.objects.patch(resource, name, body, subresource="status")


@dataclass
class World:
    """What a test acts on."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __post_init__(self) -> None:
        self.objects = ObjectStore(self.clock)
        self.objects.register(NODE_POLICIES)
        self.client = Client(self.objects)
        self.statuses = PolicyStatuses(
            self.client,
            metrics=Metrics(Component.CONTROLLER, process=False),
            clock=self.clock,
            rng=random.Random(1),
            now=lambda: self.time,
        )

    def node(self, name: str, **labels: str) -> None:
        """A node."""
        meta = {"name": name, "labels": labels}
        self.objects.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})

    def policy(self, name: str, **selector: str) -> None:
        """A policy for some nodes."""
        self.objects.create(
            NODE_POLICIES,
            {
                "apiVersion": "gpudra.io/v1alpha1",
                "kind": "NodePolicy",
                "metadata": {"name": name},
                "spec": {"nodeSelector": selector},
            },
        )

    def status(self, name: str) -> Any:
        """What a person reads."""
        return self.objects.get(NODE_POLICIES, name).get("status")

    async def rest(self, seconds: float = 2.0) -> None:
        """Time passes."""
        for _ in range(4):
            await settle()
        await self.clock.advance(seconds)
        await settle()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Three nodes; the cluster side runs."""
    found = World()
    for number in range(3):
        found.node(f"n{number}", pool="a", **({"zone": "z"} if number else {}))
    task = asyncio.create_task(found.statuses.run())
    await found.rest()
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_policy_says_for_how_many_nodes_it_decides(world: World) -> None:
    """And that nobody disputes it."""
    world.policy("p", pool="a")
    await world.rest()
    status = world.status("p")
    (condition,) = status["conditions"]
    assert (status["nodes"], status["observedGeneration"]) == (3, 1)
    assert (condition["type"], condition["status"]) == ("Conflict", "False")
    assert condition["lastTransitionTime"] == "2026-01-01T00:00:00Z"


async def test_a_conflict_is_shown_at_both_and_goes_away(world: World) -> None:
    """Its time is that of the change, not of the last write."""
    world.policy("p", pool="a")
    await world.rest()
    world.time = datetime(2026, 1, 2, tzinfo=UTC)
    world.policy("q", zone="z")
    await world.rest()
    first, second = (world.status(name)["conditions"][0] for name in "pq")
    assert first["status"] == second["status"] == "True"
    assert "NodePolicy q on 2 nodes (n1, …)" in first["message"]
    assert first["lastTransitionTime"] == "2026-01-02T00:00:00Z"
    assert (world.status("p")["nodes"], world.status("q")["nodes"]) == (3, 0)
    world.time = datetime(2026, 1, 3, tzinfo=UTC)
    world.node("n9", pool="a", zone="z")
    await world.rest()
    changed = world.status("p")["conditions"][0]
    assert "3 nodes" in changed["message"]
    assert changed["lastTransitionTime"] == "2026-01-02T00:00:00Z"
    world.objects.delete(NODE_POLICIES, "q")
    await world.rest()
    assert world.status("p")["conditions"][0]["status"] == "False"


async def test_unchanged_means_zero_writes(world: World) -> None:
    """Heartbeats of nodes and our own writes wake nobody."""
    world.policy("p", pool="a")
    await world.rest()
    world.client.forget()
    world.objects.patch(NODES, "n0", {"metadata": {"annotations": {"beat": "1"}}})
    await world.rest(60)
    assert world.client.writes == []


async def test_a_write_that_fails_is_tried_again(world: World) -> None:
    """The other policies do not wait for it."""
    world.client.fail("patch", UnavailableError("away"))
    world.policy("a", pool="a")
    world.policy("b", pool="b")
    await world.rest()
    await world.rest(10)
    assert world.status("a")["nodes"] == 3
    assert world.status("b")["nodes"] == 0


async def test_without_the_kind_it_waits() -> None:
    """And begins when the kind is installed."""
    world = World()
    world.client.served = False
    task = asyncio.create_task(world.statuses.run())
    await world.rest(100)
    assert world.client.calls == []
    world.client.served = True
    world.node("n", pool="a")
    world.policy("p", pool="a")
    await world.rest(31)
    await world.rest()
    assert world.status("p")["nodes"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
