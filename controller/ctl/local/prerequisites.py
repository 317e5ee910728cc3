# SPDX-License-Identifier: Apache-2.0
"""What the machine must have before a cluster can start on it; checked by ``up``, step one.

Everything is looked at before the first error is shown, so that a person hears of all that is
missing at once. Distribution packages are installed after asking.
"""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.local.cgroups import Cgroups
from gpudra.controller.ctl.local.process import PROC, command_line
from gpudra.controller.ctl.local.progress import Progress

MINIMUM_GO = (1, 26)
BUILD_DISK_GIB = 12
"""Go's build cache takes about 7 GB, the module cache 2, binaries and images 1."""
RUN_DISK_GIB = 2
GIB = 1 << 30
CNI_DIRS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("ptp", "host-local", "loopback")
BUSYBOX_PATHS = (Path("/bin/busybox"), Path("/usr/bin/busybox"), Path("/bin/busybox.static"))


class PrerequisiteError(GpudraError):
    """The machine lacks something that gpudra cannot or may not provide."""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution package, and how to tell that what it brings is there."""

    name: str
    purpose: str
    is_present: Callable[[], bool]


def runc_path() -> Path | None:
    """The container runtime; Debian puts it into ``/usr/sbin``."""
    found = shutil.which("runc", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def cni_dir() -> Path | None:
    """The folder that has all CNI plugins that the nodes use."""
    for directory in CNI_DIRS:
        if all((directory / name).is_file() for name in CNI_PLUGINS):
            return directory
    return None


def busybox_path() -> Path | None:
    """A busybox that needs no shared library, to make images from."""
    return next((path for path in BUSYBOX_PATHS if path.is_file() and is_static_elf(path)), None)


def is_static_elf(path: Path) -> bool:
    """Whether a 64-bit ELF program names no interpreter, that is, needs no dynamic linker."""
    with path.open("rb") as file:
        header = file.read(64)
        if header[:5] != b"\x7fELF\x02":
            return False
        offset = int.from_bytes(header[32:40], "little")
        size, count = (
            int.from_bytes(header[54:56], "little"),
            int.from_bytes(header[56:58], "little"),
        )
        file.seek(offset)
        table = file.read(size * count)
    program_interpreter = 3
    return all(
        int.from_bytes(table[start : start + 4], "little") != program_interpreter
        for start in range(0, len(table), size)
    )


PACKAGES: tuple[Package, ...] = (
    Package("runc", "runs containers", lambda: runc_path() is not None),
    Package(
        "containernetworking-plugins", "connects pods to the network", lambda: cni_dir() is not None
    ),
    Package(
        "busybox-static",
        "fills the images that run without a registry",
        lambda: busybox_path() is not None,
    ),
)


def host_ip() -> str:
    """The machine's address that kubelets report; no packet is sent to find it.

    Raises:
        PrerequisiteError: the machine has no route but the loopback.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise PrerequisiteError(
            f"the machine has no IPv4 route ({error})",
            hint="a kubelet refuses loopback addresses: connect the machine to a network, or add a dummy interface",
        ) from error
    return address


def parse_go_version(text: str) -> tuple[int, ...]:
    """``go version go1.26.8 linux/amd64`` -> ``(1, 26, 8)``; empty when not understood."""
    match = re.search(r"\bgo(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def required_go(tools_dir: Path) -> tuple[int, ...]:
    """The newest ``go`` line of the tool modules."""
    versions = [MINIMUM_GO]
    for file in tools_dir.glob("*/go.mod"):
        match = re.search(r"^go (\d+(?:\.\d+)*)$", file.read_text(), re.MULTILINE)
        if match:
            versions.append(tuple(int(part) for part in match.group(1).split(".")))  # type: ignore[arg-type]
    return max(versions)


def _go_problem(tools_dir: Path) -> str:
    needed = required_go(tools_dir)
    text = ".".join(map(str, needed))
    if shutil.which("go") is None:
        return f"Go is not installed: install Go {text} or newer from your distribution or go.dev, and put it on PATH"
    answer = subprocess.run(["go", "version"], capture_output=True, text=True, check=False, cwd="/")
    found = parse_go_version(answer.stdout)
    # A Go that may fetch a newer toolchain does so by itself.
    fetches = subprocess.run(
        ["go", "env", "GOTOOLCHAIN"], capture_output=True, text=True, check=False, cwd="/"
    )
    enough = found >= (MINIMUM_GO if fetches.stdout.strip().startswith("auto") else needed)
    if enough:
        return ""
    return f"Go {'.'.join(map(str, found)) or answer.stderr.strip()} is too old: Go {text} or newer is needed"


def _disk_problem(path: Path, needed_gib: int) -> str:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free / GIB
    if free >= needed_gib:
        return ""
    return f"{existing} has {free:.1f} GiB free, {needed_gib} GiB are needed: free some, or set GPUDRA_LOCAL_DIR"


def _go_cache() -> Path:
    """Where Go keeps what it compiled; the home folder when Go cannot be asked."""
    if shutil.which("go") is None:
        return Path.home()
    answer = subprocess.run(
        ["go", "env", "GOCACHE"], capture_output=True, text=True, check=False, cwd="/"
    )
    return Path(answer.stdout.strip() or Path.home())


def _foreign_kubelet() -> str:
    """A kubelet in its default folder is of a real node, whose sockets ours would replace."""
    for entry in PROC.iterdir():
        argv = command_line(int(entry.name)) if entry.name.isdigit() else ()
        is_kubelet = bool(argv) and Path(argv[0]).name == "kubelet"
        if is_kubelet and not any(argument.startswith("--root-dir") for argument in argv):
            return (
                f"this machine is a node of another cluster (kubelet, pid {entry.name}): "
                "use a machine of its own for the local cluster"
            )
    return ""


def problems(*, tools_dir: Path, base: Path, must_build: bool) -> list[str]:
    """All that is missing and that no package of the distribution brings, one sentence each."""
    found: list[str] = []
    if platform.system() != "Linux":
        found.append(
            f"the local cluster runs on Linux, this is {platform.system()}: see deploy/kind/"
        )
    if os.geteuid() != 0:
        found.append("containers and cgroups need root: run it as root, for example with sudo -E")
    if must_build:
        found.append(_go_problem(tools_dir))
        found.append(_disk_problem(_go_cache(), BUILD_DISK_GIB))
    found.append(_disk_problem(base, RUN_DISK_GIB))
    found.append(Cgroups().problem())
    found.append(_foreign_kubelet())
    found.extend(
        f"the command {name!r} is missing: install the package util-linux or mount"
        for name in ("mount", "umount")
        if shutil.which(name) is None
    )
    return [problem for problem in found if problem]


def check(*, tools_dir: Path, base: Path, must_build: bool) -> None:
    """Raise one error that names every problem.

    Raises:
        PrerequisiteError: something is missing.
    """
    found = problems(tools_dir=tools_dir, base=base, must_build=must_build)
    if found:
        raise PrerequisiteError(
            "this machine cannot run the local cluster:\n  - " + "\n  - ".join(found)
        )


def answers_yes(assume_yes: bool) -> bool:
    """Whether to install without asking: ``--yes``, ``YES=1`` or a set ``CI``."""
    return assume_yes or os.environ.get("YES") == "1" or bool(os.environ.get("CI"))


def install_packages(
    progress: Progress, *, assume_yes: bool, ask: Callable[[str], str] = input
) -> None:
    """Name the missing distribution packages, and install them after asking.

    Raises:
        PrerequisiteError: refused, not a Debian-like system, or apt-get failed.
    """
    missing = [package for package in PACKAGES if not package.is_present()]
    if not missing:
        return
    names = [package.name for package in missing]
    command = "apt-get install " + " ".join(names)
    for package in missing:
        progress.note(f"missing package {package.name}: {package.purpose}")
    if shutil.which("apt-get") is None:
        raise PrerequisiteError(
            f"these packages are missing: {', '.join(names)}",
            hint="install what brings runc, the CNI plugins (ptp, host-local, loopback) and a static busybox",
        )
    if not answers_yes(assume_yes):
        if not sys.stdin.isatty():
            raise PrerequisiteError(
                f"these packages are missing: {', '.join(names)}",
                hint=f"run `{command}`, or give --yes",
            )
        if ask(f"Install {', '.join(names)} with apt-get now? [y/N] ").strip().lower() not in {
            "y",
            "yes",
        }:
            raise PrerequisiteError(
                "the packages were not installed", hint=f"run `{command}` and come back"
            )
    _apt(["update"], progress)
    _apt(["install", "-y", "--no-install-recommends", *names], progress)
    still = [package.name for package in PACKAGES if not package.is_present()]
    if still:
        raise PrerequisiteError(f"installed, yet not found: {', '.join(still)}")


def _apt(arguments: list[str], progress: Progress) -> None:
    progress.note("apt-get " + " ".join(arguments))
    result = subprocess.run(
        ["apt-get", "-q", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise PrerequisiteError(
            f"apt-get {arguments[0]} failed:\n{(result.stdout + result.stderr)[-1500:]}"
        )
