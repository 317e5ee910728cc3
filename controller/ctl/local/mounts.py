# SPDX-License-Identifier: Apache-2.0
"""Mounts that containers and kubelets leave in our folders; used by ``node`` and ``down``."""

import ctypes
import os
from pathlib import Path

from gpudra.api.errors import GpudraError

_DETACH = 2  # MNT_DETACH of umount2(2)


class MountError(GpudraError):
    """A mount cannot be taken away."""


def mounts(table: str) -> list[tuple[Path, str]]:
    """Mount points and filesystem types of a ``/proc/self/mounts`` text, in mount order."""
    found = []
    for line in table.splitlines():
        fields = line.split()
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        found.append((Path(point), fields[2]))
    return found


def mounts_below(base: Path) -> list[Path]:
    """Mount points in the folder ``base``, which must not contain links."""
    return [
        point for point, _ in mounts(Path("/proc/self/mounts").read_text()) if base in point.parents
    ]


def filesystem_of(path: Path) -> str:
    """Type of the filesystem that holds ``path``."""
    covering = [
        (p, kind)
        for p, kind in mounts(Path("/proc/self/mounts").read_text())
        if p == path or p in path.parents
    ]
    return max(covering, key=lambda item: len(item[0].parts), default=(path, ""))[1]


def unmount_below(base: Path) -> None:
    """Unmount everything below ``base``, latest first; busy mounts are detached."""
    libc = ctypes.CDLL(None, use_errno=True)
    for point in reversed(mounts_below(base)):
        if libc.umount2(os.fsencode(point), _DETACH) != 0:
            code = ctypes.get_errno()
            raise MountError(f"cannot be unmounted: {os.strerror(code)}", obj=str(point))
