# SPDX-License-Identifier: Apache-2.0
"""Random workloads and trouble for `ManagedSim`, and what must be true when it is quiet again.

``run(seed, steps)`` is one whole run: queues, gangs, shares and single pods come and go, the
controller is killed, watches break off, the API is slow, away, or does not answer for what it did,
nodes are cordoned, kube-scheduler cannot bind. In the end everything drains.
"""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from gpudra.controller.managed.snapshot import snapshot_of
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.managed import Plan
from gpudra.driver.kube.resources import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUEUES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
)
from tests.support.managedsim import NAMESPACE, TAKEOVER_SECONDS, ManagedSim
from tests.support.simcluster import DRIVER

KINDS = (
    NAMESPACES, QUEUES, POD_GROUPS, NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, PODS,
)  # fmt: skip
MOST_PODS = 40
LONGEST_LIFE = 30.0
# Everything that could run has had its turn long before: forty pods of thirty seconds each.
DRAIN_SECONDS = 1800.0


@dataclasses.dataclass
class Counts:
    """What a run has seen, for people."""

    pods: int = 0
    gangs: int = 0
    kills: int = 0
    outages: int = 0
    quiet: int = 0
    checked: int = 0


class Workload:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.sim = ManagedSim(seed)
        self.rng = self.sim.rng
        self.counts = Counts()
        self._names = 0
        self._submitted: dict[str, float] = {}
        self._furnish()

    def _furnish(self) -> None:
        sim = self.sim
        for number in range(3):
            sim.add_node(
                f"l4-{number}", "l4-4x", DeviceKind.WHOLE, DeviceKind.SHARE,
                cpu=8, rack=f"r{number % 2}",
            )  # fmt: skip
        for number in range(2):
            sim.add_node(f"a100-{number}", "dgx-a100-8x40", DeviceKind.WHOLE, cpu=16, rack="r2")
        sim.add_template("gpu", "gpu.gpudra.io")
        sim.add_template("two", "gpu.gpudra.io", 2)
        sim.add_template("share", "share.gpudra.io", memory="8Gi", compute="30")
        sim.add_template("never", "gpu.gpudra.io", 9)
        sim.add_queue("org")
        sim.add_queue("a", parent="org", quota={"gpus": "8"}, limit={"gpus": "16"})
        sim.add_queue("b", parent="org", quota={"gpus": "8"}, weight=2)
        sim.add_queue("c", guarantee={"gpus": "2"}, limit={"gpus": "6"}, priority=1)
        sim.start()

    # --- what happens ---------------------------------------------------------------------

    async def step(self) -> None:
        """Something happens, everybody works a little, time goes on."""
        actions: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (30, self._single),
            (6, self._gang),
            (2, self._shared_gang),
            (4, self._delete),
            (2, self._cut),
            (1, self._kill),
            (1.5, self._weather),
            (1, self._cordon),
            (40, self._nothing),
        ]
        weights = [weight for weight, _ in actions]
        ((_, action),) = self.rng.choices(actions, weights)
        await action()
        if self.rng.random() < 0.8:
            self.sim.cluster.turn(
                binds=self.rng.random() < 0.9, refuses=0.02 if self.rng.random() < 0.3 else 0.0
            )
        await self.sim.advance(self.rng.choice([0.01, 0.05, 0.2, 0.5, 1.0]))
        self.sim.cluster.remove_ended()

    async def _nothing(self) -> None:
        return

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}-{self._names}"

    def _submit(self, name: str, queue: str, claims: dict[str, str], **more: Any) -> None:
        self.sim.submit(name, queue, claims, life=self.rng.uniform(1, LONGEST_LIFE), **more)
        self._submitted[name] = self.sim.clock.monotonic()
        self.counts.pods += 1

    def _crowded(self) -> bool:
        return len(self.sim.cluster.pods()) >= MOST_PODS

    async def _single(self) -> None:
        if self._crowded():
            return
        kind = self.rng.choices(["gpu", "share", "two", "never"], [50, 35, 14, 1])[0]
        self._submit(
            self._name("pod"),
            self.rng.choice("abc"),
            {"gpu": kind},
            priority=self.rng.choice([0, 0, 0, 100]),
            cpu=self.rng.choice([0, 1, 2]),
        )

    async def _gang(self) -> None:
        if self._crowded():
            return
        name, size = self._name("gang"), self.rng.randint(2, 5)
        topology = self.rng.choice(
            [{}, {"required": ["rack"]}, {"preferred": ["rack"]}, {"required": ["nvlinkDomain"]}]
        )
        minimum = self.rng.choice([size, size, max(2, size - 1)])
        self.sim.add_group(name, minimum, topology=topology)
        queue = self.rng.choice("abc")
        for number in range(size):
            self._submit(f"{name}-{number}", queue, {"gpu": "gpu"}, group=name, cpu=1)
            if self.rng.random() < 0.3:
                await self.sim.advance(0.1)
        self.counts.gangs += 1

    async def _shared_gang(self) -> None:
        if self._crowded():
            return
        name = self._name("pair")
        self.sim.add_group(name, 2)
        self.sim.objects.create(
            RESOURCE_CLAIMS,
            {
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {
                    "devices": {
                        "requests": [
                            {
                                "name": "gpu",
                                "exactly": {"deviceClassName": "gpu.gpudra.io", "count": 1},
                            }
                        ]
                    }
                },
            },
        )
        queue = self.rng.choice("ab")
        for number in range(2):
            self._submit(f"{name}-{number}", queue, {"gpu": name}, group=name, shared=True)
        self.counts.gangs += 1

    async def _delete(self) -> None:
        pods = self.sim.cluster.pods()
        if pods:
            self.sim.cluster.delete(self.rng.choice(pods))

    async def _cut(self) -> None:
        if self.sim.process is not None:
            self.sim.process.api.cut_watches()

    async def _kill(self) -> None:
        """At any point of whatever it does; the next leader comes after the lease has run out."""
        await self.sim.kill()
        self.counts.kills += 1
        left = TAKEOVER_SECONDS + self.rng.uniform(0, 10)
        while left > 0:
            part = min(left, self.rng.uniform(0.1, 2.0))
            self.sim.cluster.turn()
            await self.sim.advance(part)
            left -= part
        self.sim.start()

    async def _weather(self) -> None:
        """Bad weather for a while, or good weather again."""
        weather = self.sim.weather
        self.counts.outages += 1
        if self.rng.random() < 0.5:
            self._clear_up()
            return
        weather.latency = self.rng.choice([0.005, 0.2, 2.0])
        weather.lag = self.rng.choice([0.01, 0.2, 2.0])
        weather.lost_before = self.rng.choice([0, 0.05, 0.3])
        weather.lost_after = self.rng.choice([0, 0.05, 0.3])
        weather.busy = self.rng.choice([0, 0.1])
        weather.away = self.rng.random() < 0.1

    def _clear_up(self) -> None:
        weather = self.sim.weather
        weather.latency, weather.lag, weather.away = 0.005, 0.01, False
        weather.lost_before = weather.lost_after = weather.busy = 0.0

    async def _cordon(self) -> None:
        node = self.rng.choice(self.sim.nodes())
        cordoned = bool((node.get("spec") or {}).get("unschedulable"))
        node["spec"] = {"unschedulable": not cordoned}
        self.sim.objects.update(NODES, node)

    # --- when it is quiet -----------------------------------------------------------------

    async def calm(self) -> None:
        """Good weather, everybody works, until the controller has nothing more to do."""
        self._clear_up()
        for node in self.sim.nodes():
            if (node.get("spec") or {}).get("unschedulable"):
                node["spec"] = {}
                self.sim.objects.update(NODES, node)
        for _ in range(240):
            self.sim.cluster.turn()
            await self.sim.advance(0.25)
            if self._is_quiet():
                break

    def _is_quiet(self) -> bool:
        loose = [
            pod
            for pod in self.sim.cluster.pods()
            if not pod["spec"].get("schedulingGates") and not pod["spec"].get("nodeName")
        ]
        return self.sim.mode.idle and not loose and self._knows_everything()

    def _knows_everything(self) -> bool:
        """Whether the watches have caught up: after bad weather they are late, or not open yet."""
        feed = self.sim.mode.feed
        for known, objects in (
            (feed.pods, self.sim.cluster.pods()),
            (feed.claims, self.sim.cluster.claims()),
        ):
            metas = [one["metadata"] for one in objects]
            forms = [
                known.get(f"{meta['namespace']}/{meta['name']}", meta["uid"]) for meta in metas
            ]
            versions = [form.version if form is not None else "" for form in forms]
            if len(known) != len(metas) or versions != [meta["resourceVersion"] for meta in metas]:
                return False
        return len(feed.groups.store) == len(self.sim.objects.list(POD_GROUPS))

    async def check_quiet(self) -> None:
        """A controller that has run for long says what a fresh one would."""
        if not self._is_quiet():
            return
        self.counts.quiet += 1
        now = self.sim.clock.now().timestamp()
        old = await self.sim.mode.planner.ask(lambda state: state.plan(now))
        objects: list[Obj] = []
        for kind in KINDS:
            head = {"apiVersion": kind.api_version, "kind": kind.kind}
            objects += [{**head, **raw} for raw in self.sim.objects.list(kind)]
        fresh = snapshot_of(objects, DRIVER)
        assert not fresh.warnings, fresh.warnings
        told, wanted = described(old), described(fresh.state.plan(now))
        assert told == wanted, f"after a long run: {told}\nfresh: {wanted}"

    async def drain(self) -> None:
        """Nothing more is submitted: what can run runs, and nothing is left."""
        if self.sim.process is None:
            self.sim.start()
        await self.calm()
        until = self.sim.clock.monotonic() + DRAIN_SECONDS
        while self._living() and self.sim.clock.monotonic() < until:
            self.sim.cluster.turn()
            await self.sim.advance(1.0)
            self.sim.cluster.remove_ended()
        left = {pod["metadata"]["name"]: reason_of(pod) for pod in self._living()}
        assert not left, f"still there after {DRAIN_SECONDS:.0f} s: {left}"
        for pod in self.sim.cluster.pods():
            self.sim.cluster.delete(pod)
        for _ in range(8):
            self.sim.cluster.turn()
            await self.sim.advance(0.5)
        holding = [
            claim["metadata"]["name"]
            for claim in self.sim.cluster.claims()
            if (claim.get("status") or {}).get("allocation")
        ]
        assert not holding, f"these claims still have devices: {holding}"
        assert self.sim.mode.idle
        left_over = await self.sim.mode.planner.ask(
            lambda state: (dict(state.flights), dict(state.book.used()), dict(state.pods))
        )
        assert left_over == ({}, {}, {}), left_over

    def _living(self) -> list[Obj]:
        """Pods that ought to come to an end: all but those that nothing could ever hold."""
        pods = self.sim.cluster.pods()
        return [pod for pod in pods if not hopeless(pod, pods, self.sim)]


def hopeless(pod: Obj, pods: list[Obj], sim: ManagedSim) -> bool:
    """Asks for more than a node has, or lost so many of its gang that it can never be complete."""
    entry = (pod["spec"].get("resourceClaims") or [{}])[0]
    if entry.get("resourceClaimTemplateName") == "never":
        return True
    group = pod["metadata"]["labels"].get("gpudra.io/pod-group")
    if not group or not pod["spec"].get("schedulingGates"):
        return False
    minimum = sim.objects.get(POD_GROUPS, group, NAMESPACE)["spec"]["minCount"]
    alive = [one for one in pods if one["metadata"]["labels"].get("gpudra.io/pod-group") == group]
    return len(alive) < minimum


def reason_of(pod: Obj) -> str:
    """What a pod says about why it is still there."""
    for one in pod["status"].get("conditions") or ():
        if one["type"] == "gpudra.io/Queued" and one["status"] == "True":
            return f"{one['reason']}: {one['message']}"
    return str(pod["status"].get("phase"))


def described(plan: Plan) -> Any:
    """A plan as far as two states must agree."""
    return (
        [one.job for one in plan.placements],
        sorted((one.job, one.queue, one.position, one.reason) for one in plan.waiting),
        sorted(one.job for one in plan.undo),
        sorted(one.job for one in plan.repairs),
    )


async def run(seed: int, steps: int) -> Counts:
    """One run from beginning to end. Raises AssertionError when a rule is broken."""
    work = Workload(seed)
    for number in range(steps):
        await work.step()
        if number % 100 == 99:
            await work.calm()
            await work.check_quiet()
    await work.drain()
    await work.sim.kill()
    return work.counts
