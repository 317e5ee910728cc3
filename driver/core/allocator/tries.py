# SPDX-License-Identifier: Apache-2.0
"""What a search carries along: values that are dropped, never changed."""

from dataclasses import dataclass

from gpudra.driver.core.allocator.counters import IslandState


@dataclass(frozen=True, slots=True)
class Pick:
    """One device given to one request.

    Attributes:
        claim, request, alternative: indices into the plan.
        position: of the device.
        before: the pick made before this one.
    """

    claim: int
    request: int
    alternative: int
    position: int
    before: "Pick | None"


@dataclass(frozen=True, slots=True)
class Solution:
    """A complete answer, in positions.

    Attributes:
        picks: in the order of claims, requests and devices.
        islands: the states of the node's islands afterwards.
    """

    picks: tuple[Pick, ...]
    islands: tuple[IslandState, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """How far a search has come.

    Attributes:
        claim, request: what is served next; ``request`` may be one past the last.
        alternative: the chosen one, -1 while it is not chosen.
        slot: devices that the chosen alternative has got.
        start: index into its candidates from which the next device may come.
        total: devices given to the claim so far.
        islands: states.
        constraints: states of the claim's constraints.
        picks: devices given out, newest first.
    """

    claim: int
    request: int
    alternative: int
    slot: int
    start: int
    total: int
    islands: tuple[IslandState, ...]
    constraints: tuple[int, ...]
    picks: Pick | None
