# SPDX-License-Identifier: Apache-2.0
"""A controller that is killed after any of its writes, and one that does not lead any more."""

import asyncio
import random

import pytest

from gpudra.api.errors import ConflictError, InvalidError, UnavailableError
from gpudra.controller.managed.writer import WRITE_SECONDS, Writer
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.leaderelection import LeadershipLostError
from gpudra.driver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, Obj
from tests.support.managedsim import TAKEOVER_SECONDS, ManagedSim
from tests.support.simapi import SimApi, Weather

GANG = [f"g-{number}" for number in range(3)]
# Each claim: finalizer, devices. Each pod: where it goes, gate.
WRITES = 2 * len(GANG) + 2 * len(GANG)


def furnished(seed: int) -> ManagedSim:
    """Four cards on one node, and a gang of three."""
    sim = ManagedSim(seed)
    sim.add_node("n1", "l4-4x")
    sim.add_template("gpu", "gpu.gpudra.io")
    sim.add_queue("q")
    sim.add_group("g", len(GANG))
    return sim


async def until_written(sim: ManagedSim, count: int) -> None:
    """Time goes on until the controller has written so often."""
    written = 0

    def changed(event: object) -> None:
        nonlocal written
        written += getattr(event, "type", "") == "MODIFIED"

    end = sim.objects.subscribe(changed)
    for _ in range(5000):
        if written >= count:
            break
        await sim.advance(0.0005)
    end()
    assert written >= count


@pytest.mark.parametrize("writes", range(WRITES + 1))
async def test_a_gang_survives_a_kill_after_any_write(writes: int) -> None:
    """The rules hold while nobody leads, and the next leader brings the gang to run."""
    sim = furnished(writes)
    sim.start()
    await sim.live(1)
    for name in GANG:
        sim.submit(name, "q", {"gpu": "gpu"}, group="g", life=1000)
    sim.cluster.turn()
    await until_written(sim, writes)
    await sim.kill()
    for _ in range(8):
        sim.cluster.turn()
        await sim.advance(TAKEOVER_SECONDS / 4)
    sim.start()
    await sim.live(10)
    assert [sim.phase(name) for name in GANG] == ["Running"] * len(GANG)
    await sim.kill()


@pytest.mark.parametrize(
    "error", [ConflictError("changed"), InvalidError("no"), UnavailableError("away")]
)
async def test_a_gang_whose_claim_cannot_be_written_is_taken_back(error: Exception) -> None:
    """The others' devices are given back, their gates stay, and it is tried again later."""
    sim = furnished(1)
    mode = sim.start()
    await sim.live(1)
    real, refuse = sim.process.api.patch, True  # type: ignore[union-attr]

    async def patch(resource: object, name: str, body: Obj, **more: object) -> Obj:
        if refuse and resource == RESOURCE_CLAIMS and name.startswith("g-2"):
            raise error
        return await real(resource, name, body, **more)  # type: ignore[arg-type]

    sim.process.api.patch = patch  # type: ignore[union-attr,method-assign,assignment]
    for name in GANG:
        sim.submit(name, "q", {"gpu": "gpu"}, group="g", life=1000)
    await sim.live(3)
    assert [sim.phase(name) for name in GANG] == ["Gated"] * len(GANG)
    refuse = False
    await sim.live(60)
    assert [sim.phase(name) for name in GANG] == ["Running"] * len(GANG)
    assert mode.plans > 1
    await sim.kill()


async def test_whoever_does_not_lead_writes_nothing() -> None:
    """The question is asked right before each write, after the wait for a free slot."""
    clock = VirtualClock()
    objects = ObjectStore(clock)
    objects.seed({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    leads = True

    def check() -> None:
        if not leads:
            raise LeadershipLostError("not the leader")

    api = SimApi(objects, clock, random.Random(1), Weather(latency=1.0))
    writer = Writer(api, check=check, clock=clock, parallel=1)
    body = {"metadata": {"labels": {"a": "b"}}}
    first = asyncio.ensure_future(writer.patch(NODES, "n", body))
    second = asyncio.ensure_future(writer.patch(NODES, "n", {"metadata": {"labels": {"c": "d"}}}))
    await clock.advance(0.01)
    leads = False
    await clock.advance(10)
    assert (await first)["metadata"]["labels"] == {"a": "b"}
    with pytest.raises(LeadershipLostError):
        await second
    assert objects.get(NODES, "n")["metadata"]["labels"] == {"a": "b"}


async def test_a_write_lasts_no_longer_than_the_lease() -> None:
    """An answer that does not come in time is an error; whether it was done, the caller has to look."""
    clock = VirtualClock()
    objects = ObjectStore(clock)
    api = SimApi(objects, clock, random.Random(1), Weather(latency=1000.0))
    writer = Writer(api, check=lambda: None, clock=clock)
    write = asyncio.ensure_future(writer.patch(PODS, "p", {}, namespace="x"))
    await clock.advance(WRITE_SECONDS)
    with pytest.raises(UnavailableError):
        await write
    await clock.advance(2000)


@pytest.mark.parametrize("writes", range(1, 8))
async def test_what_was_half_written_counts_for_the_limit(writes: int) -> None:
    """The next leader counts what the killed one had allocated; the limit holds at every moment."""
    sim = ManagedSim(writes)
    sim.add_node("n1", "l4-4x")
    sim.add_template("gpu", "gpu.gpudra.io")
    sim.add_queue("q", limit={"gpus": "2"})
    sim.start()
    await sim.live(1)
    for name in GANG:
        sim.submit(name, "q", {"gpu": "gpu"}, life=1000)
    sim.cluster.turn()
    await until_written(sim, writes)
    await sim.kill()
    await sim.advance(TAKEOVER_SECONDS)
    for number in range(3):
        sim.submit(f"late-{number}", "q", {"gpu": "gpu"}, life=1000)
    sim.cluster.turn()
    sim.start()
    await sim.live(10)
    names = [pod["metadata"]["name"] for pod in sim.cluster.pods()]
    assert [sim.phase(name) for name in names].count("Running") == 2
    await sim.kill()
