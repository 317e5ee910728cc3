# SPDX-License-Identifier: Apache-2.0
"""A trace in memory: nodes and tasks, independent of any file format or policy."""

from dataclasses import dataclass
from typing import NamedTuple

from gpudra.driver.core.placement.types import FULL_CARD, NodeSpec, Request


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the trace; times are seconds of the trace's own epoch, or None."""

    name: str
    request: Request
    created_s: int | None = None
    deleted_s: int | None = None


class Trace(NamedTuple):
    """A cluster and the tasks that come to it, in file order."""

    nodes: tuple[NodeSpec, ...]
    tasks: tuple[Task, ...]

    @property
    def capacity_milli(self) -> int:
        """GPU amount of the cluster in milli-cards."""
        return sum(node.cards for node in self.nodes) * FULL_CARD
