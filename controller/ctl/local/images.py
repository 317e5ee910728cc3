# SPDX-License-Identifier: Apache-2.0
"""Images without a registry: docker-archives made from a static busybox, imported with ctr.

Two images share one layer: ``gpudra.local/busybox:1`` for workloads and ``gpudra.local/pause:1``
for pod sandboxes. Pods name the first with ``imagePullPolicy: Never``. The same busybox gives
the same bytes, so an import can be skipped when the archive did not change.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudra.api.errors import GpudraError

BUSYBOX_IMAGE = "gpudra.local/busybox:1"
PAUSE_IMAGE = "gpudra.local/pause:1"
CONTAINERD_NAMESPACE = "k8s.io"

# Ends at once on SIGTERM, which a plain `sleep` as process 1 would ignore, and collects orphans.
_PAUSE_COMMAND = ("/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done")
_USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = "root:x:0:\nnobody:x:65534:\n"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageError(GpudraError):
    """An image could not be made or imported."""


@dataclass(frozen=True, slots=True)
class Image:
    """A name, and the command that runs when a pod gives none."""

    name: str
    command: tuple[str, ...]


IMAGES = (Image(BUSYBOX_IMAGE, ("/bin/sh",)), Image(PAUSE_IMAGE, _PAUSE_COMMAND))


def _add(archive: tarfile.TarFile, name: str, content: bytes = b"", **fields: Any) -> None:
    """Add one entry that does not depend on clock or user."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = 0o755
    for key, value in fields.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(content))


def busybox_layer(busybox: Path, applets: Sequence[str]) -> bytes:
    """A root filesystem: busybox, a link for each applet, and the folders that programs expect."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as layer:
        for directory in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "var", "var/run"):
            mode = 0o1777 if directory == "tmp" else 0o755
            _add(layer, directory, type=tarfile.DIRTYPE, mode=mode)
        _add(layer, "bin/busybox", busybox.read_bytes())
        for applet in sorted(set(applets) - {"busybox"}):
            _add(layer, f"bin/{applet}", type=tarfile.SYMTYPE, linkname="busybox", mode=0o777)
        _add(layer, "etc/passwd", _USERS.encode(), mode=0o644)
        _add(layer, "etc/group", _GROUP.encode(), mode=0o644)
    return buffer.getvalue()


def docker_archive(layer: bytes, images: Sequence[Image], architecture: str) -> bytes:
    """A docker-archive of ``images`` that all consist of the one ``layer``."""
    digest = hashlib.sha256(layer).hexdigest()
    buffer = io.BytesIO()
    manifest = []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        _add(archive, f"{digest}/layer.tar", layer, mode=0o644)
        for image in images:
            config = {
                "architecture": architecture,
                "os": "linux",
                "config": {"Cmd": list(image.command), "Env": ["PATH=/bin"], "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                "history": [{"created_by": f"gpudra local, {image.name}"}],
            }
            content = json.dumps(config, sort_keys=True).encode()
            config_name = f"{hashlib.sha256(content).hexdigest()}.json"
            _add(archive, config_name, content, mode=0o644)
            manifest.append(
                {"Config": config_name, "RepoTags": [image.name], "Layers": [f"{digest}/layer.tar"]}
            )
        _add(archive, "manifest.json", json.dumps(manifest).encode(), mode=0o644)
    return buffer.getvalue()


def architecture() -> str:
    """This machine's, as images call it.

    Raises:
        ImageError: it has no such name.
    """
    found = _ARCHITECTURES.get(platform.machine())
    if found is None:
        raise ImageError(f"no image can be made for the architecture {platform.machine()}")
    return found


def build_archive(busybox: Path, target: Path) -> None:
    """Write the archive of `IMAGES` to ``target``, if it would differ.

    Raises:
        ImageError: busybox does not run, or the machine has an unknown architecture.
    """
    machine = architecture()
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise ImageError(f"does not run: {listed.stderr.strip()}", obj=str(busybox))
    content = docker_archive(busybox_layer(busybox, listed.stdout.split()), IMAGES, machine)
    if target.is_file() and target.read_bytes() == content:
        return
    partial = target.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(target)


def import_archive(
    ctr: Path, socket: Path, archive: Path, stamp: Path, digest: str | None = None
) -> None:
    """Import ``archive`` into a containerd, unless ``stamp`` says that it has just this one.

    Args:
        ctr: the command of containerd.
        socket: absolute path of the containerd socket.
        archive: a docker-archive.
        stamp: file in the containerd's root folder, so that both vanish together.
        digest: what tells this archive from others; made from its content when it is None.

    Raises:
        ImageError: the import failed.
    """
    digest = digest or hashlib.sha256(archive.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    result = subprocess.run(
        [ctr, "-a", socket, "-n", CONTAINERD_NAMESPACE, "images", "import", archive],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise ImageError(
            f"cannot be imported: {(result.stderr or result.stdout).strip()}", obj=str(archive)
        )
    stamp.write_text(digest)


def remove_others(ctr: Path, socket: Path, name: str) -> None:
    """Remove the images of the same repository but the one named, which nobody will ask for again.

    Args:
        ctr: the command of containerd.
        socket: absolute path of the containerd socket.
        name: repository and tag that stay.

    Raises:
        ImageError: the runtime refused.
    """
    command: list[str | Path] = [ctr, "-a", socket, "-n", CONTAINERD_NAMESPACE, "images"]
    listed = subprocess.run([*command, "ls", "-q"], capture_output=True, text=True, check=False)
    repository = name.rpartition(":")[0]
    old = [one for one in listed.stdout.split() if one.rpartition(":")[0] == repository != ""]
    others = [one for one in old if one != name]
    if listed.returncode == 0 and not others:
        return
    result = subprocess.run([*command, "rm", *others], capture_output=True, text=True, check=False)
    if listed.returncode or result.returncode:
        said = (listed.stderr or result.stderr).strip()
        raise ImageError(f"old images of it cannot be removed: {said}", obj=repository)
