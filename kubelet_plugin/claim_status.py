# SPDX-License-Identifier: Apache-2.0
"""Reports in ``status.devices`` of each prepared claim what it got and what holds it to its part.

Conditions: ``Ready``, and ``Isolated`` whose reason names the backend and whose message says what
is enforced and what is not. Data: uuid, limits, CDI ids. Written after the kubelet has its answer,
one claim after the other, by server-side apply: entries of other drivers stay. The right to do so
is ``associated-node:patch`` on ``resourceclaims/driver``.

At start every prepared claim is looked at, since the process may have ended between preparing and
reporting. Claims under ``mps`` or ``hami-core`` are looked at each minute: a pod that came later
may break what the limits rely on, and ``Isolated`` says so then.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from gpudra.api.errors import ApiError, ConflictError, GpudraError, InputError, NotFoundError
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.prepare import (
    MIG_INSTANCE,
    ClaimAllocation,
    PreparedDevice,
    allocation_of,
)
from gpudra.driver.core.sharing import (
    Backend,
    IsolationReport,
    Sharing,
    broken_by,
    exclusive_report,
    sharing_report,
    sharings,
)
from gpudra.driver.core.sharing.types import STEP_PREFIX
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.resources import RESOURCE_CLAIMS, Obj, Resource
from gpudra.driver.kube.verbs import PatchBody, PatchType
from gpudra.driver.observability.logging import bound, get_logger
from gpudra.kubelet_plugin.forms import Users
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRecord, Records

LOOK_PERIOD = 60.0
# Reports can wait: while a node starts many pods at once, the kubelet's calls go first.
DELAY = 0.25
# After so many failures the next look tries again; others are waiting.
_TRIES = 5
_WATCHED = frozenset(STEP_PREFIX + one for one in (Backend.MPS, Backend.HAMI_CORE))
log = get_logger(__name__)


class StatusApi(Protocol):
    """What is asked of the API client."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """One object."""
        ...

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: PatchBody,
        *,
        namespace: str | None = None,
        patch_type: PatchType = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Obj:
        """Server-side apply of a status."""
        ...


class ReadUsers(Protocol):
    """Reads who uses a claim; see forms.UserReader."""

    async def __call__(self, claim: ClaimAllocation) -> Users:
        """Raises UnavailableError."""
        ...


class ClaimStatus:
    """Writes the reports.

    Args:
        api: of the cluster.
        driver: name of the driver.
        records: every claim that holds something now.
        devices: the node's devices by name, as known now.
        users: reads who uses a claim.
        clock: for times and pauses.
        rng: for jitter.
    """

    def __init__(
        self,
        api: StatusApi,
        driver: str,
        *,
        records: Callable[[], Records],
        devices: Callable[[], Mapping[str, AllocatableDevice]],
        users: ReadUsers,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._api = api
        self._driver = driver
        self._records = records
        self._devices = devices
        self._users = users
        self._clock = clock
        self._rng = rng
        # uids in the order of coming; True: only after a look at what the claim says already.
        self._queue: dict[str, bool] = {}
        self._wake = asyncio.Event()
        self._told = False

    def prepared(self, record: ClaimRecord) -> None:
        """A claim has just been prepared."""
        self._queue[record.uid] = False
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        self._look_at(self._records().values())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_queue(), name="claim status writer")
            tasks.create_task(self._look_for_ever(), name="claim status looks")

    async def _look_for_ever(self) -> None:
        while True:
            await self._clock.sleep(LOOK_PERIOD)
            self._look_at(one for one in self._records().values() if _is_watched(one))

    def _look_at(self, records: Iterable[ClaimRecord]) -> None:
        for record in records:
            self._queue.setdefault(record.uid, True)
        self._wake.set()

    async def _write_queue(self) -> None:
        while True:
            await self._wake.wait()
            await self._clock.sleep(DELAY)
            self._wake.clear()
            while self._queue:
                uid = next(iter(self._queue))
                look = self._queue.pop(uid)
                record = self._records().get(uid)
                if record is not None and record.state == COMPLETED and record.name:
                    with bound(claim=f"{record.namespace}/{record.name}", claim_uid=uid):
                        await self._write_patiently(record, look=look)

    async def _write_patiently(self, record: ClaimRecord, *, look: bool) -> None:
        backoff = Backoff(base=0.2, cap=5.0, rng=self._rng)
        for _ in range(_TRIES):
            try:
                await self._write(record, look=look)
            except (NotFoundError, ConflictError):
                return  # deleted, or deleted and made again: nobody reads that report
            except ApiError as error:
                if not error.retryable:
                    self._cannot(error)
                    return
                await self._clock.sleep(backoff.next())
            except GpudraError as error:
                self._cannot(error)
                return
            else:
                return

    def _cannot(self, error: GpudraError) -> None:
        if not self._told:
            log.warning("cannot report on a claim", error=str(error))
        self._told = True

    async def _write(self, record: ClaimRecord, *, look: bool) -> None:
        broken = ""
        before: tuple[dict[str, Any], ...] = ()
        if look:
            found = await self._found(record)
            if found is None:
                return
            claim, before = found
            if _is_watched(record):
                users = await self._users(claim)
                broken = broken_by(claim, record.steps, users.consumers, users.gpu_claims)
        entries = self._entries(record, broken)
        if look and [_timeless(one) for one in entries] == [_timeless(one) for one in before]:
            return
        body = {
            "metadata": {"uid": record.uid, "namespace": record.namespace},
            "status": {"devices": entries},
        }
        await self._api.patch(
            RESOURCE_CLAIMS,
            record.name,
            body,
            namespace=record.namespace,
            patch_type="apply",
            subresource="status",
            field_manager=self._driver,
            force=True,
        )

    async def _found(
        self, record: ClaimRecord
    ) -> tuple[ClaimAllocation, tuple[dict[str, Any], ...]] | None:
        """The claim and what it says of this driver; None if it is another one by now."""
        raw = await self._api.get(RESOURCE_CLAIMS, record.name, record.namespace)
        if raw["metadata"]["uid"] != record.uid:
            return None
        claim = ResourceClaim.from_dict(raw)
        if claim.status.allocation is None:
            return None
        told = (raw.get("status") or {}).get("devices") or ()
        return allocation_of(claim, self._driver), tuple(
            one for one in told if one.get("driver") == self._driver
        )

    # --- what is told ---------------------------------------------------------------------------

    def _entries(self, record: ClaimRecord, broken: str) -> list[dict[str, Any]]:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        shares = {one.device: one for one in sharings(record.steps)}
        return [
            self._entry(record, device, shares.get(device.device), broken, now)
            for device in record.devices
        ]

    def _entry(
        self,
        record: ClaimRecord,
        device: PreparedDevice,
        share: Sharing | None,
        broken: str,
        now: str,
    ) -> dict[str, Any]:
        kind, card = self._kind_and_card(record, device)
        report = sharing_report(share) if share is not None else exclusive_report(kind)
        if broken and share is not None:
            report = replace(report, isolated=False, not_enforced=(broken,))
        entry: dict[str, Any] = {
            "driver": self._driver,
            "pool": device.pool,
            "device": device.device,
            "conditions": [
                _condition("Ready", True, "Prepared", "the device can be used", now),
                _isolated(report, now),
            ],
            "data": _data(record, device, kind, card, share),
        }
        if device.share_id is not None:
            entry["shareID"] = device.share_id
        return entry

    def _kind_and_card(self, record: ClaimRecord, device: PreparedDevice) -> tuple[DeviceKind, str]:
        """From what is held; a device of admin access holds nothing."""
        for hold in record.holds:
            if hold.device == device.device and hold.kind in set(DeviceKind):
                return DeviceKind(hold.kind), hold.card
        known = self._devices().get(device.device)
        if known is None:
            raise InputError("is not known any more", obj=f"device {device.device}")
        return DeviceKind.MONITOR, known.gpu.key


def _is_watched(record: ClaimRecord) -> bool:
    return any(step.kind in _WATCHED for step in record.steps)


def _condition(kind: str, status: bool, reason: str, message: str, now: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }


def _isolated(report: IsolationReport, now: str) -> dict[str, Any]:
    return _condition("Isolated", report.isolated, report.reason, report.message, now)


def _data(
    record: ClaimRecord,
    device: PreparedDevice,
    kind: DeviceKind,
    card: str,
    share: Sharing | None,
) -> dict[str, Any]:
    """What programs want to know."""
    found: dict[str, Any] = {"type": kind.value, "uuid": card, "cdiDeviceIDs": [*device.cdi_ids]}
    for step in record.steps:
        if step.kind == MIG_INSTANCE and step.args.get("device") == device.device:
            found |= {"uuid": step.outcome.get("uuid", ""), "parentUUID": card}
    limits = {}
    if share is not None and share.memory_mib is not None:
        limits["memory"] = f"{share.memory_mib}Mi"
    if share is not None and share.compute:
        limits["compute"] = str(share.compute)
    if limits:
        found["limits"] = limits
    return found


def _timeless(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Without times: a report that says the same is not written again."""
    conditions = [
        {key: value for key, value in one.items() if key != "lastTransitionTime"}
        for one in entry.get("conditions") or ()
    ]
    return {**entry, "conditions": conditions}
