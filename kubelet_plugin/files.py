# SPDX-License-Identifier: Apache-2.0
"""Small files written so that a reader sees the old one, none, or the whole new one.

Everything blocks; callers use worker threads. Errors of the system become StateErrors that name
the path and say what to do.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gpudra.api.errors import StateError

TEMPORARY = ".tmp"

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space on it",
    errno.EDQUOT: "the quota is used up: raise it or free some space",
    errno.EROFS: "the file system is read-only: mount it writable or choose another folder",
    errno.EACCES: "permission denied: run as root, or give this user the folder",
    errno.EPERM: "permission denied: run as root, or give this user the folder",
    errno.ENOENT: "the folder is gone: create it again",
    errno.EIO: "the disk reports an error: look at the kernel's log",
}

Observe = Callable[[str], None]


def ignore(_point: str) -> None:
    """The observer that looks at nothing."""


@contextlib.contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turns an OSError inside into a StateError about ``path``."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = _HINTS.get(error.errno or 0, "look at the folder and the kernel's log")
        raise StateError(f"cannot {doing}: {reason}", obj=str(path), hint=hint) from error


def write_atomically(
    path: Path, content: bytes, *, sync: bool, observe: Observe = ignore, mode: int = 0o600
) -> None:
    """Writes aside, then renames.

    Args:
        path: the file; its folder must exist.
        content: all of it.
        sync: whether content and name must survive a power cut once this returns.
        observe: told ``<file>:written`` and ``<file>:renamed``; tests end the process there.
        mode: permissions of a new file.

    Raises:
        StateError: the system refuses; the old file is as it was and nothing is left beside it.
    """
    aside = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        with explained(path, "write"):
            _write(aside, content, mode, sync=sync)
            observe(f"{path.name}:written")
            aside.replace(path)
            observe(f"{path.name}:renamed")
            if sync:
                sync_path(path.parent)
    except StateError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def _write(path: Path, content: bytes, mode: int, *, sync: bool) -> None:
    # A handful of system calls: this runs for every claim, and open() costs twice as much.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def overwrite(
    path: Path, content: bytes, *, sync: bool, block: int, observe: Observe = ignore
) -> None:
    """Writes over a file in place, padded with spaces to whole blocks; it never shrinks.

    Not atomic: a process that is killed inside leaves a mixture, so the content has to carry a
    checksum and the caller has to keep the content of before elsewhere.

    Args:
        path: the file; made if it is not there.
        content: all of it.
        sync: whether the content must survive a power cut once this returns.
        block: bytes; the file's length is a multiple.
        observe: told ``<file>:written`` and, if so, ``<file>:synced``.

    Raises:
        StateError: the system refuses; the file is emptied as far as possible.
    """
    with explained(path, "write"):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(file).st_size
            padded = content.ljust(max(size, -(-len(content) // block) * block))
            _pwrite(file, padded)
            observe(f"{path.name}:written")
            if sync:
                os.fdatasync(file)
                observe(f"{path.name}:synced")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
            raise
        finally:
            os.close(file)
        if sync and size == 0:
            sync_path(path.parent)


def _pwrite(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.pwrite(file, view, len(content) - len(view)) :]


def sync_path(path: Path) -> None:
    """Waits until a file's content, or a folder's names, are on the disk.

    Raises:
        OSError: the path is gone, or the disk reports an error.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove(path: Path) -> bool:
    """Removes a file; False if there was none.

    Raises:
        StateError: the system refuses.
    """
    with explained(path, "remove"):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True


def make_folder(path: Path, mode: int = 0o750) -> None:
    """Creates a folder and its parents.

    Raises:
        StateError: the system refuses.
    """
    with explained(path, "create the folder"):
        path.mkdir(parents=True, exist_ok=True, mode=mode)
