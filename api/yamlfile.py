# SPDX-License-Identifier: Apache-2.0
"""Reads YAML text of our own kinds strictly, and says file, line and field when one is wrong.

Differences from plain ``yaml.safe_load``: a key that comes twice is an error, and plain words mean
what YAML 1.2 says. YAML 1.1 would read ``0000:15:01.0`` (a PCI address) as a number to base 60 and
``no`` as false.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from gpudra.api.errors import InputError

ModelT = TypeVar("ModelT", bound=BaseModel)
Step = str | int


class _Loader(yaml.SafeLoader):
    """Core schema of YAML 1.2."""


# The table of the parent maps a first character to candidates; ours replaces it for this class.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 16) if text.startswith("0x") else int(text)


def _construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is not a text", key_node.start_mark
            )
        if key in found:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} comes twice", key_node.start_mark
            )
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document and where its parts stand.

    Attributes:
        data: dicts, lists and scalars.
        file: name for messages.
        node: the syntax tree, for line numbers.
    """

    data: Any
    file: str
    node: yaml.Node

    def line(self, path: Sequence[Step]) -> int:
        """Line of the deepest existing part of a path, from 1."""
        node = self.node
        line = node.start_mark.line
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            line, node = found
        return int(line) + 1

    def error(self, what: str, path: Sequence[Step], hint: str = "") -> InputError:
        """An error about one field of this document."""
        return InputError(
            what, field=field_path(path), file=self.file, line=self.line(path), hint=hint
        )

    def validate(self, model: type[ModelT]) -> ModelT:
        """The document as a model.

        Raises:
            InputError: the first thing that is wrong, with file, line and field; further ones are
                counted in the hint.
        """
        try:
            # As JSON, so that strict mode takes a list for a tuple and a text for an enum.
            return model.model_validate_json(json.dumps(self.data))
        except ValidationError as error:
            # A misspelt field is better news than the required one that is missing for it.
            problems = sorted(
                error.errors(include_url=False),
                key=lambda problem: problem["type"] != "extra_forbidden",
            )
            first = problems[0]
            more = f"{len(problems) - 1} more like this" if len(problems) > 1 else ""
            raise self.error(_message(first), first["loc"], more) from error


def _message(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return "is not a field here"
    if problem["type"] == "missing":
        return "is required"
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _child(node: yaml.Node, step: Step) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        value = node.value[step]
        return value.start_mark.line, value
    return None


def field_path(path: Sequence[Step]) -> str:
    """``("spec", "gpus", 3, "uuid")`` → ``spec.gpus[3].uuid``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def parse_documents(text: str, file: str) -> tuple[Document, ...]:
    """All documents of a text; empty ones are left out.

    Raises:
        InputError: the text is not YAML; with file and line.
    """
    documents = []
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            data = None if node is None else loader.construct_document(node)
            if node is not None and data is not None:
                documents.append(Document(data=data, file=file, node=node))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"is not YAML: {error.problem or error.context}",
            file=file,
            line=mark.line + 1 if mark else None,
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"is not YAML: {error}", file=file) from error
    finally:
        loader.dispose()
    return tuple(documents)
