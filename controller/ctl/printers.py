# SPDX-License-Identifier: Apache-2.0
"""How the sub-commands print: tables for people, JSON and YAML for programs.

Kubernetes objects in ``-o json|yaml`` are always one ``List`` with ``items``, also when there is
one or none, so that a program needs no case distinction. Called by the modules of
``controller.ctl``.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

TABLE = "table"
JSON = "json"
YAML = "yaml"
# Columns are parted by as much as kubectl parts them.
_GAP = "   "
_NOTHING = "-"

# SGR codes that every terminal has.
RED, GREEN, YELLOW, DIM = "31", "32", "33", "2"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def use_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to print colours: on a terminal only, and not where ``NO_COLOR`` or TERM=dumb says no.

    See https://no-color.org: any value but the empty one counts.
    """
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def painted(text: str, colour: str, *, on: bool) -> str:
    """The text in a colour, if colours are on."""
    return f"\x1b[{colour}m{text}\x1b[0m" if on and text else text


class Look(NamedTuple):
    """What a stream can show.

    Attributes:
        colour: it is a terminal and nobody said no.
        blocks: it takes block characters; else bars are drawn with ``#``.
    """

    colour: bool = False
    blocks: bool = True

    @classmethod
    def of(cls, stream: TextIO) -> "Look":
        """Of this stream."""
        name = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
        return cls(use_colour(stream), name.startswith("utf"))


def bar(part: float, look: Look, width: int = 10) -> str:
    """A bar that is filled by a part from 0 to 1; a part above zero shows at least one cell."""
    part = min(1.0, max(0.0, part))
    filled = max(1, round(part * width)) if part > 0 else 0
    full, empty = ("\u2588", "\u2591") if look.blocks else ("#", ".")
    colour = RED if part > 0.9 else YELLOW if part > 0.5 else GREEN
    return painted(full * filled, colour, on=look.colour) + empty * (width - filled)


def width_of(text: str) -> int:
    """Columns that a text takes; colours take none."""
    return len(_ESCAPE.sub("", text)) if "\x1b" in text else len(text)


def add_output_argument(
    parser: argparse.ArgumentParser, choices: Sequence[str] = (TABLE, JSON, YAML)
) -> None:
    """``-o``; the first choice is the default."""
    parser.add_argument(
        "-o",
        "--output",
        choices=choices,
        default=choices[0],
        help=f"how to print (default: {choices[0]})",
    )


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned columns, as wide as their widest cell; empty cells show a dash.

    The last line ends with a newline; there are no trailing blanks.
    """
    cells = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(width_of(row[column]) for row in cells) for column in range(len(headers))]
    lines = (
        _GAP.join(
            text + " " * (width - width_of(text)) for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    )
    return "\n".join(lines) + "\n"


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    nothing: str,
    out: TextIO | None = None,
) -> None:
    """Prints a table, or the sentence ``nothing`` on stderr when there is no row."""
    if not rows:
        print(nothing, file=sys.stderr)
        return
    print(format_table(headers, rows), end="", file=out or sys.stdout)


def print_objects(
    objects: Sequence[Mapping[str, Any]], output: str, *, out: TextIO | None = None
) -> None:
    """Kubernetes objects as one ``List``, in JSON or YAML."""
    print_data({"apiVersion": "v1", "kind": "List", "items": list(objects)}, output, out=out)


def print_data(data: Mapping[str, Any], output: str, *, out: TextIO | None = None) -> None:
    """Any data of plain types, in JSON or YAML, keys in the given order."""
    stream = out or sys.stdout
    if output == JSON:
        print(_json(data), file=stream)
        return
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=2**20)
    print(text, end="", file=stream)


def _json(data: Mapping[str, Any]) -> str:
    """Indented by two. The standard library takes ten times as long for that."""
    import orjson

    try:
        return orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, say
        return json.dumps(data, indent=2, ensure_ascii=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "" if value is None else str(value)
    return text or _NOTHING
