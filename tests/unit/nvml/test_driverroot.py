# SPDX-License-Identifier: Apache-2.0
"""What of the driver a container gets, for four ways in which drivers lie on disks."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from gpudra.driver.devicelib.nvml.driverroot import DriverRoot
from tests.support.driverroots import FIXTURES, ROOTS, lay_out


@pytest.mark.parametrize("name", ROOTS)
def test_edits_are_the_golden_ones(name: str, tmp_path: Path) -> None:
    """Libraries with their short names, programs, firmware and sockets, and nothing else.

    GPUDRA_UPDATE_GOLDEN=1 writes the files anew.
    """
    edits = json.loads(json.dumps(dataclasses.asdict(lay_out(name, tmp_path).edits())))
    golden = FIXTURES / f"{name}.json"
    if os.environ.get("GPUDRA_UPDATE_GOLDEN"):
        golden.write_text(json.dumps(edits, indent=1) + "\n")
    assert edits == json.loads(golden.read_text())


def test_a_driver_that_comes_later_is_seen(tmp_path: Path) -> None:
    """What was read before the driver was installed is not kept."""
    root = lay_out("missing-parts", tmp_path)
    before = root.edits()
    (tmp_path / "usr/lib64/libnvidia-ml.so.580.126.20").touch()
    added = {mount.container_path for mount in root.edits().mounts} - {
        mount.container_path for mount in before.mounts
    }
    assert added == {"/usr/lib64/libnvidia-ml.so.580.126.20", "/usr/lib64/libnvidia-ml.so.1"}


def test_an_empty_root_has_nothing(tmp_path: Path) -> None:
    """No driver, no edits, no error: readiness tells what is missing."""
    root = DriverRoot(root="/", seen=tmp_path, host=tmp_path, version="580.126.20")
    assert root.edits().mounts == ()
