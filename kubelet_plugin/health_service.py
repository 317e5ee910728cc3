# SPDX-License-Identifier: Apache-2.0
"""``DRAResourceHealth``: tells the kubelet which devices are well.

The kubelet writes it into the status of pods (``allocatedResourcesStatus``) and does nothing else
with it; keeping claims off is the business of taints. Every message lists all devices. The kubelet
takes for unknown what it has not heard of for half a minute, so the list is sent again every ten
seconds, with the time at which it was last known for certain: a monitor that hangs shows.
"""

import asyncio
from collections.abc import AsyncIterator

from gpudra.driver.core.healthview import DeviceHealth
from gpudra.driver.kube.clock import Clock
from gpudra.kubelet_plugin.health_monitor import TIMEOUT_SECONDS, HealthMonitor
from gpudra.kubelet_plugin.proto import dra_health_v1_pb2 as pb

HEARTBEAT_SECONDS = 10.0
_STATES = {
    DeviceHealth.HEALTHY: pb.HEALTHY,
    DeviceHealth.UNHEALTHY: pb.UNHEALTHY,
    DeviceHealth.UNKNOWN: pb.UNKNOWN,
}


class HealthService:
    """The servicer, for v1 and v1alpha1, whose messages are the same.

    Args:
        monitor: knows the health.
        pool: of this node's devices.
        clock: for the heartbeat.
    """

    def __init__(self, monitor: HealthMonitor, *, pool: str, clock: Clock) -> None:
        self._monitor = monitor
        self._pool = pool
        self._clock = clock
        self._closed = False
        self._streams: set[asyncio.Event] = set()

    async def watch(
        self, _request: pb.NodeWatchResourcesRequest
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """NodeWatchResources: at once, on every change, and every ten seconds, until closed."""
        with self._monitor.watching() as changed:
            self._streams.add(changed)
            try:
                while not self._closed:
                    changed.clear()
                    yield self.message()
                    timer = self._clock.call_later(HEARTBEAT_SECONDS, changed.set)
                    try:
                        await changed.wait()
                    finally:
                        timer.cancel()
            finally:
                self._streams.discard(changed)

    def close(self) -> None:
        """Ends all streams: the server could not stop while one is open."""
        self._closed = True
        for stream in self._streams:
            stream.set()

    def message(self) -> pb.NodeWatchResourcesResponse:
        """All devices now."""
        found = self._monitor.snapshot()
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health=_STATES[report.health],
                    last_updated_time=int(found.at),
                    health_check_timeout_seconds=int(TIMEOUT_SECONDS),
                    message=report.message,
                )
                for name, report in found.devices.items()
            ]
        )
