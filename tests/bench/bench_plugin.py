# SPDX-License-Identifier: Apache-2.0
"""What a Prepare and an Unprepare cost, and what the agent costs when nothing happens.

Run: ``python -m tests.bench.bench_plugin [--rounds N] [--cycles N] [--hardware FILE]``, or
``make bench-plugin``. The agent, a fake API server and this program (which stands in for the
kubelet) are three processes; everything is synced to disk as in production. Times are those that
the kubelet would see. Beside them stands what one synced, atomic write of a small file costs on
the same disk at the same time, since that is most of a Prepare: the ratio travels between
machines, the milliseconds do not.
"""

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import yaml

from gpudra.driver.kube.client import KubeClient
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.records import ClaimRef
from tests.support.agentprocess import AgentProcess, add_node, allocated_claim, published_devices
from tests.support.apiserver import api_server
from tests.support.kubelet import PluginClient

CARDS = 64
Call = Callable[[Sequence[ClaimRef]], Awaitable[None]]


def hardware_file(folder: Path) -> str:
    """A node with 64 cards, so that 64 claims fit one call."""
    gpus = [
        {"board": "l4-24gb", "pci": {"busId": f"0000:{number + 16:02x}:00.0", "bridges": []}}
        for number in range(CARDS)
    ]
    document = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "Hardware",
        "metadata": {"name": "bench"},
        "spec": {"gpus": gpus},
    }
    path = folder / "hardware.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(name: str, seconds: Sequence[float], sync: float) -> str:
    """One line of the table."""
    p50, p90, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.99))
    mean = statistics.fmean(seconds) * 1000
    return (
        f"{name:34} {len(seconds):6} {mean:8.2f} {p50:8.2f} {p90:8.2f} {p99:8.2f} "
        f"{mean / (sync * 1000):8.2f}"
    )


def synced_write(folder: Path) -> float:
    """Seconds for one atomic write of 2 KiB that survives a power cut."""
    began = time.perf_counter()
    files.write_atomically(folder / "probe", b"x" * 2048, sync=True)
    return time.perf_counter() - began


async def timed(call: Call, refs: Sequence[ClaimRef]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    await call(refs)
    return time.perf_counter() - began


def calls_of(plugin: PluginClient) -> tuple[Call, Call]:
    """Prepare and Unprepare that insist on success."""

    async def prepare(refs: Sequence[ClaimRef]) -> None:
        answers = await plugin.prepare(*refs)
        assert all(not answers[ref.uid].error for ref in refs), answers

    async def unprepare(refs: Sequence[ClaimRef]) -> None:
        answers = await plugin.unprepare(*refs)
        assert all(not answers[ref.uid].error for ref in refs), answers

    return prepare, unprepare


async def measure(
    plugin: PluginClient, claims: Sequence[ClaimRef], *, size: int, flights: int, rounds: int,
    folder: Path,
) -> None:  # fmt: skip
    """Calls of ``size`` claims, ``flights`` at once; prints two lines."""
    prepare, unprepare = calls_of(plugin)
    batches = [claims[at : at + size] for at in range(0, size * flights, size)]
    prepared: list[float] = []
    unprepared: list[float] = []
    syncs: list[float] = []
    for number in range(rounds + 2):
        sync = await asyncio.to_thread(synced_write, folder)
        up = await asyncio.gather(*(timed(prepare, batch) for batch in batches))
        down = await asyncio.gather(*(timed(unprepare, batch) for batch in batches))
        if number >= 2:  # the first rounds warm connections
            syncs.append(sync)
            prepared += up
            unprepared += down
    sync = statistics.fmean(syncs)
    name = f"{size} claims a call, {flights} in flight"
    print(row(f"prepare    {name}", prepared, sync))
    print(row(f"unprepare  {name}", unprepared, sync))


async def grow(
    plugin: PluginClient, agent: AgentProcess, claims: Sequence[ClaimRef], cycles: int
) -> None:
    """Prints how resident memory moves over cycles of prepare and unprepare."""
    prepare, unprepare = calls_of(plugin)
    step = 16
    before = agent.resident_mib()
    for _ in range(0, cycles, step):
        await prepare(claims[:step])
        await unprepare(claims[:step])
    after = agent.resident_mib()
    per = (after - before) * 1000 / cycles
    print(
        f"resident {before:.1f} MiB → {after:.1f} MiB over {cycles} cycles: {per:+.2f} MiB per 1,000"
    )


async def bench(options: argparse.Namespace) -> None:
    """Everything."""
    with tempfile.TemporaryDirectory(prefix="gpudra-", dir=options.folder) as name:
        folder = Path(name)
        async with api_server(folder) as (kubeconfig, client):
            await add_node(client)
            agent = AgentProcess(
                folder, kubeconfig, hardware=options.hardware or hardware_file(folder)
            )
            await run(agent, client, options, folder)


async def run(
    agent: AgentProcess, client: KubeClient, options: argparse.Namespace, folder: Path
) -> None:
    """One agent from start to end."""
    began = time.perf_counter()
    await agent.start()
    plugin = await agent.kubelet.register(await agent.served_socket())
    registered = time.perf_counter() - began
    devices = await published_devices(client, 1)
    print(
        f"start → registered {registered:.2f} s, → first slice {time.perf_counter() - began:.2f} s"
    )
    while len(devices) < CARDS and not options.hardware:
        devices = await published_devices(client, CARDS)
    used = agent.cpu_seconds()
    await asyncio.sleep(options.idle)
    share = (agent.cpu_seconds() - used) / options.idle * 100 if options.idle else 0.0
    print(
        f"idle: {share:.2f} % of one core over {options.idle} s, resident {agent.resident_mib():.1f} MiB, {len(devices)} devices"
    )
    claims = [await allocated_claim(client, f"c{n}", name) for n, name in enumerate(devices)]
    print(f"{'':34} {'calls':>6} {'mean':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'÷ sync':>8}")
    for size, flights in ((1, 1), (1, 16), (10, 1), (64, 1)):
        if size * flights <= len(claims):
            rounds = max(10, options.rounds // (size * flights) ** 0.5)
            await measure(
                plugin, claims, size=size, flights=flights, rounds=int(rounds), folder=folder
            )
    if options.cycles:
        await grow(plugin, agent, claims, options.cycles)
    await plugin.close()
    await agent.end()


def main() -> None:
    """Reads the options, says where it runs, measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="calls of one claim (default 200)")
    parser.add_argument("--cycles", type=int, default=1000, help="for memory growth (default 1000)")
    parser.add_argument("--idle", type=float, default=10, help="seconds of idling (default 10)")
    parser.add_argument("--hardware", default="", help="profile or file (default: 64 cards)")
    parser.add_argument("--folder", default=None, help="where to work: its disk is measured")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}; milliseconds unless named"
    )
    asyncio.run(bench(options))


if __name__ == "__main__":
    main()
