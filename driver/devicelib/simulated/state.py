# SPDX-License-Identifier: Apache-2.0
"""What happens on simulated cards: faults that come with time, faults thrown in, MIG instances.

One lock, one condition. MIG survives a restart in ``mig.json`` of the state folder, as instances on
a real card do. ``faults.yaml`` there is read while the process runs: a list of faults as in the
Hardware file, to which tests and people append.
"""

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpudra.api.errors import HardwareError, InputError, StateError
from gpudra.api.hardware import Fault, FaultKind, Hardware
from gpudra.driver.core.inventory import MigInstance
from gpudra.driver.devicelib.files import read_documents
from gpudra.driver.devicelib.protocol import HealthEvent, HealthKind
from gpudra.driver.devicelib.simulated.model import (
    CardState,
    card_uuid,
    initial_states,
    mig_instance,
)

FAULTS_FILE = "faults.yaml"
MIG_FILE = "mig.json"
_POLL_SECONDS = 0.25
_FAULTS = TypeAdapter(tuple[Fault, ...])


class HardwareState:
    """State of all cards of one simulated node, safe for use from several threads."""

    def __init__(
        self, hardware: Hardware, node_name: str, folder: Path, monotonic: Callable[[], float]
    ) -> None:
        self._hardware = hardware
        self._folder = folder
        self._monotonic = monotonic
        self._started = monotonic()
        self._changed = threading.Condition()
        self._keys = tuple(
            card_uuid(hardware, index, node_name) for index in range(len(hardware.spec.gpus))
        )
        self._cards = initial_states(hardware, node_name)
        self._pending = sorted(hardware.spec.faults, key=lambda fault: fault.after_seconds)
        self._from_file = 0
        self._file_stamp: tuple[int, int] | None = None
        self._events: list[HealthEvent] = []
        self._closed = False
        self._load_mig()

    @property
    def keys(self) -> tuple[str, ...]:
        """Uuids of the cards in the order of the file."""
        return self._keys

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._monotonic() - self._started

    def cards(self) -> dict[str, CardState]:
        """State of every card now.

        Raises:
            HardwareError: there is a new ``faults.yaml``, and it is wrong; the next call goes on.
        """
        with self._changed:
            self._advance()
            return dict(self._cards)

    def card(self, key: str) -> CardState:
        """State of one card.

        Raises:
            InputError: there is no such card.
        """
        cards = self.cards()
        if key not in cards:
            raise InputError("is no card of the simulated hardware", obj=f"GPU {key}")
        return cards[key]

    def inject(self, fault: Fault) -> None:
        """Lets a fault happen now."""
        with self._changed:
            self._happen(fault)

    def wait(self, timeout_seconds: float) -> tuple[HealthEvent, ...]:
        """See HealthLib.wait; HardwareError as for ``cards``."""
        with self._changed:
            deadline = self._monotonic() + timeout_seconds
            while True:
                self._advance()
                left = deadline - self._monotonic()
                if self._events or self._closed or left <= 0:
                    events, self._events = tuple(self._events), []
                    return events
                self._changed.wait(min(left, _POLL_SECONDS))

    def close(self) -> None:
        """Wakes whoever waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def update(self, key: str, change: Callable[[CardState], CardState]) -> CardState:
        """Changes one card and keeps its MIG state on disk.

        Raises:
            StateError: the state folder cannot be written; the card is unchanged then.
        """
        with self._changed:
            changed = change(self._cards[key])
            self._save_mig({**self._cards, key: changed})
            self._cards[key] = changed
            return changed

    # --- faults ---------------------------------------------------------------------------

    def _advance(self) -> None:
        self._read_file()
        now = self.elapsed()
        while self._pending and self._pending[0].after_seconds <= now:
            self._happen(self._pending.pop(0))

    def _read_file(self) -> None:
        path = self._folder / FAULTS_FILE
        try:
            stat = path.stat()
        except FileNotFoundError:
            return
        stamp = (stat.st_mtime_ns, stat.st_size)
        if stamp == self._file_stamp:
            return
        self._file_stamp = stamp
        try:
            faults = read_faults(path)
        except InputError as error:
            # Whoever waits or discovers did nothing wrong: for them the hardware misbehaves.
            raise HardwareError(str(error), hint="correct the file") from error
        for fault in faults[self._from_file :]:
            self._happen(fault)
        self._from_file = len(faults)

    def _happen(self, fault: Fault) -> None:
        key = self._key_of(fault.gpu)
        if key is None:
            return
        if fault.kind in (FaultKind.LOST, FaultKind.RECOVERED):
            lost = fault.kind is FaultKind.LOST
            if lost or fault.xid is None:
                self._cards[key] = dataclasses.replace(self._cards[key], lost=lost)
        self._events.append(
            HealthEvent(
                gpu=key,
                kind=HealthKind(fault.kind.value),
                xid=fault.xid,
                gpu_instance_id=fault.gpu_instance_id,
                message=fault.message,
            )
        )
        self._changed.notify_all()

    def _key_of(self, gpu: int | str) -> str | None:
        if isinstance(gpu, str):
            return gpu if gpu in self._cards else None
        return self._keys[gpu] if gpu < len(self._keys) else None

    # --- MIG ------------------------------------------------------------------------------

    def _load_mig(self) -> None:
        path = self._folder / MIG_FILE
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            for key, saved in raw.items():
                if key in self._cards:
                    self._cards[key] = self._restored(key, saved)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise StateError(
                f"cannot be read: {error!r}", obj=str(path), hint="delete the file to start afresh"
            ) from error

    def _restored(self, key: str, saved: dict[str, Any]) -> CardState:
        spec = self._hardware.spec
        mig = spec.boards[spec.gpus[self._keys.index(key)].board].mig
        if mig is None:
            return self._cards[key]
        # A pending switch takes effect now: for a simulated card the restart is the reset.
        pending = bool(saved["pending"])
        instances: tuple[MigInstance, ...] = tuple(
            mig_instance(key, mig, one["profile"], one["start"], one["id"])
            for one in saved["instances"]
        )
        return CardState(mig_enabled=pending, mig_pending=pending, instances=instances)

    def _save_mig(self, cards: dict[str, CardState]) -> None:
        raw = {
            key: {
                "pending": card.mig_pending,
                "instances": [
                    {
                        "profile": one.profile_id,
                        "start": one.placement.start,
                        "id": one.gpu_instance_id,
                    }
                    for one in card.instances
                ],
            }
            for key, card in cards.items()
        }
        path = self._folder / MIG_FILE
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(raw), encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            raise StateError(
                f"cannot be written: {error.strerror}", obj=str(path), hint="free the folder"
            ) from error


def read_faults(path: Path) -> tuple[Fault, ...]:
    """Faults of a ``faults.yaml``.

    Raises:
        InputError: the file is wrong; with its name and line.
    """
    documents = read_documents(path)
    if not documents:
        return ()
    try:
        return _FAULTS.validate_json(json.dumps(documents[0].data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise documents[0].error(str(first["msg"]), first["loc"]) from error
