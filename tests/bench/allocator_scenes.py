# SPDX-License-Identifier: Apache-2.0
"""Clusters and claims for bench_allocator, drawn anew for each run.

Plain JSON objects, so that ours and upstream's allocator read the same thing.
"""

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]
DRIVER = "gpu.example.com"

# Placements of an 80 GB card with eight memory slices: profile, compute slices, memory slices,
# starts. 27 devices a card, the whole card included.
_PROFILES = (
    ("1g.10gb", 1, 1, range(7)),
    ("1g.10gb-me", 1, 1, range(7)),
    ("1g.20gb", 1, 2, (0, 2, 4, 6)),
    ("2g.20gb", 2, 2, (0, 2, 4)),
    ("3g.40gb", 3, 4, (0, 4)),
    ("4g.40gb", 4, 4, (0,)),
    ("7g.80gb", 7, 8, (0,)),
)
MEMORY_SLICES = 8
STATES = ("empty", "half", "full")


@dataclass(frozen=True)
class Scene:
    """One thing to measure.

    Attributes:
        name: for the table.
        objects: nodes, slices, classes, claims (state).
        claim: the claim to allocate on every node.
    """

    name: str
    objects: dict[str, list[Obj]]
    claim: Obj

    def question(self, **more: Any) -> Obj:
        """As the oracle reads it."""
        claims = [*self.objects["claims"], self.claim]
        objects = {**self.objects, "claims": claims}
        return {**objects, "ask": [self.claim["metadata"]["name"]], "default": True, **more}


def _meta(name: str) -> Obj:
    return {"name": name, "namespace": "default", "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name))}


def _node(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {}}}


def _class(expression: str) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def _slice(node: str, part: str, total: int, content: Obj) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{part}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": total},
            **content,
        },
    }


def claim(name: str, requests: Sequence[Obj], constraints: Sequence[Obj] = ()) -> Obj:
    """A claim that waits."""
    devices: Obj = {"requests": list(requests)}
    if constraints:
        devices["constraints"] = list(constraints)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": _meta(name),
        "spec": {"devices": devices},
    }


def request(name: str, count: int, profile: str = "") -> Obj:
    """A request for whole GPUs or for MIG devices of a profile."""
    exactly: Obj = {
        "deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count,
    }  # fmt: skip
    if profile:
        text = f'device.attributes["{DRIVER}"].profile == "{profile}"'
        exactly["selectors"] = [{"cel": {"expression": text}}]
    return {"name": name, "exactly": exactly}


def _held(node: str, devices: Sequence[str], number: int) -> Obj:
    held = claim(f"held-{node}-{number}", [request("gpu", len(devices))])
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    held["status"] = {
        "allocation": {
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            "devices": {
                "results": [
                    {"request": "gpu", "driver": DRIVER, "pool": node, "device": device}
                    for device in devices
                ]
            },
        }
    }
    return held


def whole_gpus(
    rng: random.Random, nodes: int, state: str, per_node: int = 8
) -> dict[str, list[Obj]]:
    """Nodes with whole GPUs in one slice each."""
    found: dict[str, list[Obj]] = {"nodes": [], "slices": [], "classes": [], "claims": []}
    found["classes"].append(
        _class(f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"')
    )
    for number in range(nodes):
        node = f"node-{number:05d}"
        names = []
        devices = []
        for index in range(per_node):
            identity = str(uuid.UUID(int=rng.getrandbits(128)))
            names.append(f"gpu-{identity[:8]}")
            devices.append(_whole(names[-1], identity, index, per_node))
        found["nodes"].append(_node(node))
        found["slices"].append(_slice(node, "gpus", 1, {"devices": devices}))
        used = _drawn(rng, names, state)
        if used:
            found["claims"].append(_held(node, used, 0))
    return found


def _whole(name: str, identity: str, index: int, per_node: int) -> Obj:
    return {
        "name": name,
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{identity}"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "architecture": {"string": "Hopper"},
            "driverVersion": {"version": "580.65.6"},
            "index": {"int": index},
            "numaNode": {"int": index * 2 // per_node},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index:02x}"},
        },
        "capacity": {"memory": {"value": "80Gi"}},
    }


def _drawn(rng: random.Random, names: Sequence[str], state: str) -> list[str]:
    if state == "empty":
        return []
    return list(names) if state == "full" else sorted(rng.sample(list(names), len(names) // 2))


def mig_nodes(rng: random.Random, nodes: int, state: str, cards: int = 8) -> dict[str, list[Obj]]:
    """Nodes whose cards offer every MIG placement: 27 devices a card."""
    found: dict[str, list[Obj]] = {"nodes": [], "slices": [], "classes": [], "claims": []}
    found["classes"].append(_class(f'device.driver == "{DRIVER}"'))
    for number in range(nodes):
        node = f"node-{number:05d}"
        found["nodes"].append(_node(node))
        identities = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(cards)]
        sets = [_card_counters(f"gpu-{one[:8]}") for one in identities]
        total = cards + 1
        found["slices"].append(_slice(node, "00-counters", total, {"sharedCounters": sets}))
        for index, identity in enumerate(identities):
            devices = _placements(f"gpu-{identity[:8]}", identity, index)
            found["slices"].append(
                _slice(node, f"{index + 1:02d}-gpu", total, {"devices": devices})
            )
        held = _mig_state(rng, [f"gpu-{one[:8]}" for one in identities], state)
        if held:
            found["claims"].append(_held(node, held, 0))
    return found


def _card_counters(card: str) -> Obj:
    counters = {f"memory-{i}": {"value": "1"} for i in range(MEMORY_SLICES)}
    return {"name": card, "counters": {"compute": {"value": "7"}, **counters}}


def _placements(card: str, identity: str, index: int) -> list[Obj]:
    devices = []
    places = [
        (profile, compute, memory, start)
        for profile, compute, memory, starts in _PROFILES
        for start in starts
    ]
    places.append(("8g.80gb-whole", 7, 8, 0))
    places.append(("3g.40gb-me", 3, 4, 4))
    for profile, compute, memory, start in places:
        counters = {f"memory-{i}": {"value": "1"} for i in range(start, start + memory)}
        devices.append(
            {
                "name": f"{card}-mig-{profile.replace('.', '').replace('+', '-')}-{start}",
                "attributes": {
                    "type": {"string": "mig"},
                    "profile": {"string": profile},
                    "parentUUID": {"string": f"GPU-{identity}"},
                    "parentIndex": {"int": index},
                    "numaNode": {"int": index // 4},
                },
                "capacity": {"memory": {"value": f"{10 * memory}Gi"}},
                "consumesCounters": [
                    {
                        "counterSet": card,
                        "counters": {"compute": {"value": str(compute)}, **counters},
                    }
                ],
            }
        )
    return devices


def _mig_state(rng: random.Random, cards: Sequence[str], state: str) -> list[str]:
    """Half: four cards hold a random small instance each, four are free. Full: none is free."""
    if state == "empty":
        return []
    if state == "full":
        return [f"{card}-mig-7g80gb-0" for card in cards]
    chosen = rng.sample(list(cards), len(cards) // 2)
    return [f"{card}-mig-1g10gb-{rng.randrange(4)}" for card in chosen]


def redraw(
    rng: random.Random, claims: list[Obj], objects: dict[str, list[Obj]], state: str
) -> list[Obj]:
    """The claims of a state again, holding other devices of the same nodes."""
    cards: dict[str, list[str]] = {}
    wholes: dict[str, list[str]] = {}
    for one in objects["slices"]:
        node = one["spec"]["nodeName"]
        cards.setdefault(node, []).extend(c["name"] for c in one["spec"].get("sharedCounters", ()))
        wholes.setdefault(node, []).extend(d["name"] for d in one["spec"].get("devices", ()))
    for held in claims:
        results = held["status"]["allocation"]["devices"]["results"]
        node = results[0]["pool"]
        mig = bool(cards[node])
        used = _mig_state(rng, cards[node], state) if mig else _drawn(rng, wholes[node], state)
        held["status"]["allocation"]["devices"]["results"] = [
            {**results[0], "device": device} for device in used
        ]
    return claims


def single(objects: dict[str, list[Obj]]) -> Obj:
    """A claim that takes the first device of the first node."""
    first = next(one for one in objects["slices"] if one["spec"].get("devices"))
    return _held(first["spec"]["nodeName"], [first["spec"]["devices"][0]["name"]], 1)


def partitions(count: int, units: int) -> dict[str, list[Obj]]:
    """One card of ``count`` equal partitions and fewer units than partitions."""
    node = "node-a"
    sets = [{"name": "card", "counters": {"units": {"value": str(units)}}}]
    consumption = [{"counterSet": "card", "counters": {"units": {"value": "1"}}}]
    devices = [{"name": f"part-{i}", "consumesCounters": consumption} for i in range(count)]
    pieces = [devices[i : i + 64] for i in range(0, count, 64)]
    total = len(pieces) + 1
    slices = [_slice(node, "00-counters", total, {"sharedCounters": sets})]
    slices += [
        _slice(node, f"{i + 1:02d}-parts", total, {"devices": piece})
        for i, piece in enumerate(pieces)
    ]
    return {
        "nodes": [_node(node)],
        "slices": slices,
        "classes": [_class(f'device.driver == "{DRIVER}"')],
        "claims": [],
    }


Maker = Callable[[random.Random, int, str], dict[str, list[Obj]]]

CLAIMS: tuple[tuple[str, Maker, Obj, tuple[str, ...]], ...] = (
    ("1 whole GPU", whole_gpus, claim("asks", [request("gpu", 1)]), STATES),
    (
        "4 GPUs on one numaNode",
        whole_gpus,
        claim("asks", [request("gpu", 4)], [{"matchAttribute": f"{DRIVER}/numaNode"}]),
        STATES,
    ),
    ("1 x 3g of 216 devices", mig_nodes, claim("asks", [request("mig", 1, "3g.40gb")]), STATES),
    ("4 x 4g, fits", mig_nodes, claim("asks", [request("mig", 4, "4g.40gb")]), ("empty", "half")),
    ("6 x 4g, 4 fit", mig_nodes, claim("asks", [request("mig", 6, "4g.40gb")]), ("half",)),
    (
        "6 requests of 4g, 4 fit",
        mig_nodes,
        claim("asks", [request(f"mig-{i}", 1, "4g.40gb") for i in range(6)]),
        ("half",),
    ),
)
