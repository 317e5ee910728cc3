# SPDX-License-Identifier: Apache-2.0
"""Lets a Prepare wait for a claim that is just leaving its card; used by the state machine.

A pod that was deleted by force hands its card to the next one within seconds: the kubelet asks to
prepare the new claim while it still ends the old one's containers, and calls Unprepare right after.
A refusal in between would cost the new pod a minute and a half, which is how long the kubelet then
takes to ask again. Whoever waits holds no lock: the Unprepare needs them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpudra.api.errors import DeviceInUseError
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger

# A container gets 30 s to end by default, most take one or two; the kubelet waits 45 s for a call,
# of which the API server may have taken 10.
HANDOVER = 20.0
# How often a waiting Prepare looks by itself: another instance of the plugin may get the Unprepare.
_LOOK = 1.0

T = TypeVar("T")
log = get_logger(__name__)


class Handover:
    """Who waits for a claim to go.

    Args:
        clock: for waiting.
        seconds: how long at most, for one Prepare.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._waiting: set[asyncio.Event] = set()

    def freed(self) -> None:
        """A claim holds nothing any more."""
        for one in self._waiting:
            one.set()

    async def patiently(
        self, attempt: Callable[[], Awaitable[T]], leaves: Callable[[], Awaitable[bool]]
    ) -> T:
        """The result of ``attempt``, which is made anew while whoever is in the way is leaving.

        Args:
            attempt: raises DeviceInUseError while somebody is in the way.
            leaves: whether that claim has gone by now, or will as soon as the kubelet says so.

        Raises:
            DeviceInUseError: of the last attempt.
        """
        deadline = self._clock.monotonic() + self._seconds
        freed = asyncio.Event()
        self._waiting.add(freed)
        try:
            while True:
                freed.clear()
                try:
                    return await attempt()
                except DeviceInUseError as error:
                    if self._clock.monotonic() >= deadline:
                        raise
                    # Whoever was in the way may have gone while this was asked.
                    if not (await leaves() or freed.is_set()):
                        raise
                    log.info("waiting for a claim that leaves", why=str(error))
                await self._happens(freed)
        finally:
            self._waiting.discard(freed)

    async def _happens(self, freed: asyncio.Event) -> None:
        """Until a claim has gone, or for a while."""
        timer = self._clock.call_later(_LOOK, freed.set)
        try:
            await freed.wait()
        finally:
            timer.cancel()
