# SPDX-License-Identifier: Apache-2.0
"""A kubelet, as far as a DRA plugin sees one: it watches the registry, registers, and calls."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpudra.kubelet_plugin.grpc_server import DRA_SERVICE, REGISTRATION_SERVICE
from gpudra.kubelet_plugin.proto import dra_v1_pb2 as dra
from gpudra.kubelet_plugin.proto import pluginregistration_pb2 as reg
from gpudra.kubelet_plugin.records import ClaimRef

# The kubelet's deadline for each call, in seconds.
TIMEOUT = 45


def _channel(path: Path | str) -> grpc.aio.Channel:
    # The kubelet's dialer sends a fixed authority, whatever the path.
    return grpc.aio.insecure_channel(
        f"unix:{path}", options=(("grpc.default_authority", "localhost"),)
    )


@dataclass
class Kubelet:
    """One kubelet with its root folder."""

    root: Path

    async def find_socket(self) -> Path:
        """The registration socket, once there is one."""
        registry = self.root / "plugins_registry"
        while True:
            found = sorted(registry.glob("*.sock")) if registry.exists() else []
            if found:
                return found[-1]
            await asyncio.sleep(0.005)

    async def register(self, path: Path | None = None, *, refuse: str = "") -> "PluginClient":
        """What the kubelet does with a new socket; ``refuse`` reports that error instead."""
        path = path or await self.find_socket()
        async with _channel(path) as channel:
            info = await channel.unary_unary(
                f"/{REGISTRATION_SERVICE}/GetInfo",
                request_serializer=reg.InfoRequest.SerializeToString,
                response_deserializer=reg.PluginInfo.FromString,
            )(reg.InfoRequest())
            await channel.unary_unary(
                f"/{REGISTRATION_SERVICE}/NotifyRegistrationStatus",
                request_serializer=reg.RegistrationStatus.SerializeToString,
                response_deserializer=reg.RegistrationStatusResponse.FromString,
            )(reg.RegistrationStatus(plugin_registered=not refuse, error=refuse))
        return PluginClient(info)


class PluginClient:
    """The connection to a registered plugin's services."""

    def __init__(self, info: reg.PluginInfo) -> None:
        self.info = info
        self._channel = _channel(info.endpoint)
        self._prepare = self._channel.unary_unary(
            f"/{DRA_SERVICE}/NodePrepareResources",
            request_serializer=dra.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodePrepareResourcesResponse.FromString,
        )
        self._unprepare = self._channel.unary_unary(
            f"/{DRA_SERVICE}/NodeUnprepareResources",
            request_serializer=dra.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=dra.NodeUnprepareResourcesResponse.FromString,
        )

    async def prepare(self, *refs: ClaimRef) -> Any:
        """NodePrepareResources; the answers by uid."""
        request = dra.NodePrepareResourcesRequest(claims=[_message(ref) for ref in refs])
        return (await self._prepare(request, timeout=TIMEOUT)).claims

    async def unprepare(self, *refs: ClaimRef) -> Any:
        """NodeUnprepareResources; the answers by uid."""
        request = dra.NodeUnprepareResourcesRequest(claims=[_message(ref) for ref in refs])
        return (await self._unprepare(request, timeout=TIMEOUT)).claims

    async def close(self) -> None:
        """Hangs up."""
        await self._channel.close()


def _message(ref: ClaimRef) -> dra.Claim:
    return dra.Claim(uid=ref.uid, namespace=ref.namespace, name=ref.name)
