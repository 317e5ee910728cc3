# SPDX-License-Identifier: Apache-2.0
"""The leader tells where nodes contradict each other: API server and watch are real, time is not."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpudra.controller.fabric import SETTLE_SECONDS, FabricChecker
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import RESOURCE_SLICES, Obj
from gpudra.driver.observability.metrics import Component, Metrics
from tests.support.logs import captured_logs

DRIVER = "gpu.gpudra.io"


def slice_of(node: str, uuid: str) -> Obj:
    """What a node with one card publishes."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-0"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}],
        },
    }


@dataclass
class Recorded:
    """Events that were told."""

    events: list[tuple[str, str, str, str]] = field(default_factory=list)

    def event(self, regarding: Obj, type: str, reason: str, note: str) -> None:  # noqa: A002
        """See gpudra.controller.fabric.Events."""
        self.events.append((regarding["name"], type, reason, note))


@dataclass
class Running:
    """A checker that runs against a server, in virtual time."""

    server: FakeApiServer
    clock: VirtualClock
    checker: FabricChecker
    metrics: Metrics
    events: Recorded

    async def until(self, condition: Callable[[], bool]) -> None:
        """Gives sockets the loop and lets time pass until the condition holds."""
        async with asyncio.timeout(10):
            while not condition():
                await self.clock.advance(SETTLE_SECONDS)
                await asyncio.sleep(0.001)

    def metric(self, line: str) -> bool:
        """Whether the scrape has this line."""
        return line in self.metrics.render()[0].decode().splitlines()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Two nodes that agree, compared once."""
    clock, metrics, events = (
        VirtualClock(),
        Metrics(Component.CONTROLLER, process=False),
        Recorded(),
    )
    objects = [slice_of("a", "1"), slice_of("b", "2")]
    async with FakeApiServer(clock=clock, objects=objects) as server:
        checker = FabricChecker(
            await server.client(),
            driver=DRIVER,
            metrics=metrics,
            events=events,
            clock=clock,
            rng=random.Random(0),
        )
        task = asyncio.create_task(checker.run())
        made = Running(server, clock, checker, metrics, events)
        await made.until(
            lambda: made.metric('gpudra_reflector_objects{resource="resourceslices"} 2.0')
        )
        yield made
        task.cancel()
        await asyncio.wait([task])


async def test_nodes_that_agree_are_not_mentioned(running: Running) -> None:
    """No event, and the metric says zero rather than nothing."""
    assert running.events.events == []
    assert running.metric('gpudra_fabric_contradictions{reason="duplicate_uuid"} 0.0')


async def test_a_contradiction_is_told_once_and_at_every_node(running: Running) -> None:
    """A log line, one event a node, a metric; another change of the same slices adds nothing."""
    with captured_logs() as logs:
        running.server.objects.create(RESOURCE_SLICES, slice_of("c", "1"))
        await running.until(lambda: bool(running.checker.found))
        line = logs.event("nodes contradict each other")
        assert (line["level"], line["reason"]) == ("error", "duplicate_uuid")
        assert len(line["op"]) == 8
    note = "GPU 1 is published by more than one node: a, c"
    assert running.events.events == [
        ("a", "Warning", "FabricContradiction", note),
        ("c", "Warning", "FabricContradiction", note),
    ]
    assert running.metric('gpudra_fabric_contradictions{reason="duplicate_uuid"} 1.0')
    running.server.objects.create(RESOURCE_SLICES, slice_of("d", "4"))
    await running.until(
        lambda: running.metric('gpudra_reflector_objects{resource="resourceslices"} 4.0')
    )
    assert len(running.events.events) == 2


async def test_the_end_of_a_contradiction_is_told(running: Running) -> None:
    """When a node is mended, the metric falls and one line says so."""
    running.server.objects.create(RESOURCE_SLICES, slice_of("c", "1"))
    await running.until(lambda: bool(running.checker.found))
    with captured_logs() as logs:
        running.server.objects.delete(RESOURCE_SLICES, "c-0")
        await running.until(lambda: not running.checker.found)
        assert logs.event("nodes agree again")["subject"] == "1"
    assert running.metric('gpudra_fabric_contradictions{reason="duplicate_uuid"} 0.0')


async def test_a_slice_that_cannot_be_read_costs_only_itself(running: Running) -> None:
    """A malformed slice is counted as an error, and the others are still compared."""
    broken: dict[str, Any] = slice_of("x", "9")
    broken["spec"]["devices"] = [{"name": "d", "attributes": {"uuid": {"string": 9}}}]
    running.server.objects.seed(broken)
    running.server.objects.create(RESOURCE_SLICES, slice_of("c", "1"))
    await running.until(lambda: bool(running.checker.found))
    text = running.metrics.render()[0].decode()
    assert "gpudra_reflector_errors_total" in text
