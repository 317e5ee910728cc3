# SPDX-License-Identifier: Apache-2.0
"""Looks after what runs for shares: daemons that die, and what claims of the past left behind."""

import asyncio
from collections.abc import Callable, Iterable

from gpudra.api.errors import GpudraError
from gpudra.driver.core.sharing import Backend
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.device_state import TookBack, nobody
from gpudra.kubelet_plugin.records import Records
from gpudra.kubelet_plugin.sharing import Backends, DaemonReport

CHECK_PERIOD = 10.0
# Takes the uids of all living claims, gives what was taken back, for the log.
Sweep = Callable[[Iterable[str]], tuple[str, ...]]
log = get_logger(__name__)


class SharingCare:
    """The periodic look after isolation backends.

    Args:
        backends: of the node.
        records: every claim that holds something now.
        clock: for the period.
        warn: tells people, as an Event on the node: reason and note.
        on_usable: told at each look, for every backend, whether claims can have it.
        on_incident: told of each daemon that ended, whether it serves again.
        took_back: told what claims of the past had left, by kind and number.
        sweeps: what else to take back at start, by kind.
    """

    def __init__(
        self,
        backends: Backends,
        records: Callable[[], Records],
        *,
        clock: Clock,
        warn: Callable[[str, str], None],
        on_usable: Callable[[Backend, bool], None] | None = None,
        on_incident: Callable[[bool], None] | None = None,
        took_back: TookBack = nobody,
        sweeps: Iterable[tuple[str, Sweep]] = (),
    ) -> None:
        self._backends = backends
        self._records = records
        self._clock = clock
        self._warn = warn
        self._on_usable = on_usable
        self._on_incident = on_incident
        self._took_back = took_back
        self._sweeps = (("isolation", backends.sweep), *sweeps)

    async def start(self) -> None:
        """Takes back what no claim uses, before the first call: later, one may be just coming."""
        for kind, sweep in self._sweeps:
            try:
                done = await asyncio.to_thread(sweep, list(self._records()))
            except GpudraError as error:
                log.warning("cannot look for what claims left behind", error=str(error))
                continue
            for what in done:
                log.info("took back what no claim uses", what=what)
            if done:
                self._took_back(kind, len(done))
        await self._tell_usable()

    async def run(self) -> None:
        """Every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_PERIOD)
            for report in await asyncio.to_thread(self._backends.check):
                self._tell(report)
            await self._tell_usable()

    async def _tell_usable(self) -> None:
        if self._on_usable is None:
            return
        node = await asyncio.to_thread(lambda: self._backends.node)
        for backend, why_not in node.backends.items():
            self._on_usable(backend, not why_not and backend in node.allowed)

    def _tell(self, report: DaemonReport) -> None:
        log.warning("isolation", device=report.device, ok=report.healthy, what=report.message)
        self._warn("IsolationRestored" if report.healthy else "IsolationLost", report.message)
        if self._on_incident is not None:
            self._on_incident(report.healthy)
