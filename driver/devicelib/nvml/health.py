# SPDX-License-Identifier: Apache-2.0
"""Health events from NVML's event set.

One thread of the agent waits here. A set belongs to one start of NVML and to the cards that it knew
then: when the driver was reloaded or a card came, a new set is made. Events of a card that is lost
arrive as an error of the wait itself and become one LOST event for each card that does not answer.
"""

import threading
import time
from typing import Any

import pynvml

from gpudra.api.errors import HardwareError
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.devicelib.nvml.session import Session
from gpudra.driver.devicelib.protocol import HealthEvent, HealthKind

_WANTED = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
_NO_INSTANCE = 0xFFFFFFFF
_SLICE_MS = 500  # how long one wait blocks, so that close() and new cards are noticed


class NvmlHealth:
    """HealthLib on NVML. See the protocol for the contract."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._closed = threading.Event()
        self._set: Any = None
        self._made_of: tuple[int, frozenset[str], frozenset[str]] | None = None
        self._cards: frozenset[str] = frozenset()
        self._silent: frozenset[str] = frozenset()
        self._deaf: set[str] = set()

    def watch(self, inventory: Inventory) -> None:
        """The cards to listen to from now on; called after each discovery."""
        self._cards = frozenset(gpu.uuid for gpu in inventory.gpus if gpu.uuid)

    def close(self) -> None:
        """Ends a wait that is under way."""
        self._closed.set()

    def wait(self, timeout_seconds: float) -> tuple[HealthEvent, ...]:
        """Events since the last call; empty after the time-out or once closed."""
        deadline = time.monotonic() + timeout_seconds
        while not self._closed.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return ()
            with self._session.using():
                events = self._listen(min(int(left * 1000) + 1, _SLICE_MS))
            if events:
                return events
        return ()

    def _listen(self, milliseconds: int) -> tuple[HealthEvent, ...]:
        try:
            changes = self._prepare_set()
            if changes:
                return changes
            if self._set is None:
                self._closed.wait(milliseconds / 1000)
                return ()
            event = pynvml.nvmlEventSetWait_v2(self._set, milliseconds)
        except pynvml.NVMLError_Timeout:
            return self._lost_cards()
        except pynvml.NVMLError as error:
            self._made_of = None
            self._session.restart_after(error)
            self._closed.wait(milliseconds / 1000)  # a broken driver answers at once: no busy loop
            return self._lost_cards()
        except HardwareError:
            self._closed.wait(milliseconds / 1000)
            return ()
        return self._translate(event)

    def _prepare_set(self) -> tuple[HealthEvent, ...]:
        """Makes the event set anew when NVML or the cards are others than before."""
        self._session.start()
        wanted = (self._session.generation, self._cards, self._silent)
        if self._made_of == wanted:
            return ()
        same_start = self._made_of is not None and self._made_of[0] == wanted[0]
        if self._set is not None and same_start:
            pynvml.nvmlEventSetFree(self._set)
        self._set = pynvml.nvmlEventSetCreate() if self._cards else None
        self._made_of = wanted
        events = []
        for uuid in sorted(self._cards - self._silent):
            problem = self._register(uuid)
            if problem:
                events.append(HealthEvent(gpu=uuid, kind=HealthKind.UNMONITORED, message=problem))
                self._deaf.add(uuid)
            elif uuid in self._deaf:
                events.append(HealthEvent(gpu=uuid, kind=HealthKind.MONITORED))
                self._deaf.remove(uuid)
        return tuple(events)

    def _register(self, uuid: str) -> str:
        """Why this card cannot be listened to; empty when it can."""
        try:
            handle = self._session.handle(uuid)
            supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            pynvml.nvmlDeviceRegisterEvents(handle, _WANTED & supported, self._set)
        except (pynvml.NVMLError, HardwareError) as error:
            return str(error)
        return "" if _WANTED & supported else "the card reports no events"

    def _lost_cards(self) -> tuple[HealthEvent, ...]:
        """Cards that stopped answering since the last look."""
        silent = frozenset(uuid for uuid in self._cards if not self._answers(uuid))
        new = sorted(silent - self._silent)
        # One that is not listed any more has left; it did not answer again.
        back = sorted((self._silent & self._cards) - silent)
        self._silent = silent
        return tuple(
            [
                HealthEvent(gpu=uuid, kind=HealthKind.LOST, message="the card does not answer")
                for uuid in new
            ]
            + [
                HealthEvent(gpu=uuid, kind=HealthKind.RECOVERED, message="the card answers again")
                for uuid in back
            ]
        )

    def _answers(self, uuid: str) -> bool:
        try:
            pynvml.nvmlDeviceGetIndex(self._session.handle(uuid))
        except (
            pynvml.NVMLError_GpuIsLost,
            pynvml.NVMLError_NotFound,
            pynvml.NVMLError_InvalidArgument,
        ):
            return False
        except (pynvml.NVMLError, HardwareError):
            return True  # the library is the trouble, not this card
        return True

    def _translate(self, event: Any) -> tuple[HealthEvent, ...]:
        try:
            uuid: str | None = _text(pynvml.nvmlDeviceGetUUID(event.device))
        except pynvml.NVMLError:
            uuid = None
        gpu_instance = None if event.gpuInstanceId == _NO_INSTANCE else event.gpuInstanceId
        compute = None if event.computeInstanceId == _NO_INSTANCE else event.computeInstanceId
        if event.eventType == pynvml.nvmlEventTypeGpuRecoveryAction:
            # What the driver wants done is a reading; the event tells when nothing is left to do.
            if event.eventData != pynvml.NVML_GPU_RECOVERY_ACTION_NONE:
                return ()
            done = "the driver asks for nothing any more"
            return (HealthEvent(gpu=uuid, kind=HealthKind.RECOVERED, message=done),)
        is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
        return (
            HealthEvent(
                gpu=uuid,
                kind=HealthKind.XID if is_xid else HealthKind.ECC_UNCORRECTED,
                xid=event.eventData if is_xid else None,
                gpu_instance_id=gpu_instance,
                compute_instance_id=compute,
                message=f"XID {event.eventData}" if is_xid else "uncorrectable memory error",
            ),
        )


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
