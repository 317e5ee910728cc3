# SPDX-License-Identifier: Apache-2.0
"""How many watch events a second, and in how much memory: our reflector beside the official client.

Run: ``python -m tests.bench.bench_watch [--events N]``. A server in a process of its own sends the
same ResourceSlices (8 devices with 16 attributes each) to every client; each client is a process of
its own. Printed are events per CPU second, peak memory and the ratio to the official typed watch.
"""

import argparse
import asyncio
import importlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

DEVICES = 8
ATTRIBUTES = 16
NAMES = 1000
LAST = "last"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"


def slice_object(name: str, version: int) -> dict[str, Any]:
    """A slice as the server sends it, about 6 KB."""
    attributes = {f"attribute{i:02}": {"string": f"value-{i:016}"} for i in range(ATTRIBUTES)}
    return {
        "kind": "ResourceSlice",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": {
            "driver": "gpu.gpudra.io",
            "nodeName": "node",
            "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{i}",
                    "attributes": attributes,
                    "capacity": {"memory": {"value": "81559Mi"}},
                }
                for i in range(DEVICES)
            ],
        },
    }


def serve(events: int) -> None:
    """Answer lists with nothing and watches with all events; prints the port."""
    lines = [
        orjson.dumps({"type": "ADDED", "object": slice_object(f"slice-{i % NAMES:04}", 100 + i)})
        for i in range(events)
    ]
    lines.append(orjson.dumps({"type": "ADDED", "object": slice_object(LAST, 100 + events)}))
    stream = b"\n".join(lines) + b"\n"
    empty = b'{"kind":"ResourceSliceList","apiVersion":"resource.k8s.io/v1","metadata":{"resourceVersion":"99"},"items":[]}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"watch=" in request.split(b"\r\n", 1)[0]:
            writer.write(_HEAD + b"\r\n")
            for at in range(0, len(stream), 1 << 18):
                writer.write(stream[at : at + (1 << 18)])
                await writer.drain()
        else:
            writer.write(_HEAD + f"Content-Length: {len(empty)}\r\n\r\n".encode() + empty)
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())


async def ours(port: int, decode: Callable[[dict[str, Any]], Any]) -> int:
    """Our reflector with a decoder."""
    from gpudra.driver.kube.auth import Connection, StaticCredentials
    from gpudra.driver.kube.client import KubeClient
    from gpudra.driver.kube.reflector import Event, Reflector
    from gpudra.driver.kube.resources import RESOURCE_SLICES

    count = 0
    done = asyncio.Event()

    def on_event(event: Event[Any]) -> None:
        nonlocal count
        count += 1
        if LAST in reflector.store:
            done.set()

    connection = Connection(f"http://127.0.0.1:{port}", StaticCredentials())
    async with KubeClient(connection) as client:
        reflector = Reflector(client, RESOURCE_SLICES, decode, on_event=on_event)
        task = asyncio.create_task(reflector.run())
        await done.wait()
        task.cancel()
    return count


async def ours_raw(port: int) -> int:
    """Our reflector, objects left as they are."""
    return await ours(port, lambda raw: raw)


async def ours_typed(port: int) -> int:
    """Our reflector with the types of gpudra.api."""
    from gpudra.api.resource_v1 import ResourceSlice

    return await ours(port, ResourceSlice.from_dict)


async def official_aio(port: int) -> int:
    """``kubernetes.aio``: its Watch, typed."""
    from kubernetes.aio import client, watch

    configuration = client.Configuration(host=f"http://127.0.0.1:{port}")
    held: dict[str, Any] = {}
    count = 0
    async with client.ApiClient(configuration) as api:
        call = client.ResourceV1Api(api).list_resource_slice
        async with watch.Watch().stream(call, resource_version="99") as stream:
            async for event in stream:
                count += 1
                held[event["object"].metadata.name] = event["object"]
                if event["object"].metadata.name == LAST:
                    break
    return count


async def official_sync(port: int) -> int:
    """``kubernetes``: its Watch, typed, with threads."""
    from kubernetes import client, watch

    configuration = client.Configuration(host=f"http://127.0.0.1:{port}")
    held: dict[str, Any] = {}
    count = 0
    call = client.ResourceV1Api(client.ApiClient(configuration)).list_resource_slice
    for event in watch.Watch().stream(call, resource_version="99"):
        count += 1
        held[event["object"].metadata.name] = event["object"]
        if event["object"].metadata.name == LAST:
            break
    return count


CLIENTS: dict[str, Callable[[int], Awaitable[int]]] = {
    "ours, raw": ours_raw,
    "ours, gpudra.api types": ours_typed,
    "kubernetes.aio Watch, typed": official_aio,
    "kubernetes Watch, typed": official_sync,
}


IMPORTS = (
    "gpudra.api.resource_v1",
    "gpudra.driver.kube.client",
    "gpudra.driver.kube.reflector",
    "kubernetes.aio.client.models",
    "kubernetes.client.models",
)


def measure(name: str, port: int) -> None:
    """Run one client and print what it took as JSON."""
    for module in IMPORTS:
        if module.startswith("kubernetes") != name.startswith("ours"):
            importlib.import_module(module)
    # CPU time of this process: on a shared machine the wall clock measures the neighbours.
    started = time.process_time()
    count = asyncio.run(CLIENTS[name](port))
    seconds = time.process_time() - started
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"events": count, "seconds": seconds, "resident": resident}))


def compare(events: int) -> None:
    """Run everything and print a table."""
    command = [sys.executable, "-m", "tests.bench.bench_watch", "--events", str(events)]
    with subprocess.Popen([*command, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        results: dict[str, dict[str, float]] = {}
        try:
            for name in CLIENTS:
                done = subprocess.run(
                    [*command, "--client", name, "--port", port],
                    stdout=subprocess.PIPE, text=True, check=True,
                )  # fmt: skip
                results[name] = json.loads(done.stdout.splitlines()[-1])
        finally:
            server.terminate()
    size = len(orjson.dumps(slice_object("x", 1)))
    print(f"{events} events of {size} bytes, {min(events, NAMES)} objects held")
    base = results["kubernetes Watch, typed"]
    for name, result in results.items():
        rate = result["events"] / result["seconds"]
        ratio = rate / (base["events"] / base["seconds"])
        print(
            f"{name:30} {rate:9.0f} events per CPU second  x{ratio:5.1f}  {result['resident']:6.1f} MB"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.events)
    elif arguments.client:
        measure(arguments.client, arguments.port)
    else:
        compare(arguments.events)


if __name__ == "__main__":
    main()
