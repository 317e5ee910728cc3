# SPDX-License-Identifier: Apache-2.0
"""What the accounts of agent and controller have to be allowed, and asking the server about it.

The tables are held against the chart's roles by a test: a right that the chart grants and that is
not here, or the other way round, fails it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpudra.driver.kube.resources import Resource

ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
OWN_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
)
_DRA, _OWN, _EVENTS = "resource.k8s.io", "gpudra.io", "events.k8s.io"
DRIVER = "{driver}"
"""Stands for the driver's name in the name of a resource."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource.

    Attributes:
        group: API group.
        resource: plural, with ``/subresource``.
        verb: as in RBAC.
        name: only objects of this name.
        namespaced: it is asked for in the account's own namespace, not in all.
    """

    group: str
    resource: str
    verb: str
    name: str = ""
    namespaced: bool = False

    def __str__(self) -> str:
        full = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {full}{f' {self.name}' if self.name else ''}"

    def attributes(self, namespace: str) -> dict[str, Any]:
        """For the spec of an access review."""
        resource, _, subresource = self.resource.partition("/")
        found = {
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "verb": self.verb,
            "name": self.name,
            "namespace": namespace if self.namespaced else "",
        }
        return {key: value for key, value in found.items() if value}


def rights(group: str, resource: str, *verbs: str, name: str = "") -> tuple[Right, ...]:
    """Several verbs on one resource."""
    return tuple(Right(group, resource, verb, name) for verb in verbs)


AGENT: tuple[Right, ...] = (
    *rights(_DRA, "resourceclaims", "get", "list"),
    *rights("", "pods", "get"),
    *rights(_DRA, "resourceclaims/status", "update", "patch"),
    *rights(
        _DRA,
        "resourceclaims/driver",
        "associated-node:update",
        "associated-node:patch",
        name=DRIVER,
    ),
    *rights(_DRA, "resourceslices", "get", "list", "watch", "create", "update", "patch", "delete"),
    *rights("", "nodes", "get", "list", "watch", "patch"),
    *rights("", "nodes/status", "patch"),
    *rights(_OWN, "nodepolicies", "get", "list", "watch"),
    *rights(_EVENTS, "events", "create", "patch"),
)
CONTROLLER: tuple[Right, ...] = (
    *rights(_DRA, "resourceslices", "get", "list", "watch"),
    *rights(_DRA, "resourceclaims", "get", "list", "watch"),
    *rights(_DRA, "deviceclasses", "get", "list", "watch"),
    *rights("", "nodes", "get", "list", "watch"),
    *rights(_OWN, "nodepolicies", "get", "list", "watch"),
    *rights(_OWN, "nodepolicies/status", "patch"),
    *rights(_EVENTS, "events", "create", "patch"),
)
# What the controller needs beside that where a NodePolicy asks for managed mode.
MANAGED: tuple[Right, ...] = (
    *rights(_DRA, "resourceclaims/binding", "update"),
    *rights(_DRA, "resourceclaims/status", "update"),
    *rights("", "pods", "list", "watch", "patch"),
    *rights(_OWN, "queues", "list", "watch", "admit"),
)


async def refused(
    client: Any, account: tuple[str, str] | None, wanted: Iterable[Right], driver: str
) -> tuple[Right, ...]:
    """Which of the rights an account lacks.

    Args:
        client: of the API.
        account: (namespace, name) of a service account; None asks for ourselves.
        wanted: the rights.
        driver: its name, for rights that name it.

    Raises:
        ForbiddenError: we may not ask.
        ApiError: the server did not answer.
    """
    rights_ = [
        Right(one.group, one.resource, one.verb, one.name.replace(DRIVER, driver), one.namespaced)
        for one in wanted
    ]
    answers = await asyncio.gather(*(_allowed(client, account, right) for right in rights_))
    return tuple(right for right, allowed in zip(rights_, answers, strict=True) if not allowed)


async def _allowed(client: Any, account: tuple[str, str] | None, right: Right) -> bool:
    namespace, name = account or ("", "")
    spec: dict[str, Any] = {"resourceAttributes": right.attributes(namespace)}
    resource = OWN_ACCESS_REVIEWS
    if account is not None:
        resource = ACCESS_REVIEWS
        spec["user"] = f"system:serviceaccount:{namespace}:{name}"
        spec["groups"] = [
            "system:authenticated",
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
        ]
    answer = await client.create(resource, {"metadata": {}, "spec": spec})
    return bool((answer.get("status") or {}).get("allowed"))
