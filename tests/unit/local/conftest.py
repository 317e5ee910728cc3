# SPDX-License-Identifier: Apache-2.0
"""Keeps the unit tests of the local cluster out of the machine's ``/run``."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudra.controller.ctl.local import layout, node


@pytest.fixture(autouse=True)
def run_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short links and socket folders go here; its name is short, as that of ``/run`` is."""
    directory = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    for module in (layout, node):
        monkeypatch.setattr(module, "RUN_DIR", directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
