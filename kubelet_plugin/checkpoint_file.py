# SPDX-License-Identifier: Apache-2.0
"""The checkpoint on disk: format, reading, writing, and what is damaged.

Two files of the same format::

    checkpoint.json           survives a power cut: content and name are synced
    checkpoint.volatile.json  survives a killed process; neither synced nor atomic

A file is two lines of JSON. The first is the header: kind, version, a sequence number, and the
CRC-32 of the second line as it stands in the file, so that fields which a later version adds
never make a file look damaged. The second holds the boot id and the claims.

The file with the higher sequence number counts. The volatile one takes reservations whose steps
leave nothing behind after a power cut (a CDI file is written anew at start): it costs 0.2 ms where
a synced write costs several, see docs/decisions/0010-one-sync-per-prepare.md. A damaged volatile
file is ignored: the durable one is complete as of the last answer that was given, and what a
lost reservation may have left behind is a CDI file that belongs to no claim, removed at start.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gpudra.api.errors import InputError, StateError
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.records import ClaimRecord

KIND = "gpudra-checkpoint"
VERSION = 1
DURABLE_NAME = "checkpoint.json"
VOLATILE_NAME = "checkpoint.volatile.json"


class DamagedError(StateError):
    """The file cannot be trusted; it has to be put aside and the state rebuilt."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint says.

    Attributes:
        sequence: grows with every write, across processes.
        boot_id: the boot in which it was written.
        claims: records by claim uid.
        extra: fields of the body that this version does not know, written back as they are.
    """

    sequence: int = 0
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

    def to_bytes(self) -> bytes:
        """Header and body."""
        claims = b",".join(b'"%b":%b' % (uid.encode(), raw) for uid, raw in self.claims.items())
        rest = orjson.dumps({"bootID": self.boot_id, **self.extra})
        body = b'%b,"claims":{%b}}' % (rest[:-1], claims)
        header = {
            "kind": KIND,
            "version": VERSION,
            "sequence": self.sequence,
            "crc32": f"{zlib.crc32(body):08x}",
        }
        return orjson.dumps(header) + b"\n" + body + b"\n"


def encode_record(record: ClaimRecord) -> bytes:
    """One claim as it stands in the body."""
    return orjson.dumps(record.to_dict())


def decode(raw: bytes, name: str) -> Content:
    """Reads a file's bytes.

    Raises:
        DamagedError: cut, changed, not ours, or from a newer version; the message says which.
    """
    header_line, _, body_line = raw.partition(b"\n")
    header = _object(header_line, name, "the first line is not JSON")
    if header.get("kind") != KIND:
        raise DamagedError(f"is not a {KIND}", obj=name)
    if header.get("version") != VERSION:
        raise DamagedError(
            f"has version {header.get('version')!r}, this program reads {VERSION}", obj=name
        )
    body_line = body_line.rstrip(b"\n")
    if f"{zlib.crc32(body_line):08x}" != header.get("crc32"):
        raise DamagedError("does not have the checksum that it states", obj=name)
    body = dict(_object(body_line, name, "the second line is not JSON"))
    try:
        claims = {
            str(uid): ClaimRecord.from_dict(record)
            for uid, record in dict(body.pop("claims", {})).items()
        }
        return Content(
            sequence=int(header.get("sequence", 0)),
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


class CheckpointFile:
    """The two files in one folder. Blocks; one caller at a time."""

    def __init__(self, folder: Path, *, observe: files.Observe = files.ignore) -> None:
        self.folder = folder
        self._observe = observe
        self._durable = folder / DURABLE_NAME
        self._volatile = folder / VOLATILE_NAME

    def load(self) -> Content | None:
        """The newest content; None if there never was one.

        Raises:
            DamagedError: the durable file cannot be trusted.
            StateError: the system does not let us read.
        """
        durable = self._read(self._durable)
        try:
            volatile = self._read(self._volatile)
        except DamagedError:
            volatile = None
        found = [one for one in (durable, volatile) if one is not None]
        return max(found, key=lambda one: one.sequence) if found else None

    def save(self, content: Encoded, *, durable: bool) -> None:
        """Replaces the durable or the volatile file.

        Raises:
            StateError: the system refuses; the durable file is as it was.
        """
        if durable:
            files.write_atomically(
                self._durable, content.to_bytes(), sync=True, observe=self._observe
            )
        else:
            files.overwrite(self._volatile, content.to_bytes(), observe=self._observe)

    def put_aside(self, suffix: str) -> Path:
        """Renames the damaged durable file, so that a person can look at it; drops the other.

        Returns:
            Where it is now.
        """
        aside = self._durable.with_name(f"{DURABLE_NAME}.damaged-{suffix}")
        with files.explained(self._durable, "put aside"):
            self._durable.replace(aside)
        files.remove(self._volatile)
        return aside

    def signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes whenever somebody writes one of the files."""
        return (_signature(self._durable), _signature(self._volatile))

    def _read(self, path: Path) -> Content | None:
        with files.explained(path, "read"):
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                return None
        return decode(raw, str(path))


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
