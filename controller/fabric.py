# SPDX-License-Identifier: Apache-2.0
"""Watches what all nodes publish and tells where they contradict each other.

Run by the leader of the cluster side. It changes nothing: which node is wrong cannot be seen from
here. It tells in three places: a log line when a contradiction comes or goes, a metric that shows
how many there are now, and a Warning event at every node concerned, where ``kubectl describe
node`` shows it.
"""

import asyncio
import random
from collections import Counter
from typing import Literal, Protocol

from gpudra.api.resource_v1 import ResourceSlice
from gpudra.driver.core.fabric import (
    Contradiction,
    FabricCard,
    Reason,
    contradictions,
    fabric_cards,
)
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.reflector import Event, ListWatcher, Reflector, ReflectorError
from gpudra.driver.kube.resources import RESOURCE_SLICES, Obj
from gpudra.driver.observability.logging import get_logger, operation
from gpudra.driver.observability.metrics import (
    FABRIC_CONTRADICTIONS,
    REFLECTOR_ERRORS,
    REFLECTOR_OBJECTS,
    Metrics,
)

# A pool of eight slices changes eight times in a row; the nodes of a rolling update follow one
# another. Nobody is served better by an answer for each of them.
SETTLE_SECONDS = 1.0
# A check of very many cards takes a while (tests/bench/bench_fabric.py); while everything changes
# all the time, checks take no more than this part of the time.
CHECK_SHARE = 0.05
EVENT_REASON = "FabricContradiction"

log = get_logger(__name__)


class Events(Protocol):
    """What is needed of an event recorder."""

    def event(
        self,
        regarding: Obj,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's word
        reason: str,
        note: str,
    ) -> None:
        """Says something about an object; never blocks, never raises."""


class FabricChecker:
    """Compares the nodes of one driver for as long as it runs.

    Args:
        client: lists and watches ResourceSlices.
        driver: whose slices.
        metrics: of the process.
        events: told once for each contradiction and node.
        clock: for delays.
        rng: for the jitter of the reflector.
    """

    def __init__(
        self,
        client: ListWatcher,
        *,
        driver: str,
        metrics: Metrics,
        events: Events,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.found: tuple[Contradiction, ...] = ()
        self._metrics = metrics
        self._events = events
        self._clock = clock
        self._changed = asyncio.Event()
        self._reflector: Reflector[tuple[FabricCard, ...]] = Reflector(
            client,
            RESOURCE_SLICES,
            # Four short texts a card are kept, not the slice: 44 of 49 MiB at 40,000 cards.
            lambda raw: fabric_cards(ResourceSlice.from_dict(raw), driver),
            field_selector=f"spec.driver={driver}",
            on_event=self._on_event,
            on_error=self._on_error,
            clock=clock,
            rng=rng,
        )

    @property
    def has_synced(self) -> bool:
        """Whether all slices have been seen once."""
        return self._reflector.has_synced

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run(), name="reflector resourceslices")
            tasks.create_task(self._check_for_ever(), name="fabric check")

    async def _check_for_ever(self) -> None:
        await self._reflector.wait_synced()
        while True:
            self._changed.clear()
            started = self._clock.monotonic()
            self.check()
            took = self._clock.monotonic() - started
            await self._changed.wait()
            await self._clock.sleep(max(SETTLE_SECONDS, took / CHECK_SHARE))

    def check(self) -> None:
        """Compares what is known now, and tells what is new and what is over."""
        store = self._reflector.store
        found = contradictions(card for cards in store.values() for card in cards)
        self._metrics.set(REFLECTOR_OBJECTS, len(store), resource=RESOURCE_SLICES.plural)
        counts = Counter(one.reason for one in found)
        for reason in Reason:
            self._metrics.set(FABRIC_CONTRADICTIONS, counts[reason], reason=reason)
        before, self.found = frozenset(self.found), found
        if before == frozenset(found):
            return
        with operation("fabric check"):
            self._tell(before, found)

    def _tell(self, before: frozenset[Contradiction], found: tuple[Contradiction, ...]) -> None:
        for one in found:
            if one not in before:
                log.error("nodes contradict each other", reason=one.reason, detail=str(one))
                for node in one.nodes:
                    self._events.event(node_reference(node), "Warning", EVENT_REASON, str(one))
        for one in sorted(before.difference(found)):
            log.info("nodes agree again", reason=one.reason, subject=one.subject)

    def _on_event(self, _: Event[tuple[FabricCard, ...]]) -> None:
        self._changed.set()

    def _on_error(self, error: ReflectorError) -> None:
        self._metrics.inc(REFLECTOR_ERRORS, resource=RESOURCE_SLICES.plural, reason=error.kind)


def node_reference(name: str) -> Obj:
    """A node as the object of an event.

    Its uid is its name, as in the kubelet's own events: ``kubectl describe node`` looks for that.
    """
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
