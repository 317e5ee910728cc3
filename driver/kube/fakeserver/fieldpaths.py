# SPDX-License-Identifier: Apache-2.0
"""Dropping fields on write, as an API server does whose feature gate for them is off. Pure."""

import re
from typing import Any

_SEGMENT = re.compile(r"([^.\[\]]+)|\[\*\]")


def parse_path(path: str) -> tuple[str, ...]:
    """``spec.devices[*].taints`` as segments; ``[*]`` is every item of a list or value of a map.

    Raises:
        ValueError: not such a path.
    """
    segments = tuple(match.group(1) or "*" for match in _SEGMENT.finditer(path))
    rebuilt = "".join("[*]" if part == "*" else f".{part}" for part in segments).lstrip(".")
    if not segments or rebuilt != path or segments[-1] == "*":
        raise ValueError(f"not a field path: {path!r}")
    return segments


def drop(value: Any, segments: tuple[str, ...]) -> None:
    """Remove the field from ``value``, in place; nothing where it is not there."""
    head, rest = segments[0], segments[1:]
    if head == "*":
        children = value.values() if isinstance(value, dict) else value
        for child in children if isinstance(value, dict | list) else ():
            drop(child, rest)
    elif isinstance(value, dict) and head in value:
        if rest:
            drop(value[head], rest)
        else:
            del value[head]
