# SPDX-License-Identifier: Apache-2.0
"""The node agent as a process of its own, beside a fake API server: for integration tests and benches."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Obj
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.sockets import is_served, socket_paths
from tests.support.kubelet import Kubelet

DRIVER = "gpu.gpudra.io"
NODE = "node-a"


@dataclass
class AgentProcess:
    """Folders of a node, and the process that serves it."""

    folder: Path
    kubeconfig: str
    hardware: str = "dgx-h100-8x80"
    instance_uid: str = ""
    options: tuple[str, ...] = ()
    process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def kubelet(self) -> Kubelet:
        """The kubelet of this node."""
        return Kubelet(self.folder / "kubelet")

    @property
    def cdi_dir(self) -> Path:
        """Where the runtime would look."""
        return self.folder / "cdi"

    @property
    def state_dir(self) -> Path:
        """Where the checkpoint lies."""
        return self.folder / "kubelet/plugins" / DRIVER

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        """How it is started."""
        return [
            sys.executable, "-m", "gpudra.kubelet_plugin", "--node-name", NODE,
            "--kubeconfig", self.kubeconfig, "--kubelet-root", str(self.folder / "kubelet"),
            "--cdi-dir", str(self.cdi_dir), "--driver-name", DRIVER,
            "--device-lib", "simulated", "--hardware", self.hardware,
            "--runtime-dir", str(self.folder / "run"),
            "--http-endpoint", "", "--instance-uid", self.instance_uid, *self.options,
        ]  # fmt: skip

    async def start(self) -> None:
        """Starts it; its log goes to ``agent.log``."""
        with (self.folder / "agent.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command(), stdout=log, stderr=log
            )

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it and waits; its exit code."""
        assert self.process is not None
        os.kill(self.process.pid, number)
        return await self.process.wait()

    async def served_socket(self) -> Path:
        """This process's registration socket, once it accepts connections."""
        paths = socket_paths(self.folder / "kubelet", DRIVER, self.instance_uid)
        while True:
            if paths.registration.exists() and is_served(paths.registration):
                return paths.registration
            assert self.process is not None
            assert self.process.returncode is None, (self.folder / "agent.log").read_text()
            await asyncio.sleep(0.01)

    def cdi_files(self) -> list[str]:
        """Every file in the CDI folder."""
        return sorted(path.name for path in self.cdi_dir.iterdir())

    def log_lines(self) -> list[str]:
        """What it has logged so far."""
        return (self.folder / "agent.log").read_text().splitlines()

    def resident_mib(self) -> float:
        """Memory of the process now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_seconds(self) -> float:
        """Processor time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def node_object(name: str = NODE) -> Obj:
    """The node, so that slices have an owner."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": f"uid-{name}"}}


async def published_devices(client: KubeClient, count: int) -> list[str]:
    """Names of the node's whole cards, once so many are published."""
    while True:
        found = await client.list(RESOURCE_SLICES)
        names = [
            device["name"]
            for one in found.items
            for device in one["spec"].get("devices") or ()
            if device["attributes"]["type"]["string"] == "gpu"
        ]
        if len(names) >= count:
            return names
        await asyncio.sleep(0.01)


async def allocated_claim(
    client: KubeClient, name: str, *devices: str, namespace: str = "default"
) -> ClaimRef:
    """A claim that is allocated and reserved, as the scheduler leaves it."""
    claim: Obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}
        },
    }
    made = await client.create(RESOURCE_CLAIMS, claim, namespace)
    made["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}
                    for device in devices
                ]
            }
        },
        "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-{name}"}],
    }
    made = await client.update_status(RESOURCE_CLAIMS, made)
    return ClaimRef(made["metadata"]["uid"], namespace, name)


async def add_node(client: KubeClient) -> None:
    """Creates the node object."""
    await client.create(NODES, node_object())
