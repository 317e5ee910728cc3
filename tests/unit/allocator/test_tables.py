# SPDX-License-Identifier: Apache-2.0
"""The allocator against tests/tables/allocator*.yaml, one named sentence a test."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.api.quantity import Quantity
from gpudra.controller.ctl.allocate import describe
from gpudra.controller.ctl.objects import objects_of
from gpudra.driver.core.allocator import Answer, ClusterIndex

Row = dict[str, Any]
FOLDER = Path(__file__).resolve().parents[2] / "tables"
DRIVER = "gpu.example.com"
_HOMES = ("nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection")
_DRIVERS = (DRIVER, "nic.example.com")


def _rows() -> list[Row]:
    found: list[Row] = []
    for path in sorted(FOLDER.glob("allocator*.yaml")):
        found.extend(yaml.safe_load(path.read_text()))
    return found


def _slices(row: Row) -> list[Row]:
    found = []
    for number, pool in enumerate(row["pools"]):
        driver = pool.get("driver", DRIVER)
        home = {key: pool[key] for key in _HOMES if key in pool}
        if not home and not pool.get("nowhere"):
            home = {"nodeName": "node-a"}
        contents: list[Row] = []
        if "sets" in pool:
            contents.append({"sharedCounters": pool["sets"]})
        devices = pool.get("devices", [])
        if isinstance(devices, int):
            devices = [{"name": f"gpu-{i}"} for i in range(devices)]
        if devices:
            contents.append({"devices": devices})
        more = {key: pool[key] for key in ("skipNodeOperations",) if key in pool}
        for part, content in enumerate(contents):
            spec = {
                "driver": driver,
                "pool": {
                    "name": pool.get("pool", "node-a"),
                    "generation": pool.get("generation", 1),
                    "resourceSliceCount": pool.get("count", len(contents)),
                },
                **home, **content, **more,
            }  # fmt: skip
            name = f"{pool.get('slice', f'slice-{number}')}-{part}"
            found.append(_object("ResourceSlice", name, spec))
    return found


def _object(kind: str, name: str, spec: Row, **more: Any) -> Row:
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, **more}, "spec": spec,
    }  # fmt: skip


def _requests(row: Row) -> list[Row]:
    found = []
    for request in row["requests"]:
        rest = {key: value for key, value in request.items() if key != "name"}
        if "raw" in rest:
            found.append({"name": request["name"], **rest["raw"]})
        elif "firstAvailable" in rest:
            subs = [{"deviceClassName": DRIVER} | sub for sub in rest["firstAvailable"]]
            found.append({"name": request["name"], "firstAvailable": subs})
        else:
            found.append({"name": request["name"], "exactly": {"deviceClassName": DRIVER} | rest})
    return found


def _held(row: Row) -> list[Row]:
    found = []
    for held in row.get("held", ()):
        result = {
            "request": "gpu",
            "driver": held.get("driver", DRIVER),
            "pool": held.get("pool", "node-a"),
            "device": held["device"],
        }
        if "share" in held:
            result |= {
                "shareID": "00000000-0000-4000-8000-000000000001",
                "consumedCapacity": held["share"],
            }
        if held.get("admin"):
            result["adminAccess"] = True
        claim = _object("ResourceClaim", held["claim"], {}, namespace="default")
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        found.append(claim)
    return found


def _ask(row: Row) -> tuple[ClusterIndex, list[Any], Answer]:
    devices = {
        "requests": _requests(row),
        "constraints": row.get("constraints", []),
        "config": row.get("claimConfig", []),
    }
    asks = _object("ResourceClaim", "asks", {"devices": devices}, namespace="default")
    nodes = row.get("nodes", {"node-a": {}})
    raws = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        for name, labels in nodes.items()
    ]
    for driver in _DRIVERS:
        selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
        config = row.get("config", {}).get(driver, [])
        raws.append(_object("DeviceClass", driver, {"selectors": selectors, "config": config}))
    found = objects_of([*raws, *_slices(row), *_held(row), asks])
    index = ClusterIndex.of(
        nodes=found.nodes, slices=found.slices, classes=found.classes, claims=found.claims
    )
    claims = [claim for claim in found.claims if claim.metadata.name == "asks"]
    return index, claims, index.allocate(claims, row.get("node", "node-a"))


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["says"])
def test_row(row: Row) -> None:
    """The sentence of the row holds."""
    index, claims, answer = _ask(row)
    wanted, told = row["expect"], describe(index, claims, answer)
    assert told["outcome"] == wanted["outcome"], told["message"]
    assert wanted.get("says", "") in told["message"]
    if "got" in wanted:
        assert [result["device"] for result in told["results"]] == wanted["got"]
    if "requests" in wanted:
        assert [result["request"] for result in told["results"]] == wanted["requests"]
    if "consumed" in wanted:
        given = [_amounts(result["consumedCapacity"]) for result in told["results"]]
        assert given == [_amounts(one) for one in wanted["consumed"]]
    if "config" in wanted or "nodeSelector" in wanted:
        _check_allocation(answer, wanted)


def _amounts(consumed: Row) -> Row:
    return {name: Quantity.parse(text) for name, text in consumed.items()}


def _check_allocation(answer: Answer, wanted: Row) -> None:
    allocation = answer.allocations[0].to_dict()
    if "config" in wanted:
        assert allocation["devices"]["config"] == wanted["config"]
    if "nodeSelector" in wanted:
        assert allocation.get("nodeSelector") == wanted["nodeSelector"]
