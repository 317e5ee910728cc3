# SPDX-License-Identifier: Apache-2.0
"""``make bench-managed``: pods with one claim each, per second: managed mode beside kube-scheduler.

A cluster of its own with nodes that are only objects, eight cards each, one process a component. The
same pods twice: without managed mode (kube-scheduler allocates), then with it, gate policies
included. Measured from the first create until the last pod is bound. Nothing is asserted.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import AlreadyExistsError
from gpudra.controller.ctl.local.fakenodes import node_names
from gpudra.controller.ctl.local.layout import layout_for
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.forms import CardForms, PublishPolicy
from gpudra.driver.core.resourceslices import build_pool, resource_slices
from gpudra.driver.devicelib.simulated.catalog import load_hardware
from gpudra.driver.devicelib.simulated.model import build_inventory
from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.resources import (
    NODES,
    PODS,
    QUEUES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
)
from tests.support.cluster import Cluster, gpudra_local
from tests.support.gate import gate_installed
from tests.support.managedcluster import (
    DRIVER,
    FEATURES,
    gpu_template,
    managed_controller,
    queue,
    queued_pod,
)

HARDWARE = "dgx-h100-8x80"
NAMESPACE = "default"
QUEUE = "bench"
PARALLEL = 16
# Measured on the same machine with the same nodes and pods, each alone, from their sources.
PEERS = (
    ("stock kube-scheduler 1.37.2, DRA", 42.0),
    ("KAI Scheduler 0.17, classic counts", 42.0),
    ("Volcano 1.16-alpha, classic counts", 31.0),
    ("stock kube-scheduler, no claims", 180.0),
)


@dataclass(frozen=True)
class Result:
    """One run.

    Attributes:
        seconds: from the first create until the last pod was bound.
        created: seconds until the last create was answered.
        cpu: seconds of processor time by component.
    """

    name: str
    pods: int
    seconds: float
    created: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        """Pods a second."""
        return self.pods / self.seconds


async def in_parallel(client: KubeClient, resource: object, objects: list[Obj]) -> None:
    """Creates objects, a few side by side."""
    left = list(reversed(objects))

    async def worker() -> None:
        while left:
            await client.create(resource, left.pop(), NAMESPACE)  # type: ignore[arg-type]

    await asyncio.gather(*(worker() for _ in range(PARALLEL)))


async def publish(client: KubeClient, nodes: list[str], *, managed: bool) -> None:
    """Labels the nodes, and writes the slices that their agents would."""
    for raw in (await client.list(RESOURCE_SLICES)).items:
        await client.delete(RESOURCE_SLICES, raw["metadata"]["name"])
    made = []
    for name in nodes:
        label = {"metadata": {"labels": {"gpudra.io/managed": "true" if managed else None}}}
        await client.patch(NODES, name, label)
        pool = build_pool(
            build_inventory(load_hardware(HARDWARE), node_name=name),
            driver=DRIVER,
            node_name=name,
            features=FEATURES,
            policy=PublishPolicy(
                forms=CardForms(kinds=frozenset({DeviceKind.WHOLE})), managed=managed
            ),
        )
        made += [one.to_dict() for one in resource_slices(pool)]
    await in_parallel(client, RESOURCE_SLICES, made)


async def all_bound(client: KubeClient, count: int) -> None:
    """Follows the pods until so many are bound."""
    found = await client.list(PODS, NAMESPACE)
    bound = {p["metadata"]["name"] for p in found.items if p["spec"].get("nodeName")}
    version = found.resource_version
    while len(bound) < count:
        async for event in client.watch(PODS, NAMESPACE, resource_version=version):
            if event.type == "MODIFIED" and event.object["spec"].get("nodeName"):
                bound.add(event.object["metadata"]["name"])
            version = event.object["metadata"]["resourceVersion"]
            if len(bound) >= count:
                return


async def clear(client: KubeClient) -> None:
    """Removes all pods, and waits until their claims are gone."""
    left = (await client.list(PODS, NAMESPACE)).items

    async def worker() -> None:
        while left:
            name = left.pop()["metadata"]["name"]
            await client.delete(PODS, name, NAMESPACE, grace_period_seconds=0)

    await asyncio.gather(*(worker() for _ in range(PARALLEL)))
    while (await client.list(RESOURCE_CLAIMS, NAMESPACE)).items:  # noqa: ASYNC110 - a bench may poll
        await asyncio.sleep(0.5)


def cpu_seconds(pids: dict[str, int]) -> dict[str, float]:
    """Processor time of each process so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for name, pid in pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(fields[11]) + int(fields[12])) / ticks
    return found


async def measure(client: KubeClient, name: str, pods: list[Obj], pids: dict[str, int]) -> Result:
    """Creates the pods and waits until all are bound."""
    before, started = cpu_seconds(pids), time.perf_counter()
    watching = asyncio.ensure_future(all_bound(client, len(pods)))
    await in_parallel(client, PODS, pods)
    created = time.perf_counter() - started
    await watching
    seconds = time.perf_counter() - started
    after = cpu_seconds(pids)
    return Result(name, len(pods), seconds, created, {k: after[k] - before[k] for k in pids})


def pods_of(count: int, *, managed: bool) -> list[Obj]:
    """Pods with one claim each."""
    made = []
    for number in range(count):
        pod = queued_pod(f"pod-{number:05}", QUEUE)
        if not managed:
            del pod["metadata"]["labels"]
        made.append(pod)
    return made


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """A client of an administrator."""
    async with await KubeClient.load(str(cluster.layout.admin_kubeconfig)) as client:
        yield client


async def stock(cluster: Cluster, nodes: list[str], count: int) -> Result:
    """kube-scheduler allocates."""
    async with connected(cluster) as client:
        await publish(client, nodes, managed=False)
        with contextlib.suppress(AlreadyExistsError):
            await client.create(RESOURCE_CLAIM_TEMPLATES, gpu_template(), NAMESPACE)
        pids = control_plane(cluster)
        result = await measure(client, "stock", pods_of(count, managed=False), pids)
        show([result])
        await clear(client)
        return result


async def managed(cluster: Cluster, nodes: list[str], count: int, pid: int) -> Result:
    """The controller allocates."""
    async with connected(cluster) as client:
        pids = {**control_plane(cluster), "gpudra-controller": pid}
        result = await measure(client, "managed", pods_of(count, managed=True), pids)
        show([result])
        await clear(client)
        return result


async def prepare(cluster: Cluster, nodes: list[str]) -> None:
    """Slices of managed nodes, and the queue."""
    async with connected(cluster) as client:
        await publish(client, nodes, managed=True)
        with contextlib.suppress(AlreadyExistsError):
            await client.create(QUEUES, queue(QUEUE))
        with contextlib.suppress(AlreadyExistsError):
            await client.create(RESOURCE_CLAIM_TEMPLATES, gpu_template(), NAMESPACE)


def control_plane(cluster: Cluster) -> dict[str, int]:
    """Its processes."""
    names = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler")
    return {name: pid for name, pid in cluster.pids().items() if name in names}


def show(results: list[Result]) -> None:
    """The table."""
    print()
    print(f"{'':34} {'pods/s':>7} {'seconds':>8} {'created in':>11}   CPU seconds")
    for one in results:
        cpu = ", ".join(f"{name} {seconds:.1f}" for name, seconds in one.cpu.items())
        print(f"{one.name:34} {one.rate:7.1f} {one.seconds:8.1f} {one.created:11.1f}   {cpu}")
    by_name = {one.name: one for one in results}
    if {"stock", "managed"} <= by_name.keys():
        print(
            f"managed is {by_name['managed'].rate / by_name['stock'].rate:.2f} x stock in this run"
        )
    print("\nmeasured before on a 2-core machine, each alone:")
    for name, rate in PEERS:
        print(f"{name:34} {rate:7.1f}")


def main() -> None:
    """Brings a cluster up, measures, takes it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--only", choices=("stock", "managed"))
    parser.add_argument(
        "--keep", metavar="DIR", help="use this cluster folder and leave it running"
    )
    args = parser.parse_args()
    base = Path(args.keep or tempfile.mkdtemp(prefix="gpudra-bench-"))
    nodes = node_names(args.nodes)
    try:
        wishes = ("--nodes", "1", "--fake-nodes", str(args.nodes), "--no-agent", "--yes")
        up = gpudra_local("up", *wishes, "--dir", str(base))
        assert up.returncode == 0, up.stderr[-3000:]
        cluster = Cluster.of(layout_for(str(base)))
        results = []
        if args.only != "managed":
            results.append(asyncio.run(stock(cluster, nodes, args.pods)))
        if args.only != "stock":
            folder = base / "controller"
            folder.mkdir(exist_ok=True)
            asyncio.run(prepare(cluster, nodes))
            with gate_installed(cluster), managed_controller(cluster, folder) as running:
                cluster.kubectl(
                    *("label", "namespace", NAMESPACE, "--overwrite"),
                    f"queue.gpudra.io/{QUEUE}=true",
                )
                assert running.process is not None
                pid = running.process.pid
                results.append(asyncio.run(managed(cluster, nodes, args.pods, pid)))
                if running.stop() != 0:
                    print(running.log.read_text()[-2000:])
        show(results)
    finally:
        if not args.keep:
            gpudra_local("down", "--purge", "--dir", str(base))
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
