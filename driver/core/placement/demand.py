# SPDX-License-Identifier: Apache-2.0
"""The demand mix: which requests are typical, and how likely each of them is.

Trace mode counts a list once (``DemandMix.of``); live mode feeds every request
it sees into a :class:`DemandLearner`, whose counts fade with time. Order and
numbers depend on the input only, never on hashing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpudra.driver.core.placement.types import FULL_CARD, PlacementError, Request


def _order(request: Request) -> tuple[object, ...]:
    """A total order over requests, so that equal frequencies never tie by chance."""
    return (
        request.cards,
        request.card_milli,
        request.card_memory_milli,
        request.mig_profile,
        request.linked,
        request.cpu_milli,
        request.memory_mib,
        tuple(sorted(request.models)),
    )


COARSEST = 256
"""Coarsest rounding: 64 cores, 128 GiB; shares stop at quarters of a card."""


def _rounded(request: Request, step: int) -> Request:
    milli = min(5 * step, 250)
    return replace(
        request,
        cpu_milli=_up(request.cpu_milli, 250 * step),
        memory_mib=_up(request.memory_mib, 512 * step),
        card_milli=min(FULL_CARD, _up(request.card_milli, milli)),
        card_memory_milli=min(FULL_CARD, _up(request.card_memory_milli, milli)),
    )


def _up(amount: int, step: int) -> int:
    return -(-amount // step) * step


@dataclass(frozen=True, slots=True)
class DemandMix:
    """Distinct requests, most frequent first, with probabilities that sum to one."""

    kinds: tuple[Request, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def of(cls, requests: Iterable[Request]) -> "DemandMix":
        """Counts a list. An empty list gives an empty mix: policies then go by free space only."""
        counts: dict[Request, float] = {}
        for request in requests:
            counts[request] = counts.get(request, 0.0) + 1.0
        return cls.weighted(counts)

    @classmethod
    def weighted(cls, counts: dict[Request, float]) -> "DemandMix":
        """From weights of any scale; those that are not positive are left out."""
        total = sum(w for w in counts.values() if w > 0)
        ordered = sorted(
            ((r, w) for r, w in counts.items() if w > 0), key=lambda rw: (-rw[1], _order(rw[0]))
        )
        return cls(tuple(r for r, _ in ordered), tuple(w / total for _, w in ordered))

    def coarse(self, limit: int) -> "DemandMix":
        """The same mix with at most about ``limit`` kinds, for policies that look at all of them.

        CPU, memory and share sizes are rounded up to steps that double until few
        enough kinds are left; a mix within the limit is returned as it is.
        """
        mix, step = self, 1
        while len(mix.kinds) > limit and step <= COARSEST:
            step *= 2
            merged: dict[Request, float] = {}
            for request, probability in zip(self.kinds, self.probabilities, strict=True):
                kind = _rounded(request, step)
                merged[kind] = merged.get(kind, 0.0) + probability
            mix = DemandMix.weighted(merged)
        return mix

    def most_frequent(self, part: float) -> "DemandMix":
        """The head of the mix that makes up ``part`` of all requests, scaled to one."""
        head: dict[Request, float] = {}
        covered = 0.0
        for request, probability in zip(self.kinds, self.probabilities, strict=True):
            if covered >= part - 1e-12:
                break
            head[request] = probability
            covered += probability
        return DemandMix.weighted(head)


class DemandLearner:
    """Learns the mix from history with exponential decay.

    ``half_life_s`` is the age at which a request counts half. Times come from
    the caller (this package has no clock) and may repeat; an earlier time than
    the last one counts as the last one, so a clock set back does no harm.
    ``limit`` bounds the distinct requests kept: the lightest are forgotten.
    """

    def __init__(self, half_life_s: float, *, limit: int = 512) -> None:
        if half_life_s <= 0 or limit < 1:
            raise PlacementError("half_life_s and limit of a demand learner must be positive")
        self._half_life_s = half_life_s
        self._limit = limit
        self._last_s: float | None = None
        self._weights: dict[Request, float] = {}

    def observe(self, request: Request, at_s: float) -> None:
        """Counts one request that arrived at ``at_s`` (seconds of any epoch)."""
        if self._last_s is not None and at_s > self._last_s:
            factor = 0.5 ** ((at_s - self._last_s) / self._half_life_s)
            self._weights = {r: w * factor for r, w in self._weights.items()}
        self._last_s = at_s if self._last_s is None else max(at_s, self._last_s)
        self._weights[request] = self._weights.get(request, 0.0) + 1.0
        if len(self._weights) > self._limit:
            lightest = min(self._weights, key=lambda r: (self._weights[r], _order(r)))
            del self._weights[lightest]

    def mix(self) -> DemandMix:
        """The mix as learned up to the last observation."""
        return DemandMix.weighted(self._weights)
