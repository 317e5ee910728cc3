# SPDX-License-Identifier: Apache-2.0
"""The world without Kubernetes: an API server in memory and stand-ins around the real agent."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from gpudra.api.errors import GpudraError
from gpudra.api.resource_v1 import ResourceClaim, ResourceSlice
from gpudra.controller.ctl.devices import device_table
from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from tools.demo.kubelet import KubeletStandIn
from tools.demo.scheduler import SchedulerStandIn
from tools.demo.world import (
    CLASSES,
    DRIVER,
    GPUS,
    HARDWARE,
    NAMESPACE,
    ROOT,
    ContainerView,
    Object,
    documents,
    pod_of,
    say,
)

NODE = "demo-node"
START_SECONDS = 30.0
STOP_SECONDS = 15.0
_KINDS: dict[str, Resource] = {
    one.kind: one for one in (DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES)
}


class StandIn:
    """See tools.demo.world.World."""

    outcome = "fallback"

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._registered: KubeletStandIn | None = None
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self._server = FakeApiServer(objects=[node, *documents(CLASSES)])
        self._agent: asyncio.subprocess.Process | None = None
        self._connected: KubeClient | None = None
        self._claims: dict[str, Object] = {}
        self._views: dict[str, ContainerView] = {}

    @property
    def _client(self) -> KubeClient:
        assert self._connected is not None, "start() connects"
        return self._connected

    @property
    def _scheduler(self) -> SchedulerStandIn:
        return SchedulerStandIn(self._client, NODE)

    @property
    def _base(self) -> Path:
        assert self._folder is not None, "start() makes it"
        return self._folder

    @property
    def _kubelet(self) -> KubeletStandIn:
        assert self._registered is not None, "start() makes it"
        return self._registered

    @property
    def _log(self) -> Path:
        return self._base / "agent.log"

    async def start(self) -> None:
        """Server, agent, registration; then waits until the GPUs are published."""
        say("\n==> an API server in memory, and gpudra's node agent as a process of its own")
        # A unix socket's path has 107 bytes at most; the system's temporary folder may be deep.
        self._folder = Path(tempfile.mkdtemp(prefix="gpudra-", dir=_short_folder()))
        self._registered = KubeletStandIn(self._base / "kubelet", self._base / "cdi")
        await self._server.start()
        self._connected = await self._server.client()
        config = self._server.kubeconfig(self._base / "kubeconfig")
        command = [
            str(Path(sys.executable).with_name("gpudra-kubelet-plugin")),
            f"--node-name={NODE}",
            f"--kubeconfig={config}",
            f"--kubelet-root={self._base / 'kubelet'}",
            f"--cdi-dir={self._base / 'cdi'}",
            f"--runtime-dir={self._base / 'run'}",
            "--device-lib=simulated",
            # The story is told with whole cards; parts and shares would fill the screen.
            "--forms=whole",
            f"--hardware={HARDWARE}",
            "--http-endpoint=127.0.0.1:0",
        ]
        say(f"$ {' '.join([Path(command[0]).name, *command[1:]])}")
        with self._log.open("wb") as log:
            self._agent = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            await self._kubelet.register(DRIVER, START_SECONDS)
            await self._until_published()
        except GpudraError as error:
            text = self._log.read_text(errors="replace")[-2000:]
            raise GpudraError(f"{error}; the agent said:\n{text}") from error

    async def stop(self) -> None:
        """Ends the agent and removes its folders."""
        if self._agent is not None and self._agent.returncode is None:
            self._agent.terminate()
            try:
                await asyncio.wait_for(self._agent.wait(), STOP_SECONDS)
            except TimeoutError:
                self._agent.kill()
                await self._agent.wait()
        await self._server.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def slices(self) -> list[ResourceSlice]:
        """See World."""
        found = (await self._client.list(RESOURCE_SLICES)).items
        return [ResourceSlice.from_dict(raw) for raw in found]

    async def show_slices(self) -> None:
        """See World."""
        slices = await self.slices()
        for one in slices:
            names = ", ".join(device.name for device in one.spec.devices)
            say(f"  {one.metadata.name}: {names}")
        say()
        say(device_table(slices, await self.claims(), DRIVER, wide=True).rstrip())

    async def claims(self) -> list[ResourceClaim]:
        """See World."""
        found = (await self._client.list(RESOURCE_CLAIMS)).items
        return [ResourceClaim.from_dict(raw) for raw in found]

    async def run_pod(self, file: Path) -> str:
        """See World: create, schedule, prepare."""
        say(f"$ (apply {file.relative_to(ROOT)})")
        created = [await self._create(one) for one in documents(file)]
        pod = pod_of(created)
        name = str(pod["metadata"]["name"])
        claim = await self._scheduler.claim_for(pod)
        claim = await self._scheduler.schedule(pod, claim)
        say(f"scheduled {name} to {NODE}: claim {claim['metadata']['name']} is allocated")
        self._claims[name] = claim
        self._views[name] = await self._kubelet.prepare(claim)
        say(f"the agent prepared the claim; CDI files: {', '.join(self._cdi_files())}")
        return name

    async def remove(self, file: Path) -> None:
        """See World: unprepare, deallocate, delete."""
        say(f"$ (delete {file.relative_to(ROOT)})")
        found = documents(file)
        name = pod_of(found)["metadata"]["name"]
        claim = self._claims.pop(name)
        await self._kubelet.unprepare(claim)
        await self._scheduler.release(claim)
        for one in found:
            await self._client.delete(_KINDS[one["kind"]], one["metadata"]["name"], NAMESPACE)

    async def describe_claim(self, pod: str) -> str:
        """See World."""
        name = self._claims[pod]["metadata"]["name"]
        say(f"the claim {name}, as the API server has it:")
        claim = await self._client.get(RESOURCE_CLAIMS, name, NAMESPACE)
        return yaml.safe_dump(claim, sort_keys=False)

    async def container(self, pod: str) -> ContainerView:
        """See World."""
        return self._views[pod]

    def farewell(self) -> Sequence[str]:
        """See World."""
        return (
            "This was NOT a Kubernetes cluster: no container ran. What a container would find was",
            "read from the CDI files that the agent wrote. Nothing is left running. Go on with",
            "  make test        the tests that need no cluster",
            "and on a machine with root and Go, `make demo` again for the real one.",
        )

    async def _create(self, found: Object) -> Object:
        return await self._client.create(_KINDS[found["kind"]], found, NAMESPACE)

    def _cdi_files(self) -> list[str]:
        return sorted(path.name for path in (self._base / "cdi").glob("*.json"))

    async def _until_published(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while sum(len(one.spec.devices) for one in await self.slices()) < GPUS:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise GpudraError(f"fewer than {GPUS} GPUs within {START_SECONDS:.0f} s") from error


def _short_folder() -> str | None:
    return "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - mkdtemp below makes it private
