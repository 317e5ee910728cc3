# SPDX-License-Identifier: Apache-2.0
"""The pages of the repository, and the YAML in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?ms)^( *)```ya?ml\n(.*?)^ *```$")
_OURS = ("api", "controller", "deploy", "docs", "driver", "kubelet_plugin", "tests", "tools")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of YAML.

    Attributes:
        line: where it begins.
        documents: what it says; fragments of objects included.
    """

    page: Path
    line: int
    documents: tuple[Any, ...]

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """The whole Kubernetes objects among the documents."""
        return tuple(
            one
            for one in self.documents
            if isinstance(one, dict) and {"apiVersion", "kind"} <= {*one}
        )


def pages() -> list[Path]:
    """All Markdown files that belong to the repository."""
    found = [*ROOT.glob("*.md")]
    for folder in _OURS:
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def yaml_blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order.

    Raises:
        yaml.YAMLError: one is no YAML.
    """
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        indent = len(match[1])
        body = "\n".join(line[indent:] for line in match[2].splitlines())
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, tuple(yaml.safe_load_all(body)))
