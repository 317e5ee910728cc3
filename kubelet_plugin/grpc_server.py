# SPDX-License-Identifier: Apache-2.0
"""gRPC over unix sockets: binds the services' methods to their wire names and serves them."""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from gpudra.api.errors import StateError
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin import files, sockets
from gpudra.kubelet_plugin.dra_service import DraService
from gpudra.kubelet_plugin.health_service import HealthService
from gpudra.kubelet_plugin.proto import dra_health_v1_pb2, dra_v1_pb2, pluginregistration_pb2
from gpudra.kubelet_plugin.registration import RegistrationService

DRA_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
# Kubelets before 1.37 know the second only; the messages are the same.
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
REGISTRATION_SERVICE = "pluginregistration.Registration"

_OPTIONS: tuple[tuple[str, int], ...] = (
    # A server that finds its socket taken must fail, not share it.
    ("grpc.so_reuseport", 0),
    # 256 claims of 32 devices are far below this; the default of 4 MiB would do too.
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
)
log = get_logger(__name__)


class Message(Protocol):
    """A generated message."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Wire bytes."""
        ...


Q = TypeVar("Q")
A = TypeVar("A", bound=Message)


def _unary(
    method: Callable[[Q], Awaitable[A]], request: Callable[[bytes], Q]
) -> "grpc.RpcMethodHandler[Any, Any]":
    async def handle(message: Q, _context: object) -> A:
        return await method(message)

    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=request,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def dra_handlers(service: DraService) -> grpc.GenericRpcHandler:
    """``v1.DRAPlugin``."""
    return grpc.method_handlers_generic_handler(
        DRA_SERVICE,
        {
            "NodePrepareResources": _unary(
                service.prepare, dra_v1_pb2.NodePrepareResourcesRequest.FromString
            ),
            "NodeUnprepareResources": _unary(
                service.unprepare, dra_v1_pb2.NodeUnprepareResourcesRequest.FromString
            ),
        },
    )


def _stream(
    method: Callable[[Q], AsyncIterator[A]], request: Callable[[bytes], Q]
) -> "grpc.RpcMethodHandler[Any, Any]":
    async def handle(message: Q, _context: object) -> AsyncIterator[A]:
        async for answer in method(message):
            yield answer

    return grpc.unary_stream_rpc_method_handler(
        handle,
        request_deserializer=request,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def health_handlers(service: HealthService) -> tuple[grpc.GenericRpcHandler, ...]:
    """``v1.DRAResourceHealth`` and its older form."""
    watch = _stream(service.watch, dra_health_v1_pb2.NodeWatchResourcesRequest.FromString)
    return tuple(
        grpc.method_handlers_generic_handler(name, {"NodeWatchResources": watch})
        for name in HEALTH_SERVICES
    )


def registration_handlers(service: RegistrationService) -> grpc.GenericRpcHandler:
    """``pluginregistration.Registration``."""
    return grpc.method_handlers_generic_handler(
        REGISTRATION_SERVICE,
        {
            "GetInfo": _unary(service.get_info, pluginregistration_pb2.InfoRequest.FromString),
            "NotifyRegistrationStatus": _unary(
                service.notify, pluginregistration_pb2.RegistrationStatus.FromString
            ),
        },
    )


class SocketServer:
    """One gRPC server on one unix socket.

    Args:
        path: of the socket; its folder is created.
        handlers: what it serves.
    """

    def __init__(self, path: Path, *handlers: grpc.GenericRpcHandler) -> None:
        self.path = path
        self._handlers = handlers
        self._server: grpc.aio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Serves from now on.

        Raises:
            InputError: the socket is somebody else's.
            StateError: the folder or socket cannot be made.
        """
        files.make_folder(self.path.parent)
        sockets.clear_stale(self.path)
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers)
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise StateError(
                f"cannot listen: {error}", obj=str(self.path), hint="look at the folder's rights"
            ) from error
        await server.start()
        with files.explained(self.path, "protect"):
            self.path.chmod(0o600)
            self._inode = self.path.stat().st_ino
        self._server = server

    def problem(self) -> str | None:
        """For ``/healthz``: a socket that was opened has to be there, and to be ours."""
        if self._server is None:
            return None
        try:
            same = self.path.stat().st_ino == self._inode
        except OSError:
            same = False
        return None if same else f"the socket {self.path} is gone; restart the plugin"

    async def stop(self, grace: float) -> None:
        """Takes no more calls, lets those that run end within ``grace`` seconds.

        The socket is removed if it is still ours: its removal is what tells the kubelet.
        """
        if self._server is None:
            return
        if self.problem() is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)  # noqa: PTH108 - before stop, so that the kubelet sees it first
        await self._server.stop(grace)
        self._server = None
