# SPDX-License-Identifier: Apache-2.0
"""Where the plugin's two sockets lie, and what to do with one that is in the way.

The kubelet watches ``plugins_registry/`` for sockets and asks each for the plugin behind it; the
plugin's own services are at the endpoint named there. During a rolling update two instances of one
driver are registered, so the instance's uid is part of the names (kubelet >= 1.33).
"""

import hashlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import InputError
from gpudra.kubelet_plugin import files

# sun_path of Linux holds 108 bytes, the last one is NUL.
MAX_PATH = 107
_HASH_LENGTH = 12
_SUFFIX = ".sock"


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """Both sockets of one instance."""

    service: Path
    registration: Path


def socket_paths(kubelet_root: Path, driver: str, instance_uid: str = "") -> SocketPaths:
    """Names as the kubelet's own helper chooses them, shortened by hashing where too long.

    Args:
        kubelet_root: holds ``plugins/`` and ``plugins_registry/``.
        driver: this driver's name.
        instance_uid: of the pod; empty = one instance at a time.

    Raises:
        InputError: even the shortened name does not fit, so the folder has to be shorter.
    """
    unique = f"-{instance_uid}" if instance_uid else ""
    return SocketPaths(
        service=_fitting(kubelet_root / "plugins" / driver, f"dra{unique}"),
        registration=_fitting(kubelet_root / "plugins_registry", f"{driver}{unique}-reg"),
    )


def _fitting(folder: Path, stem: str) -> Path:
    path = folder / f"{stem}{_SUFFIX}"
    if _length(path) <= MAX_PATH:
        return path
    digest = hashlib.sha256(stem.encode()).hexdigest()[:_HASH_LENGTH]
    short = folder / f"{digest}{_SUFFIX}"
    if _length(short) <= MAX_PATH:
        return short
    raise InputError(
        f"the socket path {short} has {_length(short)} bytes, the system allows {MAX_PATH}",
        field="kubelet-root",
        hint="use a shorter --kubelet-root or driver name",
    )


def _length(path: Path) -> int:
    return len(os.fsencode(path))


def clear_stale(path: Path) -> None:
    """Makes way for a new socket: removes one that nobody serves any more.

    Raises:
        InputError: a living process serves it, or it is not a socket at all.
        StateError: the system refuses.
    """
    with files.explained(path, "look at"):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
    if not stat.S_ISSOCK(mode):
        raise InputError("is in the way and is not a socket", obj=str(path), hint="move it away")
    if is_served(path):
        raise InputError(
            "is served by another process",
            obj=str(path),
            hint="end the other instance, or give both their own --instance-uid",
        )
    files.remove(path)


def remove_dead_siblings(paths: SocketPaths, driver: str) -> list[Path]:
    """Removes sockets that killed instances of this driver left in both folders.

    Only names that this driver's instances use, and only if nobody answers. Hashed names cannot
    be told from others' and stay, except our own.
    """
    dead = []
    for folder, prefix in (
        (paths.service.parent, "dra"),
        (paths.registration.parent, f"{driver}-"),
    ):
        for path in sorted(folder.glob(f"{prefix}*{_SUFFIX}")):
            if path not in (paths.service, paths.registration) and _dead(path):
                files.remove(path)
                dead.append(path)
    return dead


def _dead(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode) and not is_served(path)
    except FileNotFoundError:
        return False


def is_served(path: Path) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # Busy, or not ours to touch: in doubt it lives.
            return True
        return True
