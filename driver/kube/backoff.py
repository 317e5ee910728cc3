# SPDX-License-Identifier: Apache-2.0
"""How long to wait before the next try: exponential, jittered, the random numbers injected.

Jitter keeps thousands of agents from coming back at the same moment after an API server outage.
"""

import random

# factor**40 is past every cap; the bound keeps the power from overflowing after days of failures.
_MAX_EXPONENT = 40


def delay_for(
    attempt: int, *, base: float, cap: float, factor: float = 2.0, rng: random.Random
) -> float:
    """Seconds before try number ``attempt`` (0 = the first retry): in [d/2, d] with d = min(cap, base * factor**attempt)."""
    full = min(cap, base * factor ** min(attempt, _MAX_EXPONENT))
    return full * (0.5 + 0.5 * rng.random())


class Backoff:
    """Delays of one thing that is tried again and again.

    Args:
        base: first delay in seconds, before jitter.
        cap: largest delay in seconds, before ``at_least`` of a server is honoured.
        factor: growth per failure.
        rng: source of the jitter.
    """

    def __init__(
        self,
        base: float = 0.2,
        cap: float = 30.0,
        factor: float = 2.0,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._base = base
        self._cap = cap
        self._factor = factor
        # Jitter needs no secrecy.
        self._rng = rng if rng is not None else random.Random()  # noqa: S311
        self.attempts = 0

    def next(self, at_least: float = 0.0) -> float:
        """Delay after one more failure, and never below ``at_least`` (a server's Retry-After)."""
        delay = delay_for(
            self.attempts, base=self._base, cap=self._cap, factor=self._factor, rng=self._rng
        )
        self.attempts += 1
        return max(delay, at_least)

    def reset(self) -> None:
        """Start again from ``base``: the thing worked."""
        self.attempts = 0
