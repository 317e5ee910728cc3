# SPDX-License-Identifier: Apache-2.0
"""Whether managed mode runs here, and how it is wired. Used by `gpudra.controller.app`.

It runs while this instance leads, where the kinds Queue and PodGroup are served; they may be
installed later. Without them, or when it is turned off, nothing of it touches the cluster.
"""

import random
from typing import Any

from gpudra.api.errors import ApiError
from gpudra.controller.managed.conditions import Events
from gpudra.controller.managed.httpapi import HttpApi
from gpudra.controller.managed.loop import ManagedMode
from gpudra.driver.core.managed import PlanOptions
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.leaderelection import LeaderElector
from gpudra.driver.kube.resources import POD_GROUPS, QUEUES
from gpudra.driver.observability.http import StatusServer
from gpudra.driver.observability.logging import get_logger
from gpudra.driver.observability.metrics import Metrics

_ABSENT_SECONDS = 30.0

log = get_logger(__name__)


class ManagedStart:
    """Managed mode in the composition root.

    Args:
        client: of the API.
        driver: whose devices are given out.
        enabled: False: never.
        options: how to plan.
        half_life: see ManagedMode.
        elector: tells whether we lead.
        metrics: of the process.
        events: recorder.
        clock: for everything that waits.
        rng: for jitter.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        driver: str,
        enabled: bool,
        options: PlanOptions,
        half_life: float,
        elector: LeaderElector,
        metrics: Metrics,
        events: Events,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._enabled = enabled
        self._elector = elector
        self._clock = clock
        self._rng = rng
        self._parts: dict[str, Any] = {
            "driver": driver,
            "options": options,
            "half_life": half_life,
            "check": elector.check,
            "metrics": metrics,
            "events": events,
            "clock": clock,
            "rng": rng,
        }
        self._mode: ManagedMode | None = None

    @property
    def mode(self) -> ManagedMode | None:
        """Managed mode once it has seen the cluster; None before, and where it does not run."""
        mode = self._mode
        return mode if mode is not None and mode.feed.has_synced else None

    def serve(self, server: StatusServer) -> None:
        """Adds the HTTP API to the status server."""
        if self._enabled:
            HttpApi(
                self._client,
                mode=lambda: self.mode,
                holder=lambda: self._elector.holder,
                clock=self._clock,
            ).add_to(server)

    async def run(self) -> None:
        """While this instance leads; returns at once when it is turned off.

        Raises:
            LeadershipLostError: another instance may lead by now.
        """
        if not self._enabled:
            return
        await self._wait_for_kinds()
        self._mode = ManagedMode(self._client, **self._parts)
        try:
            log.info("managed mode begins")
            await self._mode.run()
        finally:
            self._mode = None

    async def _wait_for_kinds(self) -> None:
        backoff = Backoff(base=0.5, cap=_ABSENT_SECONDS, rng=self._rng)
        told = False
        while True:
            try:
                kinds = await self._client.api_resources(QUEUES.group, QUEUES.version)
            except ApiError as error:
                log.warning("cannot ask whether there are Queues", error=str(error))
                await self._clock.sleep(backoff.next())
                continue
            if {QUEUES.plural, POD_GROUPS.plural} <= {kind.get("name") for kind in kinds}:
                return
            if not told:
                log.info("managed mode is off: the kinds Queue and PodGroup are not installed")
            told = True
            await self._clock.sleep(_ABSENT_SECONDS)
