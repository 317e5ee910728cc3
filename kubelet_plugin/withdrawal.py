# SPDX-License-Identifier: Apache-2.0
"""How devices that policy or hardware do not offer any more leave the slices.

The scheduler takes a device that is gone for free, with all that it takes from its card. So an
allocated device stays listed and tainted until its claim ends. And since it may be allocated while
we look, every device is tainted first, and claims are listed only once schedulers have had the
time to see the taint.
"""

import random
from collections.abc import Mapping
from typing import Protocol

from gpudra.api.errors import ApiError
from gpudra.api.resource_v1 import Device
from gpudra.driver.core.taints import LOST, WITHDRAWN, keeps_off
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger

# From the taint in the API to the question who holds the device: a scheduler sees a slice within
# milliseconds, and a decision that it made before reaches the API within its binding cycle.
GRACE_SECONDS = 3.0
# A policy may concern thousands of nodes, whose agents must not list all claims at once.
SPREAD_SECONDS = 5.0
# How often claims are listed while a device is held by one that is not prepared here.
ASK_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_REST_SECONDS = 10.0
_RETRY_SECONDS = 10.0
log = get_logger(__name__)


class HolderSource(Protocol):
    """See gpudra.kubelet_plugin.holders."""

    def prepared(self) -> frozenset[str]:
        """Devices of prepared claims."""
        ...

    async def allocated(self) -> frozenset[str]:
        """Devices of all claims."""
        ...


class Withdrawals:
    """Decides which of the devices that should vanish stay for now.

    Args:
        holders: who holds devices.
        driver: the domain of taint keys.
        clock: for the grace.
        rng: spreads the listing of claims over time.
    """

    def __init__(
        self, holders: HolderSource, *, driver: str, clock: Clock, rng: random.Random
    ) -> None:
        self._holders = holders
        self._marks = {f"{driver}/{cause}" for cause in (WITHDRAWN, LOST)}
        self._clock = clock
        self._rng = rng
        self._ripe_at: dict[str, float] = {}
        self._released: set[str] = set()
        # Found allocated at the last look; about them alone it is too early to ask again.
        self._allocated: set[str] = set()
        self._ask_at = 0.0
        self._retry_at = 0.0
        self._rest: float | None = None

    @property
    def rest(self) -> float | None:
        """Seconds until ``kept`` should be asked again; None when nothing is kept."""
        return self._rest

    async def kept(
        self, vanishing: Mapping[str, Device], *, taints_kept: bool
    ) -> Mapping[str, Device]:
        """Those that stay listed.

        Args:
            vanishing: devices that the API lists and that are not offered any more.
            taints_kept: whether the server keeps taints; if not, there is nothing to wait for.
        """
        now = self._clock.monotonic()
        self._forget(vanishing)
        prepared = self._holders.prepared()
        unknown = [
            name for name in vanishing if name not in prepared and name not in self._released
        ]
        # One pause for all that are marked at once: they are asked about together.
        pause = GRACE_SECONDS + SPREAD_SECONDS * self._rng.random()
        for name in unknown:
            if name in self._ripe_at:
                continue
            if not taints_kept:
                self._ripe_at[name] = now
            elif self._is_marked(vanishing[name]):
                self._ripe_at[name] = now + pause
        ripe = {name for name in unknown if self._ripe_at.get(name, now + 1) <= now}
        due = now >= self._ask_at or bool(ripe - self._allocated)
        if ripe and due and now >= self._retry_at:
            await self._ask(ripe, now)
        left = {name: one for name, one in vanishing.items() if name not in self._released}
        waits = any(name in left and name not in ripe for name in unknown)
        self._rest = (_LOOK_SECONDS if waits else _REST_SECONDS) if left else None
        return left

    async def _ask(self, ripe: set[str], now: float) -> None:
        try:
            allocated = await self._holders.allocated()
        except ApiError as error:
            log.warning("cannot list claims, devices stay listed meanwhile", error=str(error))
            self._retry_at = now + _RETRY_SECONDS
            return
        released = ripe - allocated
        self._released |= released
        self._allocated = ripe & allocated
        self._ask_at = now + ASK_SECONDS
        if released:
            log.info("withdrew devices that nobody holds", devices=sorted(released))
        if ripe & allocated:
            log.info("devices stay until their claims end", devices=sorted(ripe & allocated))

    def _forget(self, vanishing: Mapping[str, Device]) -> None:
        self._released &= vanishing.keys()
        self._allocated &= vanishing.keys()
        for name in self._ripe_at.keys() - vanishing.keys():
            del self._ripe_at[name]

    def _is_marked(self, device: Device) -> bool:
        return any(taint.key in self._marks and keeps_off(taint) for taint in device.taints)
