# SPDX-License-Identifier: Apache-2.0
"""Files for ``gpudra convert``: read as kubectl reads them, written so that nothing else changes.

A document that is not converted leaves as it came, comments included. Of a converted one the data
stays the same for whoever reads YAML as Kubernetes does: ``0644`` is 420 there, and ``1e3`` a number.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.api.errors import InputError
from gpudra.api.yamlfile import Document, Step

_MAX_BYTES = 16 * 1024 * 1024
_MARKER = re.compile(r"^---(?=[ \t\n]|$)|^\.\.\.[ \t]*$", re.MULTILINE)
# What some reader of YAML could take for a number, a time or a truth value.
_AMBIGUOUS = re.compile(
    r"[-+.]*[0-9][0-9a-fxo_.:+-]*|[-+]?\.(inf|nan)|y|n|yes|no|on|off|true|false|null|~|",
    re.IGNORECASE,
)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9_]+(:[0-9.]+)+")


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: times stay text, numbers have no minutes, keys stand once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_TIME = "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if entry[0] != _TIME]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _first in "-+0123456789":
    # Asked first, and a text by its answer.
    _Loader.yaml_implicit_resolvers[_first] = [
        ("tag:yaml.org,2002:str", _SEXAGESIMAL),
        *_Loader.yaml_implicit_resolvers.get(_first, ()),
    ]


class _Dumper(yaml.SafeDumper):
    """Plain YAML without aliases, long texts as blocks, and quotes where a reader could stumble."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text:
        style = "|"
    elif _AMBIGUOUS.fullmatch(text):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


@dataclass(frozen=True, slots=True)
class Part:
    """One document of a file.

    Attributes:
        document: its data, with lines.
        text: as it stood in the file, without the marker before it.
    """

    document: Document
    text: str

    def objects(self) -> Iterator[dict[str, Any]]:
        """The object itself, or the items of a List.

        Raises:
            InputError: it is no Kubernetes object.
        """
        yield from _objects(self.document, self.document.data, ())

    @property
    def is_list(self) -> bool:
        """Whether it holds several objects, or none."""
        return str(self.document.data.get("kind")).endswith("List")


def read_parts(file: str) -> tuple[Part, ...]:
    """All documents of a file; ``-`` is standard input.

    Raises:
        InputError: it cannot be read, or is not YAML; with file and line.
    """
    text = _read(file)
    parts = []
    start = 0
    for end, following in _boundaries(text):
        found = _parse(text, start, end, file)
        if found is not None:
            parts.append(Part(found, text[start:end].strip("\n")))
        start = following
    return tuple(parts)


def yaml_text(data: Mapping[str, Any]) -> str:
    """One object as YAML, keys in the given order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**20).rstrip(
        "\n"
    )


def located(error: InputError, document: Document) -> InputError:
    """The error with the line of its field, where the document has that field."""
    steps = _steps(error.field)
    # The items of a List have paths of their own; only the document's own object is looked into.
    if str(document.data.get("kind")).endswith("List"):
        return error.within(file=document.file)
    line = document.line(steps) if steps else None
    return InputError(
        error.what, field=error.field, file=document.file, line=line, obj=error.obj, hint=error.hint
    )


def _steps(field: str) -> tuple[Step, ...]:
    """``spec.containers[0].limits[a.b/c]`` → its steps."""
    found: list[Step] = []
    for name, inside in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", field):
        found.append(int(inside) if inside.isdecimal() else inside or name)
    return tuple(found)


def _boundaries(text: str) -> Iterator[tuple[int, int]]:
    """Where each document ends, and where the next one begins."""
    for marker in _MARKER.finditer(text):
        yield marker.start(), marker.end()
    yield len(text), len(text)


def _parse(text: str, start: int, end: int, file: str) -> Document | None:
    """One document, with the lines of the whole file."""
    # Tabs are white space in JSON and an error in YAML.
    chunk = text[start:end]
    if chunk.lstrip()[:1] == "{":
        chunk = chunk.replace("\t", " ")
    loader = _Loader("\n" * text.count("\n", 0, start) + chunk)
    try:
        node = loader.get_single_node()
        data = None if node is None else loader.construct_document(node)
        # Aliases that contain themselves or unfold without end are no data.
        json.dumps(data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"is not YAML: {error.problem or error.context}",
            file=file,
            line=mark.line + 1 if mark else None,
        ) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"cannot be read as YAML: {error}", file=file) from error
    finally:
        loader.dispose()
    return None if node is None or data is None else Document(data=data, file=file, node=node)


def _read(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        if len(raw) > _MAX_BYTES:
            raise InputError(f"is larger than {_MAX_BYTES} bytes", file=file)
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", file=file, hint="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", file=file) from error


def _objects(document: Document, raw: Any, path: tuple[Step, ...]) -> Iterator[dict[str, Any]]:
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        raise document.error("is no Kubernetes object", path, "an object has apiVersion and kind")
    if not raw["kind"].endswith("List"):
        yield raw
        return
    for index, item in enumerate(raw.get("items") or ()):
        yield from _objects(document, item, (*path, "items", index))
