# SPDX-License-Identifier: Apache-2.0
"""`KubeClient`: the verbs of the Kubernetes API on raw objects.

Made once by each program and shared; used by reflectors, the slice controller, the agent, the
cluster side and the command line. Objects go in and come out as dictionaries, so that fields which
we do not know survive a read and a write.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from gpudra.api.errors import ExpiredError, InputError, NotFoundError
from gpudra.driver.kube.auth import Connection
from gpudra.driver.kube.kubeconfig import (
    HOST_VARIABLE,
    SERVICE_ACCOUNT_DIR,
    default_paths,
    load_in_cluster,
    load_kubeconfig,
    load_kubeconfig_document,
)
from gpudra.driver.kube.resources import Obj, Resource, describe
from gpudra.driver.kube.transport import Call, ClientOptions, Transport
from gpudra.driver.kube.verbs import KubeApi, ListPage, ListResult, Objects, PatchBody, PatchType
from gpudra.driver.kube.watch import WatchEvent, watch_events

__all__ = [
    "ClientOptions",
    "KubeApi",
    "KubeClient",
    "ListPage",
    "ListResult",
    "PatchType",
    "WatchEvent",
]

# A list that expires again and again is read without pages in the end, as client-go does.
_PAGED_TRIES = 3

_PATCH_TYPES: Mapping[str, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
    "strategic": "application/strategic-merge-patch+json",
}


class KubeClient:
    """A connection to one API server; ``async with`` closes it.

    Every method raises the `ApiError` children of ``gpudra.api.errors``. By itself the client
    repeats a request only after 401 (once, with credentials read anew), after 429 (when the wait
    is bearable) and, for GET, when a kept connection turned out to be closed.
    """

    def __init__(self, connection: Connection, options: ClientOptions | None = None) -> None:
        self.options = options or ClientOptions()
        self._transport = Transport(connection, self.options)

    @classmethod
    async def from_kubeconfig(
        cls,
        path: str | None = None,
        context: str | None = None,
        *,
        options: ClientOptions | None = None,
    ) -> Self:
        """Client for a context of a kubeconfig file (default: as kubectl finds it).

        Raises:
            InputError: the file cannot be used.
        """
        options = options or ClientOptions()
        paths = [_expanded(path)] if path else default_paths(os.environ)
        return cls(await load_kubeconfig(paths, context, options.clock), options)

    @classmethod
    async def from_document(
        cls, document: Obj, context: str | None = None, *, options: ClientOptions | None = None
    ) -> Self:
        """Client for a kubeconfig that is in memory; relative paths start in the working folder.

        Raises:
            InputError: the document cannot be used.
        """
        options = options or ClientOptions()
        return cls(load_kubeconfig_document(document, context, options.clock), options)

    @classmethod
    async def in_cluster(
        cls, *, options: ClientOptions | None = None, folder: Path = SERVICE_ACCOUNT_DIR
    ) -> Self:
        """Client for the service account of the pod that we run in, whose files are in ``folder``.

        Raises:
            InputError: not in a pod, or the files are missing.
        """
        options = options or ClientOptions()
        return cls(load_in_cluster(os.environ, options.clock, folder), options)

    @classmethod
    async def load(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        options: ClientOptions | None = None,
    ) -> Self:
        """Client for the named file; without one the pod's account, else kubectl's default file."""
        if kubeconfig is None and context is None and os.environ.get(HOST_VARIABLE):
            return await cls.in_cluster(options=options)
        return await cls.from_kubeconfig(kubeconfig, context, options=options)

    @property
    def server(self) -> str:
        """Base URL of the API server."""
        return self._transport.connection.server

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> Obj:
        """One object, or one of its subresources."""
        path = resource.path(name, namespace, subresource)
        return await self._object(Call("GET", path, describe(resource, name, namespace), "get"))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 500,
    ) -> ListResult:
        """All objects of all pages; begins anew when a page has expired meanwhile.

        Args:
            resource: the kind.
            namespace: None = all namespaces.
            field_selector: as for kubectl.
            label_selector: as for kubectl.
            limit: objects a page; 0 = everything in one answer.
        """
        selectors = {"field_selector": field_selector, "label_selector": label_selector}
        for tries_left in reversed(range(_PAGED_TRIES)):
            page_limit = limit if tries_left else 0
            try:
                return await self._list_pages(resource, namespace, page_limit, selectors)
            except ExpiredError:
                if not tries_left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 500,
        continue_token: str = "",
    ) -> ListPage:
        """One page. `ExpiredError`: the continue token is too old, start from the first page."""
        params = _selectors(field_selector, label_selector)
        if limit:
            params["limit"] = str(limit)
        if continue_token:
            params["continue"] = continue_token
        path = resource.path(namespace=namespace)
        body = await self._object(
            Call("GET", path, describe(resource, None, namespace), "list", params)
        )
        meta = body.get("metadata") or {}
        items = body.get("items") or []
        _restore_kinds(items, resource)
        return ListPage(
            items,
            str(meta.get("resourceVersion") or ""),
            str(meta.get("continue") or ""),
            meta.get("remainingItemCount"),
        )

    async def create(
        self,
        resource: Resource,
        obj: Obj,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Obj:
        """Create an object; the namespace is taken from its metadata when not given."""
        meta = obj.get("metadata") or {}
        namespace = namespace or meta.get("namespace")
        name = meta.get("name") or f"{meta.get('generateName', '')}*"
        return await self._object(
            Call(
                "POST",
                resource.path(namespace=namespace),
                describe(resource, name, namespace),
                "create",
                _write_params(dry_run, field_manager),
                orjson.dumps(_typed(obj, resource)),
            )
        )

    async def create_subresource(
        self,
        resource: Resource,
        name: str,
        subresource: str,
        obj: Obj,
        namespace: str | None = None,
    ) -> Obj:
        """POST to a subresource, for example ``eviction``.

        A 429 is not waited out: for an eviction it means that a disruption budget says no.
        """
        return await self._object(
            Call(
                "POST",
                resource.path(name, namespace, subresource),
                describe(resource, name, namespace),
                f"create {subresource}",
                body=orjson.dumps(obj),
                throttled=False,
            )
        )

    async def update(
        self,
        resource: Resource,
        obj: Obj,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
        subresource: str | None = None,
    ) -> Obj:
        """Replace an object. With ``metadata.resourceVersion``: `ConflictError` if it changed since."""
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        return await self._object(
            Call(
                "PUT",
                resource.path(name, namespace, subresource),
                describe(resource, name, namespace),
                f"update {subresource}" if subresource else "update",
                _write_params(dry_run, field_manager),
                orjson.dumps(_typed(obj, resource)),
            )
        )

    async def update_status(
        self,
        resource: Resource,
        obj: Obj,
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
    ) -> Obj:
        """Replace the status; the server ignores everything else in ``obj``."""
        return await self.update(
            resource, obj, dry_run=dry_run, field_manager=field_manager, subresource="status"
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: PatchBody,
        *,
        namespace: str | None = None,
        patch_type: PatchType = "merge",
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Obj:
        """Change parts of an object.

        ``body`` is a list for ``json``, else a mapping. ``apply`` creates the object when it is
        missing; with ``force`` it takes fields over from other managers.

        Raises:
            InputError: ``apply`` without ``field_manager``.
        """
        params = _write_params(dry_run, field_manager)
        if patch_type == "apply":
            body = _applied(body, resource, name, field_manager)
            params["force"] = "true" if force else "false"
        return await self._object(
            Call(
                "PATCH",
                resource.path(name, namespace, subresource),
                describe(resource, name, namespace),
                f"patch {subresource}" if subresource else "patch",
                params,
                orjson.dumps(body),
                content_type=_PATCH_TYPES[patch_type],
            )
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
        dry_run: bool = False,
    ) -> Obj:
        """Delete an object; `ConflictError` when ``uid`` or ``resource_version`` do not fit."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in preconditions.items() if value}
        options: Obj = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy:
            options["propagationPolicy"] = propagation_policy
        return await self._object(
            Call(
                "DELETE",
                resource.path(name, namespace),
                describe(resource, name, namespace),
                "delete",
                _write_params(dry_run, None),
                orjson.dumps(options),
            )
        )

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: float = 300,
        read_deadline: float | None = None,
        bookmarks: bool = True,
    ) -> AsyncIterator[WatchEvent]:
        """Events after ``resource_version`` until the server ends the stream.

        Args:
            resource: the kind.
            namespace: None = all namespaces.
            resource_version: one that the server gave us; never invented.
            field_selector: as for kubectl.
            label_selector: as for kubectl.
            timeout_seconds: when the server shall end the stream (whole seconds, at least 1).
            read_deadline: when we end it ourselves; default: a grace period after the server should.
            bookmarks: ask for events that only carry a version.

        Raises:
            ApiError: `ExpiredError` for 410 in all its forms; `UnavailableError` when the stream
                broke off or outlived the deadline.
        """
        seconds = max(1, round(timeout_seconds))
        params = _selectors(field_selector, label_selector)
        params |= {"watch": "1", "timeoutSeconds": str(seconds)}
        if resource_version:
            params["resourceVersion"] = resource_version
        if bookmarks:
            params["allowWatchBookmarks"] = "true"
        path, obj = resource.path(namespace=namespace), describe(resource, None, namespace)
        deadline = seconds + self.options.watch_grace if read_deadline is None else read_deadline
        call = Call("GET", path, obj, "watch", params)
        return watch_events(self._transport, call, deadline=deadline)

    async def get_raw(self, path: str) -> bytes:
        """Body of a GET of any path of the server."""
        return await self._transport.request(Call("GET", path, path, "get"))

    async def version(self) -> Obj:
        """What ``/version`` says."""
        return await self._object(Call("GET", "/version", "/version", "get"))

    async def api_resources(self, group: str, version: str) -> Objects:
        """Resources of a group and version; empty when the server does not serve it."""
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            body = await self._object(Call("GET", path, path, "get"))
        except NotFoundError:
            return []
        return body.get("resources") or []

    async def _list_pages(
        self, resource: Resource, namespace: str | None, limit: int, selectors: dict[str, str]
    ) -> ListResult:
        page = await self.list_page(resource, namespace, limit=limit, **selectors)
        items, version = page.items, page.resource_version
        while page.continue_token:
            page = await self.list_page(
                resource, namespace, limit=limit, continue_token=page.continue_token, **selectors
            )
            items += page.items
            await asyncio.sleep(0)  # others get a turn between the pages of a large list
        return ListResult(items, version)

    async def _object(self, call: Call) -> Obj:
        body = await self._transport.json(call)
        return body if isinstance(body, dict) else {}


def _selectors(field_selector: str, label_selector: str) -> dict[str, str]:
    params = {"fieldSelector": field_selector, "labelSelector": label_selector}
    return {key: value for key, value in params.items() if value}


def _write_params(dry_run: bool, field_manager: str | None) -> dict[str, str]:
    params: dict[str, str] = {}
    if dry_run:
        params["dryRun"] = "All"
    if field_manager:
        params["fieldManager"] = field_manager
    return params


def _typed(obj: Obj, resource: Resource) -> Obj:
    """The object with kind and apiVersion, which items of a list lack and a write needs."""
    if obj.get("kind") and obj.get("apiVersion"):
        return obj
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _applied(body: PatchBody, resource: Resource, name: str, field_manager: str | None) -> Obj:
    """The body of an apply: the server asks for kind and name in it too."""
    if not field_manager:
        raise InputError("server-side apply needs a field manager", field="field_manager")
    if not isinstance(body, dict):
        raise InputError("the body of an apply is a mapping", field="body")
    return _typed({**body, "metadata": {**(body.get("metadata") or {}), "name": name}}, resource)


def _restore_kinds(items: list[Any], resource: Resource) -> None:
    for item in items:
        if isinstance(item, dict):
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)


def _expanded(path: str) -> Path:
    return Path(path).expanduser()
