# SPDX-License-Identifier: Apache-2.0
"""Fairness over time: what queues used before, kept while we lead and in the status of each Queue.

Off without a half-life. The rule is that of `gpudra.driver.core.queueing.history`; here is where it
meets the clock and the objects. Used by the planner (before each answer), by the statuses (which
write it down) and by ``gpudra queues`` (which reads what was written).
"""

from collections.abc import Mapping
from typing import Any

from gpudra.driver.core.managed import ManagedState
from gpudra.driver.core.queueing.history import UsageHistory
from gpudra.driver.kube.clock import parse_time
from gpudra.driver.kube.resources import Obj

# A past is written anew at most so often, and only when it would be read as another one.
WRITE_SECONDS = 60.0
_DIFFERS = 0.0005


class Pasts:
    """Brings the pasts of a state up to date.

    Args:
        half_life: seconds; 0 keeps none.
    """

    def __init__(self, half_life: float = 0.0) -> None:
        self._half_life = half_life
        self._history = UsageHistory(half_life)
        self._known: set[str] = set()

    @property
    def kept(self) -> bool:
        """Whether there is such a thing here."""
        return self._half_life > 0

    def apply(self, state: ManagedState, now: float) -> None:
        """Until now every queue had the share that it had last time; from now on its present one.

        A queue that is seen for the first time goes on from what its status says.
        """
        if not self.kept:
            return
        for name in state.queues.keys() - self._known:
            found = noted(state.queues[name].status)
            if found is not None:
                self._history.restore(name, *found, now)
        self._known = set(state.queues)
        book = state.book
        self._history.note({name: book.share(name) for name in book.tree.grants}, now)
        book.history = self._history.values(now)

    def status(self, have: Mapping[str, Any], past: float, now: float, text: str) -> Obj:
        """What the status of a queue says about its past; nothing when none is kept.

        Args:
            have: the status as it is.
            past: as of now.
            now: seconds since the epoch.
            text: the same, as it is written.
        """
        if not self.kept:
            return {}
        before = noted(have)
        if before is not None:
            value, at = before
            read = value * 0.5 ** (max(0.0, now - at) / self._half_life)
            if now - at < WRITE_SECONDS or abs(read - past) < _DIFFERS:
                return {"history": dict(have["history"])}
        return {"history": {"share": f"{past:.6f}", "time": text}}


def noted(status: Mapping[str, Any]) -> tuple[float, float] | None:
    """Past and its time as the status of a Queue has them; None where it says nothing readable.

    Whoever may write statuses could write anything there; a past that is no number is none.
    """
    found = status.get("history")
    if not isinstance(found, Mapping):
        return None
    try:
        value, at = float(found["share"]), parse_time(str(found["time"])).timestamp()
    except (KeyError, TypeError, ValueError):
        return None
    return (value, at) if 0 <= value <= 1e6 else None
