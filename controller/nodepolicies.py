# SPDX-License-Identifier: Apache-2.0
"""Writes into the status of NodePolicies for how many nodes each decides, and who disputes it.

Run by the leader of the cluster side. Agents decide for themselves by the same pure rules
(gpudra.driver.core.nodepolicy); this only tells people. Without the kind in the cluster it waits.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from gpudra.api import nodepolicy as api
from gpudra.api.errors import ApiError, NotFoundError
from gpudra.api.nodepolicy import NodePolicy
from gpudra.driver.core.nodepolicy import PolicyVerdict, verdicts
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.reflector import Event, ListWatcher, Reflector, ReflectorError
from gpudra.driver.kube.resources import NODE_POLICIES, NODES, Obj, Resource
from gpudra.driver.observability.logging import get_logger, operation
from gpudra.driver.observability.metrics import REFLECTOR_ERRORS, REFLECTOR_OBJECTS, Metrics

# Labels of many nodes change one after the other; nobody is served better by an answer for each.
SETTLE_SECONDS = 1.0
_ABSENT_SECONDS = 30.0
log = get_logger(__name__)


class PolicyApi(ListWatcher, Protocol):
    """What is needed of the API client."""

    async def api_resources(self, group: str, version: str) -> list[Obj]:
        """Kinds of a group; empty when it is not served."""
        ...

    async def patch(
        self, resource: Resource, name: str, body: Any, *, subresource: str | None = None
    ) -> Obj:
        """Merge patch."""
        ...


class PolicyStatuses:
    """Keeps the status of all NodePolicies.

    Args:
        client: lists, watches and patches.
        metrics: of the process.
        clock: for delays.
        rng: for the jitter of the reflectors.
        now: the time for ``lastTransitionTime``.
    """

    def __init__(
        self,
        client: PolicyApi,
        *,
        metrics: Metrics,
        clock: Clock,
        rng: random.Random,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._now = now
        self._changed = asyncio.Event()
        self._policies: Reflector[NodePolicy] = Reflector(
            client,
            NODE_POLICIES,
            api.decode_stored,
            on_event=lambda _: self._changed.set(),
            on_error=lambda error: self._on_error(NODE_POLICIES, error),
            clock=clock,
            rng=rng,
        )
        self._nodes: Reflector[Mapping[str, str]] = Reflector(
            client,
            NODES,
            lambda raw: dict(raw["metadata"].get("labels") or {}),
            on_event=self._node_changed,
            on_error=lambda error: self._on_error(NODES, error),
            clock=clock,
            rng=rng,
        )

    async def run(self) -> None:
        """Until cancelled."""
        await self._wait_for_kind()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._policies.run(), name="reflector nodepolicies")
            tasks.create_task(self._nodes.run(), name="reflector nodes")
            tasks.create_task(self._write_for_ever(), name="status of nodepolicies")

    async def _wait_for_kind(self) -> None:
        backoff = Backoff(base=0.5, cap=_ABSENT_SECONDS, rng=self._rng)
        told = False
        while True:
            try:
                kinds = await self._client.api_resources(api.GROUP, api.VERSION)
            except ApiError as error:
                log.warning("cannot ask whether there are NodePolicies", error=str(error))
                await self._clock.sleep(backoff.next())
                continue
            if any(kind.get("name") == api.PLURAL for kind in kinds):
                return
            if not told:
                log.info("the kind NodePolicy is not installed")
            told = True
            await self._clock.sleep(_ABSENT_SECONDS)

    async def _write_for_ever(self) -> None:
        await self._policies.wait_synced()
        await self._nodes.wait_synced()
        backoff = Backoff(base=0.5, cap=30.0, rng=self._rng)
        while True:
            self._changed.clear()
            if await self._write():
                backoff.reset()
                await self._changed.wait()
                await self._clock.sleep(SETTLE_SECONDS)
            else:
                await self._clock.sleep(backoff.next())

    async def _write(self) -> bool:
        """Brings every status up to date; whether that worked."""
        policies = {one.metadata.name: one for one in self._policies.store.values()}
        nodes = {entry.name: entry.value for entry in self._nodes.store.entries()}
        for resource, count in ((NODE_POLICIES, len(policies)), (NODES, len(nodes))):
            self._metrics.set(REFLECTOR_OBJECTS, count, resource=resource.plural)
        good = True
        with operation("status of node policies"):
            for verdict in verdicts(policies.values(), nodes):
                policy = policies[verdict.name]
                status = self._status(policy, verdict)
                if status != policy.status:
                    good = await self._patch(policy, status) and good
        return good

    async def _patch(self, policy: NodePolicy, status: dict[str, Any]) -> bool:
        name = policy.metadata.name
        try:
            await self._client.patch(NODE_POLICIES, name, {"status": status}, subresource="status")
        except NotFoundError:
            return True  # deleted meanwhile, which the watch is about to show
        except ApiError as error:
            log.warning("cannot write the status of a policy", policy=name, error=str(error))
            return False
        log.info("policy status", policy=name, nodes=status["nodes"])
        return True

    def _status(self, policy: NodePolicy, verdict: PolicyVerdict) -> dict[str, Any]:
        """The status as it should be; the time of the condition stays while it says the same."""
        conflict = bool(verdict.conflicts)
        condition = {
            "type": api.CONFLICT,
            "status": "True" if conflict else "False",
            "reason": "EquallySpecific" if conflict else "NoConflict",
            "message": verdict.message,
            "observedGeneration": policy.metadata.generation,
        }
        known = [one for one in policy.status.get("conditions") or () if isinstance(one, Mapping)]
        before = next((one for one in known if one.get("type") == api.CONFLICT), {})
        same = before.get("status") == condition["status"] and before.get("lastTransitionTime")
        condition["lastTransitionTime"] = (
            before["lastTransitionTime"] if same else f"{self._now():%Y-%m-%dT%H:%M:%SZ}"
        )
        others = [dict(one) for one in known if one.get("type") != api.CONFLICT]
        return {
            "observedGeneration": policy.metadata.generation,
            "nodes": verdict.nodes,
            "conditions": [*others, condition],
        }

    def _node_changed(self, event: Event[Mapping[str, str]]) -> None:
        # Of a node nothing but its labels counts, and a heartbeat changes none.
        if event.old != event.new:
            self._changed.set()

    def _on_error(self, resource: Resource, error: ReflectorError) -> None:
        self._metrics.inc(REFLECTOR_ERRORS, resource=resource.plural, reason=error.kind)
