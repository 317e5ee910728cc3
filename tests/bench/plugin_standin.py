# SPDX-License-Identifier: Apache-2.0
"""The agent under a stand-in for the kubelet: every form, at many claims a call and calls in flight.

Agent, a fake API server and this program, which calls the socket, are three processes; everything
is synced to disk as in production. Whole cards and shares are simulated. MIG runs on the fake NVML,
with whole cards of the same machine beside it, and the library's own time measured alone.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.driver.core.allocatable import DeviceKind, allocatable_devices
from gpudra.driver.core.forms import EVERYTHING
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.devicelib.nvml import NvmlLib
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware
from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.resources import RESOURCE_CLAIMS
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.records import ClaimRef
from tests.bench.plugin_table import percentile, row
from tests.fakenvml.machine import FakeMachine
from tests.support.agentprocess import DRIVER, NODE, AgentProcess, add_node, published_devices
from tests.support.apiserver import api_server
from tests.support.formsnode import decoy_library
from tests.support.kubelet import PluginClient
from tests.support.plugin import uid

Call = Callable[[Sequence[ClaimRef]], Awaitable[None]]
Result = dict[str, Any]
# Claims a call, calls in flight.
LOADS = ((1, 1), (10, 1), (64, 1), (1, 16), (10, 16), (64, 16))
# The fake NVML holds 16 cards of seven instances.
NVML_CARDS = 16
MIG_LOADS = ((1, 1), (10, 1), (64, 1), (1, 16), (7, 16))
WHOLE_LOADS = ((1, 1), (10, 1), (1, 16))


@dataclass(frozen=True)
class Scene:
    """A running agent and the claims that it is asked for."""

    client: KubeClient
    agent: AgentProcess
    plugin: PluginClient
    inventory: Inventory


def hardware_file(folder: Path, board: str, cards: int) -> str:
    """A node with so many cards of a board."""
    gpus = [
        {
            "board": board,
            "pci": {"busId": f"{number // 128:04x}:{number % 128 + 16:02x}:00.0", "bridges": []},
        }
        for number in range(cards)
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


@asynccontextmanager
async def scene(
    folder: Path, hardware: str, *options: str, cards: int, quiet: bool = False
) -> AsyncIterator[Scene]:
    """A fake API server and an agent that has published its cards."""
    inventory = build_inventory(load_hardware(hardware), node_name=NODE)
    library = decoy_library(folder)
    async with api_server(folder) as (kubeconfig, client):
        await add_node(client)
        words = (f"--hami-core-library={library}", "--http-endpoint=", *options)
        agent = AgentProcess(folder, kubeconfig, hardware=hardware, options=words)
        began = time.perf_counter()
        await agent.start()
        try:
            plugin = await agent.kubelet.register(await agent.served_socket())
            registered = time.perf_counter() - began
            await published_devices(client, cards)
            if not quiet:
                print(
                    f"start → registered {registered:.2f} s, → {cards} cards published "
                    f"{time.perf_counter() - began:.2f} s, resident {agent.resident_mib():.1f} MiB"
                )
            yield Scene(client, agent, plugin, inventory)
            await plugin.close()
        finally:
            await agent.end()


async def claim(client: KubeClient, name: str, *results: Result) -> ClaimRef:
    """A claim as the scheduler leaves it."""
    made = await client.create(
        RESOURCE_CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]}
            },
        },
        "default",
    )
    own = {"request": "r", "driver": DRIVER, "pool": NODE}
    made["status"] = {
        "allocation": {"devices": {"results": [{**own, **one} for one in results]}},
        "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-{name}"}],
    }
    made = await client.update_status(RESOURCE_CLAIMS, made)
    return ClaimRef(made["metadata"]["uid"], "default", name)


def devices_of(inventory: Inventory, kind: DeviceKind, profile: str = "") -> list[str]:
    """Names of the devices of a form: the first one of each card, then the second ones, …"""
    by_card: dict[str, list[str]] = {}
    for one in allocatable_devices(inventory, EVERYTHING):
        if one.kind is kind and (not profile or (one.profile and one.profile.name == profile)):
            by_card.setdefault(one.gpu.key, []).append(one.name)
    depth = max(len(names) for names in by_card.values())
    return [
        names[place] for place in range(depth) for names in by_card.values() if place < len(names)
    ]


def wholes(found: Inventory) -> list[Result]:
    """One claim's result for each card."""
    return [{"device": name} for name in devices_of(found, DeviceKind.WHOLE)]


def shares(found: Inventory) -> list[Result]:
    """One share of each card, with a limit of memory and of compute."""
    return [
        {
            "device": name,
            "shareID": uid(number + 1),
            "consumedCapacity": {"memory": "2Gi", "compute": "10"},
        }
        for number, name in enumerate(devices_of(found, DeviceKind.SHARE))
    ]


def migs(found: Inventory) -> list[Result]:
    """Every smallest instance of every card."""
    return [{"device": name} for name in devices_of(found, DeviceKind.MIG, "1g.10gb")]


def calls_of(plugin: PluginClient) -> tuple[Call, Call]:
    """Prepare and Unprepare that insist on success."""

    async def prepare(refs: Sequence[ClaimRef]) -> None:
        answers = await plugin.prepare(*refs)
        assert all(not answers[ref.uid].error for ref in refs), answers

    async def unprepare(refs: Sequence[ClaimRef]) -> None:
        answers = await plugin.unprepare(*refs)
        assert all(not answers[ref.uid].error for ref in refs), answers

    return prepare, unprepare


async def timed(call: Call, refs: Sequence[ClaimRef]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    await call(refs)
    return time.perf_counter() - began


def synced_write(folder: Path) -> float:
    """Seconds for one atomic write of 2 KiB that survives a power cut."""
    began = time.perf_counter()
    files.write_atomically(folder / "probe", b"x" * 2048, sync=True)
    return time.perf_counter() - began


async def measure(
    found: Scene, name: str, claims: Sequence[ClaimRef], load: tuple[int, int], rounds: int
) -> tuple[float, float]:
    """Prints two lines; the medians of Prepare and Unprepare in seconds."""
    prepare, unprepare = calls_of(found.plugin)
    size, flights = load
    batches = [claims[at : at + size] for at in range(0, size * flights, size)]
    up: list[float] = []
    down: list[float] = []
    syncs: list[float] = []
    used = 0.0
    for number in range(rounds + 2):
        if number == 2:
            used = found.agent.cpu_seconds()
        sync = await asyncio.to_thread(synced_write, found.agent.folder)
        first = await asyncio.gather(*(timed(prepare, batch) for batch in batches))
        second = await asyncio.gather(*(timed(unprepare, batch) for batch in batches))
        if number >= 2:  # the first rounds warm connections
            syncs.append(sync)
            up += first
            down += second
    used = (found.agent.cpu_seconds() - used) * 1000 / (rounds * size * flights)
    what = f"{name:6} {size:2} a call, {flights:2} in flight"
    note = f"one synced write of 2 KiB: {percentile(syncs, 0.5) * 1000:.2f}"
    print(row(f"prepare   {what}", up, note))
    print(
        row(f"unprepare {what}", down, f"the agent's processor time for both, a claim: {used:.2f}")
    )
    return percentile(up, 0.5), percentile(down, 0.5)


def rounds_of(rounds: int, load: tuple[int, int]) -> int:
    """Fewer of those that take longer."""
    size, flights = load
    return max(3, int(rounds // (size * flights) ** 0.75))


async def measure_loads(
    found: Scene, name: str, results: Sequence[Result], loads: Sequence[tuple[int, int]], rounds: int
) -> tuple[float, float]:  # fmt: skip
    """All loads that there are devices for; the medians of the first one."""
    claims = [await claim(found.client, f"{name}-{n}", one) for n, one in enumerate(results)]
    medians = []
    for load in loads:
        if load[0] * load[1] <= len(claims):
            medians.append(await measure(found, name, claims, load, rounds_of(rounds, load)))
        else:
            print(f"{name:6} {load[0]} a call, {load[1]} in flight: {len(claims)} devices only")
    return medians[0]


async def bench_cards(parent: Path | None, rounds: int, cards: int) -> None:
    """Whole cards and shares."""
    with tempfile.TemporaryDirectory(prefix="gpudra-", dir=parent) as name:
        folder = Path(name)
        hardware = hardware_file(folder, "l4-24gb", cards)
        async with scene(folder, hardware, cards=cards) as found:
            await measure_loads(found, "whole", wholes(found.inventory), LOADS, rounds)
            await measure_loads(found, "share", shares(found.inventory), LOADS, rounds)


def library_alone(machine: FakeMachine, rounds: int) -> tuple[float, float]:
    """Medians of what the library takes for one instance: to make it, and to take it away."""
    lib = NvmlLib(
        library=machine.library, driver_root=str(machine.root), host_root=machine.root
    )  # fmt: skip
    gpu = lib.discover().gpus[0]
    assert gpu.mig is not None
    profile = next(one for one in gpu.mig.profiles if one.name == "1g.10gb")
    made, gone = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        lib.partitions.set_mig_mode(gpu.key, enabled=True)
        instance = lib.partitions.create_mig_instance(gpu.key, profile.id, 0)
        between = time.perf_counter()
        lib.partitions.destroy_mig_instance(gpu.key, instance.gpu_instance_id)
        lib.partitions.set_mig_mode(gpu.key, enabled=False)
        gone.append(time.perf_counter() - between)
        made.append(between - began)
    lib.close()
    print(row("library alone: one instance made", made))
    print(row("library alone: one instance destroyed", gone))
    return percentile(made, 0.5), percentile(gone, 0.5)


async def bench_mig(parent: Path | None, rounds: int) -> None:
    """MIG instances on the fake NVML, beside whole cards and the library's own time."""
    with tempfile.TemporaryDirectory(prefix="gpudra-", dir=parent) as name:
        folder = Path(name)
        hardware = hardware_file(folder, "h100-sxm5-80gb", NVML_CARDS)
        machine = FakeMachine(hardware, folder / "machine", node_name=NODE)
        os.environ.update(machine.environment)
        words = (
            "--device-lib=nvml",
            "--hardware=",
            f"--nvml-library={machine.library}",
            f"--driver-root={machine.root}",
            f"--host-root={machine.root}",
        )
        async with scene(folder, hardware, *words, cards=NVML_CARDS) as found:
            whole = await measure_loads(
                found, "whole", wholes(found.inventory), WHOLE_LOADS, rounds
            )
            mig = await measure_loads(found, "mig", migs(found.inventory), MIG_LOADS, rounds)
        alone = library_alone(machine, rounds)
        for which, number in (("prepare", 0), ("unprepare", 1)):
            adds = (mig[number] - whole[number] - alone[number]) * 1000
            print(f"{which}: MIG adds {adds:.2f} ms to a whole card and the library's own time")


async def bench_memory(parent: Path | None, cycles: int) -> None:
    """Resident memory over cycles of prepare and unprepare, each of a claim that is new."""
    if not cycles:
        return
    with tempfile.TemporaryDirectory(prefix="gpudra-", dir=parent) as name:
        folder = Path(name)
        hardware = hardware_file(folder, "l4-24gb", 16)
        async with scene(folder, hardware, cards=16) as found:
            prepare, unprepare = calls_of(found.plugin)
            results = wholes(found.inventory)
            seen = [found.agent.resident_mib()]
            done = 0
            while done < cycles:
                refs = [
                    await claim(found.client, f"c{done + n}", one) for n, one in enumerate(results)
                ]
                await prepare(refs)
                await unprepare(refs)
                for ref in refs:
                    await found.client.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
                done += len(refs)
                if done // 1000 >= len(seen):
                    seen.append(found.agent.resident_mib())
        print("resident MiB after each 1,000 cycles: " + " ".join(f"{one:.1f}" for one in seen))
        # The first thousand fills caches and pools.
        growth = (seen[-1] - seen[1]) / max(1, len(seen) - 2) if len(seen) > 2 else 0.0
        print(f"{growth:+.2f} MiB per 1,000 cycles after the first 1,000; end {seen[-1]:.1f} MiB")


async def bench_idle(parent: Path | None, seconds: float) -> None:
    """What the agent of an idle node of eight cards costs."""
    if not seconds:
        return
    with tempfile.TemporaryDirectory(prefix="gpudra-", dir=parent) as name:
        async with scene(Path(name), "dgx-h100-8x80", cards=8) as found:
            await asyncio.sleep(1)  # whatever follows the start
            used = found.agent.cpu_seconds()
            await asyncio.sleep(seconds)
            share = (found.agent.cpu_seconds() - used) / seconds * 100
            print(f"idle: {share:.2f} % of one core over {seconds:g} s")
