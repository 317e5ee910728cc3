# SPDX-License-Identifier: Apache-2.0
"""Composition root of the node agent: the only place that ties edges to the state machine.

Order at start: hardware and checkpoint first, then the sockets, so that the kubelet never reaches
a plugin that cannot answer. The API server may be away meanwhile: claims that are prepared stay
so, and publishing follows when it is back. Order at the end: the registration socket first, so
that the kubelet stops asking, then running calls, then everything else. Slices stay: a restart
must not make the node lose its devices.
"""

import asyncio
import contextlib
import gc
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import gpudra.kubelet_plugin.hardware as hardware_module
from gpudra.api.errors import StateError
from gpudra.api.resource_v1 import DeviceTaint
from gpudra.controller.resourceslices import ResourceSliceController, SliceReport, probe_features
from gpudra.driver.core.forms import PublishPolicy
from gpudra.driver.core.health import Cause, HealthPolicy
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.prepare import METADATA
from gpudra.driver.core.resourceslices import ServerFeatures
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.clock import Clock, SystemClock
from gpudra.driver.kube.events import EventRecorder
from gpudra.driver.observability.http import StatusServer
from gpudra.driver.observability.logging import get_logger
from gpudra.driver.observability.metrics import Component, Metrics
from gpudra.kubelet_plugin import files, sockets
from gpudra.kubelet_plugin.cdi_store import CdiStore
from gpudra.kubelet_plugin.checkpoint import Checkpoint
from gpudra.kubelet_plugin.checkpoint_file import CheckpointFile
from gpudra.kubelet_plugin.claim_status import ClaimStatus
from gpudra.kubelet_plugin.claims import ClaimReader
from gpudra.kubelet_plugin.device_state import DeviceState
from gpudra.kubelet_plugin.dra_service import DraService
from gpudra.kubelet_plugin.forms import Forms, UserReader, mig_uuid
from gpudra.kubelet_plugin.grpc_server import (
    DRA_SERVICE,
    HEALTH_SERVICES,
    SocketServer,
    dra_handlers,
    health_handlers,
    registration_handlers,
)
from gpudra.kubelet_plugin.hardware import Hardware
from gpudra.kubelet_plugin.health_monitor import HealthMonitor
from gpudra.kubelet_plugin.health_service import HealthService
from gpudra.kubelet_plugin.health_store import HealthStore
from gpudra.kubelet_plugin.holders import Holders
from gpudra.kubelet_plugin.instance_lock import FileLock, InstanceLock
from gpudra.kubelet_plugin.metadata_files import MetadataFiles, MetadataStep
from gpudra.kubelet_plugin.meters import Meters
from gpudra.kubelet_plugin.mig import MigSurvey, Partitions
from gpudra.kubelet_plugin.node_reporter import UNREAD, NodeReporter, Sources
from gpudra.kubelet_plugin.nodepolicy import PolicyWatcher
from gpudra.kubelet_plugin.options import Options
from gpudra.kubelet_plugin.publisher import LOCK_NAME, Publisher
from gpudra.kubelet_plugin.recovery import Recovery
from gpudra.kubelet_plugin.registration import Registered, RegistrationService
from gpudra.kubelet_plugin.report import ClaimReport
from gpudra.kubelet_plugin.serving_service import ServingService
from gpudra.kubelet_plugin.sharing import open_backends
from gpudra.kubelet_plugin.sharing_care import SharingCare
from gpudra.kubelet_plugin.step_handlers import step_handlers
from gpudra.kubelet_plugin.steps import StepRunner
from gpudra.kubelet_plugin.usage import UsageCollector

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The kubelet gives a call 45 s, pods get 30 s to end: running calls should make it.
STOP_GRACE = 20.0
log = get_logger(__name__)


class App:
    """One running agent.

    Args:
        options: see Options.
        client: API client; closed by the caller.
        lib: device library; closed by the caller.
        boot_id: of the running kernel.
        clock: for everything that waits.
        rng: for jitter.
        observe: see StepRunner; tests end the process there.
        metrics: of the process; None: its own.
    """

    def __init__(
        self,
        options: Options,
        client: KubeClient,
        lib: DeviceLib,
        *,
        boot_id: str,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        observe: files.Observe = files.ignore,
        metrics: Metrics | None = None,
    ) -> None:
        self.options = options
        self.clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self.metrics = metrics or Metrics(Component.AGENT)
        self.meters = Meters(self.metrics)
        self.events = EventRecorder(
            client,
            controller=options.driver_name,
            instance=options.node_name,
            clock=self.clock,
            rng=self._rng,
        )
        self._make_folders()
        self._wire_hardware(lib, boot_id, observe)
        self._wire_claims(client, lib, observe)
        self._wire_publishing(client)
        self._wire_sockets()

    def _make_folders(self) -> None:
        for folder in (self.options.state_folder, self.options.cdi_dir):
            files.make_folder(folder)

    def _wire_hardware(self, lib: DeviceLib, boot_id: str, observe: files.Observe) -> None:
        options, clock = self.options, self.clock
        self.checkpoint = Checkpoint(
            CheckpointFile(options.state_folder, observe=observe),
            boot_id=boot_id,
            on_write=self.meters.checkpoint_written,
            monotonic=clock.monotonic,
        )
        self.instances = InstanceLock(
            options.state_folder,
            clock=clock,
            on_acquired=lambda: self.recovery.reread(),  # noqa: PLW0108 - made below
        )
        self.hardware = Hardware(
            lib,
            clock=clock,
            on_change=self._inventory_changed,
            on_read=lambda found: self.health.read(found),  # noqa: PLW0108 - made below
            on_trouble=self._hardware_trouble,
            kinds=options.kinds,
        )
        self.health = HealthMonitor(
            lib.health,
            HealthStore(options.state_folder, boot_id),
            devices=lambda: self.hardware.devices,
            driver=options.driver_name,
            clock=clock,
            on_taints=self._taints_changed,
            on_cause=self._unwell,
            wake=self.hardware.wake,
        )

    def _wire_claims(self, client: KubeClient, lib: DeviceLib, observe: files.Observe) -> None:
        options, clock = self.options, self.clock
        store = CdiStore(options.cdi_dir, options.driver_name, observe=observe)
        self.metadata = MetadataFiles(options.runtime_dir, options.driver_name, observe=observe)
        metadata = MetadataStep(self.metadata, self.hardware.attributes)
        partitions, users = Partitions(lib), UserReader(client, options.driver_name)
        self.backends = open_backends(
            options.sharing, lib, target_of=lambda one, plan: mig_uuid(one, plan.steps)
        )
        handlers = step_handlers(
            lib,
            partitions,
            self.backends,
            store=store,
            metadata=metadata,
            places=options.sharing.places,
            records=lambda: self.checkpoint.records,
        )
        self.state = DeviceState(
            driver=options.driver_name,
            pool=options.node_name,
            runner=StepRunner(self.checkpoint, handlers, observe=observe),
            instances=self.instances,
            claims=ClaimReader(client, options.driver_name, clock=clock, rng=self._rng),
            forms=Forms(users, MigSurvey(partitions), self.backends),
            devices=lambda: self.hardware.devices,
            clock=clock,
            on_prepared=lambda record: self.claim_status.prepared(record),  # noqa: PLW0108 - made below
            orphan_grace=options.orphan_grace,
            took_back=self.meters.took_back,
        )
        self._wire_reports(client, lib, users, store)

    def _wire_reports(
        self, client: KubeClient, lib: DeviceLib, users: UserReader, store: CdiStore
    ) -> None:
        options, clock = self.options, self.clock
        self.claim_status = ClaimStatus(
            client,
            options.driver_name,
            records=lambda: self.checkpoint.records,
            devices=lambda: self.hardware.devices,
            users=users.read,
            clock=clock,
            rng=self._rng,
        )
        self.usage = UsageCollector(
            lib.usage,
            hami=self.backends.usage,
            api=client,
            records=lambda: self.checkpoint.records,
            devices=lambda: self.hardware.devices,
            metrics=self.metrics,
            clock=clock,
            proc=options.host_root / "proc",
            period=options.usage_period,
        )
        self.report = ClaimReport(
            self.metrics,
            self.events,
            node=_node_reference(options.node_name),
            checkpoint=self.checkpoint,
            on_call_ended=self.usage.prune,
        )
        self.recovery = Recovery(
            self.state,
            self.checkpoint,
            store,
            clock=clock,
            warn=self.report.node_warning,
            took_back=self.meters.took_back,
        )
        self.care = SharingCare(
            self.backends,
            lambda: self.checkpoint.records,
            clock=clock,
            warn=self.report.node_warning,
            on_usable=self.meters.backend,
            on_incident=self.meters.incident,
            took_back=self.meters.took_back,
            sweeps=((METADATA, self.metadata.sweep),),
        )

    def _wire_publishing(self, client: KubeClient) -> None:
        options = self.options
        controller = ResourceSliceController(
            client,
            driver=options.driver_name,
            pool_name=options.node_name,
            node_name=options.node_name,
            connected=lambda: self.registration.status.ok,
            on_report=self._slice_report,
            metrics=self.metrics,
            clock=self.clock,
            rng=self._rng,
        )

        async def probe() -> ServerFeatures:
            return await probe_features(
                client, driver=options.driver_name, node_name=options.node_name
            )

        self.publisher = Publisher(
            controller,
            probe,
            FileLock(options.state_folder / LOCK_NAME),
            Holders(
                client,
                lambda: self.checkpoint.records,
                driver=options.driver_name,
                pool=options.node_name,
            ),
            driver=options.driver_name,
            node_name=options.node_name,
            clock=self.clock,
            rng=self._rng,
            withheld=UNREAD,
            on_pool=lambda pool: self.meters.pool(pool, self.hardware.devices),
        )
        self.node = NodeReporter(
            client,
            options.node_name,
            Sources(
                inventory=lambda: self.hardware.inventory,
                hardware_problem=self.hardware.problem,
                publish_problem=self.publisher.problem,
                sick=self.health.sick_cards,
                managed=lambda: self.policies.managed,
            ),
            withhold=self.publisher.withhold,
            warn=self.report.node_warning,
            write=options.node_status,
            feature_names=options.feature_labels,
            clock=self.clock,
            rng=self._rng,
        )
        self.policies = PolicyWatcher(
            client,
            node_name=options.node_name,
            on_change=self._policy_changed,
            # What cannot be prepared must not be allocated.
            kinds=options.kinds,
            clock=self.clock,
            rng=self._rng,
            on_error=self.meters.reflector_failed,
            on_count=self.meters.reflector_holds,
        )

    def _wire_sockets(self) -> None:
        options = self.options
        self.paths = sockets.socket_paths(
            options.kubelet_root, options.driver_name, options.instance_uid
        )
        self.registration = RegistrationService(
            options.driver_name, str(self.paths.service), on_change=self._registered
        )
        service = DraService(self.state, self.report, clock=self.clock)
        self._health_service = HealthService(self.health, pool=options.node_name, clock=self.clock)
        # What a probe asks for, by either protocol.
        self._ready = {
            "kubelet": self.registration.problem,
            "hardware": self.hardware.problem,
            "slices": self.publisher.problem,
        }
        self._serving_service = ServingService(
            self._ready, frozenset({DRA_SERVICE, *HEALTH_SERVICES}), clock=self.clock
        )
        self._service_server = SocketServer(
            self.paths.service,
            dra_handlers(service),
            *health_handlers(self._health_service),
            self._serving_service.handlers(),
        )
        self._registration_server = SocketServer(
            self.paths.registration, registration_handlers(self.registration)
        )

    def _inventory_changed(self, inventory: Inventory) -> None:
        self.publisher.inventory_changed(inventory)
        self.node.changed()

    def _policy_changed(self, policy: PublishPolicy) -> None:
        self.hardware.set_policy(policy)
        self.backends.settings = self.options.sharing.within(policy.isolation)
        self.health.set_policy(HealthPolicy.of_xids(policy.xid_effects))
        self.publisher.policy_changed(policy)
        self.node.changed()

    def _hardware_trouble(self, why: str) -> None:
        if self.health.trouble(why) == 1:
            self.node.changed()

    def _taints_changed(self, taints: Mapping[str, tuple[DeviceTaint, ...]]) -> None:
        self.meters.health(self.health.state)
        self.publisher.taints_changed(taints)
        self.node.changed()

    def _unwell(self, gpu: str, cause: Cause) -> None:
        self.report.node_warning("GPUUnhealthy", f"GPU {gpu}: {cause.key}: {cause.message}")

    def _registered(self, status: Registered) -> None:
        self.meters.registered(status.ok)
        if not status.ok:
            self.report.node_warning("RegistrationFailed", status.error)
        self.publisher.connection_changed()

    def _slice_report(self, report: SliceReport) -> None:
        log.warning("publishing", reason=report.kind, pool=report.pool, error=report.message)
        self.report.node_warning(report.kind, report.message)
        self.publisher.trouble(report.message)

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until ``stop`` is set.

        Raises:
            GpudraError: the agent cannot start: folders, sockets or address cannot be used.
        """
        status = self._status_server()
        if status is not None:
            await status.start()
            log.info("status endpoint", port=status.port)
        try:
            await self.hardware.discover()
            await self.recovery.start()
            # Another instance must not be about to use what is taken for left behind.
            async with self.instances.held():
                await self.care.start()
            await self._open_sockets()
            self.report.call_ended()
            # What was built until here lives as long as the process: a full collection must not
            # walk over it in the middle of a Prepare.
            gc.collect()
            gc.freeze()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self.claim_status.run(), name="claim status"),
                    tasks.create_task(self.events.run(), name="events"),
                    tasks.create_task(self.hardware.run(self._rng), name="hardware"),
                    tasks.create_task(self.health.run(), name="health"),
                    tasks.create_task(self.node.run(), name="node"),
                    tasks.create_task(self.policies.run(), name="policies"),
                    tasks.create_task(self.publisher.run(), name="publisher"),
                    tasks.create_task(self.recovery.run(), name="recovery"),
                    tasks.create_task(self.care.run(), name="sharing"),
                    tasks.create_task(self.usage.run(), name="usage"),
                ]
                await stop.wait()
                log.info("stopping")
                await self._close_sockets()
                for task in running:
                    task.cancel()
            await asyncio.wait_for(self.events.flush(), timeout=2.0)
        finally:
            if status is not None:
                await status.close()

    async def _open_sockets(self) -> None:
        dead = sockets.remove_dead_siblings(self.paths, self.options.driver_name)
        if dead:
            log.info("removed sockets of ended instances", paths=[str(path) for path in dead])
            self.meters.took_back("socket", len(dead))
        await self._service_server.start()
        await self._registration_server.start()
        log.info("serving", endpoint=str(self.paths.service), claims=len(self.state.records))

    async def _close_sockets(self) -> None:
        await self._registration_server.stop(1.0)
        self._health_service.close()
        self._serving_service.close()
        await self._service_server.stop(STOP_GRACE)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.state.drain(), timeout=STOP_GRACE)

    def _status_server(self) -> StatusServer | None:
        address = self.options.http_address
        if address is None:
            return None
        host, port = address
        server = StatusServer(self.metrics, host=host, port=port)
        server.add_live("service-socket", self._service_server.problem)
        server.add_live("registration-socket", self._registration_server.problem)
        for name, check in self._ready.items():
            server.add_ready(name, check)
        return server


def _node_reference(name: str) -> dict[str, str]:
    """As the kubelet refers to its node: `kubectl describe node` looks for the name as uid."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}


def read_boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's boot id.

    Raises:
        StateError: the kernel does not tell; without it a reboot would go unnoticed.
    """
    with files.explained(path, "read"):
        found = path.read_text().strip()
    if not found:
        raise StateError("is empty", obj=str(path))
    return found


@contextlib.contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def serve(options: Options, *, version: str, observe: files.Observe = files.ignore) -> None:
    """Runs the agent until SIGTERM or SIGINT.

    Raises:
        GpudraError: it cannot start.
    """
    stop = asyncio.Event()
    metrics = Metrics(Component.AGENT, version=version)
    lib = hardware_module.open_lib(
        options, options.state_folder / "hardware", Meters(metrics).device_call
    )
    kubeconfig = str(options.kubeconfig) if options.kubeconfig else None
    how = ClientOptions(
        user_agent=f"gpudra-kubelet-plugin/{version}", on_request=metrics.api_request
    )
    client = await KubeClient.load(kubeconfig, options=how)
    try:
        app = App(options, client, lib, boot_id=read_boot_id(), observe=observe, metrics=metrics)
        with _stopped_by_signals(stop):
            await app.run(stop)
    finally:
        await client.close()
        lib.close()
