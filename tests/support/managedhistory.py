# SPDX-License-Identifier: Apache-2.0
"""Random histories of a managed cluster, with the invariants that hold at every step.

Used by tests/unit/managed/test_random_histories. Everything follows from one seed.
"""

import random
from collections import Counter
from dataclasses import replace

from gpudra.driver.core.managed import JobPlacement, ManagedState, Plan, PlanOptions, PodView
from tests.support import managedscene as scene

NODES = 4
CARDS = 4


class History:
    """A cluster that is fed, planned and checked.

    Attributes:
        state: fed event by event.
        now: virtual seconds.
    """

    def __init__(self, seed: int, *, share: bool = False) -> None:
        self.rng = random.Random(seed)
        self.share = share
        queues = [
            scene.queue("main"),
            scene.queue("limited", limit={"gpus": "6"}),
            scene.queue("parent", limit={"gpus": "12"}),
            scene.queue("child", parent="parent", weight=2),
        ]
        domains = [f"d{i // 2}" for i in range(CARDS)]
        self.state = scene.cluster(0, queues=queues, options=PlanOptions(evictions=False))
        for number in range(NODES):
            name = f"node-{number:03d}"
            own = [f"{name}-{one}" for one in domains]
            labels = {"rack": f"r{number // 2}"}
            small = {"cpu": "16", "memory": "64Gi", "pods": "6"}
            self.state.put_node(scene.node(name, labels=labels, allocatable=small))
            self.state.put_slice(scene.gpus(name, CARDS, domains=own, share=share))
            if share:
                self.state.put_slice(scene.counters(name, CARDS))
        self.now = 0.0
        self.count = 0
        self.cordoned: set[str] = set()

    # --- what can happen ----------------------------------------------------------------------

    def step(self) -> None:
        """One random event, or a plan that is carried out."""
        what = self.rng.choices(
            (self.single, self.gang, self.end, self.plan, self.tear, self.cordon),
            (4, 2, 4, 4, 1, 1),
        )[0]
        self.now += self.rng.randrange(1, 30)
        what()

    def _name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count:03d}"

    def _more(self) -> dict[str, object]:
        return {
            "queue": self.rng.choice(("main", "limited", "child", "nobody")),
            "created": self.now,
            "priority": self.rng.choice((0, 0, 0, 5)),
            "cpu_milli": self.rng.choice((500, 2000, 6000)),
            "max_runtime": self.rng.choice((None, None, 50.0, 200.0)),
        }

    def single(self) -> None:
        """A pod of its own."""
        name, count = self._name("s"), self.rng.choice((1, 1, 2, 4))
        if self.share and self.rng.random() < 0.5:
            memory = self.rng.choice(("10Gi", "30Gi", "50Gi"))
            scene.submit(
                self.state, name, kind="share", capacity={"memory": memory}, **self._more()
            )
        else:
            scene.submit(self.state, name, count, **self._more())

    def gang(self) -> None:
        """A gang, with or without topology, some larger than their minimum, some sharing a claim."""
        name = self._name("g")
        minimum = self.rng.choice((2, 2, 3, 4))
        topology = self.rng.choice(
            ({}, {"required": ["nvlinkDomain"]}, {"required": ["rack"]}, {"preferred": ["rack"]})
        )
        self.state.put_group(scene.group(name, minimum, topology=topology))
        more = {**self._more(), "group": f"default/{name}"}
        if self.rng.random() < 0.25:
            self.state.put_claim(scene.claim(name, 1))
            for number in range(minimum):
                self.state.put_pod(scene.pod(f"{name}-{number}", name, **more))
            return
        pods = minimum + self.rng.choice((0, 0, 1, -1))
        scene.submit(self.state, name, self.rng.choice((1, 1, 2)), pods=pods, **more)

    def end(self) -> None:
        """A running pod ends."""
        running = sorted(p.uid for p in self.state.pods.values() if p.node)
        if running:
            scene.finish(self.state, self.state.pods[self.rng.choice(running)])

    def plan(self) -> None:
        """Plans, checks, and carries out, now and then without binding."""
        plan = self.state.plan(self.now)
        self.check_plan(plan)
        for one in plan.undo:
            for pod in one.pods:
                scene.finish(self.state, self.state.pods[pod.uid])
        for placement in (*plan.repairs, *plan.placements):
            if self.rng.random() < 0.15:
                self.state.assume(placement)
                if self.rng.random() < 0.5:
                    self.state.drop(placement.job)
                    continue
            scene.carry_out(self.state, placement, bind=self.rng.random() < 0.8)
            self._note(placement)
        self.check_state()

    def _note(self, placement: JobPlacement) -> None:
        """The annotation that the controller writes for a repair."""
        for one in placement.pods if placement.avoid else ():
            pod = self.state.pods[one.uid]
            self.state.put_pod(replace(pod, avoid=placement.avoid))

    def tear(self) -> None:
        """kube-scheduler gives the allocation of an unbound pod back, or binds it."""
        unbound = sorted(p.uid for p in self.state.pods.values() if p.placed and not p.node)
        if not unbound:
            return
        pod = self.state.pods[self.rng.choice(unbound)]
        node = self.state.planned_node(pod)
        if node and self.rng.random() < 0.5:
            self.state.put_pod(replace(pod, node=node))
            return
        for ref in pod.claims:
            if len(self.state.users[ref.key]) == 1:
                claim = self.state.claims[ref.key]
                if claim.status.allocation is not None:
                    self.state.put_claim(scene.allocated(claim, None))

    def cordon(self) -> None:
        """A node is cordoned or opened again."""
        name = f"node-{self.rng.randrange(NODES):03d}"
        self.cordoned ^= {name}
        labels = {"rack": f"r{int(name[-3:]) // 2}"}
        small = {"cpu": "16", "memory": "64Gi", "pods": "6"}
        cordoned = name in self.cordoned
        self.state.put_node(scene.node(name, labels=labels, allocatable=small, cordoned=cordoned))

    # --- what always holds --------------------------------------------------------------------

    def check_plan(self, plan: Plan) -> None:
        """Gangs are whole, nobody is forgotten, nothing goes to a cordoned node."""
        state = self.state
        named = [one.uid for p in plan.placements for one in p.pods]
        named += [one.uid for w in plan.waiting for one in w.pods]
        named += [one.uid for u in plan.undo for one in u.pods]
        taken_down = {u.job for u in plan.undo}
        for pod in state.pods.values():
            gang = f"group/{pod.group}"
            if pod.waits and gang not in taken_down and not state.planned_node(pod):
                assert pod.uid in named, f"nothing is said about {pod.key}"
        for placement in plan.placements:
            assert not {one.node for one in placement.pods} & self.cordoned
            if placement.job.startswith("group/") and "+" not in placement.job:
                self._check_gang(placement)

    def _check_gang(self, placement: JobPlacement) -> None:
        state = self.state
        group = state.groups[placement.job.partition("/")[2]]
        members = [state.pods[uid] for uid in state.members[placement.job]]
        there = [p for p in members if (p.placed and not p.deleting) or state.planned_node(p)]
        assert len(placement.pods) + len(there) >= group.spec.min_count
        pods = {one.uid for one in placement.pods}
        nodes = {one.node for one in placement.pods} | {
            p.node or state.planned_node(p) for p in there if p.uid not in pods
        }
        if group.spec.topology.required == ("rack",):
            racks = {state.ground.facts[n].node.labels["rack"] for n in nodes if n}
            assert len(racks) == 1, f"{placement.job} is in {racks}"
        if group.spec.topology.required == ("nvlinkDomain",):
            own = {
                (one.pool, int(one.device.split("-")[1]) // 2)
                for c in placement.claims
                for one in c.allocation.devices.results
            }
            assert len(own) == 1, f"{placement.job} is in {own}"

    def check_state(self) -> None:
        """No device twice, no node over-full, no limit broken."""
        held: Counter[tuple[str, str]] = Counter()
        used: Counter[tuple[str, str]] = Counter()
        for key in self.state.claims:
            allocation = self.state.allocation_of(key)
            for one in allocation.devices.results if allocation else ():
                if one.share_id is None:
                    held[one.pool, one.device] += 1
                else:
                    used[one.pool, one.device] += one.consumed_capacity["memory"].value
        assert all(count == 1 for count in held.values()), held
        for (pool, device), amount in used.items():
            assert amount <= 80 * 2**30
            assert (pool, device.removesuffix("-share")) not in held
        room: Counter[str] = Counter()
        for pod, node in self.state.ground.seats.values():
            room[node] += pod.cpu_milli
        assert all(amount <= 16000 for amount in room.values())
        book = self.state.book
        assert book.used("limited").of("gpus") <= 6000
        assert book.used("parent").of("gpus") <= 12000

    # --- a fresh state ------------------------------------------------------------------------

    def rebuilt(self) -> ManagedState:
        """A state of the same objects that has seen none of the history."""
        old = self.state
        queues = sorted(old.queues.values(), key=lambda q: q.name)
        fresh = scene.cluster(0, queues=queues, options=old.options)
        objects = [(fresh.put_pod, pod) for pod in old.pods.values()]
        objects += [(fresh.put_claim, claim) for claim in old.claims.values()]
        objects += [(fresh.put_group, group) for group in old.groups.values()]
        for record in old.ground.index.state.records():
            objects += [(fresh.put_slice, one) for one in record.slices]
        for name, facts in old.ground.facts.items():
            labels = {"rack": facts.node.labels["rack"]}
            small = {"cpu": "16", "memory": "64Gi", "pods": "6"}
            cordoned = name in self.cordoned
            raw = scene.node(name, labels=labels, allocatable=small, cordoned=cordoned)
            objects.append((fresh.put_node, raw))
        self.rng.shuffle(objects)
        for put, one in objects:
            put(one)
        fresh.cleared.update(old.cleared)
        fresh.broken_since.update(old.broken_since)
        return fresh

    def end_everything(self) -> list[PodView]:
        """Plans and ends pods until nothing runs any more; returns what still waits."""
        for name in sorted(self.cordoned):
            labels = {"rack": f"r{int(name[-3:]) // 2}"}
            small = {"cpu": "16", "memory": "64Gi", "pods": "6"}
            self.state.put_node(scene.node(name, labels=labels, allocatable=small))
        self.cordoned.clear()
        for _ in range(10_000):
            self.now += 1000.0
            self.plan_plainly()
            placed = sorted(p.uid for p in self.state.pods.values() if p.placed)
            if not placed:
                break
            scene.finish(self.state, self.state.pods[self.rng.choice(placed)])
        return [pod for pod in self.state.pods.values() if pod.waits]

    def plan_plainly(self) -> None:
        """Plans, and carries everything out."""
        plan = self.state.plan(self.now)
        self.check_plan(plan)
        for one in plan.undo:
            for pod in one.pods:
                scene.finish(self.state, self.state.pods[pod.uid])
        for placement in (*plan.repairs, *plan.placements):
            scene.carry_out(self.state, placement)
        self.check_state()
