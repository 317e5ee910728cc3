# SPDX-License-Identifier: Apache-2.0
"""The checkpoint on disk: format, reading, writing, and what is damaged.

Two files of the same format, ``checkpoint.0.json`` and ``checkpoint.1.json``, written in turns and
in place: while one is written, the other holds the last content that is safe on the disk. That is
as atomic as writing aside and renaming, and costs the disk half as much (no name changes), see
docs/decisions/0010-one-sync-per-prepare.md.

A file is two lines of JSON and padding. The first is the header: kind, version, a sequence number,
whether the content was synced, and the CRC-32 of these and of the second line as it stands in the
file, so that fields which a later version adds never make a file look damaged. The second line
holds the boot id and the claims. The readable file with the higher sequence number counts.

The first agents wrote ``checkpoint.json`` and ``checkpoint.volatile.json``, and a checksum of the
second line alone. Such files are read where they are newer than ours, and removed as soon as their
content is safe in one of ours: an old agent that is put back finds none, and so looks at the CDI
files instead of believing what has changed since.

Content that is not synced survives a killed process, but not a power cut. It goes where the next
synced content will go, so it never takes the place of the last safe one.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from gpudra.api.errors import InputError, StateError
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.records import ClaimRecord

KIND = "gpudra-checkpoint"
VERSION = 1
NAMES = ("checkpoint.0.json", "checkpoint.1.json")
FIRST_NAMES = ("checkpoint.json", "checkpoint.volatile.json")
# A file grows in these steps, so that writing in place needs no new blocks, even on a full disk.
_BLOCK = 16 * 1024
_HEADER_BYTES = 256


class DamagedError(StateError):
    """The file cannot be trusted; it has to be put aside and the state rebuilt."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint says.

    Attributes:
        sequence: grows with every write, across processes.
        durable: whether it was synced.
        boot_id: the boot in which it was written.
        claims: records by claim uid.
        extra: fields of the body that this version does not know, written back as they are.
    """

    sequence: int = 0
    durable: bool = True
    boot_id: str = ""
    claims: Mapping[str, ClaimRecord] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A body ready to be written; claims are encoded one by one and kept while unchanged."""

    sequence: int
    boot_id: str
    claims: Mapping[str, bytes]
    extra: Mapping[str, Any]

    def to_bytes(self, *, durable: bool = True) -> bytes:
        """Header and body."""
        claims = b",".join(b'"%b":%b' % (uid.encode(), raw) for uid, raw in self.claims.items())
        rest = orjson.dumps({"bootID": self.boot_id, **self.extra})
        body = b'%b,"claims":{%b}}' % (rest[:-1], claims)
        header = {
            "kind": KIND,
            "version": VERSION,
            "sequence": self.sequence,
            "durable": durable,
            "crc32": _checksum(self.sequence, durable, body),
        }
        return orjson.dumps(header) + b"\n" + body + b"\n"


def _checksum(sequence: object, durable: object, body: bytes) -> str:
    return _crc32(body, zlib.crc32(f"{VERSION} {sequence} {durable}".encode()))


def _crc32(body: bytes, start: int = 0) -> str:
    return f"{zlib.crc32(body, start):08x}"


def encode_record(record: ClaimRecord) -> bytes:
    """One claim as it stands in the body."""
    return orjson.dumps(record.to_dict())


def decode(raw: bytes, name: str) -> Content:
    """Reads a file's bytes.

    Raises:
        DamagedError: cut, changed, not ours, or from a newer version; the message says which.
    """
    header_line, _, rest = raw.partition(b"\n")
    body_line = rest.partition(b"\n")[0]
    header = _object(header_line, name, "the first line is not JSON")
    if header.get("kind") != KIND:
        raise DamagedError(f"is not a {KIND}", obj=name)
    if header.get("version") != VERSION:
        raise DamagedError(
            f"has version {header.get('version')!r}, this program reads {VERSION}", obj=name
        )
    sequence, durable = header.get("sequence"), header.get("durable")
    # Without the word it is a file of the first agents.
    first = "durable" not in header
    wanted = _crc32(body_line) if first else _checksum(sequence, durable, body_line)
    if wanted != header.get("crc32"):
        raise DamagedError("does not have the checksum that it states", obj=name)
    body = dict(_object(body_line, name, "the second line is not JSON"))
    try:
        claims = {
            str(uid): ClaimRecord.from_dict(record)
            for uid, record in dict(body.pop("claims", {})).items()
        }
        return Content(
            sequence=int(str(sequence)),
            durable=bool(durable) or first,
            boot_id=str(body.pop("bootID", "")),
            claims=claims,
            extra=body,
        )
    except (InputError, TypeError, ValueError) as error:
        raise DamagedError(f"holds a record that cannot be read: {error}", obj=name) from error


def _object(raw: bytes, name: str, otherwise: str) -> Mapping[str, Any]:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise DamagedError(otherwise, obj=name) from error
    if not isinstance(found, dict):
        raise DamagedError(otherwise, obj=name)
    return found


@dataclass(frozen=True, slots=True)
class Loaded:
    """What lies in the folder.

    Attributes:
        content: the newest that can be read; None if there is none.
        damaged: files that cannot be read, and why. The newest content may have been in one.
    """

    content: Content | None
    damaged: Mapping[Path, DamagedError] = field(default_factory=dict)


class CheckpointFile:
    """The two files in one folder. Blocks; one caller at a time."""

    def __init__(self, folder: Path, *, observe: files.Observe = files.ignore) -> None:
        self.folder = folder
        self._observe = observe
        self._paths = tuple(folder / name for name in NAMES)
        # Which of the two must not be written next: it holds the last safe content.
        self._safe: int | None = None

    def load(self) -> Loaded:
        """Reads both files.

        Raises:
            StateError: the system does not let us read.
        """
        found: dict[int, Content] = {}
        damaged: dict[Path, DamagedError] = {}
        for number, path in enumerate(self._paths):
            try:
                raw = _read(path)
                if raw:
                    found[number] = decode(raw, str(path))
            except DamagedError as error:
                damaged[path] = error
        newest = max(found, key=lambda number: found[number].sequence, default=None)
        durable = [number for number, content in found.items() if content.durable]
        self._safe = max(durable, key=lambda number: found[number].sequence, default=newest)
        content = None if newest is None else found[newest]
        return Loaded(self._of_first_agents(content, damaged) or content, damaged)

    def _of_first_agents(
        self, ours: Content | None, damaged: dict[Path, DamagedError]
    ) -> Content | None:
        """What an agent of the first kind wrote after ours; its numbers began anew."""
        written = max((_changed(path) for path in self._paths), default=0)
        found: list[Content] = []
        for path in (self.folder / name for name in FIRST_NAMES):
            try:
                raw = _read(path)
                if raw and _changed(path) > written:
                    found.append(decode(raw, str(path)))
            except DamagedError as error:
                damaged[path] = error
        newest = max(found, key=lambda one: one.sequence, default=None)
        if newest is None or ours is None:
            return newest
        return replace(newest, sequence=max(newest.sequence, ours.sequence))

    def save(self, content: Encoded, *, durable: bool) -> None:
        """Writes the file whose turn it is, and waits for the disk if ``durable``.

        Raises:
            StateError: the system refuses; the other file still holds the last safe content.
        """
        number = 0 if self._safe is None else 1 - self._safe
        files.overwrite(
            self._paths[number],
            content.to_bytes(durable=durable),
            sync=durable,
            block=_BLOCK,
            observe=self._observe,
        )
        if durable:
            self._safe = number
            for name in FIRST_NAMES:
                files.remove(self.folder / name)

    def put_aside(self, path: Path, suffix: str) -> Path:
        """Renames a damaged file, so that a person can look at it; where it is now."""
        aside = path.with_name(f"{path.name}.damaged-{suffix}")
        with files.explained(path, "put aside"):
            path.replace(aside)
        return aside

    def signature(self) -> tuple[bytes, ...]:
        """The headers: different whenever somebody wrote. Times would not do, their grain is coarse."""
        return tuple(_read(path, _HEADER_BYTES).partition(b"\n")[0] for path in self._paths)


def _changed(path: Path) -> int:
    """When it was written last, in nanoseconds; 0 if it is not there."""
    with files.explained(path, "read"):
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0


def _read(path: Path, limit: int = -1) -> bytes:
    with files.explained(path, "read"):
        try:
            with path.open("rb", buffering=0) as file:
                return file.read(limit) or b""
        except FileNotFoundError:
            return b""
