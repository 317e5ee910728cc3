# SPDX-License-Identifier: Apache-2.0
"""What runs and might have to end, and how much harm that does."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpudra.api.queue import GPUS
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.gangs.types import PodView
from gpudra.driver.core.queueing import NOTHING, Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Pods that end together: a pod of its own, a gang, or one pod more than a gang must have.

    Attributes:
        job: name of the whole, unique among runners.
        queue: that is charged for it.
        priority: of its pods, the highest.
        since: when the last of its pods started, in seconds since the epoch; None: not yet.
        seats: pods with their nodes.
        claims: allocated claims that nobody else uses: what ends with the pods.
        amounts: what the queue is charged less afterwards.
        budgets: PodDisruptionBudgets of its pods, one entry for each pod that each budget counts.
        fixed: why it may never be evicted; empty if it may.
        movable: somebody makes it anew after an eviction, and it may run anywhere.
    """

    job: str
    queue: str
    priority: int = 0
    since: float | None = None
    seats: tuple[tuple[PodView, str], ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    amounts: Amounts = NOTHING
    budgets: tuple[str, ...] = ()
    fixed: str = ""
    movable: bool = False


class Harm(NamedTuple):
    """How bad it is to end some runners; the smaller, the better.

    The order is kube-scheduler's for pods, with devices beside it: first the importance of the most
    important, then how many pods, then how much of GPU, then how long they have run.
    """

    highest: int
    pods: int
    gpus: int
    ran_for: float
    jobs: tuple[str, ...]


def harm_of(runners: Iterable[Runner], now: float) -> Harm:
    """The harm of ending all of these; of nothing, if there are none."""
    those = tuple(runners)
    return Harm(
        max((one.priority for one in those), default=-(2**31)),
        sum(len(one.seats) for one in those),
        sum(one.amounts.of(GPUS) for one in those),
        sum(max(0.0, now - one.since) for one in those if one.since is not None),
        tuple(sorted(one.job for one in those)),
    )
