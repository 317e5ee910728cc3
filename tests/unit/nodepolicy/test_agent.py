# SPDX-License-Identifier: Apache-2.0
"""The agent's side of NodePolicies, over a pretended API in virtual time."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpudra.api.errors import ForbiddenError, UnavailableError
from gpudra.driver.core.forms import EVERYTHING, PublishPolicy
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.resources import NODE_POLICIES, NODES, Obj
from gpudra.kubelet_plugin.nodepolicy import PolicyWatcher
from tests.support.logs import Captured, captured_logs
from tests.support.storeclient import StoreClient

NODE = "node-a"


class Client(StoreClient):
    """Tells too which kinds there are."""

    served = True
    silent = False

    async def api_resources(self, group: str, version: str) -> list[Obj]:
        """Of our own group."""
        if self.silent:
            raise UnavailableError("connection refused")
        return [{"name": "nodepolicies"}] if self.served else []


def policy(name: str, **spec: Any) -> Obj:
    """A policy as a person writes it."""
    return {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "NodePolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


@dataclass
class World:
    """What a test acts on."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    seen: list[PublishPolicy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objects = ObjectStore(self.clock)
        self.objects.register(NODE_POLICIES)
        node = {"metadata": {"name": NODE, "labels": {"pool": "a"}}}
        self.objects.create(NODES, {"apiVersion": "v1", "kind": "Node", **node})
        self.client = Client(self.objects)
        self.watcher = PolicyWatcher(
            self.client,
            node_name=NODE,
            on_change=self.seen.append,
            clock=self.clock,
            rng=random.Random(1),
        )

    async def rest(self, seconds: float = 0.0) -> None:
        """Let everything run, and time pass."""
        for _ in range(4):
            await settle()
        if seconds:
            await self.clock.advance(seconds)
            await settle()

    def label(self, **labels: str) -> None:
        """Other labels on the node."""
        self.objects.patch(NODES, NODE, {"metadata": {"labels": labels}})


@pytest.fixture
def world() -> World:
    """A node, no policy, a watcher that a test starts with ``run``."""
    return World()


@pytest.fixture
def logs() -> Iterator[Captured]:
    """What was logged."""
    with captured_logs() as found:
        yield found


async def run(world: World) -> "asyncio.Task[None]":
    """Starts the watcher and lets it come to rest."""
    task = asyncio.create_task(world.watcher.run())
    await world.rest()
    return task


async def test_without_a_policy_everything_is_offered(world: World) -> None:
    """Told once, when policies and labels are known."""
    task = await run(world)
    assert world.seen == [EVERYTHING]
    task.cancel()


async def test_a_change_of_policy_or_labels_is_told_at_once(world: World) -> None:
    """No time passes: a policy appears, changes, loses the node by its labels, and goes."""
    task = await run(world)
    world.objects.create(NODE_POLICIES, policy("p", nodeSelector={"pool": "a"}, order="spread"))
    await world.rest()
    assert str(world.seen[-1].order) == "spread"
    world.objects.patch(NODE_POLICIES, "p", {"spec": {"managed": True}})
    await world.rest()
    assert world.seen[-1].managed
    world.label(pool="b")
    await world.rest()
    assert world.seen[-1] == EVERYTHING
    world.label(pool="a")
    await world.rest()
    assert world.seen[-1].managed
    world.objects.delete(NODE_POLICIES, "p")
    await world.rest()
    assert world.seen[-1] == EVERYTHING
    assert len(world.seen) == 6
    task.cancel()


async def test_what_changes_nothing_is_not_told(world: World) -> None:
    """Heartbeats, foreign policies and other labels write no slice."""
    task = await run(world)
    world.label(other="x")
    world.objects.create(NODE_POLICIES, policy("q", nodeSelector={"pool": "z"}, managed=True))
    await world.rest()
    assert len(world.seen) == 1
    task.cancel()


async def test_a_cluster_without_the_kind_has_the_default(world: World, logs: Captured) -> None:
    """One line in the log, no crash; when the kind is installed, policies count."""
    world.client.served = False
    task = await run(world)
    await world.rest(300)
    assert world.seen == [EVERYTHING]
    said = [line for line in logs.lines if "not installed" in str(line.get("event"))]
    assert len(said) == 1
    world.client.served = True
    world.objects.create(NODE_POLICIES, policy("p", managed=True))
    await world.rest(31)
    await world.rest()
    assert world.seen[-1].managed
    task.cancel()


async def test_nothing_is_decided_while_the_api_is_silent(world: World) -> None:
    """A guess would publish devices that the policy withholds."""
    world.client.silent = True
    task = await run(world)
    await world.rest(60)
    assert world.seen == []
    world.client.silent = False
    await world.rest(60)
    assert world.seen == [EVERYTHING]
    task.cancel()


async def test_an_agent_that_may_not_read_policies_goes_on(world: World, logs: Captured) -> None:
    """Older rights: the default, said once."""
    world.objects.create(NODE_POLICIES, policy("p", managed=True))
    error = ForbiddenError("cannot list nodepolicies", status=403)
    real = world.client.list

    async def refuse(resource: Any, *args: Any, **options: Any) -> Any:
        if resource == NODE_POLICIES:
            raise error
        return await real(resource, *args, **options)

    world.client.list = refuse  # type: ignore[method-assign]
    task = await run(world)
    assert world.seen == [EVERYTHING]
    assert logs.event("NodePolicies cannot be read, the default is in force")
    task.cancel()


async def test_a_policy_that_is_not_understood_costs_only_itself(world: World) -> None:
    """Written for a newer version: the others count."""
    world.objects.create(NODE_POLICIES, policy("new", order="some-day", nodeSelector={"pool": "a"}))
    world.objects.create(NODE_POLICIES, policy("old", managed=True))
    task = await run(world)
    assert [one.managed for one in world.seen] == [True]
    task.cancel()
