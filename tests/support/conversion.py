# SPDX-License-Identifier: Apache-2.0
"""The table of requests of other systems: its rows as pods, and what is expected of each."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpudra.driver.core.conversion.types import Cards

TABLES = Path(__file__).parents[1] / "tables"
GIB = 2**30
# Of an A100 with 40 GiB and an H100 with 80 GiB, rounded.
CARDS = Cards(shares=(40960, 81920), parts=(10 * GIB, 20 * GIB, 40 * GIB, 80 * GIB))


@dataclass(frozen=True)
class Row:
    """One request.

    Attributes:
        row: what it shows.
        asks: container -> name of the template; None if it is refused.
        refused: field and value that the refusal names.
    """

    row: str
    asks: Mapping[str, str] | None = None
    refused: Mapping[str, str] | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    containers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    init: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    system: str = "hami"
    managed: bool = False
    queue: str = ""
    group: str = ""
    note: str = ""

    def pod(self, name: str) -> dict[str, Any]:
        """The pod, as its owner would write it."""
        metadata: dict[str, Any] = {"name": name}
        for kind in ("labels", "annotations"):
            if getattr(self, kind):
                metadata[kind] = dict(getattr(self, kind))
        containers = self.containers or {"c": self.limits}
        spec = {**self.spec, "containers": [self._container(*one) for one in containers.items()]}
        if self.init:
            spec["initContainers"] = [self._container(*one) for one in self.init.items()]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _container(self, name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name, "image": "example.com/x"}
        if limits:
            made["resources"] = {"limits": {key: str(value) for key, value in limits.items()}}
        if self.env:
            made["env"] = [{"name": key, "value": value} for key, value in self.env.items()]
        return made


def rows() -> list[Row]:
    """The table."""
    return [Row(**raw) for raw in yaml.safe_load((TABLES / "conversion.yaml").read_text())["rows"]]


@functools.cache
def claims() -> dict[str, Any]:
    """Name of a template -> its spec and the sizes of cards that it has considered."""
    found: dict[str, Any] = yaml.safe_load((TABLES / "conversion-claims.yaml").read_text())
    return found
