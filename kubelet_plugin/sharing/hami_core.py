# SPDX-License-Identifier: Apache-2.0
"""HAMi-core: a library in the container that refuses memory over the limit and slows kernels down.

The container gets the library, a line in ``/etc/ld.so.preload``, limits in its environment and a
folder for the cache in which its processes count together. A library that is missing, or that was
built with hidden symbols, is loaded and limits nothing without a word; so the file is looked at
before a claim is told that it is isolated. It is read, never loaded into the agent.
"""

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpudra.api.codec import Json
from gpudra.api.errors import GpudraError, InputError
from gpudra.driver.core import cdi
from gpudra.driver.core.sharing import (
    Backend,
    IsolationReport,
    Places,
    Preload,
    Sharing,
    sharing_report,
)
from gpudra.driver.core.sharing.edits import CACHE_FILE, HAMI_LIBRARY, PRELOAD_FILE
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.sharing.elf import MACHINES, SharedLibrary, read_library
from gpudra.kubelet_plugin.sharing.protocol import DaemonReport
from gpudra.kubelet_plugin.sharing.region import ClaimUsage, read_region
from gpudra.kubelet_plugin.sharing.users import folders_of, remove_tree

# Without any one of these something would go through that the claim was told cannot.
HOOKS = (
    "cuInit",
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemCreate",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuDeviceTotalMem_v2",
    "cuLaunchKernel",
    "dlsym",
    "nvmlDeviceGetMemoryInfo",
)
log = get_logger(__name__)


class HamiCoreBackend:
    """SharingBackend with HAMi-core.

    Args:
        places: where library and folders are.
    """

    name = Backend.HAMI_CORE

    def __init__(self, places: Places) -> None:
        self._places = places
        self._seen: tuple[tuple[int, ...], str] | None = None

    def unavailable(self) -> str:
        """The library has to be there and to show its hooks."""
        if not self._places.hami_library:
            return "no library of HAMi-core is configured"
        path = Path(self._places.hami_library)
        try:
            info = path.stat()
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        stamp = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if self._seen is None or self._seen[0] != stamp:
            self._seen = (stamp, library_problem(path))
        return self._seen[1]

    def prepare(self, one: Sharing) -> Mapping[str, Json]:
        """Makes the claim's folder: the cache, which any user of the container writes."""
        folder = self._folder(one.claim_uid)
        files.make_folder(folder, mode=0o755)
        cache = folder / "cache"
        files.make_folder(cache)
        with files.explained(cache, "open the folder to all users"):
            cache.chmod(0o777)
        if self._places.preload is Preload.FILE:
            line = f"{HAMI_LIBRARY}\n".encode()
            files.write_atomically(folder / PRELOAD_FILE, line, sync=False, mode=0o644)
            with files.explained(folder / PRELOAD_FILE, "make it readable"):
                (folder / PRELOAD_FILE).chmod(0o644)
        return {}

    def undo(self, one: Sharing) -> None:
        """Removes the claim's folder."""
        remove_tree(self._folder(one.claim_uid))

    def present(self, one: Sharing) -> bool:
        """Whether the claim's folder is as it was made."""
        return not list(self._missing(one))

    def verify(self, one: Sharing) -> tuple[str, ...]:
        """The library limits, and the container will find everything."""
        why = self.unavailable()
        return (*((why,) if why else ()), *self._missing(one))

    def _missing(self, one: Sharing) -> Iterator[str]:
        folder = self._folder(one.claim_uid)
        if not os.access(folder / "cache", os.W_OK):
            yield f"{folder / 'cache'} is missing or not writable"
        if self._places.preload is Preload.FILE:
            path = folder / PRELOAD_FILE
            try:
                right = path.read_text() == f"{HAMI_LIBRARY}\n"
            except OSError:
                right = False
            if not right:
                yield f"{path} does not name the library"

    def describe(self, one: Sharing) -> IsolationReport:
        """See gpudra.driver.core.sharing.reports."""
        return sharing_report(one)

    def usage(self, claim_uid: str) -> ClaimUsage | None:
        """What the claim's processes count; None before the first one."""
        return read_region(self._folder(claim_uid) / "cache" / CACHE_FILE)

    def check(self) -> tuple[DaemonReport, ...]:
        """Nothing runs."""
        return ()

    def sweep(self, live: frozenset[str]) -> tuple[str, ...]:
        """Removes folders of claims that are not alive."""
        done = []
        for folder in folders_of(Path(self._places.hami_folder(""))):
            if folder.name in live:
                continue
            try:
                remove_tree(folder)
            except GpudraError as error:
                log.warning("cannot remove a folder, will try again", error=str(error))
                continue
            done.append(f"HAMi-core of claim {folder.name}")
        return tuple(done)

    def _folder(self, claim_uid: str) -> Path:
        return Path(self._places.hami_folder(cdi.check_uid(claim_uid)))


def library_problem(path: Path) -> str:
    """Why a file is no HAMi-core that limits; empty if it is one."""
    try:
        library = read_library(path)
    except InputError as error:
        return str(error)
    return _wrong_machine(path, library) or _hidden(path, library)


def _wrong_machine(path: Path, library: SharedLibrary) -> str:
    here = platform.machine()
    if library.machine == MACHINES.get(here, library.machine):
        return ""
    return f"{path} is for another architecture than {here}"


def _hidden(path: Path, library: SharedLibrary) -> str:
    missing = [name for name in HOOKS if name not in library.exported]
    if not missing:
        return ""
    return (
        f"{path} does not export {', '.join(missing)}, so it would limit nothing: it was built "
        "with hidden symbols, or is another library"
    )
