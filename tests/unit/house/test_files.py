# SPDX-License-Identifier: Apache-2.0
"""Habits that a machine can check: size of files, licence lines, docstrings of tests."""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAX_LINES = 500


def _sources(*patterns: str) -> list[Path]:
    """Files that are tracked, or would be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in listed if "/proto/" not in name and (ROOT / name).exists()]


def test_no_file_is_longer_than_five_hundred_lines() -> None:
    """A file that needs more room is two files."""
    lengths = {
        path.relative_to(ROOT): len(path.read_text().splitlines()) for path in _sources("*.py")
    }
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_source_names_its_licence() -> None:
    """The first two lines of each source carry the SPDX tag."""
    sources = _sources("*.py", "*.sh", "*.go", "*.c", "*.h")
    bare = [
        path.relative_to(ROOT)
        for path in sources
        if "SPDX-License-Identifier: Apache-2.0" not in "".join(path.read_text().splitlines()[:2])
    ]
    assert bare == []


def test_every_test_says_its_behaviour() -> None:
    """Each test function has a docstring."""
    silent = []
    for path in _sources("tests/**/test_*.py", "tests/test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_test = isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef
            ) and node.name.startswith("test_")
            if is_test and not ast.get_docstring(node):  # type: ignore[arg-type]
                silent.append(f"{path.relative_to(ROOT)}::{node.name}")  # type: ignore[attr-defined]
    assert silent == []
