# SPDX-License-Identifier: Apache-2.0
"""An image of gpudra without Docker and without a registry, for tests of the chart.

It holds what runs here: this interpreter, the installed distributions that gpudra depends on, the
sources of this checkout, and the shared libraries of all of them. Good enough to prove the chart on
this machine; no image for anybody else.
"""

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from gpudra.controller.ctl.local.images import Image, docker_archive
from gpudra.controller.ctl.local.layout import checkout_dir

NAME = "gpudra.local/gpudra"
SITE = "opt/gpudra"
FOLDERS = ("api", "driver", "kubelet_plugin", "controller")
PROGRAMS = {
    "gpudra-kubelet-plugin": "gpudra.kubelet_plugin.__main__",
    "gpudra-controller": "gpudra.controller.__main__",
}
# Parts of the standard library that no server needs.
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages"}
# Imported only by the command line, and for kubeconfigs that need helpers; most of the bytes.
NOT_NEEDED = frozenset({"kubernetes", "numpy"})
_LAUNCHER = """#!{python}
import sys
sys.path.insert(0, "/{site}")
from {module} import main
sys.exit(main())
"""
_PASSWD = b"root:x:0:0:root:/:/bin/false\ngpudra:x:65532:65532:gpudra:/:/bin/false\n"


def write_archive(target: Path, tag: str) -> None:
    """A docker-archive with the one image ``NAME:tag``."""
    image = Image(f"{NAME}:{tag}", ("gpudra-kubelet-plugin", "--help"))
    target.write_bytes(docker_archive(_layer(), [image], "amd64"))


def _layer() -> bytes:
    files = dict(_files())
    files.update(
        _libraries(path for path in files.values() if path.suffix == ".so" or ".so." in path.name)
    )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for name, path in sorted(files.items()):
            layer.add(path.resolve(), arcname=name, recursive=False)
        for program, module in PROGRAMS.items():
            text = _LAUNCHER.format(python=_python(), site=SITE, module=module)
            _add(layer, f"bin/{program}", text.encode(), 0o755)
        _add(layer, "etc/passwd", _PASSWD, 0o644)
    return buffer.getvalue()


def _add(layer: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    layer.addfile(info, io.BytesIO(content))


def _python() -> Path:
    return Path(sys.base_prefix).resolve() / "bin" / f"python3.{sys.version_info.minor}"


def _files() -> Iterator[tuple[str, Path]]:
    """Name in the image -> file here."""
    python = _python()
    yield str(python).lstrip("/"), python
    yield from _libraries([python]).items()
    library = python.parents[1] / "lib" / python.name
    for path in _walk(library):
        yield str(path).lstrip("/"), path
    for folder in FOLDERS:
        for path in _walk(checkout_dir() / folder):
            yield f"{SITE}/gpudra/{path.relative_to(checkout_dir())}", path
    for found in _distributions("gpudra"):
        for entry in found.files or ():
            path = Path(str(found.locate_file(entry)))
            inside = not entry.as_posix().startswith("..")
            if inside and path.is_file() and "__pycache__" not in entry.parts:
                yield f"{SITE}/{entry.as_posix()}", path


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        wanted = not LEFT_OUT & set(parts[:-1]) and "__pycache__" not in parts
        if wanted and path.suffix != ".a" and path.is_file():
            yield path


def _distributions(name: str) -> list[Distribution]:
    """A distribution and everything that it needs, extras left out."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        one = re.split(r"[^A-Za-z0-9._-]", waiting.pop(), maxsplit=1)[0]
        key = re.sub(r"[-_.]+", "-", one).lower()
        if key in found or key in NOT_NEEDED:
            continue
        try:
            found[key] = distribution(one)
        except PackageNotFoundError:  # needed on other systems only
            continue
        waiting += [need for need in found[key].requires or () if "extra ==" not in need]
    return list(found.values())


def _libraries(binaries: Iterable[Path]) -> dict[str, Path]:
    """The shared libraries of the system that these files load, under their own paths."""
    names = sorted({str(path) for path in binaries})
    told = subprocess.run(["ldd", *names], capture_output=True, text=True, check=False).stdout
    paths = {match.group(1) for match in re.finditer(r"(?:=>|^)\s+(/\S+) \(0x", told, re.MULTILINE)}
    return {path.lstrip("/"): Path(path) for path in sorted(paths) if ".venv" not in path}
