# SPDX-License-Identifier: Apache-2.0
"""``grpc.health.v1.Health`` on the plugin's socket: the checks of ``/readyz`` for gRPC probes.

The same answer as ``/readyz``: not serving while the kubelet has not registered the plugin, the
cards cannot be read, or the devices cannot be published. ``grpc_health_probe -addr
unix:///…/dra.sock`` asks it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from gpudra.driver.kube.clock import Clock
from gpudra.kubelet_plugin.proto import grpc_health_pb2 as pb

SERVICE = "grpc.health.v1.Health"
# How soon a watcher hears of a change.
LOOK_SECONDS = 1.0

Checks = Mapping[str, Callable[[], str | None]]
_Status = pb.HealthCheckResponse.ServingStatus


class ServingService:
    """The servicer.

    Args:
        checks: why not, by name; None = fine. One that raises counts as failed.
        services: full names that may be asked for, beside the server as a whole.
        clock: for watching.
    """

    def __init__(self, checks: Checks, services: frozenset[str], *, clock: Clock) -> None:
        self._checks = checks
        self._services = services
        self._clock = clock
        self._closed = False
        self._watches: set[asyncio.Event] = set()

    def serving(self) -> bool:
        """Whether every check is fine."""
        try:
            return all(check() is None for check in self._checks.values())
        except Exception:  # noqa: BLE001 - whatever it is, nobody may rely on this agent now
            return False

    def status(self, service: str) -> "_Status | None":
        """Of a service; None if there is none of that name."""
        if service and service not in self._services:
            return None
        return _Status.SERVING if self.serving() else _Status.NOT_SERVING

    async def check(
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.HealthCheckResponse:
        """Check: now."""
        status = self.status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return pb.HealthCheckResponse(status=status)

    async def watch(
        self, request: pb.HealthCheckRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """Watch: at once and on every change, until closed."""
        told: _Status | None = None
        over = asyncio.Event()
        self._watches.add(over)
        try:
            while not self._closed:
                over.clear()
                status = self.status(request.service) or _Status.SERVICE_UNKNOWN
                if status != told:
                    told = status
                    yield pb.HealthCheckResponse(status=status)
                timer = self._clock.call_later(LOOK_SECONDS, over.set)
                try:
                    await over.wait()
                finally:
                    timer.cancel()
        finally:
            self._watches.discard(over)

    def close(self) -> None:
        """Ends all watches: the server could not stop while one is open."""
        self._closed = True
        for watch in self._watches:
            watch.set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """For the server."""
        read, write = pb.HealthCheckRequest.FromString, pb.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(
                    self.check, request_deserializer=read, response_serializer=write
                ),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self.watch, request_deserializer=read, response_serializer=write
                ),
            },
        )
