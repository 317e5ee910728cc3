# SPDX-License-Identifier: Apache-2.0
"""The slice controller over real HTTP against the fake API server."""

import asyncio
import random
from collections.abc import Callable

from gpudra.controller.resourceslices import ResourceSliceController, probe_features
from gpudra.driver.core.resourceslices import ALL_FEATURES, DesiredPool, build_pool
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware
from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES

DRIVER = "gpu.gpudra.io"
NODE = "node-a"


def _pool() -> DesiredPool:
    inventory = build_inventory(load_hardware("dgx-h100-8x80"), node_name=NODE)
    return build_pool(inventory, node_name=NODE, features=ALL_FEATURES)


def _controller(client: KubeClient) -> ResourceSliceController:
    controller = ResourceSliceController(
        client, driver=DRIVER, pool_name=NODE, node_name=NODE, rng=random.Random(1)
    )
    controller.set_desired(_pool())
    return controller


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - real sockets need real turns of the loop
            await asyncio.sleep(0.01)


async def test_a_node_of_eight_cards_is_published_adopted_and_restored() -> None:
    """Publish, restart without a write, and put back what somebody deletes."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    async with FakeApiServer(objects=[node]) as server:
        client = await server.client()
        assert await probe_features(client, driver=DRIVER, node_name=NODE) == ALL_FEATURES
        first = _controller(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(first.run())
            await first.wait_synced()
            await first.stop()
        published = server.objects.list(RESOURCE_SLICES)
        assert len(published) == 8
        uid = server.objects.get(NODES, NODE)["metadata"]["uid"]
        assert {one["metadata"]["ownerReferences"][0]["uid"] for one in published} == {uid}

        server.requests.clear()
        second = _controller(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(second.run())
            await second.wait_synced()
            assert [record for record in server.requests if record.writes] == []
            server.objects.delete(RESOURCE_SLICES, published[3]["metadata"]["name"])
            await _until(lambda: len(server.objects.list(RESOURCE_SLICES)) == 8)
            await second.stop()
        before = [one["spec"] for one in published]
        assert [one["spec"] for one in server.objects.list(RESOURCE_SLICES)] == before


async def test_a_server_that_is_busy_for_a_moment_costs_no_slice() -> None:
    """Writes that are answered with 503 are made again."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    async with FakeApiServer(objects=[node]) as server:
        client = await server.client()
        controller = _controller(client)
        server.faults.fail(verb="create", resource="resourceslices", status=503, times=2)
        async with asyncio.TaskGroup() as group:
            group.create_task(controller.run())
            async with asyncio.timeout(30):
                await controller.wait_synced()
            await controller.stop()
        assert len(server.objects.list(RESOURCE_SLICES)) == 8
