# SPDX-License-Identifier: Apache-2.0
"""What a whole agent tells about itself: every metric moves, and a broken one is not ready.

The agent runs as a process on a pretended NVIDIA machine; a claim of each form is prepared, one is
refused, one fails.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import grpc
import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.metrics import TABLE, Component, Kind, Metric
from gpudra.kubelet_plugin.proto import grpc_health_pb2 as health
from gpudra.kubelet_plugin.records import ClaimRef
from tests.fakenvml.machine import FakeMachine
from tests.support.agentprocess import DRIVER, NODE, published_devices
from tests.support.kubelet import PluginClient
from tests.support.nvmlprocess import NvmlAgent

CARDS = 8
# A bound, not a wait: everything is followed until it is there.
PATIENCE = 60.0
UNKNOWN_ERROR = 999
STRAY = "99999999-0000-4000-8000-000000000009"
# Zero is their good value, and only trouble moves them; tests of that trouble look at them.
TROUBLE = (m.ISOLATION_INCIDENTS, m.REFLECTOR_ERRORS, m.USAGE_ERRORS, m.SLICE_DROPPED_FIELDS)
T = TypeVar("T")


@pytest.fixture
async def agent(
    server: FakeApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NvmlAgent]:
    """An agent with a status endpoint that is not started yet, on a machine with a driver."""
    machine = FakeMachine("dgx-h100-8x80", folder / "machine", node_name=NODE)
    monkeypatch.setitem(os.environ, "FAKENVML_STATE", str(machine.state))
    found = NvmlAgent(
        folder,
        server.kubeconfig(folder / "kubeconfig"),
        machine=machine,
        options=(
            *("--http-endpoint", "127.0.0.1:0"),
            *("--usage-period", "0.1"),
            *("--driver-root", str(machine.root)),
        ),
    )
    found.install()
    yield found
    if found.process is not None and found.process.returncode is None:
        await found.end(signal.SIGKILL)


class Status:
    """The agent's status endpoint."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._base = f"http://127.0.0.1:{port}"

    async def get(self, path: str) -> tuple[int, str]:
        """Status code and text."""
        async with self._session.get(self._base + path) as answer:
            return answer.status, await answer.text()

    async def metrics(self) -> dict[str, list[Any]]:
        """Samples by name of the metric in the table."""
        _, text = await self.get("/metrics")
        found: dict[str, list[Any]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                for suffix in ("_count", "_bucket", "_sum"):
                    found.setdefault(sample.name.removesuffix(suffix), []).append(sample)
                found.setdefault(sample.name, []).append(sample)
        return found


@pytest.fixture
async def status(agent: NvmlAgent) -> AsyncIterator[Callable[[], Awaitable[Status]]]:
    """The endpoint of the running agent, at the port that it tells in its log."""
    async with aiohttp.ClientSession() as session:

        async def opened() -> Status:
            port = await until(lambda: told_port(agent))
            return Status(session, port)

        yield opened


async def told_port(agent: NvmlAgent) -> int | None:
    """The port, once the agent has written it."""
    for line in agent.log_lines():
        if '"status endpoint"' in line and line.endswith("}"):
            return int(json.loads(line)["port"])
    return None


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    """The first answer that is one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.02)


async def claim(client: KubeClient, name: str, *configs: Any, **result: Any) -> ClaimRef:
    """An allocated claim of one device."""
    made = await client.create(
        RESOURCE_CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}
            },
        },
        "default",
    )
    devices = {
        "results": [{"request": "gpu", "driver": DRIVER, "pool": NODE, **result}],
        "config": [
            {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": one}}
            for one in configs
        ],
    }
    made["status"] = {
        "allocation": {"devices": devices},
        "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-{name}"}],
    }
    made = await client.update_status(RESOURCE_CLAIMS, made)
    return ClaimRef(made["metadata"]["uid"], "default", name)


def moved(metric: Metric, found: dict[str, list[Any]]) -> bool:
    """Whether something was recorded."""
    samples = found.get(metric.name.removesuffix("_total"), []) + found.get(metric.name, [])
    if metric.kind is Kind.HISTOGRAM:
        samples = [one for one in samples if one.name.endswith("_count")]
    if metric is m.IN_FLIGHT:  # it is over by now
        return len(samples) > 0
    return any(one.value > 0 for one in samples)


def outcomes(found: dict[str, list[Any]], metric: Metric) -> set[tuple[str, ...]]:
    """Label values of a histogram."""
    return {
        tuple(one.labels[name] for name in metric.labels)
        for one in found[metric.name]
        if one.name.endswith("_count") and one.value > 0
    }


async def prepare_everything(
    agent: NvmlAgent, client: KubeClient, plugin: PluginClient
) -> dict[str, ClaimRef]:
    """One claim of each form, one that is refused and one that fails."""
    cards = await published_devices(client, CARDS)
    none = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "ShareConfig",
        "sharing": {"isolation": "none"},
    }
    taken = {
        "shareID": "11111111-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "10Gi", "compute": "0"},
    }
    refs = {
        "gpu": await claim(client, "whole", device=cards[0]),
        "mig": await claim(client, "part", device=f"{cards[1]}-mig-1g10gb-0"),
        "share": await claim(client, "shared", none, device=f"{cards[2]}-share", **taken),
        "monitor": await claim(client, "watcher", device=f"{cards[0]}-monitor", adminAccess=True),
    }
    answers = await plugin.prepare(*refs.values())
    assert {form: answers[ref.uid].error for form, ref in refs.items()} == dict.fromkeys(refs, "")
    refs["refused"] = await claim(client, "late", device=cards[0])
    assert "is in use" in (await plugin.prepare(refs["refused"]))[refs["refused"].uid].error
    agent.machine.ctl("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", UNKNOWN_ERROR)
    refs["failed"] = await claim(client, "broken", device=f"{cards[3]}-mig-1g10gb-0")
    assert (await plugin.prepare(refs["failed"]))[refs["failed"].uid].error
    agent.machine.ctl("heal")
    return refs


async def test_a_prepare_of_each_form_and_a_failure_move_every_metric(
    agent: NvmlAgent, client: KubeClient, status: Callable[[], Awaitable[Status]]
) -> None:
    """Nothing in the table shows zero for ever; forms, outcomes and phases are told apart."""
    agent.cdi_dir.mkdir()
    (agent.cdi_dir / f"{DRIVER}-claim_{STRAY}.json").write_text("{}")
    await agent.start()
    plugin = await agent.kubelet.register(await agent.served_socket())
    try:
        refs = await prepare_everything(agent, client, plugin)
        cards = agent.machine.inventory.gpus
        for gpu in cards:
            agent.machine.ctl("process", gpu.uuid, 4711, 2**30)
            agent.machine.ctl("runs", gpu.uuid, 4711, 40)
        agent.machine.ctl("xid", cards[5].uuid, 79)
        answers = await plugin.unprepare(refs["mig"], refs["refused"])
        assert {one.error for one in answers.values()} == {""}
        endpoint = await status()
        mine = [one for one in TABLE if Component.AGENT in one.components and one not in TROUBLE]

        async def all_moved() -> dict[str, list[Any]] | None:
            found = await endpoint.metrics()
            left[:] = [one.name for one in mine if not moved(one, found)]
            return None if left else found

        left: list[str] = []
        try:
            found = await until(all_moved)
        except TimeoutError:
            pytest.fail(f"these never moved: {left}")
    finally:
        await plugin.close()
    forms = {(form, "ok") for form in ("gpu", "mig", "share", "monitor")}
    assert outcomes(found, m.PREPARE_SECONDS) == {*forms, ("gpu", "refused"), ("mig", "failed")}
    assert outcomes(found, m.UNPREPARE_SECONDS) == {("mig", "ok"), ("none", "ok")}
    phases = {
        phase for operation, phase in outcomes(found, m.PHASE_SECONDS) if operation == "prepare"
    }
    assert phases == {"lock", "hardware", "cdi", "checkpoint", "api"}
    assert ("error",) in outcomes(found, m.DEVICE_CALL_SECONDS)
    kinds = {one.labels["kind"]: one.value for one in found[m.PREPARED_DEVICES.name]}
    assert kinds == {"gpu": 1, "mig": 0, "share": 1, "monitor": 1}
    published = {one.labels["kind"] for one in found[m.DEVICES.name]}
    assert published == {"gpu", "mig", "share", "monitor"}
    assert {one.labels["kind"] for one in found["gpudra_gc_actions_total"]} == {"cdi_file"}


async def serving(socket: Path, service: str = "") -> Any:
    """What grpc.health.v1 says."""
    options = (("grpc.default_authority", "localhost"),)
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health.HealthCheckRequest.SerializeToString,
            response_deserializer=health.HealthCheckResponse.FromString,
        )
        return (await check(health.HealthCheckRequest(service=service))).status


async def test_an_agent_that_the_kubelet_does_not_register_is_not_ready(
    agent: NvmlAgent, status: Callable[[], Awaitable[Status]]
) -> None:
    """Neither before it was asked nor after it was refused; alive it is all the time."""
    await agent.start()
    socket = await agent.served_socket()
    endpoint = await status()
    code, text = await endpoint.get("/readyz")
    assert (code, "[-]kubelet failed: the kubelet has not registered" in text) == (503, True)
    plugin = await agent.kubelet.register(socket, refuse="name is taken")
    code, text = await endpoint.get("/readyz")
    assert code == 503
    assert "[-]kubelet failed: the kubelet refused the plugin: name is taken" in text
    assert await serving(Path(plugin.info.endpoint)) == health.HealthCheckResponse.NOT_SERVING
    assert (await endpoint.get("/healthz"))[0] == 200
    await plugin.close()


async def test_ready_ends_when_publishing_breaks_and_comes_back_with_it(
    agent: NvmlAgent,
    client: KubeClient,
    server: FakeApiServer,
    status: Callable[[], Awaitable[Status]],
) -> None:
    """An API server that refuses slices makes the agent not ready, for probes of both protocols."""
    await agent.start()
    plugin = await agent.kubelet.register(await agent.served_socket())
    socket = Path(plugin.info.endpoint)
    endpoint = await status()

    async def answers(code: int) -> str | None:
        found, text = await endpoint.get("/readyz")
        return text if found == code else None

    await until(lambda: answers(200))
    for service in ("", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "v1.DRAResourceHealth"):
        assert await serving(socket, service) == health.HealthCheckResponse.SERVING
    for verb in ("create", "update", "patch"):
        server.faults.fail(verb=verb, resource=RESOURCE_SLICES.plural, status=403, times=None)
    for one in (await client.list(RESOURCE_SLICES)).items:
        await client.delete(RESOURCE_SLICES, one["metadata"]["name"])
    text = await until(lambda: answers(503))
    assert "[-]slices failed: " in text
    assert await serving(socket) == health.HealthCheckResponse.NOT_SERVING
    server.faults.clear()
    await until(lambda: answers(200))
    assert await serving(socket) == health.HealthCheckResponse.SERVING
    await plugin.close()


async def test_a_watch_for_health_hears_changes_and_ends_with_the_agent(agent: NvmlAgent) -> None:
    """First the state of now, then each change; an unknown service is told as such."""
    await agent.start()
    socket = await agent.served_socket()
    plugin = await agent.kubelet.register(socket, refuse="not yet")
    options = (("grpc.default_authority", "localhost"),)
    async with grpc.aio.insecure_channel(
        f"unix:{plugin.info.endpoint}", options=options
    ) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health.HealthCheckRequest.SerializeToString,
            response_deserializer=health.HealthCheckResponse.FromString,
        )
        stream = watch(health.HealthCheckRequest())
        assert (await stream.read()).status == health.HealthCheckResponse.NOT_SERVING
        odd = watch(health.HealthCheckRequest(service="odd"))
        assert (await odd.read()).status == health.HealthCheckResponse.SERVICE_UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await serving(Path(plugin.info.endpoint), "odd")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        await plugin.close()
        plugin = await agent.kubelet.register(socket)
        async with asyncio.timeout(PATIENCE):
            assert (await stream.read()).status == health.HealthCheckResponse.SERVING
            assert await agent.end() == 0
            assert await stream.read() is grpc.aio.EOF
    await plugin.close()
