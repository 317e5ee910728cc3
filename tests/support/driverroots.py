# SPDX-License-Identifier: Apache-2.0
"""Four ways in which drivers lie on disks, laid out in a folder (tests/fixtures/driverroots)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gpudra.driver.devicelib.nvml.driverroot import DriverRoot

FIXTURES = Path(__file__).parents[1] / "fixtures/driverroots"
ROOTS: Mapping[str, Any] = yaml.safe_load((FIXTURES / "roots.yaml").read_text())


def lay_out(name: str, host: Path) -> DriverRoot:
    """The root of that name on a pretended host."""
    spec = ROOTS[name]
    seen = host / spec["root"].strip("/")
    lay_out_driver(name, seen, spec["version"])
    for path in spec["host"]:
        _touch(host / path)
    return DriverRoot(root=spec["root"], seen=seen, host=host, version=spec["version"])


def lay_out_driver(name: str, folder: Path, version: str) -> None:
    """The driver's files alone, below any folder and for any version."""
    spec = ROOTS[name]

    def of(text: str) -> str:
        return str(text).replace(spec["version"], version)

    for path in spec["files"]:
        _touch(folder / of(path))
    for link, says in spec["links"].items():
        place = folder / of(link)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(of(says))


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
