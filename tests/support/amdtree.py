# SPDX-License-Identifier: Apache-2.0
r"""Lays out a host's sysfs with AMD cards from a short description, as tests/fixtures/sysfs-amd has them.

The description names files and links below the root, as a recursive copy of /sys would have them:
lines ``path = content`` (``\n`` for line ends), ``path -> target`` for links, ``path/`` for folders.
"""

from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures/sysfs-amd"


def lay_out(name: str, root: Path) -> Path:
    """The tree of a fixture below ``root``; returns ``root``."""
    for line in (FIXTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if " -> " in line:
            path, _, target = line.partition(" -> ")
            _parent(root / path).symlink_to(target)
        elif line.endswith("/"):
            (root / line).mkdir(parents=True, exist_ok=True)
        else:
            path, _, content = line.partition(" = ")
            _parent(root / path).write_text(content.replace("\\n", "\n") + "\n", encoding="utf-8")
    return root


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
