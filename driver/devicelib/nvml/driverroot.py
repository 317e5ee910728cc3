# SPDX-License-Identifier: Apache-2.0
"""The user-space half of NVIDIA's driver on this host, as container edits.

A container needs the libraries of exactly the driver that runs. They lie below the driver root:
``/`` for a driver installed on the host, ``/run/nvidia/driver`` for NVIDIA's driver container. What
belongs to the driver is told by its version in the file name (``libcuda.so.580.126.20``), which is
the rule that NVIDIA's container toolkit goes by too.

Inside a container the files appear where they lie below the driver root. The short names that
programs link against (``libcuda.so.1``) are made by ``nvidia-cdi-hook`` where it is installed, and
the linker's cache is renewed by it; without the hook each short name is one more mount of the same
file, which the linker finds in its default folders.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpudra.driver.core.edits import ContainerEdits, Hook, Mount

LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64",
)  # fmt: skip
# Libraries of the driver that carry a version of their own.
_UNVERSIONED = ("libnvidia-api.so.", "libnvidia-egl-gbm.so.", "libnvidia-egl-wayland.so.")
PROGRAMS = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl",
)  # fmt: skip
_PROGRAM_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin")
# Sockets are the host's even where the driver comes in a container.
SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_HOOK_PLACES = (
    "usr/bin/nvidia-cdi-hook", "usr/local/nvidia/toolkit/nvidia-cdi-hook", "opt/nvidia-container/toolkit/nvidia-cdi-hook", "usr/local/bin/nvidia-cdi-hook",
)  # fmt: skip
_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("ro", "nosuid", "nodev", "rbind", "rprivate", "noexec")
_FIRMWARE = "lib/firmware/nvidia"
_MAX_LINKS = 8


@dataclass(frozen=True, slots=True)
class Library:
    """One library file with its short names, paths below the driver root."""

    path: str
    links: tuple[tuple[str, str], ...] = ()  # link, and what it says


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRoot:
    """The driver's files of one version.

    Attributes:
        root: host path of the driver root, as the container runtime will mount from it.
        seen: the same folder as this process sees it.
        host: the host's ``/`` as this process sees it, for sockets and the hook.
        version: of the driver, ``580.126.20``.
    """

    root: str
    seen: Path
    host: Path
    version: str

    def edits(self) -> ContainerEdits:
        """Everything of the driver that a container gets, in a fixed order.

        Read anew whenever a folder changed: a driver may be installed or replaced at any time.

        Parts that are missing are left out: a compute-only driver has no graphics libraries, and
        a container without them runs what it can.
        """
        return _edits(self, self._stamp())

    def _stamp(self) -> tuple[int, ...]:
        """Changes with every file that comes to or leaves one of the folders."""
        places = [self.seen / folder for folder in (*LIBRARY_FOLDERS, *_PROGRAM_FOLDERS)]
        places += [self.seen / _FIRMWARE, *(self.host / path for path in (*_HOOK_PLACES, *SOCKETS))]
        return tuple(place.stat().st_mtime_ns if place.exists() else 0 for place in places)

    def read(self) -> ContainerEdits:
        """What ``edits`` says, read from the disk."""
        libraries = tuple(self.libraries())
        hook = self._hook()
        mounts = [self._mount(library.path) for library in libraries]
        if hook is None:
            mounts += [
                self._mount(library.path, link)
                for library in libraries
                for link, _ in library.links
            ]
        mounts += [self._mount(path) for path in self._files()]
        mounts += [
            Mount(host_path=f"/{path}", container_path=f"/{path}", options=_SOCKET)
            for path in SOCKETS
            if (self.host / path).exists()
        ]
        hooks = self._hooks(hook, libraries) if hook is not None else ()
        return ContainerEdits(mounts=tuple(mounts), hooks=hooks)

    def libraries(self) -> Iterator[Library]:
        """The driver's libraries, each file once, ascending by folder and name."""
        done: set[Path] = set()
        for folder in LIBRARY_FOLDERS:
            place = self.seen / folder
            if not place.is_dir() or place.resolve() in done:
                continue  # /lib64 is /usr/lib64 on most systems
            done.add(place.resolve())
            links = _links(place)
            for path in sorted(place.iterdir()):
                if self._is_ours(path.name) and not path.is_symlink():
                    short = tuple(
                        (f"{folder}/{name}", says) for name, says in links.get(path.name, ())
                    )
                    yield Library(f"{folder}/{path.name}", short)

    def _is_ours(self, name: str) -> bool:
        return name.endswith(f".so.{self.version}") or name.startswith(_UNVERSIONED)

    def _files(self) -> Iterator[str]:
        """Programs and firmware that exist."""
        for program in PROGRAMS:
            for folder in _PROGRAM_FOLDERS:
                if (self.seen / folder / program).is_file():
                    yield f"{folder}/{program}"
                    break
        firmware = self.seen / _FIRMWARE / self.version
        for path in sorted(firmware.glob("gsp*.bin")):
            yield f"{_FIRMWARE}/{self.version}/{path.name}"

    def _mount(self, path: str, at: str = "") -> Mount:
        host = f"{self.root.rstrip('/')}/{path}"
        return Mount(host_path=host, container_path=f"/{at or path}", options=_READ_ONLY)

    def _hook(self) -> str | None:
        """Host path of nvidia-cdi-hook."""
        return next((f"/{place}" for place in _HOOK_PLACES if (self.host / place).is_file()), None)

    def _hooks(self, program: str, libraries: tuple[Library, ...]) -> tuple[Hook, ...]:
        links = [f"{says}::/{link}" for library in libraries for link, says in library.links]
        folders = dict.fromkeys(f"/{library.path.rpartition('/')[0]}" for library in libraries)
        hooks = []
        if links:
            hooks.append(
                _hook(program, "create-symlinks", [x for link in links for x in ("--link", link)])
            )
        if folders:
            hooks.append(
                _hook(program, "update-ldcache", [x for one in folders for x in ("--folder", one)])
            )
        return tuple(hooks)


@lru_cache(maxsize=4)
def _edits(root: DriverRoot, stamp: tuple[int, ...]) -> ContainerEdits:  # noqa: ARG001 - part of the key
    return root.read()


def _links(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """File → the links of the same folder that end at it, each with what it says; ascending."""
    says = {path.name: str(path.readlink()) for path in folder.iterdir() if path.is_symlink()}
    found: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(says):
        end = name
        for _ in range(_MAX_LINKS):
            if end not in says:
                break
            end = says[end]
        found.setdefault(end, []).append((name, says[name]))
    return found


def _hook(program: str, what: str, words: list[str]) -> Hook:
    return Hook(name="createContainer", path=program, args=("nvidia-cdi-hook", what, *words))
