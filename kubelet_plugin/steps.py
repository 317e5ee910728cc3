# SPDX-License-Identifier: Apache-2.0
"""Carries out the steps of a plan and takes them back.

Each kind of step has one handler. The order of things, for doing: reservation stored → steps, one
after the other → stored as completed. For undoing: steps backwards → record removed. A process
that ends anywhere in between leaves a record whose steps are undone or done again, both harmless
when they were done already.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from gpudra.api.codec import Json
from gpudra.api.errors import GpudraError, HardwareError, StateError
from gpudra.driver.core import prepare
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.edits import ContainerEdits, merge
from gpudra.driver.core.inventory import MigInstance
from gpudra.driver.core.metadata import metadata_step
from gpudra.driver.core.prepare import CDI_FILE, DONE, METADATA, PreparePlan, Step
from gpudra.driver.core.sharing import Places, is_sharing, replan
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.cdi_store import CdiStore, check_sources
from gpudra.kubelet_plugin.checkpoint import Blocking, Checkpoint, replaced
from gpudra.kubelet_plugin.files import Observe, ignore
from gpudra.kubelet_plugin.metadata_files import MetadataStep
from gpudra.kubelet_plugin.mig import EffectGoneError, instance_step, made_by, own_instance
from gpudra.kubelet_plugin.records import COMPLETED, UNDOING, ClaimRecord, record_of
from gpudra.kubelet_plugin.spent import Phase, spending

T = TypeVar("T")
log = get_logger(__name__)


class StepHandler(Protocol):
    """Does and undoes one kind of step. All methods block; one call at a time for one card.

    ``lasting``: the effect survives a power cut or is seen by others, so the reservation has to
    be on the disk before. Otherwise a start after the cut makes everything anew. What ``do``
    returns need not survive a cut: whatever it describes has to be found by the arguments alone.
    """

    lasting: bool

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Does it. ``plan.steps`` has the outcomes of the steps before.

        Returns what later steps or undoing may want.
        """
        ...

    def restore(self, step: Step, plan: PreparePlan) -> bool:
        """Does it again if its effect is gone (reboot, a file removed); whether it was.

        Raises:
            EffectGoneError: it is gone, and the claim has to be prepared anew.
        """
        ...

    def present(self, step: Step) -> bool:
        """Whether its effect is there, as far as can be seen without the hardware."""
        ...

    def undo(self, step: Step) -> None:
        """Takes it back; nothing happens if it is not there. Needs nothing but the step."""
        ...


class CdiFileStep:
    """The claim's CDI file. Edits are asked from the hardware each time: majors change."""

    lasting = False

    def __init__(
        self,
        store: CdiStore,
        lib: DeviceLib,
        places: Places | None = None,
        metadata: MetadataStep | None = None,
    ) -> None:
        self._store = store
        self._lib = lib
        self._places = places or Places()
        self._metadata = metadata

    def do(self, step: Step, plan: PreparePlan) -> Mapping[str, Json]:
        """Writes the file.

        Raises:
            HardwareError: a device node is missing, or the library does not answer.
            InputError: the document would be refused by runtimes.
            StateError: the folder cannot be written.
        """
        with spending(Phase.HARDWARE):
            document = self._document(plan)
        with spending(Phase.CDI):
            self._store.write(_file_of(step), document)
        return {}

    def restore(self, step: Step, plan: PreparePlan) -> bool:
        """Writes the file again if it is missing or not what the hardware says today.

        Raises:
            EffectGoneError: the claim shares a device and it is not known how, since the
                checkpoint was lost; a file without limits must not take the place of the old one.
        """
        if _is_shared(plan) and not any(is_sharing(one) for one in plan.steps):
            raise EffectGoneError("it is not known any more how its devices are shared")
        with spending(Phase.HARDWARE):
            document = self._document(plan)
        with spending(Phase.CDI):
            if not self._store.differs(_file_of(step), document):
                return False
            self._store.write(_file_of(step), document)
        return True

    def present(self, step: Step) -> bool:
        """Whether there is such a file."""
        return self._store.exists(_file_of(step))

    def undo(self, step: Step) -> None:
        """Removes the file."""
        with spending(Phase.CDI):
            self._store.remove(_file_of(step))

    def _document(self, plan: PreparePlan) -> Mapping[str, Any]:
        common = self._lib.common_edits()
        edits: dict[str, ContainerEdits] = {}
        uuids: dict[str, str] = {}
        for name, part in plan.parts.items():
            if part.kind is not DeviceKind.MIG:
                edits[name] = self._card(part)
                continue
            instance = self._instance_of(part, plan.steps)
            if self._lib.partitions is not None:
                edits[name] = self._lib.partitions.mig_edits(part.gpu.key, instance)
            uuids[name] = instance.uuid or part.gpu.key
        if any(is_sharing(step) for step in plan.steps):
            shared = replan(plan.claim, plan.parts, plan.steps, self._places).edits
            edits |= {name: merge((edits[name], more)) for name, more in shared.items()}
        files = metadata_step(plan.steps)
        if files is not None and self._metadata is not None:
            mounted = self._metadata.edits(files, plan)
            edits |= {name: merge((edits[name], more)) for name, more in mounted.items()}
        check_sources((common, *edits.values()))
        return prepare.document(plan.parts, self._store.driver, edits, common, uuids)

    def _card(self, part: AllocatableDevice) -> ContainerEdits:
        """Of a card, and for its monitor what shows its instances."""
        edits = self._lib.gpu_edits(part.gpu.key)
        if part.kind is not DeviceKind.MONITOR or self._lib.partitions is None or not part.gpu.mig:
            return edits
        return merge((edits, self._lib.partitions.monitor_edits(part.gpu.key)))

    def _instance_of(self, part: AllocatableDevice, steps: Iterable[Step]) -> MigInstance:
        """The instance that a step has made, or that was there before (static).

        Raises:
            HardwareError: it does not exist.
        """
        step = instance_step(steps, part.name)
        made = made_by(step) if step is not None else None
        if made is not None:
            return made
        there = self._lib.partitions.mig_instances(part.gpu.key) if self._lib.partitions else ()
        if step is not None:
            found = own_instance(step, there)
        else:
            found = next((one for one in there if one.placement == part.placement), None)
        if found is None or found.compute_instance_id is None:
            raise HardwareError(
                "its MIG instance does not exist",
                obj=f"device {part.name}",
                hint="the kubelet will try again",
            )
        return found


def _is_shared(plan: PreparePlan) -> bool:
    """Whether something must hold the claim's devices to a part."""
    asked = any(config.sharing.isolation for config in plan.chosen.values())
    return asked or any(part.kind is DeviceKind.SHARE for part in plan.parts.values())


def _file_of(step: Step) -> str:
    return str(step.args["file"])


class StepRunner:
    """Executes plans against handlers and checkpoint.

    Args:
        checkpoint: where every phase is stored.
        handlers: by kind of step.
        blocking: runs a blocking function in a worker thread.
        observe: told the name of each point passed, before and after each thing that changes
            the world; tests end the process there.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        handlers: Mapping[str, StepHandler],
        *,
        blocking: Blocking = asyncio.to_thread,
        observe: Observe = ignore,
    ) -> None:
        self.checkpoint = checkpoint
        self._handlers = handlers
        self._blocking = blocking
        self._observe = observe

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of steps that it can do."""
        return tuple(self._handlers)

    async def carry_out(self, plan: PreparePlan) -> ClaimRecord:
        """Reserves, does all steps, completes. On failure everything is taken back.

        The reservation is visible to others before the first await, so the caller's look at the
        checkpoint and this call are one.

        Raises:
            GpudraError: what went wrong; if even taking back failed, the record stays and is
                undone later.
        """
        record = record_of(plan)
        handlers = [self._handler(step) for step in plan.steps]
        durable = any(handler.lasting for handler in handlers)
        self._observe("reserve:before")
        try:
            await self._commit(record, durable=durable)
            self._observe("reserve:after")
            record = await self._do_steps(record, plan)
            await self._complete(record)
        except (Exception, asyncio.CancelledError):
            # Nothing may cut the way back short; a second cancellation waits for it.
            await uncancelled(self._take_back(record.uid))
            raise
        return self.checkpoint.records[record.uid]

    async def _take_back(self, uid: str) -> None:
        """Undoes what a failed attempt left. Its own failure leaves the record for the sweep."""
        record = self.checkpoint.records.get(uid)
        if record is None:
            return
        try:
            await self.undo(record)
        except GpudraError as error:
            # The first error is the one to tell the kubelet.
            log.warning(
                "could not take back a failed preparation, will try again", error=str(error)
            )

    async def _do_steps(self, record: ClaimRecord, plan: PreparePlan) -> ClaimRecord:
        done: list[Step] = []
        while len(done) < len(plan.steps):
            await self._run(self._do_some, plan, done)
            record = replaced(record, steps=(*done, *plan.steps[len(done) :]))
            if len(done) < len(plan.steps):
                # For a kill. A power cut takes the effect along, or the reservation tells of it.
                await self._commit(record, durable=False)
        return record

    def _do_some(self, plan: PreparePlan, done: list[Step]) -> None:
        """Does steps until one of them is to be noted; each change of threads costs its time."""
        for step in plan.steps[len(done) :]:
            handler = self._handler(step)
            so_far = dataclasses.replace(plan, steps=(*done, *plan.steps[len(done) :]))
            self._observe(f"do:{step.kind}:before")
            with _booked(step):
                outcome = handler.do(step, so_far)
            self._observe(f"do:{step.kind}:after")
            done.append(replace_step(step, outcome))
            if handler.lasting:
                return

    async def _complete(self, record: ClaimRecord) -> None:
        self._observe("complete:before")
        await self._commit(replaced(record, state=COMPLETED))
        self._observe("complete:after")

    async def undo(self, record: ClaimRecord) -> None:
        """Takes back every step and forgets the claim; harmless for what was never done.

        Raises:
            GpudraError: a step could not be undone, or the checkpoint not be written; the record
                stays.
        """
        steps = tuple(reversed(record.steps))
        if any(self._handler(step).lasting for step in steps):
            record = replaced(record, state=UNDOING)
            # For a kill. After a power cut what was undone is made anew, or undone again.
            await self._commit(record, durable=False)
        await self._run(self._undo_all, steps)
        self._observe("forget:before")
        with spending(Phase.CHECKPOINT):
            await self.checkpoint.commit({record.uid: None})
        self._observe("forget:after")

    def _undo_all(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._observe(f"undo:{step.kind}:before")
            with _booked(step):
                self._handler(step).undo(step)
            self._observe(f"undo:{step.kind}:after")

    async def _commit(self, record: ClaimRecord, *, durable: bool = True) -> None:
        with spending(Phase.CHECKPOINT):
            await self.checkpoint.commit({record.uid: record}, durable=durable)

    async def restore(self, record: ClaimRecord, plan: PreparePlan) -> bool:
        """Makes sure that the effects of a completed claim are there; whether any was gone.

        Raises:
            EffectGoneError: one is gone that only preparing anew brings back.
        """
        restored = False
        plan = dataclasses.replace(plan, steps=record.steps)
        for step in record.steps:
            handler = self._handler(step)
            with _booked(step):
                restored = await self._run(handler.restore, step, plan) or restored
        return restored

    async def present(self, record: ClaimRecord) -> bool:
        """Whether the effects of all steps are there."""
        for step in record.steps:
            if not await self._run(self._handler(step).present, step):
                return False
        return True

    def _handler(self, step: Step) -> StepHandler:
        handler = self._handlers.get(step.kind)
        if handler is None:
            raise StateError(
                f"holds a step of kind {step.kind!r} that this version does not know",
                obj=str(self.checkpoint.file.folder),
                hint="run the version that wrote it until its claims are gone",
            )
        return handler

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        """A blocking call that is over when this returns, even if the caller is cancelled."""
        found: T = await uncancelled(self._blocking(function, *arguments))
        return found


def _booked(step: Step) -> contextlib.AbstractContextManager[None]:
    """Files book their time themselves: part of it is spent on asking the hardware."""
    files = step.kind in (CDI_FILE, METADATA)
    return contextlib.nullcontext() if files else spending(Phase.HARDWARE)


async def uncancelled(work: Awaitable[T]) -> T:
    """Waits for the end of ``work``; a cancellation of the caller is raised after that."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as lost
        raise cancelled
    return task.result()


def replace_step(step: Step, outcome: Mapping[str, Json]) -> Step:
    """The step, done."""
    return Step(kind=step.kind, args=step.args, state=DONE, outcome=outcome, extra=step.extra)
