# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz and /metrics over a real socket on loopback."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from gpudra.api.errors import InputError
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.http import StatusServer
from gpudra.driver.observability.metrics import Component, Metrics
from tests.support.logs import captured_logs


@pytest.fixture
async def server() -> AsyncIterator[StatusServer]:
    """A server on any free port."""
    server = StatusServer(Metrics(Component.AGENT, process=False), port=0)
    await server.start()
    yield server
    await server.close()


async def fetch(server: StatusServer, path: str) -> tuple[int, str]:
    """Status and text of one GET."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_a_server_without_checks_is_healthy(server: StatusServer) -> None:
    """No check, no complaint."""
    assert await fetch(server, "/healthz") == (200, "ok\n")
    assert await fetch(server, "/readyz") == (200, "ok\n")


async def test_a_failing_ready_check_does_not_make_the_process_unhealthy(
    server: StatusServer,
) -> None:
    """Not ready is not a reason to be restarted; the answer names the check and why."""
    server.add_live("loop", lambda: None)
    server.add_ready("kubelet", lambda: "not registered yet")
    assert await fetch(server, "/healthz") == (200, "[+]loop ok\nok\n")
    assert await fetch(server, "/readyz") == (
        503,
        "[+]loop ok\n[-]kubelet failed: not registered yet\nfailed\n",
    )


async def test_a_failing_live_check_fails_both(server: StatusServer) -> None:
    """What a restart cures also means not ready."""
    server.add_live("grpc", lambda: "server stopped")
    assert (await fetch(server, "/healthz"))[0] == 503
    assert (await fetch(server, "/readyz"))[0] == 503


async def test_a_check_that_raises_is_a_failed_check(server: StatusServer) -> None:
    """A bug in one check is shown and logged, the others are still answered."""

    def broken() -> str | None:
        raise ZeroDivisionError("oops")

    server.add_live("broken", broken)
    server.add_live("fine", lambda: None)
    with captured_logs() as logs:
        status, text = await fetch(server, "/healthz")
        assert logs.event("health check raised")["check"] == "broken"
    assert status == 503
    assert "[-]broken failed: check raised ZeroDivisionError: oops" in text
    assert "[+]fine ok" in text


async def test_metrics_are_served_as_text(server: StatusServer) -> None:
    """The scrape is the registry's text with its content type."""
    metrics = server._metrics
    metrics.set(m.PREPARED_CLAIMS, 4)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}/metrics") as response,
    ):
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "gpudra_prepared_claims 4.0" in await response.text()


async def test_other_paths_are_not_found(server: StatusServer) -> None:
    """Nothing else is served."""
    assert (await fetch(server, "/"))[0] == 404


async def test_a_taken_address_is_told(server: StatusServer) -> None:
    """The message names the address and what to do."""
    second = StatusServer(Metrics(Component.AGENT, process=False), port=server.port)
    with pytest.raises(InputError, match=rf"127\.0\.0\.1:{server.port}.*choose another address"):
        await second.start()
    await second.close()
