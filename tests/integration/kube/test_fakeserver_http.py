# SPDX-License-Identifier: Apache-2.0
"""The fake API server over HTTP: with our client, and with the official one as a second opinion."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpudra.api.errors import (
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InputError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import (
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_SLICES,
    Obj,
    Resource,
)
from gpudra.driver.kube.watch import WatchEvent


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A running server."""
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> KubeClient:
    """A client of it."""
    return await server.client()


def pod(name: str, namespace: str = "default", **labels: str) -> Obj:
    """A pod with labels."""
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {}}


async def first(stream: AsyncIterator[WatchEvent], count: int) -> list[str]:
    """Type and name of the next events of a watch, fewer when it ends."""
    found: list[str] = []
    async with asyncio.timeout(10):
        while len(found) < count and (event := await anext(stream, None)) is not None:
            found.append(f"{event.type} {event.object['metadata'].get('name', '')}".strip())
    return found


async def test_discovery_tells_what_is_served(server: FakeApiServer, client: KubeClient) -> None:
    """Version, groups and resources; an unknown group has no resources."""
    assert (await client.version())["gitVersion"] == "v1.37.2"
    listed = await client.api_resources("resource.k8s.io", "v1")
    names = {resource["name"] for resource in listed}
    assert {"resourceslices", "resourceclaims", "resourceclaims/status"} <= names
    assert "pods" in {resource["name"] for resource in await client.api_resources("", "v1")}
    assert await client.api_resources("scheduling.k8s.io", "v1beta1") == []
    groups = orjson.loads(await client.get_raw("/apis"))["groups"]
    assert "resource.k8s.io" in {group["name"] for group in groups}
    assert await client.get_raw("/readyz") == b"ok"
    group = orjson.loads(await client.get_raw("/apis/resource.k8s.io"))
    assert group["preferredVersion"]["version"] == "v1"
    assert orjson.loads(await client.get_raw("/api"))["versions"] == ["v1"]


async def test_the_verbs_work_over_http(server: FakeApiServer, client: KubeClient) -> None:
    """Create, get, update, patch, status, delete, each as the store answers it."""
    created = await client.create(PODS, pod("p"))
    assert await client.get(PODS, "p", "default") == created
    created["spec"]["nodeName"] = "n1"
    updated = await client.update(PODS, created, field_manager="test")
    with pytest.raises(ConflictError, match="pod default/p: Operation cannot be fulfilled"):
        await client.update(PODS, created)
    running = {**updated, "status": {"phase": "Running"}}
    assert (await client.update_status(PODS, running))["status"]["phase"] == "Running"
    patches: list[tuple[Any, Any]] = [
        ("merge", {"metadata": {"labels": {"a": "1"}}}),
        ("json", [{"op": "add", "path": "/metadata/labels/b", "value": "2"}]),
        ("strategic", {"metadata": {"labels": {"c": "3"}}}),
        ("apply", {"metadata": {"labels": {"d": "4"}}}),
    ]
    for kind, body in patches:
        await client.patch(
            PODS, "p", body, namespace="default", patch_type=kind, field_manager="test"
        )
    labels = (await client.get(PODS, "p", "default"))["metadata"]["labels"]
    assert labels == {"a": "1", "b": "2", "c": "3", "d": "4"}
    with pytest.raises(ConflictError):
        await client.delete(PODS, "p", "default", uid="another")
    await client.delete(
        PODS, "p", "default", uid=created["metadata"]["uid"], propagation_policy="Background"
    )
    with pytest.raises(NotFoundError, match="pod default/p"):
        await client.get(PODS, "p", "default")


async def test_dry_runs_are_no_writes(server: FakeApiServer, client: KubeClient) -> None:
    """A dry run answers, changes nothing, and does not count as a write."""
    made = await client.create(NODES, {"metadata": {"name": "n"}}, dry_run=True)
    assert made["metadata"]["uid"]
    assert server.writes() == []
    assert (await client.list(NODES)).items == []


async def test_lists_select_and_page(server: FakeApiServer, client: KubeClient) -> None:
    """Selectors and namespaces narrow a list; pages of any size give the same whole."""
    for number in range(7):
        await client.create(PODS, pod(f"p{number}", "a" if number % 2 else "b", n=str(number % 3)))
    whole = await client.list(PODS, limit=0)
    for limit in (1, 2, 3, 7, 500):
        assert await client.list(PODS, limit=limit) == whole
    assert len((await client.list(PODS, "a")).items) == 3
    assert len((await client.list(PODS, label_selector="n in (0,1),n!=1")).items) == 3
    assert len((await client.list(PODS, field_selector="metadata.name=p3")).items) == 1
    page = await client.list_page(PODS, limit=3)
    assert page.remaining == 4
    server.objects.expire()
    with pytest.raises(ExpiredError):
        await client.list_page(PODS, limit=3, continue_token=page.continue_token)
    with pytest.raises(InvalidError, match="field label not supported"):
        await client.list(PODS, field_selector="spec.nope=1")


async def test_a_watch_sees_objects_enter_and_leave_its_view(
    server: FakeApiServer, client: KubeClient
) -> None:
    """With selectors a change of label adds or deletes; versions start the watch in the past."""
    version = str(server.objects.revision)
    await client.create(PODS, pod("p", on="yes"))
    await client.create(PODS, pod("q"))
    for value in ("no", "yes", "yes"):
        await client.patch(PODS, "p", {"metadata": {"labels": {"on": value}}}, namespace="default")
    await client.patch(PODS, "p", {"spec": {"a": 1}}, namespace="default")
    await client.delete(PODS, "p", "default")
    stream = client.watch(PODS, resource_version=version, label_selector="on=yes")
    assert await first(stream, 5) == ["ADDED p", "DELETED p", "ADDED p", "MODIFIED p", "DELETED p"]
    await client.create(PODS, pod("x", "elsewhere"))
    elsewhere = client.watch(PODS, "elsewhere", resource_version=version)
    assert await first(elsewhere, 1) == ["ADDED x"]


async def test_a_watch_without_a_version_starts_with_what_is_there(
    server: FakeApiServer, client: KubeClient
) -> None:
    """Without a version the present objects come as additions first, then changes."""
    await client.create(PODS, pod("p"))
    stream = client.watch(PODS, resource_version="")
    assert await first(stream, 1) == ["ADDED p"]
    await client.create(PODS, pod("q"))
    assert await first(stream, 1) == ["ADDED q"]


async def test_bookmarks_and_time_outs_follow_the_clock() -> None:
    """Bookmarks come at their interval, and the stream ends normally when its time is over."""
    clock = VirtualClock()
    async with FakeApiServer(clock=clock, bookmark_interval=10) as server:
        client = await server.client()
        stream = client.watch(PODS, resource_version="1", timeout_seconds=25)
        task = asyncio.create_task(first(stream, 99))
        await clock.until_sleeping(2)
        await clock.advance(30)
        assert await task == ["BOOKMARK", "BOOKMARK"]


async def test_expired_versions_answer_410(server: FakeApiServer, client: KubeClient) -> None:
    """After `expire` a watch from an old version is refused; nonsense is a bad request."""
    version = str(server.objects.revision)
    server.objects.expire()
    with pytest.raises(ExpiredError):
        await first(client.watch(PODS, resource_version=version), 1)
    with pytest.raises(InvalidError, match="resourceVersion"):
        await first(client.watch(PODS, resource_version="None"), 1)


async def test_streams_go_wrong_on_request(server: FakeApiServer, client: KubeClient) -> None:
    """A stream is cut inside a line, carries an error, or stays silent, as ordered."""
    version = str(server.objects.revision)
    for name in ("a", "b"):
        await client.create(PODS, pod(name))

    def watch(**options: Any) -> AsyncIterator[WatchEvent]:
        return client.watch(PODS, resource_version=version, **options)

    server.faults.cut_stream(resource="pods", after_events=1)
    with pytest.raises(UnavailableError):
        await first(watch(), 2)
    server.faults.cut_stream(resource="pods", after_events=0, half_line=False)
    with pytest.raises(UnavailableError):
        await first(watch(), 1)
    server.faults.stream_error(resource="pods", after_events=2, status=410)
    with pytest.raises(ExpiredError):
        await first(watch(), 3)
    server.faults.silent_watch(resource="pods")
    with pytest.raises(UnavailableError, match="did not end within"):
        await first(watch(read_deadline=0.05), 1)
    assert await first(watch(), 2) == ["ADDED a", "ADDED b"]


async def test_answers_go_wrong_on_request(server: FakeApiServer) -> None:
    """Status codes, Retry-After, latency on the server's clock, and a server that is switched off."""
    clock = VirtualClock()
    client = await server.client(ClientOptions(clock=clock, throttle_budget=1.0))
    server.faults.fail(verb="get", resource="nodes", status=403, message="no such right")
    with pytest.raises(ForbiddenError, match="node n: get refused"):
        await client.get(NODES, "n")
    server.faults.fail(status=429, retry_after=9)
    with pytest.raises(TooManyRequestsError) as caught:
        await client.get(NODES, "n")
    assert caught.value.retry_after == 9
    server.faults.unavailable()
    with pytest.raises(UnavailableError):
        await client.version()
    with pytest.raises(UnavailableError):
        await client.get(NODES, "n")
    server.faults.unavailable(on=False)
    with pytest.raises(NotFoundError):
        await client.get(NODES, "n")
    statuses = [record.status for record in server.requests]
    assert statuses == [403, 429, 503, 404]


async def test_latency_follows_the_servers_clock() -> None:
    """An ordered delay holds up the answer on the injected clock."""
    clock = VirtualClock()
    async with FakeApiServer(clock=clock) as server:
        client = await server.client()
        server.faults.delay(5.0, resource="nodes")
        task = asyncio.create_task(client.list(NODES))
        await clock.until_sleeping()
        assert clock.pending() == [5.0]
        await clock.advance(5.0)
        assert (await task).items == []


async def test_only_known_tokens_are_let_in(server: FakeApiServer) -> None:
    """With tokens set, everybody else gets 401, for resources and discovery."""
    stranger = await server.client()
    server.tokens = {"secret"}
    friend = await server.client()
    await friend.list(NODES)
    for call in (stranger.list(NODES), stranger.version()):
        with pytest.raises(ForbiddenError) as caught:
            await call
        assert caught.value.status == 401


async def test_an_outage_keeps_the_state(server: FakeApiServer, tmp_path: Path) -> None:
    """A stopped server that starts again has its port and its objects."""
    path = server.kubeconfig(tmp_path / "config")
    async with await KubeClient.load(path) as client:
        await client.create(NODES, {"metadata": {"name": "n"}})
        await server.stop()
        with pytest.raises(UnavailableError):
            await client.list(NODES)
        await server.start()
        assert len((await client.list(NODES)).items) == 1


async def test_evictions_ask_the_budget(server: FakeApiServer, client: KubeClient) -> None:
    """An eviction is refused with 429 while a budget allows no disruption, then deletes the pod."""
    await client.create(PODS, pod("p", app="x"))
    budget: Obj = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": 0},
    }
    server.objects.seed(budget)
    with pytest.raises(TooManyRequestsError, match="disruption budget"):
        await client.create_subresource(PODS, "p", "eviction", {}, "default")
    server.objects.patch(
        POD_DISRUPTION_BUDGETS,
        "b",
        {"status": {"disruptionsAllowed": 1}},
        namespace="default",
        subresource="status",
    )
    await client.create_subresource(PODS, "p", "eviction", {}, "default")
    with pytest.raises(NotFoundError):
        await client.get(PODS, "p", "default")


async def test_bindings_place_a_pod(server: FakeApiServer, client: KubeClient) -> None:
    """A binding sets the node; other subresources do not exist."""
    await client.create(PODS, pod("p"))
    binding = {"target": {"kind": "Node", "name": "n1"}}
    await client.create_subresource(PODS, "p", "binding", binding, "default")
    assert (await client.get(PODS, "p", "default"))["spec"]["nodeName"] == "n1"
    with pytest.raises(NotFoundError):
        await client.create_subresource(PODS, "p", "nonsense", {}, "default")
    with pytest.raises(NotFoundError):
        await client.get(PODS, "p", "default", subresource="log")
    status = await client.get(PODS, "p", "default", subresource="status")
    assert status["status"]["phase"] == "Pending"


async def test_custom_kinds_and_odd_requests() -> None:
    """Registered kinds are served; other methods, bodies and formats are refused as by the real one."""
    queues = Resource("gpudra.io", "v1alpha1", "queues", "Queue", namespaced=False)
    async with FakeApiServer(resources=[queues]) as server:
        client = await server.client()
        await client.create(queues, {"metadata": {"name": "q"}})
        assert [q["kind"] for q in (await client.list(queues)).items] == ["Queue"]
        with pytest.raises(InvalidError, match="does not match the namespace"):
            await client.create(PODS, pod("p", "a"), "b")
        with pytest.raises(InputError, match="needs a field manager"):
            await client.patch(PODS, "p", {}, namespace="a", patch_type="apply")
        with pytest.raises(ApiError, match="could not find"):
            await client.list(Resource("x.io", "v1", "things", "Thing", namespaced=False))
        namespace = await client.get(NAMESPACES, "default", subresource="status")
        assert namespace["kind"] == "Namespace"


async def test_the_official_client_agrees(server: FakeApiServer, tmp_path: Path) -> None:
    """The official typed client lists, watches and writes against the fake server."""
    from kubernetes.aio import client as official
    from kubernetes.aio import config

    path = server.kubeconfig(tmp_path / "config")
    configuration = official.Configuration()
    await config.load_kube_config(path, client_configuration=configuration)
    device = {"name": "gpu-0", "attributes": {"uuid": {"string": "x"}}}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    async with official.ApiClient(configuration) as api:
        resources = official.ResourceV1Api(api)
        for name in ("a", "b", "c"):
            spec = {"driver": "d", "nodeName": "n", "pool": pool, "devices": [device]}
            await resources.create_resource_slice({"metadata": {"name": name}, "spec": spec})
        page = await resources.list_resource_slice(limit=2)
        assert [item.metadata.name for item in page.items] == ["a", "b"]
        rest = await resources.list_resource_slice(limit=2, _continue=page.metadata._continue)
        assert [item.metadata.name for item in rest.items] == ["c"]
        got = await resources.read_resource_slice("a")
        assert got.spec.devices[0].name == "gpu-0"
        core = official.CoreV1Api(api)
        await core.create_node({"metadata": {"name": "n"}})
        body = {"metadata": {"labels": {"x": "y"}}}
        node = await core.patch_node("n", body)
        assert node.metadata.labels == {"x": "y"}
        with pytest.raises(official.ApiException) as caught:
            await core.read_node("missing")
        assert caught.value.status == 404
    assert [record.verb for record in server.requests][:3] == ["create"] * 3
    assert (await (await server.client()).list(RESOURCE_SLICES)).items[0]["kind"] == "ResourceSlice"
