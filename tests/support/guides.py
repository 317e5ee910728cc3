# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/migration: what stands before, and what the command makes of it.

A block begins with ``# before: NAME`` or ``# after: NAME``; the latter goes on with the command
if the block is what that command prints. ``python -m tests.support.guides`` writes the blocks anew.
"""

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpudra.controller.ctl.main import main

GUIDES = Path(__file__).parents[2] / "docs" / "migration"
_BLOCK = re.compile(
    r"```yaml\n# (before|after): ([a-z0-9-]+)(?:, gpudra ([^\n]+))?\n(.*?)```\n", re.DOTALL
)
_WANTED = re.compile(r"^@after ([a-z0-9-]+) (convert .+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """One example of a guide.

    Attributes:
        guide: name of the page.
        name: of the example in it.
        before: text of the file; empty for one that is written by hand.
        command: as it stands in the page.
        after: text that the page shows.
    """

    guide: str
    name: str
    before: str
    command: str
    after: str

    def converted(self) -> str:
        """What the command prints now."""
        return convert(self.before, self.command)


def convert(text: str, command: str) -> str:
    """Standard output of the command for a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file.yaml"
        file.write_text(text)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main([str(file) if word == "FILE" else word for word in command.split()])
    assert code == 0, f"{command}: exit code {code}"
    return out.getvalue()


def examples() -> Iterator[Example]:
    """All of them, in the order of the pages."""
    for page in sorted(GUIDES.glob("*.md")):
        before: dict[str, str] = {}
        for kind, name, command, text in _BLOCK.findall(page.read_text()):
            if kind == "before":
                before[name] = text
            else:
                yield Example(page.stem, name, before.get(name, ""), command, text)


def rewrite(page: Path) -> None:
    """Writes every block of a page that a command prints."""
    text = page.read_text()
    before = {name: body for kind, name, _, body in _BLOCK.findall(text) if kind == "before"}

    def block(name: str, command: str) -> str:
        return f"```yaml\n# after: {name}, gpudra {command}\n{convert(before[name], command)}```\n"

    text = _WANTED.sub(lambda found: block(found[1], found[2]), text)

    def again(found: re.Match[str]) -> str:
        kind, name, command, _ = found.groups()
        return block(name, command) if kind == "after" and command else found[0]

    page.write_text(_BLOCK.sub(again, text))


if __name__ == "__main__":
    for one in sorted(GUIDES.glob("*.md")):
        rewrite(one)
        sys.stdout.write(f"{one.name}\n")
