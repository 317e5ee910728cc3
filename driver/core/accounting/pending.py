# SPDX-License-Identifier: Apache-2.0
"""Why a claim waits, in one word.

A figure for dashboards, from what all nodes have together; ``gpudra explain`` says it device by
device. Selectors are asked about one device of each kind, so those that tell one card from its like
(a uuid, a PCI address) are judged by the first. Constraints between devices and the room on one
node are not looked at: what is ``waiting`` may wait for them.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from gpudra.driver.core.accounting.facts import SHARE, ClaimFact, Shape, Wish
from gpudra.driver.core.accounting.pools import Account
from gpudra.driver.core.cel import CelCompileError, CelEvaluationError, compile_selector


class Reason(StrEnum):
    """From the most final to the least."""

    NO_CLASS = "no_class"
    NO_DEVICE = "no_device"
    TAINTED = "tainted"
    IN_USE = "in_use"
    WAITING = "waiting"


_ORDER = {reason: number for number, reason in enumerate(Reason)}


class Judge:
    """Says why claims wait, for one state of the cluster.

    Args:
        driver: whose devices; claims for others' are not judged.
        classes: selectors of each DeviceClass.
        account: of all pools.
    """

    def __init__(
        self, driver: str, classes: Mapping[str, tuple[str, ...]], account: Account
    ) -> None:
        self._driver = driver
        self._classes = classes
        self._account = account
        self._matches: dict[tuple[str, ...], tuple[Shape, ...]] = {}

    def reason(self, claim: ClaimFact) -> Reason | None:
        """Why it waits; None when it does not, or asks nothing of this driver."""
        found = [self._request(wishes) for wishes in claim.wishes] if claim.waits else []
        ours = [reason for reason in found if reason is not None]
        return min(ours, key=_ORDER.__getitem__, default=None)

    def _request(self, wishes: Iterable[Wish]) -> Reason | None:
        """Of alternatives the best counts."""
        found = [reason for wish in wishes if (reason := self._wish(wish)) is not None]
        return max(found, key=_ORDER.__getitem__, default=None)

    def _wish(self, wish: Wish) -> Reason | None:
        selectors = self._classes.get(wish.device_class)
        if selectors is None:
            return Reason.NO_CLASS if self._is_ours(wish.device_class) else None
        shapes = self._select((*selectors, *wish.selectors))
        fit = [shape for shape in shapes if shape.memory >= wish.memory]
        account = self._account
        if sum(account.published[shape] for shape in fit) < wish.count:
            ours = bool(fit or shapes or self._select(selectors)) or self._mentions(selectors)
            return Reason.NO_DEVICE if ours else None
        if not wish.tolerant and sum(account.untainted[shape] for shape in fit) < wish.count:
            return Reason.TAINTED
        if sum(account.available[shape] for shape in fit) < wish.count or not self._has_room(
            wish, fit
        ):
            return Reason.IN_USE
        return Reason.WAITING

    def _has_room(self, wish: Wish, fit: Iterable[Shape]) -> bool:
        """Whether some share has as much memory left as is asked for."""
        largest = self._account.largest
        return any(
            shape.form != SHARE or largest.get((shape.model, SHARE), 0) >= wish.memory
            for shape in fit
        )

    def _is_ours(self, name: str) -> bool:
        """A class that does not exist, by its name."""
        return name == self._driver or name.endswith(f".{self._driver.removeprefix('gpu.')}")

    def _mentions(self, selectors: Iterable[str]) -> bool:
        return any(self._driver in text for text in selectors)

    def _select(self, selectors: tuple[str, ...]) -> tuple[Shape, ...]:
        found = self._matches.get(selectors)
        if found is None:
            published = self._account.published
            found = tuple(shape for shape in published if _matches(selectors, shape))
            self._matches[selectors] = found
        return found


def _matches(selectors: Iterable[str], shape: Shape) -> bool:
    try:
        return all(
            compile_selector(text, list_attributes=True).matches(shape.device) for text in selectors
        )
    except (CelCompileError, CelEvaluationError):
        return False
