# SPDX-License-Identifier: Apache-2.0
"""What victims, preemptors and queues say about an eviction; and the column of past use."""

from typing import Any

from gpudra.controller.ctl.queues import cells, with_past
from gpudra.driver.kube.fakeserver import StoreEvent
from gpudra.driver.kube.resources import PODS, QUEUES
from tests.support.managedsim import ManagedSim


async def test_everybody_says_for_whom_and_why() -> None:
    """The pod before it is deleted, its queue for good, and an Event for each victim."""
    sim = ManagedSim(1)
    sim.add_node("one", "dgx-h100-8x80")
    sim.add_template("gpu", "gpu.gpudra.io")
    for name in ("left", "right"):
        sim.add_queue(name, quota={"gpus": "4"})
    sim.start()
    for number in range(8):
        sim.submit(f"l{number}", "left", {"gpu": "gpu"}, life=1000.0)
    await sim.live(5.0)
    said: dict[str, dict[str, Any]] = {}

    def watch(event: StoreEvent) -> None:
        pod = event.new.obj
        for one in pod.get("status", {}).get("conditions") or ():
            if event.resource == PODS and one["type"] == "gpudra.io/Evicted":
                said[pod["metadata"]["name"]] = one

    sim.objects.subscribe(watch)
    sim.submit("r0", "right", {"gpu": "gpu"}, life=1000.0)
    await sim.live(5.0)
    ((victim, condition),) = said.items()
    message = (
        "its devices go to pod/team/r0: queue left borrows 4 gpus, "
        "and queue right is within its quota"
    )
    assert (condition["reason"], condition["message"]) == ("Reclaimed", message)
    conditions = sim.objects.get(QUEUES, "left")["status"]["conditions"]
    (told,) = [one for one in conditions if one["type"] == "Evicted"]
    assert told["message"] == f"pod team/{victim}: {message}"
    assert sim.events.reasons["Reclaimed"] == 1
    assert sim.phase("r0") == "Running"
    await sim.kill()


def test_past_use_is_a_column_behind_the_share() -> None:
    """Where any queue has one; 0 for the others."""
    row: dict[str, Any] = {
        "name": "a",
        "depth": 0,
        "used": {},
        "borrowed": {},
        "share": 0.25,
        "running": 0,
        "waiting": 0,
    }
    plain, with_it = cells(row), with_past({**row, "past": 0.5})
    place = plain.index("0.250") + 1
    assert with_it == (*plain[:place], "0.500", *plain[place:])
    assert with_past(row)[place] == "0.000"
