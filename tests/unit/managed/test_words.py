# SPDX-License-Identifier: Apache-2.0
"""What pods, queues and groups say, and how seldom it is written."""

from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.ctl.queues import bar
from gpudra.controller.managed.conditions import WORDS_SECONDS
from gpudra.controller.managed.jobs import gang_of_job
from gpudra.driver.kube.resources import PODS, QUEUES
from tests.support.managedsim import NAMESPACE, ManagedSim


async def crowded() -> ManagedSim:
    """Four cards in use, and three pods that wait for them."""
    sim = ManagedSim(1)
    sim.add_node("n1", "l4-4x")
    sim.add_template("gpu", "gpu.gpudra.io")
    sim.add_queue("q")
    sim.start()
    await sim.live(1)
    for number in range(7):
        sim.submit(f"p{number}", "q", {"gpu": "gpu"}, life=100 + number)
    await sim.live(8)
    return sim


def queued(sim: ManagedSim, name: str) -> dict[str, Any]:
    """The condition of a pod that says whether it waits."""
    conditions = sim.pod(name)["status"].get("conditions", ())
    return next((one for one in conditions if one["type"] == "gpudra.io/Queued"), {})


async def test_who_waits_says_why_and_at_which_place() -> None:
    """And whoever was placed at once never said that it waits."""
    sim = await crowded()
    assert queued(sim, "p0")["status"] == "False"
    waiting = [queued(sim, f"p{number}") for number in (4, 5, 6)]
    assert [one["status"] for one in waiting] == ["True"] * 3
    assert [one["message"].partition(":")[0] for one in waiting] == [
        f"place {place} in queue q" for place in (1, 2, 3)
    ]
    assert sim.events.reasons["Queued"] == 3
    assert sim.events.reasons.get("Placed", 0) == 0
    await sim.kill()


async def test_a_changed_place_alone_is_written_seldom() -> None:
    """While nothing but places change, a pod is written twice a minute at most."""
    sim = await crowded()
    before = sim.pod("p6")["metadata"]["resourceVersion"]
    sim.cluster.delete(sim.pod("p4"))
    await sim.live(5)
    assert sim.pod("p6")["metadata"]["resourceVersion"] == before
    await sim.live(WORDS_SECONDS + 10)
    assert "place 2" in queued(sim, "p6")["message"]
    await sim.kill()


async def test_a_quiet_cluster_is_not_written_at_all() -> None:
    """Neither pods nor queues, however long somebody waits; nor by a new leader."""
    sim = await crowded()
    await sim.live(40)
    before = sim.objects.revision
    await sim.live(20)
    assert sim.objects.revision == before
    await sim.kill()
    sim.start()
    await sim.live(10)
    assert sim.objects.revision == before
    await sim.kill()


async def test_a_queue_shows_its_numbers() -> None:
    """Used, running, waiting; and what is not used any more is gone from its status."""
    sim = await crowded()
    status = sim.objects.get(QUEUES, "q")["status"]
    assert (status["used"]["gpus"], status["running"], status["waiting"]) == ("4", 4, 3)
    for pod in sim.objects.list(PODS, NAMESPACE):
        sim.cluster.delete(pod)
    await sim.live(8)
    status = sim.objects.get(QUEUES, "q")["status"]
    assert (status["used"], status["running"], status["waiting"]) == ({}, 0, 0)
    await sim.kill()


def job(annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    """A Job with annotations of its own."""
    return {
        "metadata": {"name": "j", "namespace": "team", "annotations": annotations},
        "spec": {"template": {"metadata": {}}, **spec},
    }


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (job({}, parallelism=4), None),
        (job({"gpudra.io/gang": "true"}, parallelism=4), 4),
        (job({"gpudra.io/gang": "true"}, parallelism=4, completions=2), 2),
        (job({"gpudra.io/gang": "true", "gpudra.io/min-count": "3"}, parallelism=4), 3),
        (job({"gpudra.io/gang": "true"}), 1),
    ],
)
def test_a_job_may_be_a_gang(raw: dict[str, Any], count: int | None) -> None:
    """By its annotation; as many pods as run side by side, unless it says how many."""
    group = gang_of_job(raw)
    assert (group.spec.min_count if group else None) == count
    assert group is None or group.key == "team/Job.j"


def test_a_gang_of_no_pods_is_refused() -> None:
    """A minimum of zero is no gang."""
    with pytest.raises(InputError):
        gang_of_job(job({"gpudra.io/gang": "true", "gpudra.io/min-count": "0"}))


def test_the_bar_shows_what_is_borrowed_behind_what_is_own() -> None:
    """Half of its own, and half as much again."""
    assert bar("2", "4") == "[########........] 50% of 4"
    assert bar("6", "4") == "[################]++++++++ 150% of 4"
    assert bar("1", "") == ""
