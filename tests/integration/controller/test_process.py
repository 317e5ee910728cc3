# SPDX-License-Identifier: Apache-2.0
"""``gpudra-controller`` as a process: leads, waits, ends."""

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpudra.api.errors import GpudraError
from gpudra.controller import __main__ as entry
from gpudra.controller.app import LEASE, App
from gpudra.controller.options import Options, parse
from gpudra.driver.kube.client import ClientOptions
from gpudra.driver.kube.clock import SystemClock
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    LEASES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from gpudra.driver.kube.transport import Call
from gpudra.driver.observability.metrics import Component, Metrics

NAMESPACE = "gpudra-system"
CLAIM_KINDS = (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """An API server without any object."""
    async with FakeApiServer() as server:
        yield server


def options(instance: str) -> Options:
    """Options of one instance, any free port."""
    return parse(["--instance", instance, "--http-endpoint", "127.0.0.1:0"], {})


async def until(condition: Callable[[], Any]) -> None:
    """Gives the loop to the sockets until the condition holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process, or a socket, changes it
            await asyncio.sleep(0.005)


def holder(server: FakeApiServer) -> str:
    """Who holds the lease; empty when nobody does."""
    found = server.objects.list(LEASES, NAMESPACE)
    return str(found[0]["spec"]["holderIdentity"]) if found else ""


async def get(port: int, path: str) -> tuple[int, str]:
    """Status and text of a GET on loopback."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def instance(server: FakeApiServer, name: str) -> tuple[App, "asyncio.Task[None]"]:
    """One running instance."""
    metrics = Metrics(Component.CONTROLLER)
    client = await server.client(ClientOptions(on_request=metrics.api_request))
    app = App(options(name), client, metrics=metrics, clock=SystemClock(), rng=random.Random(0))
    return app, asyncio.create_task(app.run())


async def end(task: "asyncio.Task[None]") -> None:
    """As SIGTERM does."""
    task.cancel()
    await asyncio.wait([task])


async def test_one_leads_and_the_other_takes_over_when_asked_to_end(server: FakeApiServer) -> None:
    """Both are ready; only the leader works; the lease is given back, not left to expire."""
    first, first_task = await instance(server, "one")
    await until(lambda: holder(server) == "one")
    second, second_task = await instance(server, "two")
    await until(lambda: first.fabric.has_synced and second._elector.holder == "one")
    assert (await get(first.status.port, "/readyz"))[0] == 200
    assert (await get(second.status.port, "/readyz"))[0] == 200
    assert "gpudra_leader 1.0" in (await get(first.status.port, "/metrics"))[1]
    assert "gpudra_leader 0.0" in (await get(second.status.port, "/metrics"))[1]
    assert not second.fabric.has_synced
    await end(first_task)
    await until(lambda: holder(server) == "two")
    await end(second_task)
    assert holder(server) == ""


async def test_it_is_not_ready_before_it_knows_a_leader(server: FakeApiServer) -> None:
    """Alive at once, ready when an election has been seen."""
    server.faults.fail(resource="leases", status=500, times=None)
    app, task = await instance(server, "one")
    await until(lambda: any(record.resource == "leases" for record in server.requests))
    assert (await get(app.status.port, "/healthz"))[0] == 200
    status, text = await get(app.status.port, "/readyz")
    assert (status, "[-]lease failed: no leader known yet" in text) == (503, True)
    await end(task)


async def test_requests_are_counted_by_what_was_asked(server: FakeApiServer) -> None:
    """The scrape tells verb, resource and code of every request, failures included."""
    server.faults.fail(resource="leases", verb="get", status=503, times=1)
    app, task = await instance(server, "one")
    await until(lambda: app.fabric.has_synced and app.accounting.counted)
    lines = (await get(app.status.port, "/metrics"))[1].splitlines()
    wanted = [
        'gpudra_api_requests_total{code="503",resource="leases",verb="get"} 1.0',
        'gpudra_api_requests_total{code="2xx",resource="leases",verb="create"} 1.0',
        'gpudra_api_requests_total{code="2xx",resource="resourceslices",verb="list"} 2.0',
        'gpudra_api_request_duration_seconds_count{verb="create"} 1.0',
    ]
    assert [line for line in wanted if line not in lines] == []
    await end(task)


@pytest.mark.parametrize(
    ("path", "plural"),
    [
        ("/api/v1/nodes/n", "nodes"),
        ("/api/v1/namespaces/default/pods", "pods"),
        ("/api/v1/namespaces/default", "namespaces"),
        ("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/b/status", "resourceclaims"),
        ("/apis/resource.k8s.io/v1/resourceslices", "resourceslices"),
        ("/apis/resource.k8s.io/v1", ""),
        ("/version", ""),
    ],
)
def test_the_resource_of_a_request_comes_from_its_path(path: str, plural: str) -> None:
    """Namespaced or not, with or without name and subresource; not every path has one."""
    assert Call("GET", path, path, "get").plural == plural


async def test_a_server_without_the_api_is_refused(server: FakeApiServer) -> None:
    """The error names what is missing and the version that has it."""
    for resource in (*CLAIM_KINDS, DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_SLICES):
        server.objects.unregister(resource)
    _, task = await instance(server, "one")
    with pytest.raises(GpudraError, match=r"does not serve resource.k8s.io/v1.*1\.34 or newer"):
        await task


async def test_the_process_ends_cleanly_on_sigterm(server: FakeApiServer, tmp_path: Path) -> None:
    """Exit code 0, lease given back, log lines are JSON and carry the component."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gpudra.controller", "--http-endpoint=127.0.0.1:0", "--instance=me"),
        f"--kubeconfig={server.kubeconfig(tmp_path / 'kubeconfig')}",
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: holder(server) == "me")
    process.send_signal(signal.SIGTERM)
    _, errors = await process.communicate()
    assert process.returncode == 0
    assert holder(server) == ""
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {line["component"] for line in lines} == {"controller"}
    assert lines[-1]["event"] == "stopped"
    assert all(line["level"] == "info" for line in lines)
    assert server.objects.list(LEASES, NAMESPACE)[0]["metadata"]["name"] == LEASE


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--driver-name", "No Driver"], "driver-name: 'No Driver' is not a DNS subdomain"),
        (["--http-endpoint", "nonsense"], "http-endpoint: 'nonsense' is not HOST:PORT"),
    ],
)
def test_wrong_options_are_usage(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line that names the option."""
    assert entry.main(argv) == 2
    assert said in capsys.readouterr().err


def test_a_kubeconfig_that_is_not_there_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, one JSON line, no traceback."""
    missing = tmp_path / "missing"
    assert entry.main(["--kubeconfig", str(missing), "--http-endpoint", "127.0.0.1:0"]) == 1
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], str(missing) in line["error"]) == ("controller ends", True)
    assert "exception" not in line
