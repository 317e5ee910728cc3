# SPDX-License-Identifier: Apache-2.0
"""Completes the plan of a claim with what only the node knows: MIG as it is, and how to share.

Called by the state machine with the cards' locks held, right before the reservation. A claim of
whole cards without configuration needs nothing of this and takes no time here.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpudra.api.errors import ApiError, DeviceInUseError, NotFoundError, UnavailableError
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.prepare import MIG_INSTANCE, MIG_MODE, ClaimAllocation, PreparePlan, Step
from gpudra.driver.core.sharing import (
    Consumer,
    Sharing,
    SharingPlan,
    ask_of,
    consumers_of,
    plan_sharing,
    sharings,
)
from gpudra.driver.kube.resources import PODS, RESOURCE_CLAIMS, Obj, Resource
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.checkpoint import Blocking
from gpudra.kubelet_plugin.mig import MigSurvey
from gpudra.kubelet_plugin.records import ClaimRecord
from gpudra.kubelet_plugin.sharing import Backends

MIB = 2**20
log = get_logger(__name__)


class GetApi(Protocol):
    """What is asked of the API client."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """One object."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Who uses a claim.

    Attributes:
        consumers: containers of its pods, as far as known.
        gpu_claims: claims of its namespace, used by these containers, with devices of this driver.
    """

    consumers: tuple[Consumer, ...] = ()
    gpu_claims: frozenset[str] = frozenset()


NOBODY = Users()


class UserReader:
    """Reads the pods of a claim, which Prepare is not told.

    Args:
        api: GETs pods and claims.
        driver: name of the driver.
    """

    def __init__(self, api: GetApi, driver: str) -> None:
        self._api = api
        self._driver = driver
        self._told = False

    async def read(self, claim: ClaimAllocation) -> Users:
        """The claim's users. A claim that shares nothing has none that matter: nothing is asked.

        Raises:
            UnavailableError: the API server does not answer.
        """
        if not (claim.configs or any(one.share_id for one in claim.results)):
            return NOBODY
        pods = [await self._get(PODS, name, claim.namespace) for name in claim.pods]
        consumers = consumers_of([pod for pod in pods if pod is not None])
        names = {name for one in consumers for name in one.uses} - {claim.name}
        others = {name: await self._get(RESOURCE_CLAIMS, name, claim.namespace) for name in names}
        ours = {name for name, found in others.items() if found and self._mentions(found)}
        return Users(consumers=consumers, gpu_claims=frozenset({claim.name, *ours}))

    async def _get(self, resource: Resource, name: str, namespace: str) -> Mapping[str, Any] | None:
        """None for what is gone, or may not be read: what is unknown limits nothing."""
        try:
            return await self._api.get(resource, name, namespace)
        except NotFoundError:
            return None
        except UnavailableError:
            raise
        except ApiError as error:
            if not self._told:
                log.warning("cannot read who uses a claim", error=str(error))
            self._told = True
            return None

    def _mentions(self, claim: Mapping[str, Any]) -> bool:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        return any(one.get("driver") == self._driver for one in results)


class Forms:
    """Completes plans.

    Args:
        reader: reads who uses a claim.
        survey: looks at MIG.
        backends: of the node.
        blocking: runs a blocking function in a worker thread.
    """

    def __init__(
        self,
        reader: UserReader,
        survey: MigSurvey,
        backends: Backends,
        *,
        blocking: Blocking = asyncio.to_thread,
    ) -> None:
        self.users = reader.read
        self._survey = survey
        self._backends = backends
        self._blocking = blocking

    async def complete(
        self, plan: PreparePlan, users: Users, others: Sequence[ClaimRecord]
    ) -> PreparePlan:
        """The plan with everything that is to be done.

        Args:
            plan: as gpudra.driver.core.prepare made it.
            users: of the claim.
            others: records of all other claims; those of the same cards cannot change meanwhile.

        Raises:
            ClaimError: an isolation that cannot be had, or a use that it cannot serve.
            DeviceInUseError: another claim shares a card by another backend, or too much is taken.
            HardwareError: a card does not answer.
        """
        # What lies on other cards decides nothing, and reading its steps takes time.
        others = [one for one in others if not one.cards.isdisjoint(plan.cards)]
        plan = await self._shared(plan, users, others)
        if any(step.kind in (MIG_MODE, MIG_INSTANCE) for step in plan.steps):
            steps = [step for record in others for step in record.steps]
            found: PreparePlan = await self._blocking(self._survey.complete, plan, steps)
            return found
        return plan

    async def _shared(
        self, plan: PreparePlan, users: Users, others: Sequence[ClaimRecord]
    ) -> PreparePlan:
        shares = any(part.kind is DeviceKind.SHARE for part in plan.parts.values())
        if not (shares or plan.chosen):
            return plan
        found: SharingPlan = await self._blocking(self._plan, plan, users, others)
        if not found.steps:
            return plan
        for part in plan.parts.values():
            check_room(plan.claim, part, found.shares, others)
        *before, file = plan.steps
        return replace(plan, steps=(*before, *found.steps, file))

    def _plan(self, plan: PreparePlan, users: Users, others: Iterable[ClaimRecord]) -> SharingPlan:
        return plan_sharing(
            plan.claim,
            plan.parts,
            node=self._backends.node,
            asks={name: ask_of(config) for name, config in plan.chosen.items()},
            consumers=users.consumers,
            gpu_claims=users.gpu_claims,
            held=[(record.title, record.steps) for record in others],
        )


def check_room(
    claim: ClaimAllocation,
    part: AllocatableDevice,
    shares: Sequence[Sharing],
    others: Iterable[ClaimRecord],
) -> None:
    """The last line of defence: shares of one card together fit the card.

    Raises:
        DeviceInUseError: they do not; the holders are named.
    """
    total = part.gpu.memory_bytes
    if part.kind is not DeviceKind.SHARE or total is None:
        return
    held = [
        (record, one.memory_mib)
        for record in others
        for one in sharings(record.steps)
        if one.device == part.name and one.memory_mib
    ]
    wanted = sum(one.memory_mib or 0 for one in shares if one.device == part.name)
    room = int(total * part.memory_oversubscription) // MIB
    if held and wanted + sum(memory for _, memory in held) > room:
        who = ", ".join(f"{record.title} has {memory}Mi" for record, memory in held)
        raise DeviceInUseError(
            f"{wanted}Mi of device {part.name} do not fit into {room}Mi beside others: {who}",
            obj=claim.label,
            hint="the kubelet will try again; it succeeds once those claims' pods have ended",
        )


def mig_uuid(one: Sharing, steps: Iterable[Step]) -> str:
    """The uuid of the MIG instance that is shared, from the step that has made it; "" if none."""
    for step in steps:
        if step.kind == MIG_INSTANCE and step.args.get("device") == one.device:
            return str(step.outcome.get("uuid", ""))
    return ""
