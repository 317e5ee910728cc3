# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the kubelet and the container runtime, at the plugin's real sockets.

It registers the plugin as the kubelet does (GetInfo, NotifyRegistrationStatus), calls
NodePrepareResources and NodeUnprepareResources, and reads the CDI files as a runtime would, to
tell what a container would find. It runs no container.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio

from gpudra.api.errors import ClaimError, GpudraError
from gpudra.kubelet_plugin.proto import dra_v1_pb2 as dra
from gpudra.kubelet_plugin.proto import pluginregistration_pb2 as registration
from tools.demo.world import ContainerView, Object

PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
UNPREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
GET_INFO = "/pluginregistration.Registration/GetInfo"
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"
CALL_SECONDS = 45.0  # what the kubelet gives a plugin


class KubeletStandIn:
    """One node's kubelet.

    Args:
        root: its --root-dir.
        cdi_dir: where the runtime looks for CDI files.
    """

    def __init__(self, root: Path, cdi_dir: Path) -> None:
        self._sockets = root / "plugins_registry"
        self._cdi_dir = cdi_dir
        self._endpoint = ""

    async def register(self, driver: str, seconds: float) -> None:
        """Waits for the plugin's registration socket and registers it.

        Raises:
            GpudraError: no such plugin appeared in time.
        """
        try:
            async with asyncio.timeout(seconds):
                while not (found := list(self._sockets.glob("*.sock"))):  # noqa: ASYNC110 - a file
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise GpudraError(f"no plugin registered within {seconds:.0f} s") from error
        info = await self._call(
            str(found[0]), GET_INFO, registration.InfoRequest(), registration.PluginInfo
        )
        if info.name != driver or "v1.DRAPlugin" not in info.supported_versions:
            raise GpudraError(f"the plugin registered as {info.name!r}", obj=str(found[0]))
        self._endpoint = info.endpoint
        status = registration.RegistrationStatus(plugin_registered=True)
        await self._call(str(found[0]), NOTIFY, status, registration.RegistrationStatusResponse)

    async def prepare(self, claim: Object) -> ContainerView:
        """Prepares a claim; what a container that uses all of it would find.

        Raises:
            ClaimError: the plugin refused.
        """
        request = dra.NodePrepareResourcesRequest(claims=[_wire(claim)])
        answer = await self._call(
            self._endpoint, PREPARE, request, dra.NodePrepareResourcesResponse
        )
        mine = answer.claims[claim["metadata"]["uid"]]
        if mine.error:
            raise ClaimError(mine.error, obj=f"claim {claim['metadata']['name']}")
        return self.view([one for device in mine.devices for one in device.cdi_device_ids])

    async def unprepare(self, claim: Object) -> None:
        """Gives the claim's devices back.

        Raises:
            ClaimError: the plugin refused.
        """
        request = dra.NodeUnprepareResourcesRequest(claims=[_wire(claim)])
        answer = await self._call(
            self._endpoint, UNPREPARE, request, dra.NodeUnprepareResourcesResponse
        )
        if error := answer.claims[claim["metadata"]["uid"]].error:
            raise ClaimError(error, obj=f"claim {claim['metadata']['name']}")

    def view(self, ids: list[str]) -> ContainerView:
        """What the CDI files add to a container for these ids."""
        environment: dict[str, str] = {}
        devices: list[str] = []
        for edits in self._edits(ids):
            environment.update(entry.split("=", 1) for entry in edits.get("env", ()))
            devices += [node["path"] for node in edits.get("deviceNodes", ())]
            devices += [
                mount["containerPath"]
                for mount in edits.get("mounts", ())
                if mount["containerPath"].startswith("/dev/")
            ]
        names = sorted({Path(path).name for path in devices})
        return ContainerView(environment, tuple(names))

    def _edits(self, ids: list[str]) -> list[Mapping[str, Any]]:
        found = []
        for file in sorted(self._cdi_dir.glob("*.json")):
            spec = json.loads(file.read_text())
            chosen = [
                device["containerEdits"]
                for device in spec["devices"]
                if f"{spec['kind']}={device['name']}" in ids
            ]
            found += [spec.get("containerEdits", {}), *chosen] if chosen else []
        return found

    async def _call(self, socket: str, method: str, request: Any, answer: Any) -> Any:
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            call: Any = channel.unary_unary(
                method,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            return await call(request, timeout=CALL_SECONDS)


def _wire(claim: Object) -> dra.Claim:
    meta = claim["metadata"]
    return dra.Claim(namespace=meta["namespace"], uid=meta["uid"], name=meta["name"])
