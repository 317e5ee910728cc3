# SPDX-License-Identifier: Apache-2.0
"""``docs/api.md`` from the schemas of the CustomResourceDefinitions; used by ``tools.gen_docs``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).parents[1] / "deploy" / "charts" / "gpudra" / "crds"
_HEAD = """\
# Our kinds

Made by `python -m tools.gen_docs` from the schemas in `deploy/charts/gpudra/crds`; do not edit.

Parameters of claims (`GpuConfig`, `MigConfig`, `ShareConfig`) are no objects of the API server and have
a page of their own, [config](config.md). Values are checked by the API server; what is refused names
the field.
"""
_SCOPES = {"Cluster": "of the whole cluster", "Namespaced": "in a namespace"}


def api_page() -> str:
    """The page."""
    kinds = [yaml.safe_load(file.read_text()) for file in sorted(CRDS.glob("*.yaml"))]
    return _HEAD + "".join(_kind(crd) for crd in kinds)


def _kind(crd: Mapping[str, Any]) -> str:
    spec = crd["spec"]
    names, (version,) = spec["names"], spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"\n## {names['kind']}\n",
        f"`{spec['group']}/{version['name']}`, {_SCOPES[spec['scope']]}; `kubectl get {names['plural']}` (short: `{'`, `'.join(names['shortNames'])}`).",
        f"{schema['description']}\n",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    lines += _rows(schema["properties"]["spec"], "spec")
    rules = [*_rules(schema), *_rules(schema["properties"]["spec"])]
    if rules:
        lines += ["\nRefused, too:\n", *(f"- {rule}" for rule in rules)]
    return "\n".join(lines) + "\n"


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        text = " ".join(part for part in (_sentence(field), _limits(field)) if part)
        must = " Required." if name in required else ""
        yield f"| `{here}` | {_type(field)} | {_cell((text + must).strip())} |"
        yield from _rows(field.get("items", field), f"{here}[]" if "items" in field else here)


def _sentence(field: Mapping[str, Any]) -> str:
    return str(field.get("description", field.get("items", {}).get("description", "")))


def _type(field: Mapping[str, Any]) -> str:
    if "items" in field:
        inner = _type(field["items"])
        return "list of " + ("texts" if inner == "text" else f"{inner}s")
    if "additionalProperties" in field:
        inner = field["additionalProperties"]
        return "map to amounts" if inner.get("x-kubernetes-int-or-string") else "map to texts"
    kind = str(field.get("type", "object"))
    return {"integer": "number", "string": "text", "boolean": "true or false"}.get(kind, kind)


def _limits(field: Mapping[str, Any]) -> str:
    """What the schema says in numbers and lists."""
    found = []
    inner = field.get("items", field)
    if "enum" in inner:
        found.append("One of " + ", ".join(f"`{value}`" for value in inner["enum"]) + ".")
    if "minimum" in field and "maximum" in field:
        above = "above " if field.get("exclusiveMinimum") else "from "
        found.append(f"A number {above}{field['minimum']} to {field['maximum']}.")
    if "maxItems" in field:
        found.append(f"{field['maxItems']} at most.")
    found += [f"{rule}." for rule in _rules(field)]
    return " ".join(found)


def _rules(schema: Mapping[str, Any]) -> list[str]:
    return [str(rule["message"]) for rule in schema.get("x-kubernetes-validations", ())]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
