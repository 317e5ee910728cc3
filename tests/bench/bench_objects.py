# SPDX-License-Identifier: Apache-2.0
"""What the objects of 40,000 GPUs cost, as raw JSON and as our types.

Run: ``python -m tests.bench.bench_objects``. Each form is measured in a process of its own.
"""

import gc
import resource
import subprocess
import sys
import time
from typing import Any

import orjson

from gpudra.api.resource_v1 import ResourceSlice

GPUS = 40_000
PER_NODE = 8


def slice_json(number: int) -> bytes:
    """One slice as the server sends it: one device, 22 attributes, one capacity."""
    node, index = f"node{number // PER_NODE}", number % PER_NODE
    uuid = f"GPU-{number:08x}-1111-2222-3333-444444444444"
    attributes: dict[str, Any] = {f"attr{i}": {"string": f"value{i}"} for i in range(18)}
    attributes |= {
        "uuid": {"string": uuid},
        "index": {"int": index},
        "driverVersion": {"version": "580.1.2"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{number % 256:02x}:00.0"},
    }
    return orjson.dumps(
        {
            "metadata": {"name": f"{node}-{index}", "uid": uuid, "resourceVersion": str(number)},
            "spec": {
                "driver": "gpu.gpudra.io",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": PER_NODE},
                "devices": [
                    {
                        "name": f"gpu-{number:08x}-abcd",
                        "attributes": attributes,
                        "capacity": {"memory": {"value": "81559Mi"}},
                    }
                ],
            },
        }
    )


def measure(form: str) -> None:
    """Decodes everything in one form and prints seconds and resident megabytes."""
    texts = [slice_json(number) for number in range(GPUS)]
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if form == "raw":
        kept: list[Any] = [orjson.loads(text) for text in texts]
    else:
        kept = [ResourceSlice.from_dict(orjson.loads(text)) for text in texts]
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{form:6} {len(kept):6} slices  {seconds:6.2f} s  {grown:6.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        for each in ("raw", "typed"):
            subprocess.run([sys.executable, "-m", "tests.bench.bench_objects", each], check=True)
