# SPDX-License-Identifier: Apache-2.0
"""``/api/v1/…``: queues, groups, waiting pods and what-if for programs; read-only.

Served by the controller's status server. Only the leader has the numbers, others answer 503 and
say who leads. Who may read what is decided by the API server: see `gpudra.controller.managed.access`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import yaml
from aiohttp import web

from gpudra.api.errors import ApiError, GpudraError, InputError
from gpudra.controller.managed.access import Access, Wish
from gpudra.controller.managed.answers import group_rows, pod_rows, queue_rows, what_if_row
from gpudra.controller.managed.loop import ManagedMode
from gpudra.controller.managed.question import read_question
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.resources import RESOURCE_CLAIM_TEMPLATES, Obj
from gpudra.driver.kube.verbs import KubeApi
from gpudra.driver.observability.http import StatusServer

PREFIX = "/api/v1"

Answer = Callable[[web.Request, ManagedMode], Awaitable[Any]]


class HttpApi:
    """The routes.

    Args:
        client: for reviews and templates.
        mode: managed mode while this instance leads and has seen the cluster; else None.
        holder: who leads.
        clock: for times.
    """

    def __init__(
        self,
        client: KubeApi,
        *,
        mode: Callable[[], ManagedMode | None],
        holder: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._client = client
        self._mode = mode
        self._holder = holder
        self._clock = clock
        self._access = Access(client, clock)

    def add_to(self, server: StatusServer) -> None:
        """Adds the routes; before the server starts."""
        server.add_route("GET", f"{PREFIX}/queues", self.queues)
        server.add_route("GET", f"{PREFIX}/podgroups", self.groups)
        server.add_route("GET", f"{PREFIX}/pods", self.pods)
        server.add_route("POST", f"{PREFIX}/whatif", self.what_if)

    async def queues(self, request: web.Request) -> web.Response:
        """Every queue with its numbers, each after its parent."""

        async def answer(_: web.Request, mode: ManagedMode) -> Any:
            return {"items": await queue_rows(mode)}

        return await self._served(request, Wish("list", "gpudra.io", "queues"), answer)

    async def groups(self, request: web.Request) -> web.Response:
        """Every PodGroup, or those of ``?namespace=``."""
        namespace = request.query.get("namespace", "")

        async def answer(_: web.Request, mode: ManagedMode) -> Any:
            return {"items": group_rows(mode, namespace)}

        return await self._served(
            request, Wish("list", "gpudra.io", "podgroups", namespace), answer
        )

    async def pods(self, request: web.Request) -> web.Response:
        """Every managed pod, or those of ``?namespace=`` and ``?queue=``."""
        namespace = request.query.get("namespace", "")

        async def answer(_: web.Request, mode: ManagedMode) -> Any:
            return {"items": pod_rows(mode, namespace, request.query.get("queue", ""))}

        return await self._served(request, Wish("list", "", "pods", namespace), answer)

    async def what_if(self, request: web.Request) -> web.Response:
        """What would become of the manifests in the body (YAML or JSON)."""
        return await self._served(request, Wish("list", "gpudra.io", "queues"), self._what_if)

    async def _what_if(self, request: web.Request, mode: ManagedMode) -> Any:
        documents = await asyncio.to_thread(_documents, await request.read())
        templates = await self._templates(documents)
        now = self._clock.now().timestamp()
        question = read_question(
            documents, lambda namespace, name: templates.get((namespace, name)), now=now
        )
        found = await mode.planner.ask(
            lambda state: state.what_if(question.pods, question.claims, question.group, now)
        )
        return what_if_row(found)

    async def _templates(self, documents: list[Obj]) -> dict[tuple[str, str], Obj]:
        """All templates of the namespaces that are asked about."""
        namespaces = {
            str((one.get("metadata") or {}).get("namespace") or "default") for one in documents
        }
        found = {}
        for namespace in sorted(namespaces):
            for raw in (await self._client.list(RESOURCE_CLAIM_TEMPLATES, namespace)).items:
                found[namespace, raw["metadata"]["name"]] = (raw.get("spec") or {}).get(
                    "spec"
                ) or {}
        return found

    async def _served(self, request: web.Request, wish: Wish, answer: Answer) -> web.Response:
        try:
            decision = await self._access.decide(request.headers.get("Authorization", ""), wish)
            if decision.status != 200:
                return _problem(decision.status, decision.message)
            mode = self._mode()
            if mode is None:
                return _problem(
                    503, f"this instance does not lead, {self._holder() or 'nobody'} does"
                )
            return web.json_response(await answer(request, mode))
        except InputError as error:
            return _problem(400, str(error))
        except ApiError as error:
            return _problem(503, f"the API server does not answer: {error}")
        except GpudraError as error:
            return _problem(500, str(error))


def _documents(body: bytes) -> list[Obj]:
    try:
        found = list(yaml.load_all(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise InputError(f"neither YAML nor JSON: {error}", field="body") from error
    flat = []
    for one in found:
        items = one.get("items") if isinstance(one, dict) and one.get("kind") == "List" else [one]
        flat += [item for item in items or () if item is not None]
    if not all(isinstance(one, dict) for one in flat):
        raise InputError("a document is no Kubernetes object", field="body")
    return flat


def _problem(status: int, message: str) -> web.Response:
    """A failure in the form of Kubernetes' own."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": status,
    }
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status == 503:
        headers["Retry-After"] = "5"
    return web.json_response(body, status=status, headers=headers)
