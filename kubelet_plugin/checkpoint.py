# SPDX-License-Identifier: Apache-2.0
"""The claims that this node holds, in memory and on disk.

Commits that are asked for while one is being written go to disk together with the next one: 64
claims of one call cost two writes, not 64. What was asked for is visible in ``records`` at once,
so that a reservation stands from the moment it is made, and is taken back if it cannot be stored.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.kubelet_plugin.checkpoint_file import (
    CheckpointFile,
    Content,
    Encoded,
    Loaded,
    encode_record,
)
from gpudra.kubelet_plugin.records import Changes, ClaimRecord, Records

Blocking = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class _Commit:
    changes: Changes
    durable: bool
    done: asyncio.Future[None]


class Checkpoint:
    """In-memory view and group commit over a CheckpointFile.

    Args:
        file: where it lies.
        boot_id: of the running kernel, written with every commit.
        blocking: runs a blocking function in a worker thread.
        on_write: told how many seconds each write took.
        monotonic: clock for that.
    """

    def __init__(
        self,
        file: CheckpointFile,
        *,
        boot_id: str,
        blocking: Blocking = asyncio.to_thread,
        on_write: Callable[[float], None] = lambda _seconds: None,
        monotonic: Callable[[], float],
    ) -> None:
        self.file = file
        self.boot_id = boot_id
        self._blocking = blocking
        self._on_write = on_write
        self._monotonic = monotonic
        self._stored: dict[str, ClaimRecord] = {}
        self._encoded: dict[str, bytes] = {}
        self._view: dict[str, ClaimRecord] = {}
        self._extra: Mapping[str, Any] = {}
        self._sequence = 0
        self._queue: list[_Commit] = []
        self._writer: asyncio.Task[None] | None = None
        self._signature: object = None

    @property
    def records(self) -> Records:
        """Every claim by uid, reservations that are on their way to the disk included."""
        return self._view

    def load(self) -> Loaded:
        """Reads the disk and replaces the view. Blocks; used at start and by ``refresh``.

        Raises:
            StateError: it cannot be read.
        """
        signature = self.file.signature()
        loaded = self.file.load()
        self.adopt(loaded.content or Content())
        self._signature = signature
        return loaded

    def adopt(self, content: Content) -> None:
        """Takes over content that was read or rebuilt; the next commit writes all of it."""
        self._stored = dict(content.claims)
        self._view = dict(content.claims)
        self._encoded = {uid: encode_record(record) for uid, record in content.claims.items()}
        self._extra = content.extra
        self._sequence = max(self._sequence, content.sequence)

    def refresh(self) -> Loaded | None:
        """Reads again if another instance wrote meanwhile. Only while nothing is being committed.

        What this process knows stays in force if the newest that can be read is older, because
        the newer file is damaged: the next commit writes all of it.

        Returns:
            What was read; None if nobody wrote.

        Raises:
            StateError: the system does not let us read.
        """
        if self._queue or self._writer is not None or self.file.signature() == self._signature:
            return None
        signature = self.file.signature()
        loaded = self.file.load()
        if loaded.content is not None and loaded.content.sequence >= self._sequence:
            self.adopt(loaded.content)
        self._signature = signature
        return loaded

    async def commit(self, changes: Changes, *, durable: bool = True) -> None:
        """Stores records (None removes one).

        Args:
            changes: by claim uid.
            durable: False where losing it in a power cut is harmless.

        Raises:
            StateError: nothing of ``changes`` was stored, and ``records`` is as before.
        """
        commit = _Commit(changes, durable, asyncio.get_running_loop().create_future())
        self._queue.append(commit)
        _apply(self._view, changes)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_queue())
        await commit.done

    async def _write_queue(self) -> None:
        try:
            while self._queue:
                # One turn, so that everybody who is about to commit comes along.
                await asyncio.sleep(0)
                batch, self._queue = self._queue, []
                await self._write(batch)
        finally:
            self._writer = None

    async def _write(self, batch: list[_Commit]) -> None:
        encoded = dict(self._encoded)
        for commit in batch:
            for uid, record in commit.changes.items():
                if record is None:
                    encoded.pop(uid, None)
                else:
                    encoded[uid] = encode_record(record)
        content = Encoded(self._sequence + 1, self.boot_id, encoded, self._extra)
        began = self._monotonic()
        durable = any(commit.durable for commit in batch)
        try:
            # Content that is not synced goes to the page cache: a thread would cost more.
            save = self._blocking if durable else _at_once
            signature = await save(self._save, content, durable)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it was, those who wait must know
            self._refuse(batch, error)
            return
        self._on_write(self._monotonic() - began)
        self._signature = signature
        self._sequence = content.sequence
        self._encoded = encoded
        for commit in batch:
            _apply(self._stored, commit.changes)
            if not commit.done.done():
                commit.done.set_result(None)

    def _save(self, content: Encoded, durable: bool) -> object:
        self.file.save(content, durable=durable)
        return self.file.signature()

    def _refuse(self, batch: list[_Commit], error: BaseException) -> None:
        view = dict(self._stored)
        for waiting in self._queue:
            _apply(view, waiting.changes)
        self._view.clear()
        self._view.update(view)
        for commit in batch:
            if not commit.done.done():
                commit.done.set_exception(error)


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _apply(records: dict[str, ClaimRecord], changes: Changes) -> None:
    for uid, record in changes.items():
        if record is None:
            records.pop(uid, None)
        else:
            records[uid] = record


def replaced(record: ClaimRecord, **changes: Any) -> ClaimRecord:
    """The record with some fields changed."""
    return dataclasses.replace(record, **changes)
