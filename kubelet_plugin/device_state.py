# SPDX-License-Identifier: Apache-2.0
"""Prepare and unprepare, claim by claim: the state machine of the node.

What holds at every moment:

* a device is held by at most one claim (or by claims that core.prepare.overlap lets stand side by
  side), from before the first step until after the last one is undone;
* one operation at a time for one claim: a second Prepare joins the first, an Unprepare ends it;
* claims of different cards go in parallel, claims of one card one after the other;
* whoever waits, fails or is killed leaves either nothing or a record that is undone later.

The kubelet is not trusted to call Unprepare (a pod may be deleted by force while the plugin is
down), and the API is not trusted to say that a container has ended (its claim may be deleted by
force while it runs). So a holder whose claim is gone from the API is undone at once if it was gone
when this process first looked, and else only after a grace in which the kubelet's own clean-up
(every 60 s) has had its chances. Meanwhile Prepare waits a few seconds for the Unprepare that is
due, see handover.py.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from gpudra.api.errors import (
    ClaimError,
    DeviceInUseError,
    GpudraError,
    HardwareError,
    UnavailableError,
)
from gpudra.driver.core import prepare
from gpudra.driver.core.allocatable import AllocatableDevice
from gpudra.driver.core.prepare import ClaimAllocation, PreparedDevice, PreparePlan
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.claims import ClaimReader, Presence
from gpudra.kubelet_plugin.forms import NOBODY, Forms, Users
from gpudra.kubelet_plugin.handover import HANDOVER, Handover
from gpudra.kubelet_plugin.instance_lock import InstanceLock
from gpudra.kubelet_plugin.mig import EffectGoneError
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRecord, ClaimRef, Records
from gpudra.kubelet_plugin.spent import (
    NOTHING,
    Phase,
    form_of_plan,
    form_of_record,
    note_form,
    spending,
)
from gpudra.kubelet_plugin.steps import StepRunner, uncancelled

# Twice the kubelet's reconcile period for force-deleted pods.
ORPHAN_GRACE = 120.0
PREPARE, UNPREPARE, SWEEP = "prepare", "unprepare", "sweep"
HALF_MADE, ORPHAN = "half_made", "orphan"

Devices = Callable[[], Mapping[str, AllocatableDevice]]
TookBack = Callable[[str, int], None]
log = get_logger(__name__)


def nobody(_kind: str, _count: int) -> None:
    """Nobody counts what is taken back."""


class CardLocks:
    """One lock per card; several are taken in ascending order, so nobody waits in a circle."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def held(self, cards: Iterable[str]) -> AsyncIterator[None]:
        """Holds the locks of these cards."""
        async with contextlib.AsyncExitStack() as stack:
            with spending(Phase.LOCK):
                for card in sorted(set(cards)):
                    await stack.enter_async_context(self._locks.setdefault(card, asyncio.Lock()))
            yield


class Orphans:
    """Decides when a claim that is gone from the API may be undone without the kubelet."""

    def __init__(self, claims: ClaimReader, clock: Clock, grace: float) -> None:
        self._claims = claims
        self._clock = clock
        self._grace = grace
        self._confirmed: set[str] = set()
        self._gone_since: dict[str, float] = {}

    def confirm(self, uid: str) -> None:
        """The kubelet or the API has just vouched for this claim."""
        self._confirmed.add(uid)
        self._gone_since.pop(uid, None)

    def forget(self, uid: str) -> None:
        """The claim holds nothing any more."""
        self._confirmed.discard(uid)
        self._gone_since.pop(uid, None)

    async def is_orphan(self, record: ClaimRecord) -> bool:
        """Whether the claim may be undone now."""
        presence = await self._claims.presence(record)
        if presence is Presence.ALIVE:
            self.confirm(record.uid)
            return False
        if presence is Presence.UNKNOWN:
            return False
        if record.uid not in self._confirmed:
            return True
        now = self._clock.monotonic()
        return now - self._gone_since.setdefault(record.uid, now) >= self._grace

    def waits(self, uid: str) -> bool:
        """Whether the claim is gone and its grace runs."""
        return uid in self._gone_since


class DeviceState:
    """The node's prepared claims.

    Args:
        driver: this driver's name.
        pool: the pool that this node serves.
        runner: does and undoes steps; brings the checkpoint.
        instances: the lock between two instances of the plugin.
        claims: reads claims from the API.
        forms: completes plans with what the node knows.
        devices: the node's devices by name, as known now.
        clock: for the grace of orphans.
        on_prepared: told every claim that was prepared anew.
        orphan_grace: seconds, see ORPHAN_GRACE.
        handover: seconds that Prepare waits for a claim that is leaving.
        took_back: told what was cleaned up without being asked for, HALF_MADE or ORPHAN.
    """

    def __init__(
        self,
        *,
        driver: str,
        pool: str,
        runner: StepRunner,
        instances: InstanceLock,
        claims: ClaimReader,
        forms: Forms,
        devices: Devices,
        clock: Clock,
        on_prepared: Callable[[ClaimRecord], None] | None = None,
        orphan_grace: float = ORPHAN_GRACE,
        handover: float = HANDOVER,
        took_back: TookBack = nobody,
    ) -> None:
        self.driver = driver
        self.pool = pool
        self.runner = runner
        self.instances = instances
        self.claims = claims
        self.forms = forms
        self.devices = devices
        self._on_prepared = on_prepared
        self._took_back = took_back
        self.orphans = Orphans(claims, clock, orphan_grace)
        self._handover = Handover(clock, handover)
        self._cards = CardLocks()
        self._running: dict[str, tuple[str, asyncio.Task[Any]]] = {}

    @property
    def records(self) -> Records:
        """Every claim that holds something."""
        return self.runner.checkpoint.records

    # --- what the kubelet asks ------------------------------------------------------------------

    async def prepare(self, ref: ClaimRef) -> tuple[tuple[PreparedDevice, ...], bool]:
        """Makes a claim's devices ready for containers.

        Idempotent: a claim that is prepared gives the same answer again, and its CDI file is
        written again if it is gone. An attempt goes on when the caller stops waiting, so that
        the kubelet's next call finds the result; Unprepare ends it.

        Returns:
            The devices, none if the claim has none of this driver; and whether it was prepared
            already.

        Raises:
            DeviceInUseError: another claim holds a device; the message names it.
            ClaimError: the claim cannot be prepared as it is.
            GpudraError: hardware, disk or API failed; the kubelet will try again.
        """
        while True:
            kind, task = self._running.get(ref.uid, ("", None))
            if task is None:
                task = self._start(ref.uid, PREPARE, self._prepare(ref))
            elif kind != PREPARE:
                await asyncio.wait((task,))
                continue
            answer: tuple[tuple[PreparedDevice, ...], bool] = await self._joined(task, ref)
            return answer

    async def unprepare(self, ref: ClaimRef) -> None:
        """Takes back whatever was prepared for a claim. Idempotent; an unknown claim is a success.

        Raises:
            GpudraError: a step could not be undone; the kubelet will try again.
        """
        while True:
            kind, task = self._running.get(ref.uid, ("", None))
            if task is None:
                task = self._start(ref.uid, UNPREPARE, self._unprepare(ref.uid))
            elif kind != UNPREPARE:
                task.cancel()
                await asyncio.wait((task,))
                continue
            await self._joined(task, ref)
            return

    async def sweep_one(self, uid: str) -> bool:
        """Undoes a half-made claim or an orphan; whether it did. Skips a claim in operation."""
        if uid in self._running or uid not in self.records:
            return False
        return bool(await self._joined(self._start(uid, SWEEP, self._sweep(uid)), None))

    async def drain(self) -> None:
        """Waits for every operation to end."""
        while self._running:
            await asyncio.wait([task for _, task in self._running.values()])

    def _start(self, uid: str, kind: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"{kind} {uid}")
        self._running[uid] = (kind, task)

        def ended(done: asyncio.Task[Any]) -> None:
            del self._running[uid]
            if not done.cancelled():
                done.exception()  # whoever started it may have stopped waiting

        task.add_done_callback(ended)
        return task

    async def _joined(self, task: asyncio.Task[Any], ref: ClaimRef | None) -> Any:
        """The result of an operation, which goes on if the caller is cancelled."""
        await asyncio.wait((task,))
        if task.cancelled():
            raise ClaimError(
                "was unprepared while it was being prepared", obj=ref.label if ref else ""
            )
        return task.result()

    # --- prepare --------------------------------------------------------------------------------

    async def _prepare(self, ref: ClaimRef) -> tuple[tuple[PreparedDevice, ...], bool]:
        known = self.records.get(ref.uid)
        prepared = known if known and known.state == COMPLETED else None
        try:
            with spending(Phase.API):
                allocation = await self.claims.fetch(ref, patient=prepared is None)
        except UnavailableError:
            if prepared is None:
                raise
            # A kubelet that restarts must not depend on the API server.
            log.warning("the API server does not answer, using what was prepared before")
            allocation = prepared.allocation
        # Another instance must not wait for the API.
        with spending(Phase.API):
            users = NOBODY if prepared else await self.forms.users(allocation)
        return await self._handover.patiently(
            lambda: self._prepare_now(ref, allocation, users), lambda: self._clears(allocation)
        )

    async def _prepare_now(
        self, ref: ClaimRef, allocation: ClaimAllocation, users: Users
    ) -> tuple[tuple[PreparedDevice, ...], bool]:
        async with self.instances.held():
            record = self.records.get(ref.uid)
            if record and record.state == COMPLETED and record.serves(allocation):
                note_form(form_of_record(record))
                try:
                    await self._restore(record)
                except EffectGoneError as error:
                    log.warning("preparing a claim anew", why=str(error))
                    users = await self.forms.users(allocation)
                else:
                    self.orphans.confirm(ref.uid)
                    return record.devices, True
            plan = prepare.plan(allocation, self.devices(), driver=self.driver, pool=self.pool)
            note_form(form_of_plan(plan))
            return await self._prepare_planned(plan, users), False

    async def _clears(self, allocation: ClaimAllocation) -> bool:
        """Whether a claim on the same cards is leaving; takes back those that may be."""
        plan = prepare.plan(allocation, self.devices(), driver=self.driver, pool=self.pool)
        near = [
            one
            for uid, one in self.records.items()
            if uid != allocation.uid and one.cards & set(plan.cards)
        ]
        return any([await self._leaves(record) for record in near])

    async def _leaves(self, record: ClaimRecord) -> bool:
        """Whether a claim has gone now, or will as soon as the kubelet says so."""
        kind, _ = self._running.get(record.uid, ("", None))
        try:
            gone = kind in (UNPREPARE, SWEEP) or await self.sweep_one(record.uid)
        except GpudraError as error:
            log.warning("could not undo a claim, will try again", error=str(error))
            return False
        return gone or self.orphans.waits(record.uid)

    async def _restore(self, record: ClaimRecord) -> None:
        """Writes the files of a completed claim again where they are gone."""
        async with self._cards.held(record.cards):
            try:
                if await self.runner.restore(record, self.plan_again(record)):
                    log.info("wrote the files of a prepared claim again")
            except (ClaimError, HardwareError) as error:
                # A card that fell off the bus must not end what else the pod is doing.
                if not await self.runner.present(record):
                    raise
                log.warning("a prepared claim cannot be checked", error=str(error))

    def plan_again(self, record: ClaimRecord) -> PreparePlan:
        """The plan of a claim that was accepted before.

        Raises:
            ClaimError: a device does not exist any more.
        """
        return prepare.plan(
            record.allocation, self.devices(), driver=self.driver, pool=self.pool, stored=True
        )

    async def prepare_anew(self, record: ClaimRecord) -> None:
        """Makes again what a completed claim has lost; the instance lock is held.

        Raises:
            GpudraError: it cannot be made now, or the claim is gone. The kubelet's next call
                prepares it, or the sweep takes the rest back.
        """
        # Who uses it now is known to the API only.
        claim = await self.claims.fetch(record.ref, patient=False)
        plan = prepare.plan(claim, self.devices(), driver=self.driver, pool=self.pool, stored=True)
        await self._prepare_planned(plan, await self.forms.users(claim))

    async def _prepare_planned(self, plan: PreparePlan, users: Users) -> tuple[PreparedDevice, ...]:
        while True:
            cards = self._cards_of(plan)
            async with self._cards.held(cards):
                if not self._cards_of(plan) <= cards:
                    continue  # somebody else came to hold part of it while we waited
                own = self.records.get(plan.claim.uid)
                if own is not None:  # half-made, or prepared for an allocation of the past
                    await self.runner.undo(own)
                await self._make_room(plan)
                if not plan.steps:
                    return plan.devices
                others = [one for uid, one in self.records.items() if uid != plan.claim.uid]
                with spending(Phase.HARDWARE):
                    complete = await self.forms.complete(plan, users, others)
                record = await self.runner.carry_out(complete)
                self.orphans.confirm(record.uid)
                if self._on_prepared is not None:
                    self._on_prepared(record)
                return record.devices

    def _cards_of(self, plan: PreparePlan) -> frozenset[str]:
        """Cards of the plan, of the claim's own record, and of all claims in the way."""
        found = set(plan.cards)
        own = self.records.get(plan.claim.uid)
        for record in (own, *self._in_the_way(plan)):
            found |= record.cards if record else set()
        return frozenset(found)

    def _in_the_way(self, plan: PreparePlan) -> list[ClaimRecord]:
        uid = plan.claim.uid
        held = ((one.uid, one.holds) for one in self.records.values() if one.uid != uid)
        found = dict.fromkeys(uid for uid, _ in prepare.holders(plan.holds, held))
        return [self.records[uid] for uid in found]

    async def _make_room(self, plan: PreparePlan) -> None:
        """Undoes half-made claims and orphans that stand in the way.

        Raises:
            DeviceInUseError: a claim in the way lives.
        """
        for record in self._in_the_way(plan):
            half = record.state != COMPLETED and record.uid not in self._running
            with spending(Phase.API):
                gone = half or await self.orphans.is_orphan(record)
            if gone:
                log.warning("undoing a claim that is gone", holder=record.title)
                await self._forget(record)
                self._took_back(HALF_MADE if half else ORPHAN, 1)
                continue
            raise self._in_use(plan.claim, plan, record)

    def _in_use(
        self, claim: ClaimAllocation, plan: PreparePlan, holder: ClaimRecord
    ) -> DeviceInUseError:
        wanted = (
            part.name
            for part in plan.parts.values()
            if any(prepare.overlap(prepare.hold_of(part), hold) for hold in holder.holds)
        )
        waits = self.orphans.waits(holder.uid)
        return DeviceInUseError(
            f"{', '.join(sorted(set(wanted)))} is in use by {holder.title}",
            obj=claim.label,
            hint="that claim is gone from the API; its containers may still run, so the kubelet "
            "has to unprepare it first"
            if waits
            else "the kubelet will try again; it succeeds once that claim's pods have ended",
        )

    # --- unprepare ------------------------------------------------------------------------------

    async def _unprepare(self, uid: str) -> None:
        async with self.instances.held():
            record = self.records.get(uid)
            if record is None:
                note_form(NOTHING)
                return
            note_form(form_of_record(record))
            async with self._cards.held(record.cards):
                current = self.records.get(uid)
                if current is not None:
                    await self._forget(current)

    async def _sweep(self, uid: str) -> bool:
        looked_at = self.records[uid]
        half = looked_at.state != COMPLETED
        # The API may take its time to answer; another instance must not wait for that.
        if not (half or await self.orphans.is_orphan(looked_at)):
            return False
        async with self.instances.held(), self._cards.held(looked_at.cards):
            if self.records.get(uid) != looked_at:
                return False
            await self._forget(looked_at)
            self._took_back(HALF_MADE if half else ORPHAN, 1)
            log.info("undid a claim that is gone", half_made=half)
            return True

    async def _forget(self, record: ClaimRecord) -> None:
        """Undoes to the end, even if whoever asked is cancelled."""
        await uncancelled(self.runner.undo(record))
        self.orphans.forget(record.uid)
        self._handover.freed()


def describe(error: BaseException) -> str:
    """An error as the kubelet and the claim's Event show it."""
    return str(error) if isinstance(error, GpudraError) else f"internal error: {error!r}"
