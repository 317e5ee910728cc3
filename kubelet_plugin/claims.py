# SPDX-License-Identifier: Apache-2.0
"""Reads claims from the API: the one to be prepared, and those that hold something.

The kubelet names claims only, so the plugin reads each one by GET and checks that it is the one
meant. Thousands of agents must not watch all claims; a LIST is made only to rebuild a damaged
checkpoint.
"""

import random
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from gpudra.api.errors import (
    ApiError,
    ClaimChangedError,
    ClaimError,
    InputError,
    NotFoundError,
    UnavailableError,
)
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.prepare import ClaimAllocation, allocation_of
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.resources import RESOURCE_CLAIMS, Obj, Resource
from gpudra.driver.kube.verbs import ListResult
from gpudra.kubelet_plugin.records import ClaimRecord, ClaimRef

# The kubelet gives a call 45 s and has just read the claim itself: a longer outage is its affair.
RETRY_BUDGET = 10.0


class ClaimApi(Protocol):
    """What is asked of the API client."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """One object."""
        ...

    async def list(self, resource: Resource, namespace: str | None = None) -> ListResult:
        """All objects."""
        ...


class Presence(StrEnum):
    """Whether a claim that holds something still exists with that allocation."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class ClaimReader:
    """GETs of claims, for one driver."""

    def __init__(
        self, api: ClaimApi, driver: str, *, clock: Clock, rng: random.Random | None = None
    ) -> None:
        self._api = api
        self._driver = driver
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter

    async def fetch(self, ref: ClaimRef, *, patient: bool = True) -> ClaimAllocation:
        """The allocation of the claim that the kubelet means.

        Args:
            ref: the claim.
            patient: whether to try again while the API server does not answer.

        Raises:
            ClaimChangedError: no claim of that name, or one with another uid.
            ClaimError: not allocated, not reserved for anybody, or of an unknown shape.
            UnavailableError: the API server did not answer, if patient for RETRY_BUDGET seconds.
            ApiError: it refuses to tell.
        """
        try:
            raw = await self._get(ref, RETRY_BUDGET if patient else 0.0)
        except NotFoundError as error:
            raise ClaimChangedError("does not exist any more", obj=ref.label) from error
        uid = _uid(raw)
        if uid != ref.uid:
            raise ClaimChangedError(
                f"has another uid now: {uid} instead of {ref.uid}",
                obj=ref.label,
                hint="it was deleted and created again; the kubelet will ask for the new one",
            )
        claim = _decoded(raw, ref.label)
        allocation = allocation_of(claim, self._driver)
        if not claim.status.reserved_for:
            raise ClaimError(
                "is not reserved for any pod",
                obj=ref.label,
                hint="whoever bound the pod has to write status.reservedFor before",
            )
        return allocation

    async def _get(self, ref: ClaimRef, budget: float) -> Mapping[str, Any]:
        deadline = self._clock.monotonic() + budget
        backoff = Backoff(base=0.1, cap=2.0, rng=self._rng)
        while True:
            try:
                return await self._api.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
            except UnavailableError:
                pause = backoff.next()
                if self._clock.monotonic() + pause > deadline:
                    raise
                await self._clock.sleep(pause)

    async def presence(self, record: ClaimRecord) -> Presence:
        """Whether the claim of a record still has what the record holds. Never raises."""
        if not record.name:
            return Presence.UNKNOWN
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except NotFoundError:
            return Presence.GONE
        except ApiError:
            return Presence.UNKNOWN
        if _uid(raw) != record.uid:
            return Presence.GONE
        try:
            claim = _decoded(raw, record.ref.label)
        except ClaimError:
            # It exists; what it says cannot be read, which is no reason to take devices away.
            return Presence.ALIVE
        return self._presence_of(claim, record)

    def _presence_of(self, claim: ResourceClaim, record: ClaimRecord) -> Presence:
        if claim.status.allocation is None or not claim.status.reserved_for:
            return Presence.GONE
        results = claim.status.allocation.devices.results
        has = {(one.pool, one.device) for one in results if one.driver == self._driver}
        holds = {(one.pool, one.device) for one in record.devices}
        return Presence.ALIVE if holds <= has else Presence.GONE

    async def held_on(self, pool: str) -> dict[str, ClaimAllocation]:
        """Every reserved claim with devices of a pool, by uid. Lists all claims.

        Raises:
            ApiError: the API server does not answer or refuses.
        """
        listed = await self._api.list(RESOURCE_CLAIMS)
        found: dict[str, ClaimAllocation] = {}
        for raw in listed.items:
            if not _mentions(raw, self._driver):
                continue
            try:
                claim = _decoded(raw, "claim")
            except ClaimError:
                continue  # another claim's odd shape is not this node's trouble
            if not claim.status.reserved_for:
                continue
            allocation = allocation_of(claim, self._driver)
            if any(result.pool == pool for result in allocation.results):
                found[allocation.uid] = allocation
        return found


def _uid(raw: Mapping[str, Any]) -> str:
    metadata = raw.get("metadata")
    return str(metadata.get("uid", "")) if isinstance(metadata, Mapping) else ""


def _mentions(raw: Mapping[str, Any], driver: str) -> bool:
    """Cheap look before the whole claim is decoded."""
    allocation = (raw.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return any(isinstance(one, Mapping) and one.get("driver") == driver for one in results)


def _decoded(raw: Mapping[str, Any], label: str) -> ResourceClaim:
    try:
        return ResourceClaim.from_dict(raw)
    except InputError as error:
        raise ClaimError(f"has a shape that is not understood: {error}", obj=label) from error
