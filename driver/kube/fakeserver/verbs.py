# SPDX-License-Identifier: Apache-2.0
"""From a request to the object store and back: the verbs without HTTP.

Called by the HTTP front for everything but watches.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gpudra.api.errors import (
    ApiError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
)
from gpudra.driver.kube.fakeserver.history import Page
from gpudra.driver.kube.fakeserver.objects import ObjectStore
from gpudra.driver.kube.fakeserver.routes import Target
from gpudra.driver.kube.fakeserver.selectors import matches_label_selector
from gpudra.driver.kube.resources import POD_DISRUPTION_BUDGETS, PODS, Obj, Resource

_PATCH_TYPES = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}


class Verbs:
    """The verbs on one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def run(
        self, verb: str, target: Target, query: Mapping[str, str], body: Any, content_type: str
    ) -> tuple[int, bytes]:
        """HTTP status and encoded body. Raises `ApiError`."""
        resource = self._store.kinds.find(target.group, target.version, target.plural).resource
        if verb == "get":
            return 200, self._get(resource, target)
        if verb == "list":
            return 200, self._list(resource, target, query)
        if verb == "create":
            return 201, orjson.dumps(self._create(resource, target, query, body))
        if verb == "update":
            return 200, orjson.dumps(self._update(resource, target, query, body))
        if verb == "patch":
            return 200, orjson.dumps(self._patch(resource, target, query, body, content_type))
        if verb == "delete":
            return 200, orjson.dumps(self._delete(resource, target, query, body))
        raise ApiError(f"method not allowed: {verb}", status=405, reason="MethodNotAllowed")

    def _get(self, resource: Resource, target: Target) -> bytes:
        if target.subresource not in ("", "status"):
            raise NotFoundError("no such subresource", status=404, reason="NotFound")
        return self._store.stored(resource, target.name or "", target.namespace or "").data

    def _list(self, resource: Resource, target: Target, query: Mapping[str, str]) -> bytes:
        predicate = self._store.predicate(
            resource, query.get("fieldSelector", ""), query.get("labelSelector", "")
        )
        page = self._store.page(
            resource,
            target.namespace,
            predicate,
            limit=int(query.get("limit") or 0),
            continue_token=query.get("continue", ""),
        )
        return _encode_list(resource, page, filtered=predicate is not None)

    def _create(
        self, resource: Resource, target: Target, query: Mapping[str, str], body: Any
    ) -> Obj:
        obj = _object(body)
        if target.subresource:
            return self._create_subresource(resource, target, obj)
        if target.namespace:
            meta = obj.setdefault("metadata", {})
            if meta.setdefault("namespace", target.namespace) != target.namespace:
                raise InvalidError(
                    "the namespace of the object does not match the namespace of the request",
                    status=400,
                    reason="BadRequest",
                )
        return self._store.create(resource, obj, dry_run=_dry(query))

    def _create_subresource(self, resource: Resource, target: Target, obj: Obj) -> Obj:
        name, namespace = target.name or "", target.namespace or ""
        if resource == PODS and target.subresource == "eviction":
            self._evict(name, namespace)
        elif resource == PODS and target.subresource == "binding":
            node = (obj.get("target") or {}).get("name")
            self._store.patch(PODS, name, {"spec": {"nodeName": node}}, namespace=namespace)
        else:
            raise NotFoundError("no such subresource", status=404, reason="NotFound")
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _evict(self, name: str, namespace: str) -> None:
        """Delete a pod unless a disruption budget says that it may not go now."""
        labels = self._store.get(PODS, name, namespace)["metadata"].get("labels") or {}
        for budget in self._store.list(POD_DISRUPTION_BUDGETS, namespace):
            selector = (budget.get("spec") or {}).get("selector")
            allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
            if matches_label_selector(selector, labels) and allowed <= 0:
                raise TooManyRequestsError(
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    retry_after=10.0,
                )
        self._store.delete(PODS, name, namespace)

    def _update(
        self, resource: Resource, target: Target, query: Mapping[str, str], body: Any
    ) -> Obj:
        obj = _object(body)
        meta = obj.setdefault("metadata", {})
        if meta.setdefault("name", target.name) != target.name:
            raise InvalidError("the name of the object does not match the URL", status=400)
        if target.namespace:
            meta.setdefault("namespace", target.namespace)
        return self._store.update(
            resource,
            obj,
            subresource=target.subresource,
            dry_run=_dry(query),
            field_manager=query.get("fieldManager", ""),
        )

    def _patch(
        self,
        resource: Resource,
        target: Target,
        query: Mapping[str, str],
        body: Any,
        content_type: str,
    ) -> Obj:
        patch_type = _PATCH_TYPES.get(content_type)
        if patch_type is None:
            raise ApiError(
                f"the body of the request was in an unknown format: {content_type}",
                status=415,
                reason="UnsupportedMediaType",
            )
        if patch_type == "apply" and not (_object(body).get("metadata") or {}).get("name"):
            raise InvalidError("name must be provided", status=400, reason="BadRequest")
        return self._store.patch(
            resource,
            target.name or "",
            body,
            namespace=target.namespace or "",
            patch_type=patch_type,
            subresource=target.subresource,
            dry_run=_dry(query),
            field_manager=query.get("fieldManager", ""),
            force=query.get("force") == "true",
        )

    def _delete(
        self, resource: Resource, target: Target, query: Mapping[str, str], body: Any
    ) -> Obj:
        if target.name is None:
            return self._delete_collection(resource, target, query)
        preconditions = (body or {}).get("preconditions") or {}
        return self._store.delete(
            resource,
            target.name,
            target.namespace or "",
            uid=preconditions.get("uid"),
            resource_version=preconditions.get("resourceVersion"),
            dry_run=_dry(query),
        )

    def _delete_collection(
        self, resource: Resource, target: Target, query: Mapping[str, str]
    ) -> Obj:
        for obj in self._store.list(
            resource,
            target.namespace,
            field_selector=query.get("fieldSelector", ""),
            label_selector=query.get("labelSelector", ""),
        ):
            meta = obj["metadata"]
            self._store.delete(
                resource, meta["name"], meta.get("namespace", ""), dry_run=_dry(query)
            )
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def _encode_list(resource: Resource, page: Page, *, filtered: bool) -> bytes:
    meta: Obj = {"resourceVersion": str(page.revision)}
    if page.continue_token:
        meta["continue"] = page.continue_token
        if not filtered:
            meta["remainingItemCount"] = page.remaining
    head = orjson.dumps(
        {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta}
    )
    items = b",".join(item.data for item in page.items)
    return head[:-1] + b',"items":[' + items + b"]}"


def _object(body: Any) -> Obj:
    if not isinstance(body, dict):
        raise InvalidError("the body is not an object", status=400, reason="BadRequest")
    return body


def _dry(query: Mapping[str, str]) -> bool:
    return query.get("dryRun") == "All"
