# SPDX-License-Identifier: Apache-2.0
"""How long the command line takes: its start, and its answers on a cluster of 500 nodes.

Run: ``python -m tests.bench.bench_cli``. Answers are timed after imports, from the bytes of the API
server to the printed text, for nodes of eight H100 with a claim on every other card: once with whole
cards alone, once with every form that the cards can have.
"""

import argparse
import contextlib
import gc
import io
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from gpudra.controller.ctl import claims, devices
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.forms import EVERYTHING, PublishPolicy

NODES = 500
DRIVER = "gpu.gpudra.io"
NODE = "node-000"
RUNS = 9


def started(*words: str) -> float:
    """Median seconds of a fresh interpreter."""
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def cluster(policy: PublishPolicy | None) -> tuple[list[bytes], list[bytes]]:
    """Slices and claims of all nodes, a list of JSON for each node."""
    slices = slices_of_hardware(
        "dgx-h100-8x80", driver=DRIVER, node_name=NODE, **({"policy": policy} if policy else {})
    )
    whole = [
        device.name
        for one in slices
        for device in one.spec.devices
        if device.attributes["type"] == "gpu"
    ]
    text = orjson.dumps([one.to_dict() for one in slices]).decode()
    held = orjson.dumps([_claim(name) for name in whole[::2]]).decode()
    names = [f"node-{number:03}" for number in range(NODES)]
    return (
        [text.replace(NODE, name).encode() for name in names],
        [held.replace(NODE, name).encode() for name in names],
    )


def _claim(device: str) -> dict[str, Any]:
    result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"{NODE}-{device}", "namespace": "team"},
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}
        },
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{device}", "uid": "1"}],
        },
    }


def timed(answer: Callable[[], object]) -> float:
    """Median CPU seconds of an answer, its text thrown away; as the command does, without collector."""
    times = []
    for _ in range(3):
        gc.collect()
        gc.disable()
        begin = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            answer()
        times.append(time.process_time() - begin)
        gc.enable()
    return statistics.median(times)


def _parsed(chunks: list[bytes]) -> list[dict[str, Any]]:
    return [one for chunk in chunks for one in orjson.loads(chunk)]


def _args(module: Any, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(words)


def main() -> None:
    """Print the figures."""
    python = started("-c", "pass")
    shown = started("-m", "gpudra.controller.ctl.main", "--help")
    print(f"python -c pass        {python * 1000:7.0f} ms")
    print(f"gpudra --help         {shown * 1000:7.0f} ms  {shown / python:.1f} x as much")
    for name, policy in (("whole cards", None), ("every form", EVERYTHING)):
        _answers(name, *cluster(policy), with_json=policy is None)


def _answers(name: str, slices: list[bytes], held: list[bytes], *, with_json: bool) -> None:
    print(f"{NODES} nodes, {name}: {sum(map(len, slices)) / 1e6:.1f} MB of slices; CPU time")
    print(f"  parsing alone       {timed(lambda: _parsed(slices)) * 1000:7.0f} ms")

    def show(args: argparse.Namespace) -> Callable[[], object]:
        return lambda: devices._show(args, (_parsed(slices), _parsed(held), []))

    for words in [(), ("--free",), *([("-o", "json")] if with_json else [])]:
        took = timed(show(_args(devices, *words)))
        print(f"  devices {' '.join(words):12}{took * 1000:7.0f} ms")
    args = _args(claims)
    print(
        f"  claims              {timed(lambda: claims._show(args, _parsed(held))) * 1000:7.0f} ms"
    )


if __name__ == "__main__":
    main()
