# SPDX-License-Identifier: Apache-2.0
"""Reads node and task lists in the openb CSV form, naming file, line and column of every fault.

Extra columns are ignored and columns may come in any order. ``gpu_spec`` and
the times may be missing. A list that ends in ``.gz`` is unpacked on the way.
"""

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.trace import Task, Trace
from gpudra.driver.core.placement.types import FULL_CARD, NodeSpec, Request

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
TASK_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
LARGEST = 10**12
"""Numbers above this are taken for damage: a node with a billion cores does not exist."""

MOST_CARDS = 128
"""Cards of one node at most; a ResourceSlice pool of one node is published up to this width."""


_T = TypeVar("_T", NodeSpec, Task)


@dataclass(slots=True)
class Skipped:
    """Rows left out under ``--lenient``: the counts by reason, and the first few in words."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Rows left out."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class _Row:
    """One data row: cells by column, and where it stands."""

    file: str
    line: int
    cells: dict[str, str]

    def fault(self, column: str, what: str, hint: str = "") -> InputError:
        return InputError(what, field=f"column {column}", file=self.file, line=self.line, hint=hint)

    def text(self, column: str) -> str:
        value = self.cells.get(column, "").strip()
        if not value:
            raise self.fault(column, "is empty")
        return value

    def number(self, column: str, *, most: int = LARGEST) -> int:
        text = self.text(column)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise self.fault(column, f"{text[:40]!r} is not a whole number")
        value = int(text) if len(digits) <= 20 else LARGEST + 1
        if value < 0 or (text.startswith("-") and value):
            raise self.fault(column, f"{text[:40]} is negative")
        if value > most:
            raise self.fault(column, f"{text[:40]} is more than {most}")
        return value

    def optional_number(self, column: str) -> int | None:
        if not self.cells.get(column, "").strip():
            return None
        return self.number(column)


def read_trace(
    nodes_file: Path, tasks_file: Path, *, lenient: bool = False
) -> tuple[Trace, Skipped]:
    """Reads both lists.

    Raises InputError for the first fault. With ``lenient`` rows at fault are left
    out and counted; a missing column, an unreadable file and an empty list are
    errors all the same.
    """
    skipped = Skipped()
    seen: set[str] = set()
    nodes = _collect(nodes_file, NODE_COLUMNS, lambda row: _node(row, seen), skipped, lenient)
    models = frozenset(node.model for node in nodes)
    tasks = _collect(tasks_file, TASK_COLUMNS, lambda row: _task(row, models), skipped, lenient)
    return Trace(tuple(nodes), tuple(tasks)), skipped


def _collect(
    path: Path,
    columns: tuple[str, ...],
    convert: Callable[[_Row], _T],
    skipped: Skipped,
    lenient: bool,
) -> list[_T]:
    found: list[_T] = []
    for row in _rows(path, columns, skipped if lenient else None):
        try:
            found.append(convert(row))
        except InputError as error:
            if not lenient:
                raise
            _skip(skipped, f"{path.name}: {error.field}", str(error))
    if not found:
        raise InputError("the list has no usable rows", file=str(path), line=2, field="column 1")
    return found


def _skip(skipped: Skipped, reason: str, example: str) -> None:
    skipped.counts[reason] += 1
    if len(skipped.examples) < 5:
        skipped.examples.append(example)


def _text_of(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        start = error.object.rfind(b"\n", 0, error.start) + 1
        place = f"column {error.object.count(b',', start, error.start) + 1}"
        raise InputError("not UTF-8 text", field=place, file=str(path), line=line) from error
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot be read: {reason}", file=str(path)) from error


def _rows(path: Path, columns: tuple[str, ...], skipped: Skipped | None) -> Iterator[_Row]:
    """Data rows in file order; rows of the wrong width are faults of their first odd column."""
    name = str(path)
    reader = csv.reader(io.StringIO(_text_of(path), newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _check_header(name, header, columns)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            row = _Row(name, reader.line_num, dict(zip(header, cells, strict=False)))
            if len(cells) != len(header):
                odd = header[len(cells)] if len(cells) < len(header) else f"{len(header) + 1}"
                fault = row.fault(odd, f"{len(cells)} cells where the header has {len(header)}")
                if skipped is None:
                    raise fault
                _skip(skipped, f"{path.name}: row width", str(fault))
                continue
            yield row
    except csv.Error as error:
        raise InputError(str(error), file=name, line=reader.line_num, field="row") from error


def _check_header(name: str, header: list[str], columns: tuple[str, ...]) -> None:
    missing = [column for column in columns if column not in header]
    if missing:
        raise InputError(
            f"missing from the header (found: {', '.join(header)[:200] or 'nothing'})",
            field=f"column {missing[0]}",
            file=name,
            line=1,
            hint=f"the header needs {','.join(columns)}",
        )
    double = [column for column, count in Counter(header).items() if count > 1 and column]
    if double:
        raise InputError("named twice", field=f"column {double[0]}", file=name, line=1)


def _node(row: _Row, seen: set[str]) -> NodeSpec:
    name = row.text("sn")
    if name in seen:
        raise row.fault("sn", f"node {name!r} is listed twice")
    cpu, memory = row.number("cpu_milli"), row.number("memory_mib")
    cards, model = row.number("gpu", most=MOST_CARDS), row.text("model")
    if not cards:
        raise row.fault("gpu", f"node {name!r} has no GPU", "leave CPU-only nodes out of the list")
    if "|" in model:
        raise row.fault("model", f"{model!r}: a model name cannot contain '|'")
    seen.add(name)
    return NodeSpec(name, cpu, memory, cards, model)


def _task(row: _Row, models: frozenset[str]) -> Task:
    cpu, memory = row.number("cpu_milli"), row.number("memory_mib")
    cards, milli = _cards(row)
    request = Request(cpu, memory, cards, milli, milli, _models(row, models))
    created, deleted = row.optional_number("creation_time"), row.optional_number("deletion_time")
    if created is not None and deleted is not None and deleted < created:
        raise row.fault("deletion_time", f"{deleted} is before creation_time {created}")
    return Task(row.text("name"), request, created, deleted)


def _cards(row: _Row) -> tuple[int, int]:
    """Cards and share of a row: several cards are always whole ones."""
    cards = row.number("num_gpu", most=MOST_CARDS)
    milli = row.number("gpu_milli", most=FULL_CARD)
    if not cards and milli:
        raise row.fault("gpu_milli", f"{milli} of no GPU", "num_gpu must be 1 for a share")
    if cards and not milli:
        raise row.fault("gpu_milli", f"0 of {cards} GPUs asks for nothing")
    if cards > 1:
        milli = FULL_CARD
    return cards, milli


def _models(row: _Row, known: frozenset[str]) -> frozenset[str]:
    text = row.cells.get("gpu_spec", "").strip()
    if not text:
        return frozenset()
    wanted = frozenset(part.strip() for part in text.split("|") if part.strip())
    unknown = sorted(wanted - known)
    if unknown or not wanted:
        shown = unknown[0] if unknown else text
        raise row.fault(
            "gpu_spec", f"no node has the model {shown!r}", f"known are {', '.join(sorted(known))}"
        )
    return wanted
