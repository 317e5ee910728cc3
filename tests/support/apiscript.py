# SPDX-License-Identifier: Apache-2.0
"""A stand-in API server that answers from a script: the n-th request gets the n-th answer.

Unlike the fake API server it knows nothing of Kubernetes: versions, tokens, broken lines and
silence are exactly what the test wrote. Used by the tests of the client layer.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import orjson
from aiohttp import web

from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.resources import RESOURCE_SLICES, Obj


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        status: of the HTTP answer.
        body: whole body; for a watch what is sent before the end.
        headers: of the answer.
        end: ``close`` ends normally, ``reset`` breaks the connection, ``hang`` leaves it open.
        chunks: pieces of a stream, each sent on its own; ``body`` is not used then.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    end: Literal["close", "reset", "hang"] = "close"
    chunks: Sequence[bytes] | None = None


def slice_object(name: str, uid: str = "", version: str = "1", **spec: Any) -> Obj:
    """A ResourceSlice in its shortest form."""
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": version},
        "spec": {"driver": "gpu.example.com", "pool": {"name": "n1"}, **spec},
    }


def listed(version: str, *items: Obj, token: str = "") -> Answer:
    """Answer to a LIST."""
    meta = {"resourceVersion": version}
    if token:
        meta["continue"] = token
    body = {"kind": "ResourceSliceList", "metadata": meta, "items": list(items)}
    return Answer(body=orjson.dumps(body))


def event(kind: str, obj: Obj) -> bytes:
    """One line of a watch."""
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"


def bookmark(version: str) -> bytes:
    """A BOOKMARK line."""
    return event("BOOKMARK", {"kind": "ResourceSlice", "metadata": {"resourceVersion": version}})


def watched(*lines: bytes, end: Literal["close", "reset", "hang"] = "hang") -> Answer:
    """Answer to a WATCH; by default the stream stays open."""
    return Answer(chunks=lines, end=end)


def failed(code: int, reason: str, message: str = "", **headers: str) -> Answer:
    """A Status with HTTP status ``code``."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Answer(status=code, body=orjson.dumps(status_of(code, reason, message)), headers=named)


def status_of(code: int, reason: str, message: str = "") -> Obj:
    """A Status object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or reason,
        "reason": reason,
        "code": code,
    }


class ApiScript:
    """The server. After the last answer every further request hangs.

    Attributes:
        asked: what came, as ``LIST``, ``LIST t1``, ``WATCH 100``, ``GET name``, ``PUT name`` ….
        headers: of the requests, in the same order.
        bodies: of the requests, in the same order.
    """

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._changed = asyncio.Condition()
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self._closing = asyncio.Event()
        self._clients: list[KubeClient] = []

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        for client in self._clients:
            await client.close()
        await self._runner.cleanup()

    async def client(
        self, options: ClientOptions | None = None, user: Obj | None = None
    ) -> KubeClient:
        """A client of this server, closed with it."""
        document = {
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": self.url}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "users": [{"name": "x", "user": user or {}}],
        }
        client = await KubeClient.from_document(document, options=options)
        self._clients.append(client)
        return client

    async def asked_for(self, count: int) -> list[str]:
        """Wait until ``count`` requests have come; returns all."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: len(self.asked) >= count)
        return self.asked

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        async with self._changed:
            self.asked.append(_named(request))
            self.headers.append(dict(request.headers))
            self.bodies.append(body)
            answer = self._answers.pop(0) if self._answers else Answer(chunks=(), end="hang")
            self._changed.notify_all()
        if answer.chunks is None:
            return web.Response(
                status=answer.status,
                body=answer.body,
                headers=answer.headers,
                content_type="application/json",
            )
        return await self._stream(request, answer)

    async def _stream(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        await response.prepare(request)
        for chunk in answer.chunks or ():
            await response.write(chunk)
        if answer.end == "hang":
            await self._closing.wait()
        elif answer.end == "reset" and request.transport is not None:
            request.transport.abort()
        return response


def _named(request: web.BaseRequest) -> str:
    query = request.query
    if request.method != "GET":
        return f"{request.method} {request.path.rsplit('/', 1)[-1]}"
    if query.get("watch"):
        return f"WATCH {query.get('resourceVersion')}"
    if request.path == RESOURCE_SLICES.path() or "continue" in query or "limit" in query:
        return f"LIST {query['continue']}" if "continue" in query else "LIST"
    return f"GET {request.path.rsplit('/', 1)[-1]}"
