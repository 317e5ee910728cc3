# SPDX-License-Identifier: Apache-2.0
"""The table of the chart's values from the comments of ``values.yaml``; used by ``tools.gen_docs``."""

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

CHART = Path(__file__).parents[1] / "deploy" / "charts" / "gpudra"


def value_rows(text: str) -> Iterator[str]:
    """A row for each value: its path, its default, and the comment above it.

    Args:
        text: the content of a values.yaml.

    Raises:
        AssertionError: a value has no comment.
    """
    lines = text.splitlines()
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode)
    for path, key, value in _leaves(document, ()):
        comment = _comment_above(lines, key.start_mark.line)
        assert comment, f"{'.'.join(path)} has no comment in values.yaml"
        default = json.dumps(yaml.safe_load(yaml.serialize(value)))
        cell = "" if default in {'""', "{}", "[]"} else f"`{default}`"
        yield f"| `{'.'.join(path)}` | {cell} | {comment.replace('|', chr(92) + '|')} |"


def _leaves(
    mapping: yaml.MappingNode, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], yaml.Node, yaml.Node]]:
    """Values that a comment explains: lists, scalars, and maps that are written on one line."""
    for key, value in mapping.value:
        here = (*path, str(key.value))
        if isinstance(value, yaml.MappingNode) and value.value and _is_section(value):
            yield from _leaves(value, here)
        else:
            yield here, key, value


def _is_section(value: yaml.MappingNode) -> bool:
    """Block style goes on below; ``resources`` has flow maps in it and is one value."""
    return not value.flow_style and not any(
        isinstance(inner, yaml.MappingNode) and inner.flow_style and inner.value
        for _, inner in value.value
    )


def _comment_above(lines: list[str], line: int) -> str:
    """The comment that ends just above a line, as one text."""
    found: list[str] = []
    for text in reversed(lines[:line]):
        stripped = text.strip()
        if not stripped.startswith("#"):
            break
        found.insert(0, stripped.removeprefix("#").strip())
    return " ".join(found)
