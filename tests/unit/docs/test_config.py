# SPDX-License-Identifier: Apache-2.0
"""docs/config.md lists the flags that there are."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from gpudra.controller import options as controller
from gpudra.kubelet_plugin import options as agent

PAGE = Path(__file__).parents[3] / "docs" / "config.md"


def rows(heading: str) -> list[str]:
    """The rows of the table below a heading of the page."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `--")]


def agent_rows() -> Iterator[str]:
    """What the page has to say about the agent."""
    for name, field in agent.Options.model_fields.items():
        default = "required" if field.is_required() else _default(field.default)
        yield f"| `{agent.flag(name)}` | {default} | {field.description} |"


def controller_rows() -> Iterator[str]:
    """What the page has to say about the cluster side."""
    for action in controller.parser()._actions:
        if action.default != argparse.SUPPRESS:
            yield f"| `{action.option_strings[-1]}` | {_default(action.default)} | {action.help} |"


def _default(value: object) -> str:
    return f"`{value}`" if value not in (None, "") else "-"


def test_the_flags_of_the_agent_are_listed() -> None:
    """Names, defaults and meanings as the program has them: copy them from the failing assertion."""
    assert rows("gpudra-kubelet-plugin") == list(agent_rows())


def test_the_flags_of_the_controller_are_listed() -> None:
    """Names, defaults and meanings as the program has them."""
    assert rows("gpudra-controller") == list(controller_rows())
