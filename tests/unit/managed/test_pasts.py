# SPDX-License-Identifier: Apache-2.0
"""Fairness over time: what queues used before is kept, written down, and read again by the next leader."""

import pytest

from gpudra.controller.managed.pasts import WRITE_SECONDS, Pasts, noted
from gpudra.controller.managed.snapshot import snapshot_of
from gpudra.driver.kube.resources import QUEUES
from tests.support.managedscene import cluster, queue, run, submit
from tests.support.managedsim import ManagedSim

HOUR = 3600.0


def test_the_queue_that_used_less_goes_first() -> None:
    """Both are idle now; what counts is what they had before."""
    state = cluster(1, cards=1, queues=(queue("a"), queue("b")))
    pasts = Pasts(HOUR)
    pasts.apply(state, 0.0)
    (old,) = submit(state, "old", queue="a")
    run(state)
    pasts.apply(state, 0.0)
    pasts.apply(state, HOUR)
    assert state.book.history["a"] == pytest.approx(0.5)
    assert state.book.history["b"] == 0
    state.remove_pod(old.uid)
    state.remove_claim("default/old-0")
    pasts.apply(state, HOUR)
    pasts.apply(state, 2 * HOUR)
    assert state.book.history["a"] == pytest.approx(0.25)
    submit(state, "again", queue="a", created=1.0)
    submit(state, "later", queue="b", created=2.0)
    assert [one.job for one in run(state, 2 * HOUR).placements] == ["pod/default/later-0"]


def test_without_a_half_life_nothing_is_kept() -> None:
    """The order is what the shares of the moment say, and no status is written."""
    state = cluster(1, queues=(queue("a"),))
    pasts = Pasts()
    pasts.apply(state, 0.0)
    assert (dict(state.book.history), pasts.status({}, 0.5, 0.0, "")) == ({}, {})


def test_a_past_is_written_when_it_would_be_read_as_another() -> None:
    """Not before a minute, and not while it only fades as every reader knows."""
    pasts = Pasts(HOUR)
    first = pasts.status({}, 0.5, 0.0, "1970-01-01T00:00:00Z")
    assert noted(first) == (0.5, 0.0)
    assert pasts.status(first, 0.9, WRITE_SECONDS - 1, "later") == first
    assert pasts.status(first, 0.25, HOUR, "later") == first
    assert pasts.status(first, 0.5, HOUR, "later")["history"] == {
        "share": "0.500000",
        "time": "later",
    }


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"history": "x"},
        {"history": {"share": "x", "time": "1970-01-01T00:00:00Z"}},
        {"history": {"share": "nan", "time": "1970-01-01T00:00:00Z"}},
        {"history": {"share": "-1", "time": "1970-01-01T00:00:00Z"}},
        {"history": {"share": "1", "time": "yesterday"}},
        {"history": {"share": "1"}},
    ],
)
def test_a_past_that_cannot_be_read_is_none(status: dict[str, object]) -> None:
    """Whoever may write a status cannot stop the controller with it."""
    assert noted(status) is None


async def test_a_past_survives_the_controller() -> None:
    """Killed and started again, it goes on from the Queue's status; ``gpudra queues`` shows it."""
    sim = ManagedSim(1, half_life=600.0)
    sim.add_node("one", "l4-4x")
    sim.add_template("gpu", "gpu.gpudra.io")
    sim.add_queue("a")
    sim.start()
    for number in range(4):
        sim.submit(f"p{number}", "a", {"gpu": "gpu"}, life=10_000.0)
    await sim.live(600.0, step=1.0)
    history = sim.objects.get(QUEUES, "a")["status"]["history"]
    assert float(history["share"]) == pytest.approx(0.5, abs=0.1)
    await sim.kill()
    sim.start()
    await sim.live(5.0)
    past = await sim.mode.planner.ask(lambda state: state.book.history["a"])
    assert past == pytest.approx(float(history["share"]), abs=0.1)
    objects = [
        {"apiVersion": "gpudra.io/v1alpha1", "kind": "Queue", **one}
        for one in sim.objects.list(QUEUES)
    ]
    (view,) = snapshot_of(objects, "gpu.gpudra.io").state.book.views()
    assert view.history > 0.3
    await sim.kill()
