# SPDX-License-Identifier: Apache-2.0
"""Fairness over time: what a queue used before counts, half as much after every half-life.

The past of a queue is the average of its weighted dominant share, in which an hour ago weighs less
than now: ``d past/dt = (share - past) · ln 2 / half-life``. A queue that has used a tenth of the
cluster for ever has a past of a tenth, and one that has been idle for one half-life lost half of it.
Added to the present share where the order is decided (`gpudra.driver.core.queueing.order`), the
queue that got less in the past goes first. Off without a half-life.

The controller writes each past with its time into the status of the Queue, so that a restart, or
another leader, goes on from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Past:
    """What a queue used up to a moment, and the share from then on.

    Attributes:
        value: decayed average share.
        at: seconds since the epoch.
        share: the share that it has had since.
    """

    value: float = 0.0
    at: float = 0.0
    share: float = 0.0


@dataclass(slots=True)
class UsageHistory:
    """The pasts of all queues.

    Args:
        half_life: seconds after which what was used counts half; 0 keeps no history.
    """

    half_life: float = 0.0
    _pasts: dict[str, Past] = field(default_factory=dict)

    def note(self, shares: Mapping[str, float], now: float) -> None:
        """From now on the queues have these shares; queues that are not named any more are gone."""
        if not self.half_life:
            return
        values = self.values(now)
        self._pasts = {
            name: Past(values.get(name, 0.0), now, share) for name, share in shares.items()
        }

    def values(self, now: float) -> dict[str, float]:
        """The past of every queue at this moment; empty when no history is kept."""
        if not self.half_life:
            return {}
        return {name: self._value(past, now) for name, past in self._pasts.items()}

    def restore(self, name: str, value: float, at: float, now: float) -> None:
        """Goes on from what was written down at a moment; until now the queue is taken for idle.

        A moment in the future, from a clock that went wrong, counts as now.
        """
        if not self.half_life or name in self._pasts:
            return
        self._pasts[name] = Past(self._value(Past(value, min(at, now)), now), now)

    def _value(self, past: Past, now: float) -> float:
        kept: float = 0.5 ** (max(0.0, now - past.at) / self.half_life)
        return past.value * kept + past.share * (1 - kept)
