# SPDX-License-Identifier: Apache-2.0
"""An image of gpudra without Docker and without a registry; used by ``up`` and ``deploy/container``.

It holds what runs here: this interpreter, the installed distributions that gpudra needs while it
runs, this checkout, and the shared libraries of all of them, in three layers that change ever more
often. Good for this machine and its like; people with a builder use ``deploy/container/Containerfile``,
which makes the same virtual environment on a base image.
"""

import fcntl
import hashlib
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from gpudra.controller.ctl.local.bytecode import compiled
from gpudra.controller.ctl.local.images import ImageError, architecture
from gpudra.controller.ctl.local.layers import Entry, Layer, cached, write_archive
from gpudra.controller.ctl.local.layout import checkout_dir

REPOSITORY = "gpudra.local/gpudra"
PREFIX = "opt/gpudra"
"""The virtual environment in the image."""

SITE = f"{PREFIX}/lib/python3.{sys.version_info.minor}/site-packages"
FOLDERS = ("api", "driver", "kubelet_plugin", "controller")
DATA = {".py", ".yaml", ".json", ".proto", ".pyi", ".typed"}
"""Files of our packages; the same as in pyproject.toml, which a test compares."""

NOT_NEEDED = frozenset({"kubernetes"})
"""Distributions for the command line alone: 126 MB that no pod imports."""

# Parts of the standard library that no server needs.
_LEFT_OUT = {
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("site-packages", "dist-packages", "__pycache__"),
}
_NO_EXTENSIONS = re.compile(r"^(_test|_tkinter|_curses|xxlimited|readline|nis\b|_xx)")
_LAUNCHER = """#!/{prefix}/bin/python
import sys
from {module} import {function}
sys.exit({function}())
"""
_USERS = "root:x:0:0:root:/:/bin/false\ngpudra:x:65532:65532:gpudra:/:/bin/false\n"
_GROUPS = "root:x:0:\ngpudra:x:65532:\n"


@dataclass(frozen=True, slots=True)
class OwnImage:
    """An archive of the image, and the tag it carries."""

    archive: Path
    tag: str

    @property
    def name(self) -> str:
        """Name and tag, as a pod names it."""
        return f"{REPOSITORY}:{self.tag}"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others from replacing the files in ``folder`` while they are read; the lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(folder: Path) -> OwnImage:
    """Write the archive into ``folder``, unless it has the one that would be written; hold it meanwhile.

    The tag carries what the image is made from: pods change when something changed, and only then.

    Raises:
        ImageError: gpudra is not installed here, or the machine has an unknown architecture.
    """
    parts = layers()
    made_from = hashlib.sha256("".join(layer.key() for layer in parts).encode()).hexdigest()
    own = OwnImage(
        folder / f"image-{made_from[:12]}.tar",
        f"{_distribution('gpudra').version}-{made_from[:12]}",
    )
    if not own.archive.is_file():
        files = [cached(layer, folder) for layer in parts]
        config: dict[str, object] = {
            "Env": [
                f"PATH=/{PREFIX}/bin:/bin",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
            ],
            "Cmd": ["gpudra-kubelet-plugin"],
            "WorkingDir": "/",
        }
        write_archive(
            files, own.archive, image=own.name, architecture=architecture(), config=config
        )
        for other in folder.glob("image-*.tar"):
            if other != own.archive:
                other.unlink(missing_ok=True)
    return own


def layers() -> list[Layer]:
    """What goes in, lowest first. Reads our own files and the lists of the distributions.

    Raises:
        ImageError: gpudra is not installed here.
    """
    dependencies = tuple(entry for one in distributions("gpudra") for entry in _installed(one))
    interpreter = (*_interpreter(), *_accounts())
    binaries = [
        entry.source
        for entry in (*interpreter, *dependencies)
        if isinstance(entry.source, Path) and _is_binary(entry)
    ]
    return [
        Layer("python", interpreter, more=lambda: _libraries(binaries)),
        Layer("dependencies", dependencies),
        Layer("gpudra", tuple(_gpudra()), by_content=True),
    ]


def distributions(name: str) -> list[Distribution]:
    """What a distribution needs while it runs, and what that needs; extras left out.

    Raises:
        ImageError: the distribution itself is not installed.
    """
    found: dict[str, Distribution] = {}
    waiting = _requirements(_distribution(name))
    while waiting:
        key = waiting.pop()
        if key in found or key in NOT_NEEDED:
            continue
        try:
            found[key] = distribution(key)
        except PackageNotFoundError:  # needed on other systems only
            continue
        waiting += _requirements(found[key])
    return [found[key] for key in sorted(found)]


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise ImageError("is not installed", obj=name, hint="run `make setup`") from error


def _requirements(one: Distribution) -> list[str]:
    needs = [need for need in one.requires or () if "extra ==" not in need]
    names = [re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0] for need in needs]
    return [re.sub(r"[-_.]+", "-", name).lower() for name in names]


def _installed(one: Distribution) -> Iterator[Entry]:
    """The files of a distribution, but for its commands and tests."""
    for record in one.files or ():
        parts = record.parts
        path = Path(str(record.locate()))
        if ".." not in parts and not _LEFT_OUT & set(parts) and path.is_file():
            yield from _with_bytecode(Entry(f"{SITE}/{record.as_posix()}", path))


def _interpreter() -> Iterator[Entry]:
    """The program, its standard library, and a virtual environment around it."""
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    yield Entry(_name(python), python, mode=0o755)
    yield Entry(f"{PREFIX}/bin/python", link=str(python))
    yield Entry(f"{PREFIX}/pyvenv.cfg", f"home = {python.parent}\n".encode())
    for folder in sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}):
        for path in _walk(Path(folder)):
            if not (path.suffix == ".so" and _NO_EXTENSIONS.match(path.name)):
                yield from _with_bytecode(Entry(_name(path), path))


def _gpudra() -> Iterator[Entry]:
    """Our packages under their installed names, what they say of themselves, and the commands."""
    for path in own_files():
        inside = path.relative_to(checkout_dir()).as_posix()
        yield from _with_bytecode(Entry(f"{SITE}/gpudra/{inside}", path))
    own = _distribution("gpudra")
    info = f"{SITE}/gpudra-{own.version}.dist-info"
    yield Entry(f"{info}/METADATA", (own.read_text("METADATA") or "").encode())
    yield Entry(f"{info}/entry_points.txt", (own.read_text("entry_points.txt") or "").encode())
    for command in own.entry_points.select(group="console_scripts"):
        text = _LAUNCHER.format(prefix=PREFIX, module=command.module, function=command.attr)
        yield Entry(f"{PREFIX}/bin/{command.name}", text.encode(), mode=0o755)


def own_files() -> list[Path]:
    """The files of the four packages that are installed."""
    root = checkout_dir()
    return [
        path
        for folder in FOLDERS
        for path in _walk(root / folder)
        if path.suffix in DATA and (path.parent / "__init__.py").exists()
    ]


def _with_bytecode(entry: Entry) -> Iterator[Entry]:
    """A file, and its compiled form beside it if it is a module."""
    yield entry
    source = entry.source
    if entry.name.endswith(".py") and isinstance(source, Path):
        folder, _, name = entry.name.rpartition("/")
        tag = sys.implementation.cache_tag
        yield Entry(
            f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc",
            source,
            convert=lambda path: compiled(path, f"/{entry.name}"),
        )


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if not _LEFT_OUT & set(parts) and path.suffix not in {".a", ".o"} and path.is_file():
            yield path


def _is_binary(entry: Entry) -> bool:
    name = entry.name.rpartition("/")[2]
    return entry.mode == 0o755 or name.endswith(".so") or ".so." in name


def _libraries(binaries: Iterable[Path]) -> Iterator[Entry]:
    """The shared libraries of the system that these files load, under their own paths."""
    names = sorted({str(path) for path in binaries})
    told = subprocess.run(["ldd", *names], capture_output=True, text=True, check=False).stdout
    paths = {match.group(1) for match in re.finditer(r"(?:=>|^)\s+(/\S+) \(0x", told, re.MULTILINE)}
    own = str(Path(sys.prefix).resolve())
    for path in sorted(paths):
        if not str(Path(path).resolve()).startswith(own):
            yield Entry(path.lstrip("/"), Path(path), mode=0o755)


def _accounts() -> Iterator[Entry]:
    yield Entry("etc/passwd", _USERS.encode())
    yield Entry("etc/group", _GROUPS.encode())
    yield Entry("etc/nsswitch.conf", b"hosts: files dns\n")


def _name(path: Path) -> str:
    return str(path).lstrip("/")
