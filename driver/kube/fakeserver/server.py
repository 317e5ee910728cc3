# SPDX-License-Identifier: Apache-2.0
"""`FakeApiServer`: the object store behind HTTP on the loopback interface.

For tests of everything that speaks to the API, for the demo where no real cluster can be built, and
for whoever wants to try the programs without one. It is not a Kubernetes: no controllers, no
scheduler, no kubelet, no authorization; what it answers, it answers like the real server.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
import yaml
from aiohttp import web

from gpudra.api.errors import ApiError, ForbiddenError, InvalidError, NotFoundError
from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.clock import Clock, SystemClock
from gpudra.driver.kube.fakeserver import discovery
from gpudra.driver.kube.fakeserver.answers import error_answer, json_answer
from gpudra.driver.kube.fakeserver.faults import Faults
from gpudra.driver.kube.fakeserver.objects import ObjectStore
from gpudra.driver.kube.fakeserver.routes import Target, parse_target, verb_of
from gpudra.driver.kube.fakeserver.verbs import Verbs
from gpudra.driver.kube.fakeserver.watching import WatchStream
from gpudra.driver.kube.resources import Obj, Resource

_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that was answered, in the order of arrival.

    Attributes:
        verb: get, list, watch, create, update, patch or delete.
        resource: plural.
        namespace: empty when none was named.
        name: empty for a collection.
        subresource: empty for the object itself.
        query: of the URL.
        status: HTTP status of the answer (of a watch: of its beginning).
    """

    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    status: int

    @property
    def writes(self) -> bool:
        """Whether it could have changed something (a dry run cannot)."""
        return self.verb not in ("get", "list", "watch") and not self.query.get("dryRun")


class FakeApiServer:
    """The server; ``async with`` starts and stops it.

    Args:
        clock: for time stamps, watch time-outs, bookmarks and injected latency.
        resources: further kinds to serve (CRDs), with a status subresource.
        objects: to begin with, status included.
        port: 0 = any free one.
        bookmark_interval: seconds between bookmarks of a watch.
        version: what ``/version`` says.
        ssl_context: serve https instead of http.
        seed: for uids and generated names.
        store: an existing state to serve; else a new one.

    Attributes:
        objects: the state, synchronously.
        faults: trouble on request.
        requests: what was asked so far.
        tokens: accepted bearer tokens; None = everybody may do everything.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        resources: Iterable[Resource] = (),
        objects: Iterable[Obj] = (),
        port: int = 0,
        bookmark_interval: float = 60.0,
        version: str = "v1.37.2",
        ssl_context: ssl.SSLContext | None = None,
        seed: int = 0,
        store: ObjectStore | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.objects = store or ObjectStore(self.clock, seed=seed)
        self.faults = Faults()
        self.requests: list[RequestRecord] = []
        self.tokens: set[str] | None = None
        for resource in resources:
            self.objects.register(resource)
        self.objects.seed(*objects)
        self._port = port
        self._version = version
        self._interval = bookmark_interval
        self._ssl = ssl_context
        self._verbs = Verbs(self.objects)
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._watches: set[WatchStream] = set()
        self._clients: list[KubeClient] = []

    @property
    def url(self) -> str:
        """Base URL; the port is known once the server runs."""
        scheme = "https" if self._ssl is not None else "http"
        return f"{scheme}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen. A server that was stopped listens again on the same port, with its state."""
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.01)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._ssl)
        await self._site.start()
        server = self._site._server  # noqa: SLF001 - the only way to learn the chosen port
        assert isinstance(server, asyncio.Server)
        self._port = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections and listen no more."""
        self.end_watches()
        for client in self._clients:
            await client.close()
        self._clients.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def client(self, options: ClientOptions | None = None) -> KubeClient:
        """A connected client, closed with the server."""
        document = self._kubeconfig_document()
        client = await KubeClient.from_document(document, options=options)
        self._clients.append(client)
        return client

    def kubeconfig(self, path: str | Path) -> str:
        """Write a kubeconfig file for this server; returns its path."""
        Path(path).write_text(yaml.safe_dump(self._kubeconfig_document()), encoding="utf-8")
        return str(path)

    def end_watches(self) -> None:
        """End all open watches normally, as a server does that is going to restart."""
        for watch in list(self._watches):
            watch.end()

    def writes(self) -> list[RequestRecord]:
        """Requests so far that could have changed something."""
        return [record for record in self.requests if record.writes]

    def _kubeconfig_document(self) -> Obj:
        user: Obj = {"token": min(self.tokens)} if self.tokens else {}
        cluster: Obj = {"server": self.url}
        if self._ssl is not None:
            cluster["insecure-skip-tls-verify"] = True
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "fake", "user": user}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        # Not the decoded path: an escaped slash belongs to a name.
        path, query = request.rel_url.raw_path.rstrip("/"), dict(request.query)
        if path in _HEALTH:
            return web.Response(text="ok")
        target = parse_target(path)
        if target is None:
            return self._discovery(request, path)
        verb = verb_of(request.method, target, query)
        # A place in the order of arrival, which a slow answer must not lose.
        place = len(self.requests)
        self.requests.append(_record(verb, target, query, 0))
        try:
            await self._trouble(request, verb, target.plural)
            if verb == "watch":
                stream = self._open_watch(target, query)
                self.requests[place] = _record(verb, target, query, 200)
                return await self._run_watch(request, stream)
            answer = await self._plain(request, verb, target, query)
        except ApiError as error:
            answer = error_answer(error)
        self.requests[place] = _record(verb, target, query, answer.status)
        return answer

    def _discovery(self, request: web.BaseRequest, path: str) -> web.Response:
        try:
            self._authenticate(request)
            if self.faults.is_unavailable:
                raise self.faults.failure("get", "") or NotFoundError(path, status=404)
            found = discovery.document(path, self.objects.kinds, self._version)
            if found is None:
                raise NotFoundError(f"nothing at {path}", status=404, reason="NotFound")
        except ApiError as error:
            return error_answer(error)
        return json_answer(orjson.dumps(found))

    async def _trouble(self, request: web.BaseRequest, verb: str, plural: str) -> None:
        latency = self.faults.latency(verb, plural)
        if latency > 0:
            await self.clock.sleep(latency)
        self._authenticate(request)
        error = self.faults.failure(verb, plural)
        if error is not None:
            raise error

    def _authenticate(self, request: web.BaseRequest) -> None:
        if self.tokens is None:
            return
        header = request.headers.get("Authorization", "")
        if header.removeprefix("Bearer ") not in self.tokens:
            raise ForbiddenError("Unauthorized", status=401, reason="Unauthorized")

    def _open_watch(self, target: Target, query: Mapping[str, str]) -> WatchStream:
        kind = self.objects.kinds.find(target.group, target.version, target.plural)
        predicate = self.objects.predicate(
            kind.resource, query.get("fieldSelector", ""), query.get("labelSelector", "")
        )
        version = query.get("resourceVersion") or "0"
        if not version.isdigit():
            raise InvalidError(
                f"resourceVersion: Invalid value: {version!r}", status=400, reason="BadRequest"
            )
        return WatchStream(
            self.objects,
            kind.resource,
            target.namespace,
            predicate,
            query,
            self.faults.watch_plan(target.plural),
            self._interval,
        )

    async def _run_watch(self, request: web.BaseRequest, stream: WatchStream) -> web.StreamResponse:
        self._watches.add(stream)
        try:
            return await stream.run(request)
        finally:
            self._watches.discard(stream)

    async def _plain(
        self, request: web.BaseRequest, verb: str, target: Target, query: Mapping[str, str]
    ) -> web.Response:
        body = await _body(request)
        status, data = self._verbs.run(verb, target, query, body, request.content_type)
        return json_answer(data, status)


def _record(verb: str, target: Target, query: Mapping[str, str], status: int) -> RequestRecord:
    return RequestRecord(
        verb,
        target.plural,
        target.namespace or "",
        target.name or "",
        target.subresource,
        query,
        status,
    )


async def _body(request: web.BaseRequest) -> object:
    raw = await request.read()
    if not raw:
        return None
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(raw)
    try:
        parsed: object = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise InvalidError(f"the body cannot be read: {error}", status=400) from error
    return parsed
