# SPDX-License-Identifier: Apache-2.0
"""A controller over a pretended API in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.resource_v1 import Device, DeviceTaint, ResourceSlice
from gpudra.controller.resourceslices import ResourceSliceController, SliceReport
from gpudra.driver.core.resourceslices import DesiredPool, cut_pool
from gpudra.driver.kube.clock import VirtualClock, settle
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES, Obj
from tests.support.storeclient import StoreClient

DRIVER = "gpu.gpudra.io"
NODE = "node-a"


def pool(
    devices: int = 4,
    *,
    tainted: Sequence[int] = (),
    node: str = NODE,
    index: Callable[[int], int] = lambda number: number,
) -> DesiredPool:
    """One slice a device; ``index`` is an attribute that can be made to differ."""
    return cut_pool(
        driver=DRIVER,
        pool=node,
        node_name=node,
        groups=[
            [
                Device(
                    name=f"gpu-{number}",
                    attributes={"index": index(number)},
                    taints=(
                        (DeviceTaint(key=f"{DRIVER}/lost", effect="NoSchedule"),)
                        if number in tainted
                        else ()
                    ),
                )
            ]
            for number in range(devices)
        ],
    )


def node_object(name: str = NODE) -> Obj:
    """A Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


@dataclass
class World:
    """What a test acts on."""

    clock: VirtualClock
    objects: ObjectStore
    client: StoreClient
    reports: list[SliceReport] = field(default_factory=list)
    connected: bool = True

    def controller(self, **options: Any) -> ResourceSliceController:
        """A controller of this world's node; not started."""
        return ResourceSliceController(
            self.client,
            driver=DRIVER,
            pool_name=NODE,
            node_name=NODE,
            connected=lambda: self.connected,
            on_report=self.reports.append,
            clock=self.clock,
            rng=random.Random(1),
            **options,
        )

    @asynccontextmanager
    async def running(
        self, desired: DesiredPool | None = None, **options: Any
    ) -> AsyncIterator[ResourceSliceController]:
        """A started controller that has come to rest once."""
        controller = self.controller(**options)
        task = asyncio.ensure_future(controller.run())
        try:
            controller.set_desired(desired)
            await self.rest()
            yield controller
        finally:
            await controller.stop()
            await task

    async def rest(self, seconds: float = 0.0) -> None:
        """Let the controller run, and time pass."""
        for _ in range(4):
            await settle()
        if seconds:
            await self.clock.advance(seconds)
            await settle()

    def slices(self) -> list[ResourceSlice]:
        """The slices of the API by name."""
        return [ResourceSlice.from_dict(raw) for raw in self.objects.list(RESOURCE_SLICES)]

    def device_names(self) -> list[str]:
        """All devices of the API in the order of the scheduler."""
        return [device.name for one in self.slices() for device in one.spec.devices]


def world() -> World:
    """A cluster with one node and no slices."""
    clock = VirtualClock()
    objects = ObjectStore(clock)
    objects.create(NODES, node_object())
    return World(clock, objects, StoreClient(objects))
