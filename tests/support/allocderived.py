# SPDX-License-Identifier: Apache-2.0
"""Derived attributes for random clusters, each with a Python function of the same meaning.

The generator draws expressions from ``DERIVED``; the brute-force checker asks their meaning and
needs no CEL.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

Obj = dict[str, Any]
Meaning = Callable[[str, Obj], Obj]
DOMAIN = 'device.attributes["gpu.example.com"]'


class SelectorFailsError(Exception):
    """The expression has no answer for this device."""


def own(driver: str, device: Obj, name: str) -> Obj | None:
    """An attribute of domain gpu.example.com."""
    attributes = device.get("attributes", {})
    value: Obj | None = attributes.get(f"gpu.example.com/{name}")
    if value is None and driver == "gpu.example.com":
        value = attributes.get(name)
    return value


def must(driver: str, device: Obj, name: str) -> Obj:
    """As own, where its absence is an error."""
    value = own(driver, device, name)
    if value is None:
        raise SelectorFailsError(name)
    return value


def _in_list(driver: str, device: Obj) -> Obj:
    value = own(driver, device, "numa") or {"int": 1}
    if "ints" in value:
        raise SelectorFailsError("a list of lists")
    return {"ints": [value["int"]]}


DERIVED: dict[str, Meaning] = {
    f"{DOMAIN}.?numa.orValue(0)": lambda driver, device: own(driver, device, "numa") or {"int": 0},
    f'"model" in {DOMAIN} ? {DOMAIN}.model + "!" : "none"': lambda driver, device: {
        "string": f"{(own(driver, device, 'model') or {'string': 'none'})['string']}"
        + ("!" if own(driver, device, "model") else "")
    },
    "device.driver": lambda driver, _device: {"string": driver},
    f'"ok" in {DOMAIN}': lambda driver, device: {"bool": own(driver, device, "ok") is not None},
    f'{DOMAIN}.?version.orValue(semver("2.0.0"))': lambda driver, device: (
        own(driver, device, "version") or {"version": "2.0.0"}
    ),
    f'"model" in {DOMAIN} && {DOMAIN}.model == "a" ? [0, 1] : [1, 2]': lambda driver, device: {
        "ints": [0, 1] if own(driver, device, "model") == {"string": "a"} else [1, 2]
    },
    f'["r0"].filter(x, "ok" in {DOMAIN})': lambda driver, device: {
        "strings": ["r0"] if own(driver, device, "ok") else []
    },
    "1": lambda _driver, _device: {"int": 1},
    f"{DOMAIN}.numa": lambda driver, device: must(driver, device, "numa"),
    f"[{DOMAIN}.?numa.orValue(1)]": _in_list,
}
MAY_FAIL = frozenset(list(DERIVED)[-2:])


def alternatives(request: Obj) -> Iterator[tuple[str, Obj]]:
    """Full names and contents of a request's alternatives."""
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for sub in request.get("firstAvailable", ()):
        yield f"{request['name']}/{sub['name']}", sub


def covers(constraint: Obj, full: str) -> bool:
    """Whether a constraint is about a request or alternative."""
    chosen = constraint.get("requests") or ()
    return not chosen or full in chosen or full.partition("/")[0] in chosen


def derive(rng: random.Random, requests: list[Obj], constraints: list[Obj]) -> set[str]:
    """Gives some requests derived attributes that their constraints compare; the tags of these."""
    tags: set[str] = set()
    for request in requests:
        for full, one in alternatives(request):
            found: dict[str, str] = {}
            for constraint in constraints:
                name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
                likely = 0.9 if name == "example.com/derived" else 0.2
                if covers(constraint, full) and rng.random() < likely:
                    found[name] = rng.choice(list(DERIVED))
            if found:
                one["derivedAttributes"] = [
                    {"name": name, "expression": text} for name, text in found.items()
                ]
                tags.add("derived")
                if MAY_FAIL & set(found.values()):
                    tags.add("unguarded")
    return tags
