# SPDX-License-Identifier: Apache-2.0
"""A fake API server in a process of its own: ``python -m tests.support.apiserver KUBECONFIG``.

Benches use it so that the server's work is not counted as the measured process's or the client's.
It writes the kubeconfig when it is ready, and ends with its standard input.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer


async def serve(kubeconfig: str) -> None:
    """Serves until standard input ends."""
    async with FakeApiServer() as server:
        aside = Path(f"{kubeconfig}.tmp")
        server.kubeconfig(aside)
        os.replace(aside, kubeconfig)  # noqa: PTH105 - small, local
        await asyncio.to_thread(sys.stdin.read)


@contextlib.asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[str, KubeClient]]:
    """Such a process; the path of its kubeconfig and a connected client."""
    path = folder / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(path), stdin=asyncio.subprocess.PIPE
    )
    try:
        while not path.exists():
            assert process.returncode is None
            await asyncio.sleep(0.01)
        async with await KubeClient.load(str(path)) as client:
            yield str(path), client
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
