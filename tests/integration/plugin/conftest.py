# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run a whole agent as a process: its folder, and a fake API server."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from tests.support.agentprocess import add_node


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: sockets allow 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gpudra-") as found:
        yield Path(found)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A fake API server that knows the node."""
    async with FakeApiServer() as running:
        await add_node(await running.client())
        yield running


@pytest.fixture
async def client(server: FakeApiServer) -> KubeClient:
    """A client of it."""
    return await server.client()
