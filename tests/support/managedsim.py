# SPDX-License-Identifier: Apache-2.0
"""Managed mode in a simulated cluster: random workloads and trouble, in virtual time, from a seed.

The controller that runs is the real one (gpudra.controller.managed); around it everything is
pretended (tests.support.simcluster, tests.support.simapi). After every step the rules of
tests.support.simrules are checked on the API's objects alone.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.controller.managed.loop import ManagedMode
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.forms import CardForms, PublishPolicy
from gpudra.driver.core.managed import PlanOptions
from gpudra.driver.core.resourceslices import ServerFeatures, build_pool, resource_slices
from gpudra.driver.devicelib.simulated.catalog import load_hardware
from gpudra.driver.devicelib.simulated.model import build_inventory
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import ObjectStore
from gpudra.driver.kube.resources import NODES, POD_GROUPS, PODS, QUEUES, RESOURCE_SLICES, Obj
from gpudra.driver.observability.metrics import Component, Metrics
from tests.support.simapi import SimApi, Weather
from tests.support.simcluster import DRIVER, LIFE, SimCluster, node, template
from tests.support.simrules import Rules

NAMESPACE = "team"
FEATURES = ServerFeatures(counters=True, consumable_capacity=True, device_taints=True)
CLASSES = checkout_dir() / "deploy" / "manifests" / "deviceclasses.yaml"
# No write of a dead leader is under way any more when the next one begins.
TAKEOVER_SECONDS = 5.0


class Silent:
    """Takes events, and keeps how many of each reason there were."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def event(self, regarding: Obj, type: str, reason: str, note: str, **_: Any) -> None:  # noqa: A002
        """See EventRecorder."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


async def inline(function: Callable[..., Any], /, *args: Any) -> Any:
    """Plans are made at once: threads know no virtual time."""
    return function(*args)


@dataclass
class Process:
    """One life of the controller."""

    mode: ManagedMode
    task: "asyncio.Task[None]"
    api: SimApi


@dataclass
class ManagedSim:
    """A cluster, and the controller that comes and goes.

    Attributes:
        seed: the same seed gives the same run.
        driver: whose devices are given out.
        half_life: of past use.
        options: how to plan.
    """

    seed: int
    driver: str = DRIVER
    clock: VirtualClock = field(default_factory=VirtualClock)
    weather: Weather = field(default_factory=Weather)
    half_life: float = 0.0
    options: PlanOptions = field(default_factory=PlanOptions)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.objects = ObjectStore(self.clock, seed=self.seed)
        self.objects.register(QUEUES)
        self.objects.register(POD_GROUPS)
        self.cluster = SimCluster(self.objects, self.clock, self.rng)
        self.metrics = Metrics(Component.CONTROLLER, process=False)
        self.events = Silent()
        self.rules = Rules(self.objects, self.cluster, NAMESPACE)
        self.process: Process | None = None
        self.starts = 0
        for one in yaml.safe_load_all(CLASSES.read_text()):
            self.objects.seed(one)

    # --- the cluster ----------------------------------------------------------------------

    def add_node(
        self, name: str, hardware: str, *kinds: DeviceKind, cpu: int = 64, **labels: str
    ) -> None:
        """A managed node with the cards of a profile, in these forms."""
        self.objects.seed(node(name, cpu, **labels))
        forms = CardForms(kinds=frozenset(kinds or (DeviceKind.WHOLE,)))
        pool = build_pool(
            build_inventory(load_hardware(hardware), node_name=name),
            driver=DRIVER,
            node_name=name,
            features=FEATURES,
            policy=PublishPolicy(forms=forms, managed=True),
        )
        for one in resource_slices(pool):
            self.objects.create(RESOURCE_SLICES, one.to_dict())

    def add_template(self, name: str, class_name: str, count: int = 1, **amounts: str) -> None:
        """A claim template for devices of a class, or for a part of one."""
        exactly: Obj = {"deviceClassName": class_name, "count": count}
        if amounts:
            exactly["capacity"] = {"requests": amounts}
        self.objects.seed(template(name, NAMESPACE, {"name": "gpu", "exactly": exactly}))

    def add_queue(self, name: str, **spec: Any) -> None:
        """A Queue."""
        self.objects.seed(
            {
                "apiVersion": "gpudra.io/v1alpha1",
                "kind": "Queue",
                "metadata": {"name": name},
                "spec": spec,
            }
        )

    def add_group(self, name: str, count: int, **spec: Any) -> None:
        """A PodGroup."""
        self.objects.seed(
            {
                "apiVersion": "gpudra.io/v1alpha1",
                "kind": "PodGroup",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"minCount": count, **spec},
            }
        )

    def submit(
        self,
        name: str,
        queue: str,
        claims: dict[str, str],
        *,
        group: str = "",
        life: float = 10.0,
        cpu: int = 1,
        priority: int = 0,
        shared: bool = False,
    ) -> Obj:
        """A pod as admission leaves it; claims by template, or by name when ``shared``."""
        labels = {"gpudra.io/queue": queue}
        if group:
            labels["gpudra.io/pod-group"] = group
        how = "resourceClaimName" if shared else "resourceClaimTemplateName"
        return self.cluster.submit(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "labels": labels,
                    "annotations": {LIFE: str(life)},
                },
                "spec": {
                    "priority": priority,
                    "resourceClaims": [{"name": own, how: other} for own, other in claims.items()],
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}],
                },
            }
        )

    # --- the controller -------------------------------------------------------------------

    def start(self) -> ManagedMode:
        """A new leader, which knows nothing but what the API says."""
        assert self.process is None
        self.starts += 1
        api = SimApi(self.objects, self.clock, random.Random(self.rng.random()), self.weather)
        mode = ManagedMode(
            api,  # type: ignore[arg-type]
            driver=self.driver,
            check=lambda: None,
            metrics=self.metrics,
            events=self.events,
            clock=self.clock,
            rng=random.Random(self.rng.random()),
            blocking=inline,
            half_life=self.half_life,
            options=self.options,
        )
        self.process = Process(mode, asyncio.ensure_future(mode.run()), api)
        return mode

    async def kill(self) -> None:
        """SIGKILL: nothing more is asked for; what is under way arrives all the same."""
        assert self.process is not None
        process, self.process = self.process, None
        process.task.cancel()
        process.api.close()
        await asyncio.wait({process.task})
        if not process.task.cancelled() and (error := process.task.exception()) is not None:
            raise error

    @property
    def mode(self) -> ManagedMode:
        """The running controller's."""
        assert self.process is not None
        return self.process.mode

    async def advance(self, seconds: float) -> None:
        """Time goes on, and the rules are looked at."""
        await self.clock.advance(seconds)
        if self.process is not None and self.process.task.done():
            self.process.task.result()
            raise AssertionError("the controller ended by itself")
        self.rules.check()

    async def live(self, seconds: float, *, step: float = 0.25, refuses: float = 0.0) -> None:
        """Everybody works for so long."""
        for _ in range(round(seconds / step)):
            self.cluster.turn(refuses=refuses)
            await self.advance(step)

    # --- looks ----------------------------------------------------------------------------

    def pod(self, name: str) -> Obj:
        """A pod as the API has it."""
        return self.objects.get(PODS, name, NAMESPACE)

    def phase(self, name: str) -> str:
        """Gated, or what the kubelet says."""
        pod = self.pod(name)
        return "Gated" if pod["spec"].get("schedulingGates") else str(pod["status"]["phase"])

    def nodes(self) -> list[Obj]:
        """All nodes."""
        return self.objects.list(NODES)
