# SPDX-License-Identifier: Apache-2.0
"""The contract between the layers holds, and can fail."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("api", "driver", "kubelet_plugin", "controller")

# Where a forbidden import is planted, and the contract that has to break.
BREACHES = [
    ("api/names.py", "import gpudra.driver.core", "api < driver.core"),
    ("driver/core/__init__.py", "import gpudra.driver.kube", "api < driver.core"),
    ("driver/core/__init__.py", "import time", "api and core do no I/O"),
    ("controller/__init__.py", "import gpudra.kubelet_plugin", "never imports the node agent"),
    ("kubelet_plugin/__init__.py", "import gpudra.controller.ctl", "uses the slice controller alone"),
    ("driver/kube/__init__.py", "import pynvml", "imports pynvml"),
]  # fmt: skip


def _check(tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs the contract over a copy that has the installed shape."""
    script = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [script, "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the four folders under ``gpudra/``; no ``__init__``: a namespace."""
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder,
            tmp_path / "gpudra" / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return tmp_path


def test_the_layers_hold(tree: Path) -> None:
    """No folder imports what lies above it, and the core does no I/O."""
    result = _check(tree)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("file", "line", "contract"), BREACHES)
def test_breaking_a_layer_is_noticed(tree: Path, file: str, line: str, contract: str) -> None:
    """A forbidden import makes the contract fail by name."""
    path = tree / "gpudra" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    result = _check(tree)
    broken = [text for text in result.stdout.splitlines() if text.endswith("BROKEN")]
    assert result.returncode != 0
    assert any(contract in text for text in broken), result.stdout


def test_the_contract_names_all_of_the_cluster_side() -> None:
    """A new module of the controller is forbidden to the agent without anybody's thinking of it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (agent,) = [one for one in settings["contracts"] if one["id"] == "agent"]
    modules = {path.stem for path in (ROOT / "controller").iterdir() if path.suffix == ".py"}
    folders = {path.parent.name for path in (ROOT / "controller").glob("*/__init__.py")}
    wanted = (modules | folders) - {"__init__", "__main__", "resourceslices"}
    assert {name.rpartition(".")[2] for name in agent["forbidden_modules"]} == wanted
