# SPDX-License-Identifier: Apache-2.0
"""Writes the part of docs/config.md about configuration of claims from the models of it.

Run: ``python -m tools.config_docs``. A test fails when the page and the models differ.
"""

import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpudra.api.config.v1alpha1 import KINDS, decode_user

PAGE = Path(__file__).parents[1] / "docs/config.md"
HEADING = "## Configuration of claims"

_INTRODUCTION = """\
Made by `python -m tools.config_docs` from the models in `api/config/v1alpha1.py`; do not edit.

A ResourceClaim, a template or a DeviceClass can carry settings for the devices that it gets:

```yaml
spec:
  devices:
    requests:
    - name: share
      exactly:
        deviceClassName: share.gpudra.io
        capacity:
          requests: {memory: 10Gi, compute: "30"}
    config:
    - requests: [share]
      opaque:
        driver: gpu.gpudra.io
        parameters:
          apiVersion: gpudra.io/v1alpha1
          kind: ShareConfig
          sharing:
            isolation: hami-core
```

Of several settings for one device the class's give way to the claim's, and of one source those
that name no request to those that do. A kind that names a request whose device is of another type
is an error; one that names none is for the devices of its own type.

Users are checked strictly: an unknown field, a null and a value out of range are refused by the
name of the field, before anything is done. What was accepted once is read leniently, since a newer
version may have written it. `gpudra validate -f FILE` checks the same before anything is sent,
and the [admission webhook](operations.md#mistakes-told-when-a-claim-is-made) when it is.

What each backend enforces is in [isolation.md](isolation.md). How much memory and compute a share
has is what its claim asks for as capacity; no configuration changes that.
"""

EXAMPLES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "GpuConfig": (
        (
            "Containers take turns of the longest kind:",
            {"sharing": {"isolation": "time-slice", "timeSlice": "long"}},
        ),
        (
            "Each process may use half of the card:",
            {
                "sharing": {
                    "isolation": "mps",
                    "mps": {"activeThreadPercentage": 50, "pinnedMemoryLimit": "40Gi"},
                }
            },
        ),
    ),
    "MigConfig": (
        (
            "Containers share one MIG device through MPS:",
            {"sharing": {"isolation": "mps", "mps": {"pinnedMemoryLimit": "5Gi"}}},
        ),
    ),
    "ShareConfig": (
        ("Limits by HAMi-core, or no pod:", {"sharing": {"isolation": "hami-core"}}),
        ("No limits, on purpose:", {"sharing": {"isolation": "none"}}),
    ),
}


def section() -> str:
    """The whole part, heading included."""
    parts = [HEADING, "", _INTRODUCTION]
    for kind, model in KINDS.items():
        parts += [f"### {kind}", "", f"{_first_line(model)}", "", *_table(kind, model), ""]
        for text, fields in EXAMPLES[kind]:
            example = {"apiVersion": "gpudra.io/v1alpha1", "kind": kind, **fields}
            decode_user(example)
            parts += [text, "", "```yaml", _yaml(example), "```", ""]
    return "\n".join(parts).rstrip() + "\n"


def page() -> str:
    """The page as it should be: what others write, then this part."""
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")
    return f"{head.rstrip()}\n\n{section()}"


def _table(kind: str, model: type[BaseModel]) -> Iterator[str]:
    yield "| field | values | default | is |"
    yield "|---|---|---|---|"
    for path, field in _fields(model, ""):
        yield f"| `{path}` | {_values(field)} | {_default(field, kind)} | {_cell(field.description)} |"


def _fields(model: type[BaseModel], place: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        path = f"{place}{field.alias or name}"
        inner = [one for one in _parts(field.annotation) if _is_model(one)]
        if inner:
            yield from _fields(inner[0], f"{path}.")
        else:
            yield path, field


def _parts(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return (annotation,)
    found = get_args(annotation)
    return found or (annotation,)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _values(field: FieldInfo) -> str:
    words: list[str] = []
    for part in _parts(field.annotation):
        if get_origin(part) is Literal:
            words += [f"`{one}`" for one in get_args(part)]
        elif isinstance(part, type) and issubclass(part, enum.Enum):
            words += [f"`{one.value}`" for one in part]
    if words:
        return ", ".join(words)
    return ", ".join(f"e.g. `{_inline(one)}`" for one in field.examples or ())


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _default(field: FieldInfo, kind: str) -> str:
    if field.is_required():
        return "required"
    if field.default is None or field.default == {}:
        return "-"
    return f"`{field.default}`" if not isinstance(field.default, BaseModel) else kind


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _yaml(example: dict[str, Any]) -> str:
    return yaml.safe_dump(example, sort_keys=False).rstrip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
