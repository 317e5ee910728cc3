# SPDX-License-Identifier: Apache-2.0
"""Composition root of the cluster side: wires the parts together and runs them.

Several instances may run; one holds the lease and works, the others wait. An instance that loses
the lease ends, so that the next one begins with a fresh view; on SIGTERM the lease is given back
at once and a successor does not have to wait for it to expire.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator

from gpudra.api.errors import GpudraError, UnavailableError
from gpudra.controller.accounting import Accountant
from gpudra.controller.configcheck import Rules
from gpudra.controller.conversion import Conversion
from gpudra.controller.fabric import FabricChecker
from gpudra.controller.managed.start import ManagedStart
from gpudra.controller.nodepolicies import PolicyStatuses
from gpudra.controller.options import Options
from gpudra.controller.webhook import Webhook
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.clock import Clock, SystemClock
from gpudra.driver.kube.events import EventRecorder
from gpudra.driver.kube.leaderelection import LeaderElector, LeadershipToken
from gpudra.driver.observability.http import StatusServer
from gpudra.driver.observability.logging import get_logger
from gpudra.driver.observability.metrics import LEADER, Component, Metrics

LEASE = "gpudra-controller"
API_GROUP, API_VERSION = "resource.k8s.io", "v1"

log = get_logger(__name__)


class App:
    """One instance of the cluster side.

    Args:
        options: see `Options`.
        client: connected; closed by the caller.
        metrics: of the process.
        clock: for everything that waits.
        rng: for jitter.
    """

    def __init__(
        self,
        options: Options,
        client: KubeClient,
        *,
        metrics: Metrics,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.metrics = metrics
        self.status = StatusServer(
            self.metrics, host=options.process.http_host, port=options.process.http_port
        )
        self._client = client
        self._clock = clock
        self._rng = rng
        self._elector = LeaderElector(
            client,
            name=LEASE,
            namespace=options.namespace,
            identity=options.instance,
            clock=clock,
            rng=rng,
            on_change=lambda holder: log.info("leader", holder=holder),
        )
        self._events = EventRecorder(
            client,
            controller=f"{options.driver}/controller",
            instance=options.instance,
            clock=clock,
        )
        self.fabric = FabricChecker(
            client,
            driver=options.driver,
            metrics=self.metrics,
            events=self._events,
            clock=clock,
            rng=rng,
        )
        self.policies = PolicyStatuses(client, metrics=self.metrics, clock=clock, rng=rng)
        self.accounting = Accountant(
            client, driver=options.driver, metrics=self.metrics, clock=clock, rng=rng
        )
        self.conversion = Conversion(
            client,
            driver=options.driver,
            metrics=self.metrics,
            events=self._events,
            clock=clock,
            rng=rng,
        )
        self._converts = options.conversion
        self.managed = ManagedStart(
            client,
            driver=options.driver,
            enabled=options.managed,
            options=options.plan,
            half_life=options.half_life,
            elector=self._elector,
            metrics=self.metrics,
            events=self._events,
            clock=clock,
            rng=rng,
        )
        self.managed.serve(self.status)
        self.metrics.set(LEADER, 0)
        self.status.add_ready("lease", self._lease_problem)
        self.webhook: Webhook | None = None
        if options.webhook is not None:
            rules = Rules(driver=options.driver)
            self.webhook = Webhook(options.webhook, rules, metrics=self.metrics, clock=clock)
            self.status.add_ready("webhook", self.webhook.problem)

    async def run(self) -> None:
        """Until cancelled, or until the lease is lost.

        Raises:
            InputError: an address is taken, or the webhook's certificate cannot be used.
            LeadershipLostError: another instance may lead by now.
            GpudraError: the API server lacks what is needed.
        """
        await self.status.start()
        try:
            # Every instance answers, whoever leads.
            async with self._webhook_served():
                await self._check_server()
                await self._elector.run(self._lead)
        finally:
            await self.status.close()

    @contextlib.asynccontextmanager
    async def _webhook_served(self) -> AsyncIterator[None]:
        if self.webhook is None:
            yield
            return
        await self.webhook.start()
        renewing = asyncio.create_task(self.webhook.run(), name="webhook")
        try:
            yield
        finally:
            renewing.cancel()
            await self.webhook.close()

    async def _check_server(self) -> None:
        backoff = Backoff(rng=self._rng)
        while True:
            try:
                return await self._read_server()
            except UnavailableError as error:
                delay = backoff.next()
                log.warning("API server does not answer", error=error, retry_in=round(delay, 1))
                await self._clock.sleep(delay)

    async def _read_server(self) -> None:
        found = await self._client.version()
        if not await self._client.api_resources(API_GROUP, API_VERSION):
            raise GpudraError(
                f"the API server ({found.get('gitVersion')}) does not serve {API_GROUP}/{API_VERSION}",
                hint="gpudra needs Kubernetes 1.34 or newer",
            )
        log.info("connected", server=self._client.server, kubernetes=found.get("gitVersion"))

    async def _lead(self, _: LeadershipToken) -> None:
        self.metrics.set(LEADER, 1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._events.run(), name="events")
                tasks.create_task(self.fabric.run(), name="fabric")
                tasks.create_task(self.policies.run(), name="node policies")
                tasks.create_task(self.managed.run(), name="managed mode")
                if self._converts:
                    tasks.create_task(self.conversion.run(), name="conversion")
                tasks.create_task(self.accounting.run(), name="accounting")
        finally:
            self.metrics.set(LEADER, 0)

    def _lease_problem(self) -> str | None:
        """Whoever leads is ready once it has seen the cluster; the others once they know a leader."""
        if self._elector.is_leader:
            return None if self.fabric.has_synced else "resourceslices not listed yet"
        return None if self._elector.holder else "no leader known yet"


async def run(options: Options) -> int:
    """Runs the cluster side of a process until SIGTERM or SIGINT; its exit code."""
    task = asyncio.ensure_future(_connect_and_run(options))
    with _signals(task.cancel):
        try:
            await task
        except asyncio.CancelledError:
            log.info("stopped")
    return 0


async def _connect_and_run(options: Options) -> None:
    clock = SystemClock()
    rng = random.Random()  # noqa: S311 - jitter needs no secrecy
    metrics = Metrics(Component.CONTROLLER, version=options.version)
    how = ClientOptions(
        user_agent=f"gpudra-controller/{options.version}", on_request=metrics.api_request
    )
    async with await KubeClient.load(options.kubeconfig, options=how) as client:
        await App(options, client, metrics=metrics, clock=clock, rng=rng).run()


@contextlib.contextmanager
def _signals(stop: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
