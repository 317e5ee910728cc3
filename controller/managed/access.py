# SPDX-License-Identifier: Apache-2.0
"""Who may ask the controller's HTTP API what: decided by the API server, as for its own objects.

A bearer token is shown to the API server (TokenReview), and whoever it belongs to needs the right
to read the same things there (SubjectAccessReview). Used by `gpudra.controller.managed.httpapi`.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.resources import Obj, Resource
from gpudra.driver.kube.verbs import KubeApi

TOKEN_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False
)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
# As the API server itself remembers what a webhook said; rights that are taken away end within it.
REMEMBER_SECONDS = 10.0
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Wish:
    """A right that a request needs; an empty namespace means all of them."""

    verb: str
    group: str
    plural: str
    namespace: str = ""

    @property
    def text(self) -> str:
        """For messages."""
        kind = f"{self.plural}.{self.group}" if self.group else self.plural
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {kind} {where}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the API server said.

    Attributes:
        status: 200, 401 or 403.
        message: for whoever asked.
    """

    status: int
    message: str = ""


class Access:
    """Asks, and remembers for a few seconds.

    Args:
        client: creates reviews.
        clock: for how long ago.
    """

    def __init__(self, client: KubeApi, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[tuple[bytes, Wish], tuple[float, Decision]] = OrderedDict()

    async def decide(self, authorization: str, wish: Wish) -> Decision:
        """Whether whoever sends this header may. Raises ApiError when nobody can say."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return Decision(401, "a bearer token is needed")
        # The token itself is not kept.
        key = (hashlib.sha256(token.encode()).digest(), wish)
        now = self._clock.monotonic()
        known = self._known.get(key)
        if known is not None and now - known[0] < REMEMBER_SECONDS:
            return known[1]
        found = await self._ask(token.strip(), wish)
        self._known[key] = (now, found)
        self._known.move_to_end(key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return found

    async def _ask(self, token: str, wish: Wish) -> Decision:
        review = await self._client.create(
            TOKEN_REVIEWS, {"spec": {"token": token}, "metadata": {}}
        )
        status = review.get("status") or {}
        if not status.get("authenticated"):
            return Decision(401, "the API server does not accept the token")
        user: dict[str, Any] = status.get("user") or {}
        attributes = {"verb": wish.verb, "group": wish.group, "resource": wish.plural}
        if wish.namespace:
            attributes["namespace"] = wish.namespace
        spec: Obj = {
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "uid": user.get("uid", ""),
            "extra": user.get("extra") or {},
            "resourceAttributes": attributes,
        }
        answer = await self._client.create(ACCESS_REVIEWS, {"spec": spec, "metadata": {}})
        if (answer.get("status") or {}).get("allowed"):
            return Decision(200)
        return Decision(403, f"{user.get('username')} may not {wish.text}")
