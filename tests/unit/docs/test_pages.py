# SPDX-License-Identifier: Apache-2.0
"""Every page of the repository: its links lead somewhere, and its YAML can be read."""

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, pages, yaml_blocks

_LINK = re.compile(r"(?<!!)\[[^\]^]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"(?ms)^```.*?^```$|`[^`\n]*`")
_HEADING = re.compile(r"(?m)^#+ (.*)$")


def anchors(page: Path) -> set[str]:
    """The anchors that headings get on the usual hosts."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    names = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(text))
    return {name.strip().replace(" ", "-") for name in names}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading of it where one is named; others are https."""
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), f"{target} does not exist"
        assert found.resolve().is_relative_to(ROOT), f"{target} is outside"
        if anchor:
            assert anchor in anchors(found), f"{found.name} has no heading for #{anchor}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_yaml_can_be_read(page: Path) -> None:
    """Every block that says it is YAML."""
    for block in yaml_blocks(page):
        assert block.documents, f"line {block.line} is empty"
