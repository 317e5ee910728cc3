# SPDX-License-Identifier: Apache-2.0
"""Looks after what runs for shares: daemons that die, and what claims of the past left behind."""

import asyncio
from collections.abc import Callable

from gpudra.api.errors import GpudraError
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.records import Records
from gpudra.kubelet_plugin.sharing import Backends, DaemonReport

CHECK_PERIOD = 10.0
log = get_logger(__name__)


class SharingCare:
    """The periodic look after isolation backends.

    Args:
        backends: of the node.
        records: every claim that holds something now.
        clock: for the period.
        warn: tells people, as an Event on the node: reason and note.
    """

    def __init__(
        self,
        backends: Backends,
        records: Callable[[], Records],
        *,
        clock: Clock,
        warn: Callable[[str, str], None],
    ) -> None:
        self._backends = backends
        self._records = records
        self._clock = clock
        self._warn = warn

    async def start(self) -> None:
        """Takes back what no claim uses, before the first call: later, one may be just coming."""
        try:
            done = await asyncio.to_thread(self._backends.sweep, list(self._records()))
        except GpudraError as error:
            log.warning("cannot look for what claims left behind", error=str(error))
            return
        for what in done:
            log.info("took back what no claim uses", what=what)

    async def run(self) -> None:
        """Every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_PERIOD)
            for report in await asyncio.to_thread(self._backends.check):
                self._tell(report)

    def _tell(self, report: DaemonReport) -> None:
        log.warning("isolation", device=report.device, ok=report.healthy, what=report.message)
        self._warn("IsolationRestored" if report.healthy else "IsolationLost", report.message)
