# SPDX-License-Identifier: Apache-2.0
"""The words of the allocator: nodes, devices, answers, and why there is none.

Used by every module beside it, by ``gpudra allocate`` and ``explain``, and by managed allocation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpudra.api.codec import NOTHING
from gpudra.api.resource_v1 import AllocationResult

PoolKey = tuple[str, str]
"""Driver and pool name: a pool name alone means nothing, most drivers use the node's name."""

Deadline = Callable[[], bool]
"""Tells whether the time is up; the caller owns the clock."""


class DeviceId(NamedTuple):
    """A device, as the whole cluster knows it."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class Outcome(StrEnum):
    """What became of a question."""

    ALLOCATED = "allocated"
    UNSATISFIABLE = "unsatisfiable"  # no valid answer on this node; not an error
    NODE_ERROR = "node-error"  # this node is refused, others may still serve
    CLAIM_ERROR = "claim-error"  # the claims cannot be handled anywhere as they are
    TIMEOUT = "timeout"  # not known in the time given; never means "no"


@dataclass(frozen=True, slots=True)
class Node:
    """What the allocator needs of a ``core/v1`` Node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    declared_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one device did not serve one request.

    Attributes:
        device: the device, or the pool when it fails as a whole.
        request: ``request`` or ``request/alternative``.
        reason: one word of ``explain.KINDS``, for counting.
        detail: the values that decided, for people.
    """

    device: str
    request: str
    reason: str
    detail: str


Filling = Callable[[], tuple[tuple[AllocationResult, ...], str]]
"""Works out the allocations or the message of an answer, when somebody wants to see them."""


class Answer:
    """The answer to "may these claims be allocated together on this node?".

    Thousands of nodes answer a question and one is taken, so allocations and message are worked out
    when they are looked at; what they say was settled when the answer was given.

    Args:
        outcome: see Outcome.
        node: the node that was asked about.
        allocations: one per claim, in the order of the question; empty unless allocated.
        message: a sentence for people; empty when allocated.
        preference: for each ``firstAvailable`` request 8 minus the index of the chosen
            alternative, summed: the score by which kube-scheduler compares nodes.
        filling: instead of allocations and message.
    """

    __slots__ = ("_allocations", "_filling", "_message", "node", "outcome", "preference")

    def __init__(
        self,
        outcome: Outcome,
        node: str,
        allocations: tuple[AllocationResult, ...] = (),
        message: str = "",
        preference: int = 0,
        filling: Filling | None = None,
    ) -> None:
        self.outcome = outcome
        self.node = node
        self.preference = preference
        self._allocations = allocations
        self._message = message
        self._filling = filling

    @property
    def fits(self) -> bool:
        """Whether the claims are allocated."""
        return self.outcome is Outcome.ALLOCATED

    @property
    def allocations(self) -> tuple[AllocationResult, ...]:
        """One per claim, in the order of the question."""
        self._fill()
        return self._allocations

    @property
    def message(self) -> str:
        """Why there is no allocation."""
        self._fill()
        return self._message

    def _fill(self) -> None:
        if self._filling is not None:
            self._allocations, self._message = self._filling()
            self._filling = None

    def __repr__(self) -> str:
        return f"Answer({self.outcome.value}, {self.node!r}, {self.message!r})"


class Refusal(Exception):  # noqa: N818 - not an error of ours, an answer that ends the search
    """Ends a search with an outcome other than "unsatisfiable"."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


def claim_refusal(message: str) -> Refusal:
    """The claim cannot be handled anywhere."""
    return Refusal(Outcome.CLAIM_ERROR, message)


def node_refusal(message: str) -> Refusal:
    """This node cannot serve; others may."""
    return Refusal(Outcome.NODE_ERROR, message)
