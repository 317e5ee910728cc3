# SPDX-License-Identifier: Apache-2.0
"""The whole agent as a process: real sockets, a fake API server, a stand-in for the kubelet."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import EVENTS, RESOURCE_CLAIMS, RESOURCE_SLICES, Obj
from tests.support.agentprocess import (
    DRIVER,
    NODE,
    AgentProcess,
    allocated_claim,
    published_devices,
)

CARDS = 8


@pytest.fixture
async def agent(server: FakeApiServer, folder: Path) -> AsyncIterator[AgentProcess]:
    """The agent, started; ended after the test if it still runs."""
    found = AgentProcess(folder, server.kubeconfig(folder / "kubeconfig"))
    await found.start()
    yield found
    if found.process is not None and found.process.returncode is None:
        await found.end(signal.SIGKILL)


async def test_from_registration_to_a_cdi_file_and_back(
    agent: AgentProcess, client: KubeClient
) -> None:
    """The main job once: register, publish, prepare two claims in one call, unprepare, end."""
    plugin = await agent.kubelet.register(await agent.served_socket())
    assert (plugin.info.type, plugin.info.name) == ("DRAPlugin", DRIVER)
    assert plugin.info.supported_versions[0] == "v1.DRAPlugin"
    devices = await published_devices(client, CARDS)
    one = await allocated_claim(client, "one", devices[0])
    two = await allocated_claim(client, "two", devices[1], devices[2])
    answers = await plugin.prepare(one, two)
    assert [answers[ref.uid].error for ref in (one, two)] == ["", ""]
    (device,) = answers[one.uid].devices
    assert (list(device.request_names), device.pool_name) == (["gpu"], NODE)
    assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={one.uid}-{devices[0]}"]
    assert agent.cdi_files() == sorted(f"{DRIVER}-claim_{ref.uid}.json" for ref in (one, two))
    document = json.loads((agent.cdi_dir / f"{DRIVER}-claim_{two.uid}.json").read_text())
    assert [one["name"] for one in document["devices"]] == [
        f"{two.uid}-{devices[1]}",
        f"{two.uid}-{devices[2]}",
    ]
    assert "NVIDIA_VISIBLE_DEVICES=void" in document["containerEdits"]["env"]
    answers = await plugin.unprepare(one, two)
    assert [answers[ref.uid].error for ref in (one, two)] == ["", ""]
    assert agent.cdi_files() == []
    await plugin.close()
    assert await agent.end() == 0
    assert list((agent.folder / "kubelet/plugins_registry").iterdir()) == []
    assert len(await published_devices(client, CARDS)) == CARDS, "slices stay over a restart"


async def test_a_refused_claim_says_why_where_people_look(
    agent: AgentProcess, client: KubeClient
) -> None:
    """The answer carries an operation id that leads to the log; the claim gets an Event."""
    plugin = await agent.kubelet.register(await agent.served_socket())
    devices = await published_devices(client, CARDS)
    holder = await allocated_claim(client, "holder", devices[0])
    late = await allocated_claim(client, "late", devices[0])
    await plugin.prepare(holder)
    error = (await plugin.prepare(late))[late.uid].error
    assert f"{devices[0]} is in use by claim {holder.uid} (default/holder)" in error
    op = error.rpartition("(op ")[2].rstrip(")")
    assert f'"op":"{op}"' in (agent.folder / "agent.log").read_text()
    (event,) = await events(client)
    assert event["regarding"]["uid"] == late.uid
    assert (event["reason"], event["type"]) == ("PrepareFailed", "Warning")
    await plugin.close()


async def test_killed_and_started_again_it_goes_on_where_it_was(
    agent: AgentProcess, client: KubeClient
) -> None:
    """SIGKILL loses nothing: claims stay prepared, slices stay, the dead sockets are replaced."""
    plugin = await agent.kubelet.register(await agent.served_socket())
    devices = await published_devices(client, CARDS)
    kept = await allocated_claim(client, "kept", devices[0])
    gone = await allocated_claim(client, "gone", devices[1])
    before = await plugin.prepare(kept, gone)
    await agent.end(signal.SIGKILL)
    await plugin.close()
    await client.delete(RESOURCE_CLAIMS, "gone", "default")
    await agent.start()
    plugin = await agent.kubelet.register(await agent.served_socket())
    new = await allocated_claim(client, "new", devices[1])
    answers = await plugin.prepare(kept, new)
    assert answers[kept.uid] == before[kept.uid]
    assert answers[new.uid].error == ""
    assert agent.cdi_files() == sorted(f"{DRIVER}-claim_{ref.uid}.json" for ref in (kept, new))
    await plugin.close()


async def events(client: KubeClient) -> list[Obj]:
    """Every Event, once there is one."""
    while True:
        if found := (await client.list(EVENTS)).items:
            return found
        await asyncio.sleep(0.01)


async def test_two_instances_share_the_claims_during_a_rolling_update(
    server: FakeApiServer, client: KubeClient, folder: Path
) -> None:
    """Both are registered under their own sockets; the second unprepares what the first prepared."""
    kubeconfig = server.kubeconfig(folder / "kubeconfig")
    old = AgentProcess(folder, kubeconfig, instance_uid="11111111-old")
    new = AgentProcess(folder, kubeconfig, instance_uid="22222222-new")
    try:
        await old.start()
        first = await old.kubelet.register(await old.served_socket())
        devices = await published_devices(client, CARDS)
        a = await allocated_claim(client, "a", devices[0])
        b = await allocated_claim(client, "b", devices[1])
        assert (await first.prepare(a))[a.uid].error == ""
        await new.start()
        second = await new.kubelet.register(await new.served_socket())
        assert (await second.prepare(b))[b.uid].error == ""
        assert await old.end() == 0
        assert (await second.unprepare(a, b))[a.uid].error == ""
        assert new.cdi_files() == []
        await first.close()
        await second.close()
    finally:
        for one in (old, new):
            if one.process is not None and one.process.returncode is None:
                await one.end(signal.SIGKILL)


async def test_it_starts_and_answers_without_the_api_server(
    server: FakeApiServer, client: KubeClient, agent: AgentProcess
) -> None:
    """What is prepared stays usable; what is new is told to be retried."""
    plugin = await agent.kubelet.register(await agent.served_socket())
    devices = await published_devices(client, CARDS)
    kept = await allocated_claim(client, "kept", devices[0])
    before = await plugin.prepare(kept)
    await agent.end(signal.SIGKILL)
    await plugin.close()
    server.faults.unavailable()
    await agent.start()
    plugin = await agent.kubelet.register(await agent.served_socket())
    assert (await plugin.prepare(kept))[kept.uid] == before[kept.uid]
    assert (await plugin.unprepare(kept))[kept.uid].error == ""
    server.faults.clear()
    await plugin.close()


async def test_a_kubelet_that_restarts_finds_everything_as_it_was(
    agent: AgentProcess, client: KubeClient
) -> None:
    """It registers the plugin again through the same socket, and asks again for what runs."""
    socket = await agent.served_socket()
    first = await agent.kubelet.register(socket)
    (device, *_) = await published_devices(client, 8)
    ref = await allocated_claim(client, "kept", device)
    before = (await first.prepare(ref))[ref.uid]
    assert before.error == ""
    await first.close()
    second = await agent.kubelet.register(await agent.kubelet.find_socket())
    assert second.info.endpoint == first.info.endpoint
    assert (await second.prepare(ref))[ref.uid] == before
    assert (await second.unprepare(ref))[ref.uid].error == ""
    assert agent.cdi_files() == []
    await second.close()


async def test_a_kubelet_that_refuses_is_heard(agent: AgentProcess, client: KubeClient) -> None:
    """The log and an Event on the node carry the kubelet's reason; nothing is published."""
    await (
        await agent.kubelet.register(await agent.served_socket(), refuse="version not supported")
    ).close()
    (event,) = await events(client)
    assert event["reason"] == "RegistrationFailed"
    assert "version not supported" in event["note"]
    assert (await client.list(RESOURCE_SLICES)).items == []
