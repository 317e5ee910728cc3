# SPDX-License-Identifier: Apache-2.0
"""The whole agent on a pretended NVIDIA machine: drivers that come late, cards that fall sick."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import pytest

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES
from gpudra.kubelet_plugin.proto import dra_health_v1_pb2 as health
from tests.fakenvml.machine import FakeMachine
from tests.support.agentprocess import DRIVER, NODE, allocated_claim
from tests.support.kubelet import PluginClient
from tests.support.nvmlprocess import NvmlAgent

TAINT = f"{DRIVER}/xid-79"
# Bounds, not waits: everything is followed until it is there.
PATIENCE = 60.0
DRIVER_NOT_LOADED = 9  # NVML_ERROR_DRIVER_NOT_LOADED
T = TypeVar("T")


@pytest.fixture
async def agent(
    server: FakeApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NvmlAgent]:
    """An agent that is not started yet, on a machine without a driver."""
    machine = FakeMachine("dgx-h100-8x80", folder / "machine", node_name=NODE)
    monkeypatch.setitem(os.environ, "FAKENVML_STATE", str(machine.state))
    found = NvmlAgent(folder, server.kubeconfig(folder / "kubeconfig"), machine=machine)
    yield found
    if found.process is not None and found.process.returncode is None:
        await found.end(signal.SIGKILL)


async def until(look: Callable[[], Any], wanted: Callable[[Any], T | None]) -> T:
    """The first answer to what is looked at again and again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = wanted(await look())
            if found:
                return found
            await asyncio.sleep(0.02)


async def started(agent: NvmlAgent) -> PluginClient:
    """The agent with its driver, registered."""
    agent.install()
    await agent.start()
    return await agent.kubelet.register(await agent.served_socket())


def whole_cards(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Published whole cards by name; nothing while the pool is being rewritten."""
    pools = [one["spec"]["pool"] for one in items]
    newest = max((pool["generation"] for pool in pools), default=0)
    current = [one for one in items if one["spec"]["pool"]["generation"] == newest]
    if any(one["spec"]["pool"]["resourceSliceCount"] != len(current) for one in current):
        return {}
    return {
        device["name"]: device
        for one in current
        for device in one["spec"].get("devices") or ()
        if device["attributes"]["type"]["string"] == "gpu"
    }


async def cards(client: KubeClient, wanted: Callable[[dict[str, Any]], T | None]) -> T:
    """Follows the published cards."""

    async def look() -> dict[str, dict[str, Any]]:
        return whole_cards((await client.list(RESOURCE_SLICES)).items)

    return await until(look, wanted)


def with_taint(found: dict[str, dict[str, Any]], key: str = TAINT) -> list[str]:
    """Names of the cards with a taint."""
    return [
        name
        for name, device in found.items()
        if any(taint["key"] == key for taint in device.get("taints") or ())
    ]


async def test_a_late_driver_is_found_and_nothing_is_published_before(
    agent: NvmlAgent, client: KubeClient, server: FakeApiServer
) -> None:
    """No slice, not even an empty one, until the cards are known; no restart is needed."""
    await agent.start()
    await agent.kubelet.register(await agent.served_socket())

    async def node() -> dict[str, Any]:
        return await client.get(NODES, NODE)

    def reason(found: dict[str, Any]) -> str:
        conditions = found.get("status", {}).get("conditions", ())
        return next((one["reason"] for one in conditions if one["type"] == "GPUsReady"), "")

    assert await until(node, reason) == "DriverMissing"
    assert not [one for one in server.writes() if one.resource == "resourceslices"]
    agent.install()
    assert await cards(client, lambda found: len(found) == 8)
    await until(node, lambda found: reason(found) == "GPUsReady")


async def test_a_sick_card_is_tainted_alone_over_a_restart_until_it_is_well(
    agent: NvmlAgent, client: KubeClient
) -> None:
    """XID 79: one card's slice is rewritten; a new process remembers; recovery clears it."""
    await started(agent)
    before = await cards(client, lambda found: found if len(found) == 8 else None)
    sick = agent.machine.inventory.gpus[3].uuid
    agent.machine.ctl("xid", sick, 79)
    (name,) = await cards(client, with_taint)
    assert before[name]["attributes"]["uuid"]["string"] == sick
    found = await cards(client, lambda found: found)
    assert {key: one for key, one in found.items() if key != name} == {
        key: one for key, one in before.items() if key != name
    }
    await agent.end()
    await agent.start()
    await agent.kubelet.register(await agent.served_socket())
    agent.machine.ctl("xid", agent.machine.inventory.gpus[0].uuid, 79)
    both = await cards(
        client, lambda found: with_taint(found) if len(with_taint(found)) == 2 else None
    )
    assert name in both
    for gpu in (sick, agent.machine.inventory.gpus[0].uuid):
        agent.machine.ctl("recovery", gpu, 0)
    healed = await cards(client, lambda found: found if not with_taint(found) else None)
    assert healed == before


async def test_a_card_that_is_pulled_and_plugged_elsewhere_keeps_its_name(
    agent: NvmlAgent, client: KubeClient
) -> None:
    """Its index is another one then; no other card notices."""
    await started(agent)
    before = await cards(client, lambda found: found if len(found) == 8 else None)
    uuid = agent.machine.inventory.gpus[5].uuid
    agent.machine.ctl("remove", uuid)
    await cards(client, lambda found: len(found) == 7)
    agent.machine.ctl("plug", uuid, 0)
    after = await cards(client, lambda found: found if len(found) == 8 else None)

    def named(found: dict[str, dict[str, Any]]) -> dict[str, str]:
        return {name: one["attributes"]["uuid"]["string"] for name, one in found.items()}

    assert named(after) == named(before)


@pytest.mark.parametrize("service", ["v1", "v1alpha1"])
async def test_the_kubelet_is_told_which_devices_are_well(
    agent: NvmlAgent, client: KubeClient, service: str
) -> None:
    """The stream lists all devices at once, and again as soon as one changes."""
    plugin = await started(agent)
    published = await cards(client, lambda found: found if len(found) == 8 else None)
    assert f"{service}.DRAResourceHealth" in plugin.info.supported_versions
    async with grpc.aio.insecure_channel(
        f"unix:{plugin.info.endpoint}", options=(("grpc.default_authority", "localhost"),)
    ) as channel:
        stream = channel.unary_stream(
            f"/{service}.DRAResourceHealth/NodeWatchResources",
            request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )(health.NodeWatchResourcesRequest())
        first = await stream.read()
        assert published.keys() <= {one.device.device_name for one in first.devices}
        assert {one.health for one in first.devices} == {health.HEALTHY}
        assert {one.device.pool_name for one in first.devices} == {NODE}
        agent.machine.ctl("xid", agent.machine.inventory.gpus[1].uuid, 79)
        second = await stream.read()
        sick = [one for one in second.devices if one.health == health.UNHEALTHY]
        assert sick
        assert all("xid-79" in one.message for one in sick)
        assert len(second.devices) == len(first.devices)
        assert await agent.end() == 0


async def test_a_driver_that_goes_and_comes_back_costs_no_device(
    agent: NvmlAgent, client: KubeClient
) -> None:
    """While it is away all devices are listed and tainted, never gone; afterwards all is as before."""
    await started(agent)
    before = await cards(client, lambda found: found if len(found) == 8 else None)
    key = f"{DRIVER}/driver-missing"
    agent.machine.ctl("fail", "*", DRIVER_NOT_LOADED)
    await cards(client, lambda found: len(with_taint(found, key)) == 8)
    agent.machine.ctl("heal")
    after = await cards(client, lambda found: found if not with_taint(found, key) else None)
    assert after == before


async def test_a_card_that_a_claim_holds_stays_listed_when_it_is_gone(
    agent: NvmlAgent, client: KubeClient
) -> None:
    """Its free neighbour is pulled too, and leaves the slices after a moment."""
    await started(agent)
    before = await cards(client, lambda found: found if len(found) == 8 else None)
    by_uuid = {device["attributes"]["uuid"]["string"]: name for name, device in before.items()}
    held, free = (agent.machine.inventory.gpus[number].uuid for number in (1, 2))
    assert held is not None
    assert free is not None
    await allocated_claim(client, "held", by_uuid[held])
    for uuid in (held, free):
        agent.machine.ctl("remove", uuid)
    lost = f"{DRIVER}/lost"
    await cards(client, lambda found: len(with_taint(found, lost)) == 2)
    left = await cards(client, lambda found: found if len(found) == 7 else None)
    assert with_taint(left, lost) == [by_uuid[held]]


async def test_an_xid_of_a_mig_instance_taints_its_device_alone(
    agent: NvmlAgent, client: KubeClient
) -> None:
    """The instance is made while the agent runs; the event names it by number."""
    await started(agent)
    before = await cards(client, lambda found: found if len(found) == 8 else None)
    uuid = agent.machine.inventory.gpus[4].uuid
    agent.machine.ctl("mig", uuid, 1)
    script = (
        "import sys; from pathlib import Path; from gpudra.driver.devicelib.nvml import NvmlLib;"
        "lib = NvmlLib(library=Path(sys.argv[1]), host_root=Path(sys.argv[2])); lib.discover();"
        "print(lib.partitions.create_mig_instance(sys.argv[3], 19, 2).gpu_instance_id)"
    )
    words = (agent.machine.library, agent.machine.root, uuid)
    maker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *map(str, words), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await maker.communicate()
    agent.machine.ctl("xid", uuid, 95, int(out), 0)
    key = f"{DRIVER}/xid-95"

    async def tainted() -> list[str]:
        items = (await client.list(RESOURCE_SLICES)).items
        found = {
            device["name"]: device for one in items for device in one["spec"].get("devices") or ()
        }
        return with_taint(found, key)

    card = next(name for name, one in before.items() if one["attributes"]["uuid"]["string"] == uuid)
    # Until a reading shows the instance it could be any of the card.
    names = await until(tainted, lambda names: names if len(names) == 1 else None)
    assert names == [f"{card}-mig-1g10gb-2"]
