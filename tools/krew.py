# SPDX-License-Identifier: Apache-2.0
"""Makes the archive and the manifest of the kubectl plugin for krew: ``python -m tools.krew``.

The archive holds the launcher, the licence and the Python source; the same source gives the same
bytes, so its checksum can be told before it is uploaded.
"""

import argparse
import gzip
import hashlib
import io
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
KREW = ROOT / "deploy" / "krew"
PACKAGES = ("api", "driver", "kubelet_plugin", "controller")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
_LEFT_OUT = {"__pycache__", ".mypy_cache"}


def members() -> Iterator[tuple[str, Path]]:
    """Name in the archive and file, sorted."""
    yield "LICENSE", ROOT / "LICENSE"
    yield "kubectl-gpudra", KREW / "kubectl-gpudra"
    for name in FILES:
        yield f"source/{name}", ROOT / name
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and not _LEFT_OUT & set(path.parts):
                yield f"source/{path.relative_to(ROOT)}", path


def archive() -> bytes:
    """The archive; nothing of the time or the machine is in it."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in members():
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o755 if name == "kubectl-gpudra" else 0o644
            with path.open("rb") as file:
                tar.addfile(info, file)
    return out.getvalue()


def manifest(content: bytes, uri: str) -> dict[str, Any]:
    """The manifest for an archive at an address."""
    found: dict[str, Any] = yaml.safe_load((KREW / "gpudra.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found["spec"]["version"] = f"v{project['version']}"
    for platform in found["spec"]["platforms"]:
        platform |= {"uri": uri, "sha256": hashlib.sha256(content).hexdigest()}
    return found


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uri", required=True, help="where the archive will be downloaded from")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    content = archive()
    (args.to / "gpudra-krew.tar.gz").write_bytes(content)
    text = yaml.safe_dump(manifest(content, args.uri), sort_keys=False)
    (args.to / "gpudra.yaml").write_text(text)
    print(f"{args.to}: gpudra-krew.tar.gz ({len(content) // 1024} KiB), gpudra.yaml")


if __name__ == "__main__":
    main()
