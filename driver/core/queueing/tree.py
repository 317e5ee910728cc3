# SPDX-License-Identifier: Apache-2.0
"""The tree of queues, and what is wrong with it. A bad queue admits nothing; the others go on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpudra.api.queue import Queue
from gpudra.driver.core.queueing.amounts import NOTHING, Amounts

ROOT = ""
"""Name of the cluster as a whole, above all queues."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a queue admits nothing: the condition ``Ready`` of the object."""

    reason: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Grant:
    """A queue in the tree, its amounts parsed.

    Attributes:
        path: names from below the root down to the queue.
        quota: never less than the guarantee.
        limit: None: none.
    """

    name: str
    parent: str
    path: tuple[str, ...]
    weight: float = 1.0
    guarantee: Amounts = NOTHING
    quota: Amounts = NOTHING
    limit: Amounts | None = None
    limited: frozenset[str] = frozenset()
    priority: int = 0
    reclaimable: bool = True
    preempt_min_runtime: int = 0
    reclaim_min_runtime: int = 0


@dataclass(frozen=True, slots=True)
class QueueTree:
    """The good queues, by name; the bad ones with their problem.

    Attributes:
        grants: every queue that can be used, parents included.
        children: names of children by name of the parent, in order; `ROOT` has the topmost.
        problems: by name of the queue.
    """

    grants: Mapping[str, Grant] = field(default_factory=dict)
    children: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: Mapping[str, Problem] = field(default_factory=dict)

    @classmethod
    def of(cls, queues: Iterable[Queue]) -> "QueueTree":
        """Reads all queues; whatever is wrong with some of them is in `problems`."""
        found = {queue.name: queue for queue in sorted(queues, key=lambda queue: queue.name)}
        grants: dict[str, Grant] = {}
        problems: dict[str, Problem] = {}
        for name, queue in found.items():
            path = _path(name, found)
            if isinstance(path, Problem):
                problems[name] = path
            else:
                grants[name] = _grant(queue, path)
        children: dict[str, list[str]] = {}
        for name, grant in grants.items():
            children.setdefault(grant.parent, []).append(name)
        return cls(grants, {name: tuple(below) for name, below in children.items()}, problems)

    def refusal(self, name: str) -> Problem | None:
        """Why pods may not use this queue; None when they may."""
        if name in self.problems:
            return self.problems[name]
        if name not in self.grants:
            return Problem("UnknownQueue", "metadata.labels", f"there is no queue {name!r}")
        below = self.children.get(name)
        if below:
            return Problem(
                "NotALeaf",
                "metadata.labels",
                f"queue {name} takes no pods itself, only its parts do: {', '.join(below)}",
            )
        return None


def _path(name: str, queues: Mapping[str, Queue]) -> tuple[str, ...] | Problem:
    """From the top to the queue."""
    upward = [name]
    while (parent := queues[upward[-1]].spec.parent) is not None:
        if parent not in queues:
            whose = "" if upward[-1] == name else f" of its ancestor {upward[-1]}"
            return Problem(
                "UnknownParent", "spec.parent", f"the parent{whose} {parent} does not exist"
            )
        if parent in upward:
            ring = " in ".join([*upward[upward.index(parent) :], parent])
            return Problem("Cycle", "spec.parent", f"the queues are inside each other: {ring}")
        upward.append(parent)
    return tuple(reversed(upward))


def _grant(queue: Queue, path: tuple[str, ...]) -> Grant:
    spec = queue.spec
    guarantee = Amounts.parse(spec.guarantee)
    return Grant(
        name=queue.name,
        parent=path[-2] if len(path) > 1 else ROOT,
        path=path,
        weight=float(spec.weight),
        guarantee=guarantee,
        quota=guarantee.widest(Amounts.parse(spec.quota)),
        limit=Amounts.parse(spec.limit) if spec.limit else None,
        limited=frozenset(spec.limit),
        priority=spec.priority,
        reclaimable=spec.reclaimable,
        preempt_min_runtime=spec.preempt_min_runtime,
        reclaim_min_runtime=spec.reclaim_min_runtime,
    )
