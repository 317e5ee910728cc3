# SPDX-License-Identifier: Apache-2.0
"""What the demo needs of the world it runs in; the two worlds are siblings of this module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from gpudra.api.resource_v1 import ResourceClaim, ResourceSlice

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
CLASSES = ROOT / "deploy" / "manifests" / "deviceclasses.yaml"
DRIVER = "gpu.gpudra.io"
HARDWARE = "dgx-h100-8x80"
GPUS = 8
NAMESPACE = "gpudra-demo"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What a process in a container finds.

    Attributes:
        environment: variables that the driver set.
        devices: files in /dev that belong to GPUs.
    """

    environment: Mapping[str, str]
    devices: tuple[str, ...]

    @property
    def uuids(self) -> frozenset[str]:
        """The GPUs that the container was given."""
        names = (name for name in self.environment if name.startswith("GPUDRA_DEVICE_"))
        return frozenset(self.environment[name] for name in names)


class World(Protocol):
    """A place where claims are resolved and prepared."""

    outcome: str
    """What the last line says."""

    async def start(self) -> None:
        """Everything runs and all GPUs are published. Raises GpudraError."""

    async def stop(self) -> None:
        """Ends what must not outlive the demo."""

    async def slices(self) -> list[ResourceSlice]:
        """What is published."""

    async def show_slices(self) -> None:
        """Prints what is published, as a user would look at it."""

    async def claims(self) -> list[ResourceClaim]:
        """Every claim."""

    async def run_pod(self, file: Path) -> str:
        """Applies an example and waits until its pod runs; the pod's name."""

    async def remove(self, file: Path) -> None:
        """Deletes an example and waits until its claims are gone."""

    async def describe_claim(self, pod: str) -> str:
        """The pod's claim as text."""

    async def container(self, pod: str) -> ContainerView:
        """What the pod's container finds."""

    def farewell(self) -> Sequence[str]:
        """How to go on and how to stop, one line each."""


def say(text: str = "") -> None:
    """A line of the story, at once, also through a pipe."""
    print(text, flush=True)


def documents(file: Path) -> list[Object]:
    """The objects of an example."""
    return [found for found in yaml.safe_load_all(file.read_text()) if found]


def pod_of(found: Sequence[Object]) -> Object:
    """The only pod among objects."""
    (pod,) = (one for one in found if one["kind"] == "Pod")
    return pod
