# SPDX-License-Identifier: Apache-2.0
"""Brings state, files and API together: at start, and every minute after.

At start, before the first call is served (``start``): half-made claims are undone, files of
prepared claims are written again where a reboot or a person removed them, files that belong to no
claim are removed, and a damaged checkpoint is put aside and rebuilt from the CDI files and the
claims that are reserved on this node. Then and every minute (``run``): claims that are gone from
the API are undone.
"""

import asyncio
from collections.abc import Callable, Mapping

from gpudra.api.errors import ApiError, GpudraError, StateError
from gpudra.api.resource_v1 import DeviceRequestAllocationResult
from gpudra.driver.core import cdi, prepare
from gpudra.driver.core.prepare import ClaimAllocation
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import bound, get_logger, operation
from gpudra.kubelet_plugin.cdi_store import CdiStore, FoundFile
from gpudra.kubelet_plugin.checkpoint import Checkpoint, replaced
from gpudra.kubelet_plugin.checkpoint_file import Content
from gpudra.kubelet_plugin.device_state import HALF_MADE, DeviceState, TookBack, nobody
from gpudra.kubelet_plugin.mig import EffectGoneError
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRecord, record_of

SWEEP_PERIOD = 60.0
# GETs at once: a node holds at most a few hundred claims, and the API server has other clients.
_PARALLEL = 8
# Request and kind of a device about which only its CDI file tells.
_UNKNOWN = "unknown"

Warn = Callable[[str, str], None]
log = get_logger(__name__)


class Recovery:
    """Keeps what is stored true.

    Args:
        state: the state machine.
        checkpoint: its storage.
        store: the CDI folder.
        clock: for the period and the name of a damaged file.
        warn: tells people, as an Event on the node: reason and note.
        took_back: told what was cleaned up, by kind and number.
    """

    def __init__(
        self,
        state: DeviceState,
        checkpoint: Checkpoint,
        store: CdiStore,
        *,
        clock: Clock,
        warn: Warn,
        took_back: TookBack = nobody,
    ) -> None:
        self._state = state
        self._checkpoint = checkpoint
        self._store = store
        self._clock = clock
        self._warn = warn
        self._took_back = took_back
        self._loaded = False
        self._strays_due = False
        self._boot_id = ""

    def reread(self) -> None:
        """Takes over what another instance wrote; the instance lock calls it when acquired.

        Damaged files are put aside. What they held is found again by ``start``, or later by the
        next sweep; what this process did itself it still has in memory.

        Raises:
            StateError: the system does not let us read.
        """
        if self._loaded:
            loaded = self._checkpoint.refresh()
        else:
            loaded = self._checkpoint.load()
            self._boot_id = loaded.content.boot_id if loaded.content else ""
        damaged = loaded.damaged if loaded else {}
        self._strays_due = self._strays_due or bool(damaged)
        for path, error in damaged.items():
            stamp = self._clock.now().strftime("%Y%m%dT%H%M%SZ")
            aside = self._checkpoint.file.put_aside(path, stamp)
            note = (
                f"{error}; it is kept as {aside}, the state is rebuilt from the CDI files and the "
                "claims on this node"
            )
            log.error("the checkpoint is damaged", error=str(error), kept_as=str(aside))
            self._warn("CheckpointDamaged", note)

    async def start(self) -> None:
        """Everything that has to be right before the first call. Errors of one claim cost only it.

        Raises:
            StateError: the state or CDI folder cannot be read at all.
        """
        with operation("recover"):
            async with self._state.instances.held():
                self._loaded = True
                self._sweep_temporary()
                await self._adopt_strays()
                for record in list(self._state.records.values()):
                    with bound(claim=f"{record.namespace}/{record.name}", claim_uid=record.uid):
                        await self._heal(record)
                if self._boot_id != self._checkpoint.boot_id:
                    await self._store_boot_id()

    async def run(self) -> None:
        """Undoes claims that are gone from the API, at once and every minute, until cancelled."""
        while True:
            with operation("sweep"):
                await self.sweep()
            await self._clock.sleep(SWEEP_PERIOD)

    async def sweep(self) -> None:
        """One round; nothing that goes wrong in it ends the next."""
        if self._strays_due:
            async with self._state.instances.held():
                await self._adopt_strays()
        if any(not record.name for record in self._state.records.values()):
            await self._learn_names()
        slots = asyncio.Semaphore(_PARALLEL)

        async def look_at(record: ClaimRecord) -> None:
            async with slots:
                with bound(claim=f"{record.namespace}/{record.name}", claim_uid=record.uid):
                    try:
                        await self._state.sweep_one(record.uid)
                    except GpudraError as error:
                        log.warning("could not undo a claim, will try again", error=str(error))

        await asyncio.gather(*(look_at(one) for one in list(self._state.records.values())))

    async def _store_boot_id(self) -> None:
        try:
            await self._checkpoint.commit({})
        except StateError as error:
            # The next commit brings it along; until then each start heals once more.
            log.warning("could not store the boot id", error=str(error))

    # --- start ----------------------------------------------------------------------------------

    async def _heal(self, record: ClaimRecord) -> None:
        try:
            if record.state != COMPLETED:
                await self._state.runner.undo(record)
                self._took_back(HALF_MADE, 1)
                log.info("undid a claim that was half-made")
            elif record.name:
                plan = self._state.plan_again(record)
                if await self._state.runner.restore(record, plan):
                    log.info("wrote the files of a prepared claim again")
        except EffectGoneError as error:
            await self._make_again(record, error)
        except GpudraError as error:
            log.warning("could not heal a claim, will try again", error=str(error))

    async def _make_again(self, record: ClaimRecord, gone: EffectGoneError) -> None:
        log.warning("making again what a prepared claim has lost", why=str(gone))
        try:
            await self._state.prepare_anew(record)
        except GpudraError as error:
            log.warning("could not, the kubelet will ask for it", error=str(error))

    def _sweep_temporary(self) -> None:
        """Only CDI files are written aside; killed writers leave those."""
        if count := self._store.sweep_temporary():
            self._took_back("temporary", count)

    # --- rebuild --------------------------------------------------------------------------------

    async def _adopt_strays(self) -> None:
        """Finds the claims of CDI files about which the checkpoint says nothing.

        There are none unless the checkpoint is damaged or was removed. A claim that is reserved on
        this node and has a file was prepared. A file whose claim is not reserved here is removed.
        Without an answer of the API every file counts, and the names are learned later.
        """
        self._strays_due = False
        strays = [file for file in self._store.list() if file.claim_uid not in self._state.records]
        if not strays:
            return
        reserved = await self._reserved()
        found: dict[str, ClaimRecord | None] = {}
        for file in strays:
            record = self._rebuilt(file, reserved)
            if record is None:
                self._remove_stray(file)
                continue
            found[record.uid] = record
            if record.name:
                self._state.orphans.confirm(record.uid)
        try:
            await self._checkpoint.commit(found)
        except StateError as error:
            log.warning("could not store what was rebuilt", error=str(error))
            kept = {**self._state.records, **{uid: one for uid, one in found.items() if one}}
            self._checkpoint.adopt(Content(boot_id=self._checkpoint.boot_id, claims=kept))
        log.warning("rebuilt the checkpoint from CDI files", claims=len(found), files=len(strays))

    def _remove_stray(self, file: FoundFile) -> None:
        try:
            self._store.remove(file.name)
            self._took_back("cdi_file", 1)
            log.info("removed a CDI file of no claim", file=file.name)
        except StateError as error:
            log.warning("could not remove a CDI file of no claim", error=str(error))

    async def _reserved(self) -> Mapping[str, ClaimAllocation] | None:
        try:
            return await self._state.claims.held_on(self._state.pool)
        except ApiError as error:
            log.warning("cannot ask for the claims of this node yet", error=str(error))
            return None

    def _rebuilt(
        self, file: FoundFile, reserved: Mapping[str, ClaimAllocation] | None
    ) -> ClaimRecord | None:
        if reserved is None:
            allocation = self._from_file(file)
        elif file.claim_uid in reserved:
            allocation = reserved[file.claim_uid]
        else:
            return None
        try:
            plan = prepare.plan(
                allocation,
                self._state.devices(),
                driver=self._state.driver,
                pool=self._state.pool,
                stored=True,
            )
        except GpudraError as error:
            # Gone, or not read yet: its name is held, so that nobody else gets it if it comes back.
            log.warning("a prepared device cannot be found", file=file.name, error=str(error))
            holds = tuple(
                prepare.Hold(card="", kind=_UNKNOWN, device=result.device)
                for result in allocation.results
                if not result.admin_access
            )
            return ClaimRecord(
                uid=allocation.uid,
                namespace=allocation.namespace,
                name=allocation.name,
                state=COMPLETED,
                results=allocation.results,
                configs=allocation.configs,
                holds=holds,
                steps=prepare.file_steps(allocation, self._state.driver),
            )
        return replaced(record_of(plan), state=COMPLETED)

    def _from_file(self, file: FoundFile) -> ClaimAllocation:
        results = tuple(
            DeviceRequestAllocationResult(
                request=_UNKNOWN,
                driver=self._state.driver,
                pool=self._state.pool,
                device=device,
            )
            for device in file.devices()
        )
        return ClaimAllocation(uid=file.claim_uid, namespace="", name="", results=results)

    async def _learn_names(self) -> None:
        """Completes records that were rebuilt without the API; undoes those it does not know."""
        reserved = await self._reserved()
        if reserved is None:
            return
        async with self._state.instances.held():
            for record in [one for one in self._state.records.values() if not one.name]:
                file = FoundFile(cdi.file_name(self._state.driver, record.uid), record.uid, None)
                known = self._rebuilt(file, reserved)
                try:
                    if known is None:
                        await self._state.runner.undo(record)
                    else:
                        await self._checkpoint.commit({record.uid: known})
                        self._state.orphans.confirm(record.uid)
                except GpudraError as error:
                    log.warning("could not complete a rebuilt claim", error=str(error))
