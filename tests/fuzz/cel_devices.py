# SPDX-License-Identifier: Apache-2.0
"""Makes devices for the differential tests of CEL."""

import random
from typing import Any

Source = random.Random
Json = dict[str, Any]

DRIVER = "gpu.example.com"
OTHER = "other.example.com"


def device(source: Source) -> Json:
    """A device as the API writes it, with a random part of the names."""
    attributes: Json = {
        "model": {"string": source.choice(["H100", "A100", "h100", ""])},
        "index": {"int": source.choice([0, 1, 7, -3])},
        "healthy": {"bool": source.choice([True, False])},
        "driverVersion": {"version": source.choice(["1.2.3", "550.54.15", "1.2.3-rc.1"])},
        f"{OTHER}/model": {"string": "other"},
        f"{OTHER}/numbers": {"ints": source.choice([[1, 2, 3], [7], [3, 1]])},
        "tags": {"strings": source.choice([["a", "b"], ["x"]])},
        "flags": {"bools": [True, False]},
        "versions": {"versions": ["1.0.0", "2.0.0"]},
    }
    kept = {name: value for name, value in attributes.items() if source.random() < 0.8}
    capacity = {
        "memory": {"value": source.choice(["40Gi", "80Gi", "1", "1500m", "0"])},
        f"{OTHER}/compute": {"value": "100"},
    }
    found: Json = {
        "name": "d",
        "attributes": kept,
        "capacity": {name: value for name, value in capacity.items() if source.random() < 0.8},
    }
    if source.random() < 0.5:
        found["allowMultipleAllocations"] = source.choice([True, False])
    return {"driver": DRIVER, "device": found}
