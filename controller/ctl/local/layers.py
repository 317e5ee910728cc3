# SPDX-License-Identifier: Apache-2.0
"""Layers of an image from files of this machine, and the archive of them; used by ``ownimage``.

A layer is named after what it is made from, so one that was written before is used again, and a
container runtime that has it already unpacks only the others.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a layer.

    Attributes:
        name: path in the image, without the leading slash.
        source: where its content is, or the content; of no meaning for a link.
        link: target of a symbolic link; empty for a file.
        mode: permission bits; those of the source, for all to read, when it is None.
        convert: makes the content from the source file.
    """

    name: str
    source: Path | bytes = b""
    link: str = ""
    mode: int | None = None
    convert: Callable[[Path], bytes] | None = None

    def content(self) -> bytes:
        """What the file holds."""
        if isinstance(self.source, bytes):
            return self.source
        return self.convert(self.source) if self.convert else self.source.read_bytes()

    def permissions(self) -> int:
        """Readable by everybody: the controller's pod is not root."""
        if self.mode is not None:
            return self.mode
        executable = isinstance(self.source, Path) and self.source.stat().st_mode & 0o100
        return 0o755 if executable and not self.convert else 0o644

    def mark(self, *, by_content: bool) -> str:
        """What changes when the file changes."""
        if isinstance(self.source, bytes) or (by_content and not self.convert):
            what = hashlib.sha256(self.content()).hexdigest()
        else:
            stat = self.source.stat()
            # Of a converted file the source stands beside it, and decides.
            what = "" if by_content else f"{stat.st_size} {stat.st_mtime_ns}"
        return f"{self.name}\0{self.link}\0{self.permissions():o}\0{what}\n"


@dataclass(frozen=True, slots=True)
class Layer:
    """Files that change together.

    Attributes:
        name: for people.
        entries: the files that decide which layer it is.
        more: files that follow from ``entries``, asked for only when the layer is written.
        by_content: whether files are told apart by content, not by size and time.
    """

    name: str
    entries: tuple[Entry, ...]
    more: Callable[[], Iterable[Entry]] = tuple
    by_content: bool = False

    def key(self) -> str:
        """Sixteen hex digits that change with the files."""
        digest = hashlib.sha256(self.name.encode())
        for entry in sorted(self.entries, key=lambda one: one.name):
            digest.update(entry.mark(by_content=self.by_content).encode())
        return digest.hexdigest()[:16]

    def write(self, target: Path) -> None:
        """The layer as a tar file that knows neither times nor users of this machine."""
        entries = {entry.name: entry for entry in (*self.entries, *self.more())}
        with tarfile.open(target, mode="w", format=tarfile.PAX_FORMAT) as layer:
            for name in sorted(entries):
                layer.addfile(*_member(entries[name]))


def _member(entry: Entry) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(entry.name)
    info.mode = 0o777 if entry.link else entry.permissions()
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        return info, io.BytesIO()
    content = entry.content()
    info.size = len(content)
    return info, io.BytesIO(content)


def cached(layer: Layer, folder: Path) -> Path:
    """The file of a layer, written unless it is there; older ones of the same name are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{layer.name}-{layer.key()}.tar"
    if not target.is_file():
        # Two clusters may be at it at once.
        partial = target.with_suffix(f".{os.getpid()}")
        layer.write(partial)
        partial.replace(target)
        for other in folder.glob(f"{layer.name}-*.tar"):
            if other != target:
                other.unlink(missing_ok=True)
    return target


def write_archive(
    layers: Sequence[Path],
    target: Path,
    *,
    image: str,
    architecture: str,
    config: dict[str, object],
) -> None:
    """Write a docker-archive of one image.

    Args:
        layers: tar files, lowest first.
        target: the archive.
        image: name and tag.
        architecture: as Go calls it.
        config: what the image says of how it is run (Env, Cmd and so on).
    """
    digests = [_digest(path) for path in layers]
    document = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
            "history": [{"created_by": f"gpudra, {path.stem}"} for path in layers],
        },
        sort_keys=True,
    ).encode()
    name = f"{hashlib.sha256(document).hexdigest()}.json"
    names = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": name, "RepoTags": [image], "Layers": names}]).encode()
    partial = target.with_suffix(f".{os.getpid()}")
    with tarfile.open(partial, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, member in zip(layers, names, strict=True):
            info = tarfile.TarInfo(member)
            info.size, info.mode = path.stat().st_size, 0o644
            with path.open("rb") as stream:
                archive.addfile(info, stream)
        for member, content in ((name, document), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    partial.replace(target)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(MEBIBYTE):
            digest.update(block)
    return digest.hexdigest()
