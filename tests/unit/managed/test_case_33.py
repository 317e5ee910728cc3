# SPDX-License-Identifier: Apache-2.0
"""Case 33: two pods of a gang share one claim; it is written once, and both or none run."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.driver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, Obj
from tests.support.managedsim import NAMESPACE, ManagedSim

CASE = Path(__file__).parents[2] / "fixtures/cases/33-gang-shares-a-claim"
EXPECTED = json.loads((CASE / "expected.json").read_text())
DRIVER = "gpu.example.com"
(GANG,) = EXPECTED["gangs"]


def cluster(room_for_pods: int | None) -> ManagedSim:
    """The case's objects, on nodes of managed mode."""
    sim = ManagedSim(33, driver=DRIVER)
    for raw in yaml.safe_load_all((CASE / "objects.yaml").read_text()):
        if raw["kind"] == "Node":
            raw["metadata"]["labels"] = {"gpudra.io/managed": "true"}
            pods = room_for_pods if room_for_pods and raw["metadata"]["name"] == "node-a" else 110
            raw["status"] = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": str(pods)}}
        if raw["kind"] == "ResourceClaim":
            raw["metadata"]["namespace"] = NAMESPACE
        sim.objects.seed(raw)
    sim.add_queue("q")
    sim.add_group(GANG["name"], GANG["min"])
    return sim


def allocation_writes(sim: ManagedSim) -> list[Obj]:
    """Every form that the claim had after a write of its allocation."""
    seen: list[Obj] = []

    def changed(event: Any) -> None:
        if event.resource == RESOURCE_CLAIMS and event.new is not None:
            before = (event.old.obj.get("status") or {}) if event.old is not None else {}
            after = event.new.obj.get("status") or {}
            if after.get("allocation") and after["allocation"] != before.get("allocation"):
                seen.append(after)

    sim.objects.subscribe(changed)
    return seen


@pytest.mark.parametrize(
    "row", EXPECTED["verify"], ids=lambda row: str(row.get("node_a_room_for_pods"))
)
async def test_the_gang_runs_together_or_not_at_all(row: dict[str, Any]) -> None:
    """With room both are on the node of the device; without, the claim stays without devices."""
    sim = cluster(row.get("node_a_room_for_pods"))
    writes = allocation_writes(sim)
    sim.start()
    await sim.live(1)
    for name, claims in GANG["pods"].items():
        sim.submit(name, "q", {"gpu": claims[0]}, group=GANG["name"], shared=True, life=1000)
    await sim.live(10)

    then = row["then"]
    running = [name for name in GANG["pods"] if sim.phase(name) == "Running"]
    assert len(running) == then[GANG["name"]]["running"]
    status = sim.objects.get(RESOURCE_CLAIMS, "shared", NAMESPACE).get("status") or {}
    wanted = then["claim shared"]
    if "device" in wanted:
        (result,) = status["allocation"]["devices"]["results"]
        assert result["device"] == wanted["device"]
        assert len(writes) == wanted["allocation_writes"]
        assert len(status["reservedFor"]) == wanted["reservedFor"]
        nodes = {pod["spec"]["nodeName"] for pod in sim.objects.list(PODS, NAMESPACE)}
        assert sorted(nodes) == then[GANG["name"]]["nodes"]
    else:
        assert "allocation" not in status
        assert not writes
    assert len(sim.objects.list(NODES)) == 2
    await sim.kill()
