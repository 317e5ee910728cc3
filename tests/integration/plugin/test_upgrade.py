# SPDX-License-Identifier: Apache-2.0
"""From the first agent to today's and back, on the same folders; the first one is kept as a fixture."""

import asyncio
import json
import os
import signal
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import RESOURCE_CLAIMS
from gpudra.kubelet_plugin.checkpoint_file import FIRST_NAMES, NAMES, CheckpointFile
from gpudra.kubelet_plugin.records import ClaimRef
from tests.support.agentprocess import (
    AgentProcess,
    allocated_claim,
    published_devices,
)
from tests.support.kubelet import PluginClient

FIRST = Path(__file__).parents[2] / "fixtures" / "upgrade" / "first-agent.tar.xz"
CARDS = 8


class FirstAgent(AgentProcess):
    """The agent of the fixture, unpacked beside the node's folders."""

    def command(self) -> list[str]:
        """Without the flags that came later."""
        words = super().command()
        at = words.index("--runtime-dir")
        return words[:at] + words[at + 2 :]

    async def start(self) -> None:
        """Its modules stand before those that are installed."""
        modules = self.folder / "first"
        if not modules.exists():
            with tarfile.open(FIRST) as archive:
                archive.extractall(modules, filter="data")
        with (self.folder / "agent.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(modules)},
            )


@pytest.fixture
async def agents(
    server: FakeApiServer, folder: Path
) -> AsyncIterator[tuple[AgentProcess, AgentProcess]]:
    """The first and today's, for the same node; none is left running."""
    config = server.kubeconfig(folder / "kubeconfig")
    found = FirstAgent(folder, config), AgentProcess(folder, config)
    yield found
    for agent in found:
        if agent.process is not None and agent.process.returncode is None:
            await agent.end(signal.SIGKILL)


async def serving(agent: AgentProcess) -> PluginClient:
    """The agent started and registered."""
    await agent.start()
    return await agent.kubelet.register(await agent.served_socket())


async def prepared(plugin: PluginClient, *refs: ClaimRef) -> dict[str, list[str]]:
    """The CDI devices of claims, by uid; every one succeeds."""
    answers = await plugin.prepare(*refs)
    assert [answers[ref.uid].error for ref in refs] == [""] * len(refs)
    return {
        ref.uid: [one for device in answers[ref.uid].devices for one in device.cdi_device_ids]
        for ref in refs
    }


def names_in(state_dir: Path) -> set[str]:
    """Which of the checkpoint's files are there."""
    return {name for name in (*FIRST_NAMES, *NAMES) if (state_dir / name).exists()}


async def test_the_fixture_is_the_first_agent(folder: Path) -> None:
    """Its own modules run, not those that are installed."""
    with tarfile.open(FIRST) as archive:
        archive.extractall(folder, filter="data")
    script = "import gpudra.kubelet_plugin.checkpoint_file as c; print(c.DURABLE_NAME)"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert said.decode().strip() == FIRST_NAMES[0]


async def test_claims_stay_prepared_up_and_down(
    agents: tuple[AgentProcess, AgentProcess], client: KubeClient
) -> None:
    """Each agent answers for the claims of the other, refuses their cards, and can undo them."""
    first, now = agents
    plugin = await serving(first)
    cards = await published_devices(client, CARDS)
    old, leaving = [
        await allocated_claim(client, name, card)
        for name, card in zip(("old", "leaving"), cards[:2], strict=True)
    ]
    before = await prepared(plugin, old, leaving)
    await plugin.close()
    assert await first.end() == 0
    assert names_in(first.state_dir) <= set(FIRST_NAMES)

    # Up: what the first agent wrote is read, not guessed.
    content = CheckpointFile(first.state_dir).load().content
    assert content is not None
    assert {one.name for one in content.claims.values()} == {"old", "leaving"}
    plugin = await serving(now)
    assert await published_devices(client, CARDS) == cards
    late = await allocated_claim(client, "late", cards[0])
    error = (await plugin.prepare(late))[late.uid].error
    assert f"{cards[0]} is in use by claim {old.uid} (default/old)" in error
    assert await prepared(plugin, old, leaving) == before
    new = await allocated_claim(client, "new", cards[2])
    made = await prepared(plugin, new)
    assert (await plugin.unprepare(leaving))[leaving.uid].error == ""
    await plugin.close()
    assert await now.end() == 0
    assert names_in(now.state_dir) <= set(NAMES), "the old files would be believed after going back"

    # Back: the first agent finds what is prepared by the CDI files and the API.
    plugin = await serving(first)
    assert await prepared(plugin, old, new) == {old.uid: before[old.uid], **made}
    assert "is in use by claim" in (await plugin.prepare(late))[late.uid].error
    answers = await plugin.unprepare(old, new)
    assert {one.error for one in answers.values()} == {""}
    await prepared(plugin, late)
    await plugin.close()
    assert await first.end() == 0

    # Up again: the first agent's numbers began anew, and its file counts all the same.
    plugin = await serving(now)
    await client.delete(RESOURCE_CLAIMS, "late", "default")
    assert (await plugin.unprepare(late))[late.uid].error == ""
    await plugin.close()
    assert await now.end() == 0
    assert now.cdi_files() == []
    content = CheckpointFile(now.state_dir).load().content
    assert content is not None
    assert not content.claims


async def test_a_damaged_file_of_the_first_agent_is_put_aside(
    agents: tuple[AgentProcess, AgentProcess], client: KubeClient
) -> None:
    """As one of today's: the claims are found by their CDI files."""
    first, now = agents
    plugin = await serving(first)
    cards = await published_devices(client, CARDS)
    kept = await allocated_claim(client, "kept", cards[0])
    before = await prepared(plugin, kept)
    await plugin.close()
    await first.end()
    path = first.state_dir / FIRST_NAMES[0]
    header, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(header + b"\n" + body.replace(b"kept", b"lost"))

    plugin = await serving(now)

    assert await prepared(plugin, kept) == before
    assert [one.name for one in now.state_dir.glob("*.damaged-*")]
    log = [json.loads(line) for line in (now.folder / "agent.log").read_text().splitlines()]
    assert "the checkpoint is damaged" in {line.get("event") for line in log}
    await plugin.close()
