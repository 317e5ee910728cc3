# SPDX-License-Identifier: Apache-2.0
"""The whole agent with cards of another vendor: published, prepared, and watched like any other."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES
from tests.support.agentprocess import DRIVER, NODE, AgentProcess, allocated_claim

PATIENCE = 30.0
T = TypeVar("T")
INVENTORY = """\
apiVersion: gpudra.io/v1alpha1
kind: DeviceInventory
metadata: {{name: two-npus}}
spec:
  vendor: huawei
  common:
    env: {{ASCEND_RUNTIME: "1"}}
  devices:
    - {{name: npu-0, memory: 64Gi, deviceNodes: [{{path: /dev/davinci0, hostPath: {folder}/davinci0}}]}}
    - {{name: npu-1, memory: 64Gi, deviceNodes: [{{path: /dev/davinci1, hostPath: {folder}/davinci1}}]}}
"""


@dataclass
class DeclaredAgent(AgentProcess):
    """The agent on a DeviceInventory file."""

    def command(self) -> list[str]:
        """How it is started."""
        words = super().command()
        words[words.index("simulated")] = "declared"
        return words


@pytest.fixture
async def agent(server: FakeApiServer, folder: Path) -> AsyncIterator[DeclaredAgent]:
    """Two declared cards with their device files."""
    for name in ("davinci0", "davinci1"):
        (folder / name).touch()
    path = folder / "inventory.yaml"
    path.write_text(INVENTORY.format(folder=folder))
    found = DeclaredAgent(folder, server.kubeconfig(folder / "kubeconfig"), hardware=str(path))
    await found.start()
    yield found
    if found.process is not None and found.process.returncode is None:
        await found.end(signal.SIGKILL)


async def devices(client: KubeClient, wanted: Callable[[dict[str, Any]], T | None]) -> T:
    """Follows the published devices."""
    async with asyncio.timeout(PATIENCE):
        while True:
            slices = (await client.list(RESOURCE_SLICES)).items
            found = wanted(
                {
                    device["name"]: device
                    for one in slices
                    for device in one["spec"].get("devices") or ()
                }
            )
            if found:
                return found
            await asyncio.sleep(0.02)


def taints(device: dict[str, Any]) -> list[tuple[str, str]]:
    """Keys and values."""
    return [(one["key"], one.get("value", "")) for one in device.get("taints") or ()]


async def test_declared_cards_serve_claims_and_show_what_is_missing(
    agent: DeclaredAgent, server: FakeApiServer, folder: Path
) -> None:
    """Vendor, CDI edits, node labels; a device file that goes is a taint and a refusal."""
    client = await server.client()
    plugin = await agent.kubelet.register(await agent.served_socket())
    found = await devices(client, lambda found: found if len(found) >= 2 else None)
    assert found["npu-0"]["attributes"]["vendor"] == {"string": "huawei"}
    claim = await allocated_claim(client, "one", "npu-0")
    answers = await plugin.prepare(claim)
    assert answers[claim.uid].error == ""
    (name,) = agent.cdi_files()
    spec = json.loads((agent.cdi_dir / name).read_text())
    text = json.dumps(spec)
    assert "/dev/davinci0" in text
    assert "ASCEND_RUNTIME=1" in text
    assert "NVIDIA_VISIBLE_DEVICES" not in text
    (folder / "davinci1").unlink()
    key = f"{DRIVER}/missing-file"
    await devices(client, lambda found: taints(found["npu-1"]) == [(key, "davinci1")])
    other = await allocated_claim(client, "two", "npu-1")
    answers = await plugin.prepare(other)
    assert "davinci1" in answers[other.uid].error
    (folder / "davinci1").touch()
    await devices(client, lambda found: taints(found["npu-1"]) == [])
    labels = (await client.get(NODES, NODE))["metadata"].get("labels", {})
    assert labels["gpudra.io/gpu.vendor"] == "huawei"
