# SPDX-License-Identifier: Apache-2.0
"""A reflector against a server in trouble: whatever happens, the mirror equals the truth in the end."""

import asyncio
import random

import pytest

from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.reflector import Event, EventKind, Reflector, ReflectorOptions
from gpudra.driver.kube.resources import PODS, Obj

QUICK = ReflectorOptions(page_limit=3, watch_timeout=2, backoff_base=0.001, backoff_cap=0.005)


def make_trouble(server: FakeApiServer, rng: random.Random) -> None:
    """One random misbehaviour."""
    faults = server.faults
    troubles = [
        lambda: faults.cut_stream(after_events=rng.randrange(3), half_line=rng.random() < 0.5),
        lambda: faults.stream_error(after_events=rng.randrange(3)),
        lambda: faults.fail(verb="list", status=rng.choice([410, 500, 503])),
        lambda: faults.fail(verb="watch", status=rng.choice([410, 500, 503])),
        server.objects.expire,
        server.end_watches,
    ]
    rng.choice(troubles)()


def change_something(server: FakeApiServer, rng: random.Random) -> None:
    """One random change to one of eight pods."""
    store, name = server.objects, f"p{rng.randrange(8)}"
    known = {pod["metadata"]["name"] for pod in store.list(PODS)}
    if name not in known:
        store.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": {}})
    elif rng.random() < 0.4:
        store.delete(PODS, name, "default")
    else:
        body = {"spec": {"n": rng.random()}}
        store.patch(PODS, name, body, namespace="default")


@pytest.mark.parametrize("seed", range(5))
async def test_the_mirror_equals_the_truth_in_the_end(seed: int) -> None:
    """After any mixture of changes and trouble, store and events agree with the server."""
    rng = random.Random(seed)
    told: dict[str, Obj] = {}
    markers: dict[str, asyncio.Event] = {}

    def believe(event: Event[Obj]) -> None:
        meta = event.object["metadata"]
        if event.kind is EventKind.DELETE:
            assert told.pop(meta["name"])["metadata"]["uid"] == meta["uid"]
        else:
            assert (meta["name"] in told) == (event.kind is EventKind.UPDATE)
            told[meta["name"]] = event.object
        if meta["name"] in markers:
            markers[meta["name"]].set()

    async with FakeApiServer(seed=seed) as server:
        client = await server.client()
        reflector = Reflector(
            client, PODS, lambda raw: raw, on_event=believe, options=QUICK, rng=random.Random(seed)
        )
        task = asyncio.create_task(reflector.run())
        for stretch in range(12):
            for _ in range(30):
                if rng.random() < 0.2:
                    make_trouble(server, rng)
                change_something(server, rng)
                for _ in range(rng.randrange(30)):
                    await asyncio.sleep(0)
            name = f"marker-{stretch}"
            markers[name] = asyncio.Event()
            server.objects.create(PODS, {"metadata": {"name": name, "namespace": "default"}})
            await asyncio.wait_for(markers[name].wait(), 20)
        truth = {pod["metadata"]["name"]: pod for pod in server.objects.list(PODS)}
        task.cancel()
        assert len([record for record in server.requests if record.verb == "list"]) > 5
        assert told == truth
        assert {p["metadata"]["name"]: p for p in reflector.store.values()} == truth
