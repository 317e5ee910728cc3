# SPDX-License-Identifier: Apache-2.0
"""The leader counts by watching: API server and watch are real, time is not."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from gpudra.controller import accounting
from gpudra.controller.accounting import SETTLE_SECONDS, Accountant
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.forms import EVERYTHING
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Obj
from gpudra.driver.observability.metrics import Component, Metrics

DRIVER = "gpu.gpudra.io"
L4 = "NVIDIA L4"


def node_slices(node: str) -> list[Obj]:
    """A node with four L4, whole and as shares."""
    return [
        one.to_dict()
        for one in slices_of_hardware("l4-4x", driver=DRIVER, node_name=node, policy=EVERYTHING)
    ]


def device_class(name: str, form: str) -> Obj:
    """A class of one form."""
    text = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{form}"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": text}}]},
    }


def claim(name: str, device_class_name: str = DRIVER) -> Obj:
    """A claim that waits."""
    exact = {"deviceClassName": device_class_name, "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exact}]}},
    }


def given(found: Obj, device: str, node: str, **consumed: str) -> Obj:
    """The claim with a device."""
    result: dict[str, Any] = {"request": "gpu", "driver": DRIVER, "pool": node, "device": device}
    if consumed:
        result["consumedCapacity"] = consumed
        result["shareID"] = "6ea1a0a1-1f3b-4c38-8f6d-4a4f4c4a4e4f"
    return {**found, "status": {"allocation": {"devices": {"results": [result]}}}}


@dataclass
class Running:
    """An accountant that runs against a server, in virtual time."""

    server: FakeApiServer
    clock: VirtualClock
    accountant: Accountant
    metrics: Metrics

    async def until(self, condition: Callable[[], bool]) -> None:
        """Gives sockets the loop and lets time pass until the condition holds."""
        async with asyncio.timeout(20):
            while not condition():
                await self.clock.advance(SETTLE_SECONDS)
                await asyncio.sleep(0.001)

    def put(self, found: Obj) -> None:
        """A claim with its status as the scheduler would leave it."""
        objects, meta = self.server.objects, found["metadata"]
        names = {
            one["metadata"]["name"] for one in objects.list(RESOURCE_CLAIMS, meta["namespace"])
        }
        if meta["name"] in names:
            now = objects.get(RESOURCE_CLAIMS, meta["name"], meta["namespace"])
            if now.get("status", {}).get("allocation"):  # cannot be changed, only given anew
                objects.delete(RESOURCE_CLAIMS, meta["name"], meta["namespace"])
                names.discard(meta["name"])
        if meta["name"] not in names:
            objects.create(RESOURCE_CLAIMS, {**found, "status": {}})
        now = objects.get(RESOURCE_CLAIMS, meta["name"], meta["namespace"])
        objects.update(
            RESOURCE_CLAIMS, {**now, "status": found.get("status", {})}, subresource="status"
        )

    def has(self, *lines: str) -> bool:
        """Whether the scrape has these lines."""
        text = self.metrics.render()[0].decode().splitlines()
        return all(line in text for line in lines)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Two nodes with four L4 each, nothing held, counted once."""
    clock, metrics = VirtualClock(), Metrics(Component.CONTROLLER, process=False)
    objects = [*node_slices("a"), *node_slices("b")]
    objects += [device_class(DRIVER, "gpu"), device_class("share.gpudra.io", "share")]
    async with FakeApiServer(clock=clock, objects=objects) as server:
        accountant = Accountant(
            await server.client(), driver=DRIVER, metrics=metrics, clock=clock, rng=random.Random(0)
        )
        task = asyncio.create_task(accountant.run())
        made = Running(server, clock, accountant, metrics)
        await made.until(lambda: accountant.counted > 0)
        yield made
        task.cancel()
        await asyncio.wait([task])


def first(node: str, form: str) -> str:
    """Name of the node's first device of a form."""
    return next(
        str(device["name"])
        for one in node_slices(node)
        for device in one["spec"].get("devices") or ()
        if device["attributes"]["type"]["string"] == form
    )


async def test_an_idle_cluster(running: Running) -> None:
    """Cards, memory and what fits, and zeros where nothing waits."""
    assert running.has(
        f'gpudra_gpus{{model="{L4}",state="free"}} 8.0',
        f'gpudra_gpus{{model="{L4}",state="whole"}} 0.0',
        f'gpudra_largest_free_gpus{{model="{L4}"}} 4.0',
        'gpudra_pools{state="complete"} 2.0',
        'gpudra_pending_claims{reason="in_use"} 0.0',
    )
    assert "oldest_timestamp_seconds{" not in running.metrics.render()[0].decode()


async def test_holders_come_and_go(running: Running) -> None:
    """By class, model and form while they hold; not a trace of them afterwards."""
    objects = running.server.objects
    running.put(given(claim("one"), first("a", "gpu"), "a"))
    part = given(
        claim("two", "share.gpudra.io"), first("b", "share"), "b", memory="6Gi", compute="25"
    )
    running.put(part)
    labels = f'class="share.gpudra.io",form="share",model="{L4}"'
    await running.until(
        lambda: running.has(
            f'gpudra_allocated_devices{{class="{DRIVER}",form="gpu",model="{L4}"}} 1.0',
            f"gpudra_allocated_memory_bytes{{{labels}}} 6.442450944e+09",
            f"gpudra_allocated_compute_gpus{{{labels}}} 0.25",
            f'gpudra_gpus{{model="{L4}",state="shared"}} 1.0',
            f'gpudra_largest_free_gpus{{model="{L4}"}} 3.0',
        )
    )
    objects.delete(RESOURCE_CLAIMS, "one", "team")
    objects.delete(RESOURCE_CLAIMS, "two", "team")
    await running.until(lambda: running.has(f'gpudra_gpus{{model="{L4}",state="free"}} 8.0'))
    assert "gpudra_allocated_devices{" not in running.metrics.render()[0].decode()


async def test_a_claim_that_waits_and_then_gets_its_device(running: Running) -> None:
    """Counted by reason with its age while it waits; then how long it took."""
    created = running.clock.now().replace(microsecond=0)
    waiting = claim("late", "gone.gpudra.io")
    waiting["metadata"]["creationTimestamp"] = f"{created:%Y-%m-%dT%H:%M:%SZ}"
    running.put(waiting)
    await running.until(lambda: running.has('gpudra_pending_claims{reason="no_class"} 1.0'))
    assert any(
        line.startswith("gpudra_pending_claims_oldest_timestamp_seconds")
        and 'reason="no_class"' in line
        for line in running.metrics.render()[0].decode().splitlines()
    )
    done = given(waiting, first("a", "gpu"), "a")
    then = created + timedelta(seconds=40)
    done["status"]["allocation"]["allocationTimestamp"] = f"{then:%Y-%m-%dT%H:%M:%SZ}"
    running.put(done)
    await running.until(lambda: running.has("gpudra_claim_allocation_duration_seconds_sum 40.0"))
    assert running.has(
        'gpudra_claim_allocation_duration_seconds_bucket{le="30.0"} 0.0',
        'gpudra_claim_allocation_duration_seconds_bucket{le="60.0"} 1.0',
        'gpudra_pending_claims{reason="no_class"} 0.0',
    )


async def test_only_pools_that_changed_are_counted_anew(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim on one node costs the counting of that node."""
    counted: list[str] = []
    real = accounting.count_pool

    def count_pool(slices: Any, holds: Any) -> Any:
        known = list(slices)
        counted.append(known[0].pool)
        return real(known, holds)

    monkeypatch.setattr(accounting, "count_pool", count_pool)
    running.put(given(claim("one"), first("b", "gpu"), "b"))
    await running.until(lambda: bool(counted))
    assert set(counted) == {"b"}


async def test_a_node_that_goes_takes_its_cards_along(running: Running) -> None:
    """And one that loses a slice is an incomplete pool."""
    objects = running.server.objects
    names = [one["metadata"]["name"] for one in node_slices("b")]
    objects.delete(RESOURCE_SLICES, names[0])
    await running.until(lambda: running.has('gpudra_pools{state="incomplete"} 1.0'))
    for name in names[1:]:
        objects.delete(RESOURCE_SLICES, name)
    await running.until(
        lambda: running.has(
            f'gpudra_gpus{{model="{L4}",state="free"}} 4.0', 'gpudra_pools{state="incomplete"} 0.0'
        )
    )


async def test_a_week_answers_like_a_fresh_process(running: Running) -> None:
    """After many changes the figures are those of an accountant that has just started."""
    rng = random.Random(5)
    devices = [(node, str(device["name"])) for node in "ab" for one in node_slices(node)
               for device in one["spec"].get("devices") or ()]  # fmt: skip
    for step in range(60):
        node, device = rng.choice(devices)
        name = f"c{rng.randrange(12)}"
        running.put(given(claim(name), device, node, memory="1Gi"))
        if step % 7 == 0:
            await running.clock.advance(SETTLE_SECONDS)
            await asyncio.sleep(0)
    fresh_metrics = Metrics(Component.CONTROLLER, process=False)
    fresh = Accountant(
        await running.server.client(),
        driver=DRIVER,
        metrics=fresh_metrics,
        clock=running.clock,
        rng=random.Random(1),
    )
    task = asyncio.create_task(fresh.run())

    def figures(metrics: Metrics) -> list[str]:
        lines = metrics.render()[0].decode().splitlines()
        return [line for line in lines if not line.startswith(("#", "gpudra_claim_allocation"))]

    await running.until(lambda: fresh.counted > 0)
    await running.until(lambda: figures(running.metrics) == figures(fresh_metrics))
    task.cancel()
    await asyncio.wait([task])


def test_names_beyond_a_hundred_are_one() -> None:
    """Labels stay bounded whatever admins name."""
    names = accounting._Names([f"class-{number:03}" for number in range(150)])
    assert names.of("class-099") == "class-099"
    assert names.of("class-100") == accounting.OTHER
