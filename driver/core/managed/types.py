# SPDX-License-Identifier: Apache-2.0
"""What a plan says. Carried out by the controller (gpudra.controller.managed); nothing here acts."""

from dataclasses import dataclass, field, replace

from gpudra.api.resource_v1 import AllocationResult
from gpudra.driver.core.gangs.noderoom import MANAGED_LABEL
from gpudra.driver.core.gangs.types import Placed, PodPlacement
from gpudra.driver.core.placement.calibrate import CANDIDATES
from gpudra.driver.core.placement.types import Weights
from gpudra.driver.core.queueing import NOTHING, Amounts

STEADY = replace(CANDIDATES[0], fresh=-0.1)
"""Begun cards before untouched ones: a bonus for opening cards pays only where nothing ever ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How plans are made.

    Attributes:
        node_label: label that must be ``true`` on a node; empty: every node.
        weights: of the placement score; `ManagedState.calibrated` finds better ones for a cluster.
        reservations: blocked jobs, one a queue, for which room is kept free.
        flight_seconds: a placement that was assumed and is not seen after so long is forgotten.
        broken_seconds: a gang that lost members and has no timeout of its own is taken down after
            so long.
        evictions: whether running pods may have to go for others (preemption and reclaim).
        moves: pods that may be moved for one job where nothing else helps (defragmentation); 0: none.
        nomination_seconds: room that was made for a job is kept for it so long at most.
    """

    node_label: str = MANAGED_LABEL
    weights: Weights = STEADY
    reservations: int = 16
    flight_seconds: float = 120.0
    broken_seconds: float = 600.0
    evictions: bool = True
    moves: int = 0
    nomination_seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class PodRef:
    """A consumer of a claim."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ClaimPlacement:
    """A claim and what is to be written into its status.

    Attributes:
        allocation: the one that the claim has already, when another pod made it.
        reserved_for: pods to be added to ``reservedFor``.
    """

    namespace: str
    name: str
    uid: str
    allocation: AllocationResult
    reserved_for: tuple[PodRef, ...]

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """Pods that are placed together.

    Attributes:
        job: see gangs.jobs.Job.key.
        amounts: what the queue is charged for it.
        claims: to be written first, all of them.
        pods: whose gates are lifted then.
        avoid: for repairs, nodes to be noted on the pod (annotation ``gpudra.io/avoid-nodes``).
    """

    job: str
    queue: str
    amounts: Amounts
    claims: tuple[ClaimPlacement, ...]
    pods: tuple[PodPlacement, ...]
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobWaiting:
    """A job that stays where it is.

    Attributes:
        pods: ``PodPlacement`` without node.
        position: in its queue, 1 is the first; 0: it has none.
        reason: one word for conditions: NoRoom, Reserved, OverLimit, GuaranteeOfOthers,
            AboveLimit, NeverPlaceable, WaitingForGang, WaitingForClaims, InvalidQueue,
            InvalidPod, InvalidClaim, InvalidGroup, TimedOut, OutOfTime, WaitingForVictims, and those of a queue's problem.
        message: a sentence for people.
    """

    job: str
    pods: tuple[PodPlacement, ...]
    queue: str
    position: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class JobUndo:
    """A gang to be taken down: its claims are given back, its pods deleted."""

    job: str
    claims: tuple[str, ...]
    pods: tuple[PodPlacement, ...]
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod that has to go for another job; found by gpudra.driver.core.preemption.

    Attributes:
        job: that it is a part of, and that ends with it.
        by: the job that gets what it leaves.
        reason: Preempted, Reclaimed or Moved.
        message: why this one, as a sentence.
        frees: what ending the whole of ``job`` gives back.
    """

    pod: PodPlacement
    job: str
    by: str
    reason: str
    message: str = ""
    frees: Amounts = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """Room that is being made for a job; remembered by the state until the job is placed.

    Attributes:
        placed: what it is going to have.
        victims: uids of pods that have to be gone before.
        evictions: of those victims that do not go by themselves.
        claims: key and uid of what the victims give back.
        since: of the plan that made it.
    """

    placed: tuple[Placed, ...]
    victims: tuple[str, ...]
    evictions: tuple[Eviction, ...]
    claims: tuple[tuple[str, str], ...]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now, in the order of the fields."""

    repairs: tuple[JobPlacement, ...] = ()
    undo: tuple[JobUndo, ...] = ()
    placements: tuple[JobPlacement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    waiting: tuple[JobWaiting, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What would become of pods that nobody has submitted.

    Attributes:
        placement: where they would go now; None: they would wait.
        position: in their queue.
        victims: who would have to go (gpudra.driver.core.preemption).
    """

    placement: JobPlacement | None = None
    reason: str = ""
    message: str = ""
    queue: str = ""
    position: int = 0
    amounts: Amounts = field(default_factory=lambda: NOTHING)
    victims: tuple[Eviction, ...] = ()
