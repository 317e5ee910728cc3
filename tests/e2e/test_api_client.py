# SPDX-License-Identifier: Apache-2.0
"""The client layer against the real API server: what the fake one claims to answer is checked here."""

import asyncio
import json
import urllib.request
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from gpudra.api.errors import ConflictError, ExpiredError, InvalidError, NotFoundError
from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.events import EventRecorder
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.leaderelection import LeaderElector, LeadershipToken
from gpudra.driver.kube.reflector import Event, Reflector, ReflectorOptions
from gpudra.driver.kube.resources import EVENTS, LEASES, NAMESPACES, RESOURCE_CLAIMS, Obj, Resource
from tests.support.cluster import Cluster

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
KINDS = ["real", "fake"]


def claim(name: str) -> Obj:
    """A claim that nobody will allocate."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "none.example.com"}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def config_map(name: str, **data: str) -> Obj:
    """A config map."""
    return {"metadata": {"name": name}, "data": data}


@pytest.fixture(params=KINDS)
async def client(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[KubeClient]:
    """A client of the real server, then one of the fake: both must answer alike."""
    if request.param == "real":
        async with await KubeClient.load(str(cluster.layout.admin_kubeconfig)) as client:
            yield client
        return
    async with FakeApiServer() as server:
        yield await server.client()


@pytest.fixture
async def space(client: KubeClient) -> AsyncIterator[str]:
    """A namespace of the test's own on the same server."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await client.delete(NAMESPACES, name)


async def test_conflicts_and_preconditions(client: KubeClient, space: str) -> None:
    """Old versions, foreign uids and taken names are conflicts; deletion checks the uid."""
    first = await client.create(CONFIG_MAPS, config_map("a", x="1"), space)
    with pytest.raises(ConflictError, match="already exists"):
        await client.create(CONFIG_MAPS, config_map("a"), space)
    await client.update(CONFIG_MAPS, {**first, "data": {"x": "2"}})
    with pytest.raises(ConflictError, match="the object has been modified"):
        await client.update(CONFIG_MAPS, {**first, "data": {"x": "3"}})
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, "a", space, uid=str(uuid.uuid4()))
    await client.delete(CONFIG_MAPS, "a", space, uid=first["metadata"]["uid"])
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, "a", space)


async def test_patches_of_all_kinds(client: KubeClient, space: str) -> None:
    """Merge, JSON, strategic and apply give the same on both servers; applies conflict by owner."""
    await client.create(CONFIG_MAPS, config_map("a", x="1"), space)
    await client.patch(CONFIG_MAPS, "a", {"data": {"y": "2"}}, namespace=space)
    operation = {"op": "add", "path": "/data/z", "value": "3"}
    await client.patch(CONFIG_MAPS, "a", [operation], namespace=space, patch_type="json")
    strategic = {"data": {"x": None}}
    await client.patch(CONFIG_MAPS, "a", strategic, namespace=space, patch_type="strategic")
    assert (await client.get(CONFIG_MAPS, "a", space))["data"] == {"y": "2", "z": "3"}

    async def apply(manager: str, **data: str) -> Obj:
        applied = await client.patch(
            CONFIG_MAPS,
            "b",
            {"data": data},
            namespace=space,
            patch_type="apply",
            field_manager=manager,
        )
        found: Obj = applied.get("data", {})
        return found

    assert await apply("us", x="1", y="1") == {"x": "1", "y": "1"}
    assert await apply("them", z="1") == {"x": "1", "y": "1", "z": "1"}
    with pytest.raises(ConflictError, match=r'conflict with "us": \.data\.x'):
        await apply("them", x="2", z="1")
    assert await apply("us", y="1") == {"y": "1", "z": "1"}


async def test_claims_get_defaults_and_are_refused_alike(client: KubeClient, space: str) -> None:
    """Defaults, dry runs, status rules and the fields named in refusals."""
    dry = await client.create(RESOURCE_CLAIMS, claim("dry"), space, dry_run=True)
    assert dry["metadata"]["uid"]
    made = await client.create(RESOURCE_CLAIMS, claim("c"), space)
    exactly = made["spec"]["devices"]["requests"][0]["exactly"]
    assert (exactly["allocationMode"], exactly["count"]) == ("ExactCount", 1)
    assert "generation" not in made["metadata"]
    for status, field in (
        ({"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}, "status.reservedFor"),
        ({"devices": [{"driver": "d", "pool": "p", "device": "x"}]}, "status.devices[0]"),
    ):
        body = {"status": status, "metadata": {"labels": {"ignored": "yes"}}}
        with pytest.raises(InvalidError) as caught:
            await client.patch(RESOURCE_CLAIMS, "c", body, namespace=space, subresource="status")
        assert [name for name, _ in caught.value.causes] == [field]
    changed = {"spec": {"devices": {"requests": [{"name": "other"}]}}}
    with pytest.raises(InvalidError) as caught:
        await client.patch(RESOURCE_CLAIMS, "c", changed, namespace=space)
    assert "spec" in {name for name, _ in caught.value.causes}


async def test_pages_watches_and_expiry(client: KubeClient, space: str) -> None:
    """A reflector mirrors pages and changes; a version from long ago answers 410."""
    told: list[str] = []
    done = asyncio.Event()

    def on_event(event: Event[Obj]) -> None:
        told.append(f"{event.kind.value} {event.object['metadata']['name']}")
        if told[-1] == "delete c3":
            done.set()

    for number in range(7):
        await client.create(RESOURCE_CLAIMS, claim(f"c{number}"), space)
    reflector = Reflector(
        client,
        RESOURCE_CLAIMS,
        lambda raw: raw,
        namespace=space,
        on_event=on_event,
        options=ReflectorOptions(page_limit=3, watch_timeout=4),
    )
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.wait_synced(), 30)
    labels = {"metadata": {"labels": {"a": "b"}}}
    await client.patch(RESOURCE_CLAIMS, "c1", labels, namespace=space)
    await client.delete(RESOURCE_CLAIMS, "c3", space)
    await asyncio.wait_for(done.wait(), 30)
    task.cancel()
    assert told == [*[f"add c{number}" for number in range(7)], "update c1", "delete c3"]


def compact(cluster: Cluster, revision: str) -> None:
    """Let etcd forget what was before a revision, as the API server does every five minutes."""
    url = f"http://127.0.0.1:{cluster.state.ports['etcd']}/v3/kv/compaction"
    body = json.dumps({"revision": revision, "physical": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30) as answer:
        answer.read()


async def test_an_old_version_is_expired(cluster: Cluster) -> None:
    """The real server answers a watch from a forgotten version with 410, which we understand."""
    async with await KubeClient.load(str(cluster.layout.admin_kubeconfig)) as client:
        compact(cluster, (await client.list(EVENTS)).resource_version)
        stream = client.watch(EVENTS, resource_version="1", timeout_seconds=5)
        async with aclosing(stream):
            with pytest.raises(ExpiredError):
                await anext(stream)


async def test_events_and_elections(client: KubeClient, space: str) -> None:
    """The server takes our events and their series, and leases change hands with a higher number."""
    made = await client.create(RESOURCE_CLAIMS, claim("c"), space)
    recorder = EventRecorder(client, controller="gpu.gpudra.io", instance="node-1")
    for _ in range(3):
        recorder.event(made, "Warning", "PrepareFailed", "no device", action="Prepare")
        await recorder.flush()
    (event,) = (await client.list(EVENTS, space)).items
    assert event["series"]["count"] == 3
    terms: list[LeadershipToken] = []

    async def lead(token: LeadershipToken) -> None:
        terms.append(token)

    for identity in ("a", "b"):
        elector = LeaderElector(client, name="l", namespace=space, identity=identity)
        await asyncio.wait_for(elector.run(lead), 30)
    assert [(term.identity, term.transitions) for term in terms] == [("a", 0), ("b", 1)]
    assert (await client.get(LEASES, "l", space))["spec"]["holderIdentity"] == ""
