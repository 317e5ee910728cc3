# SPDX-License-Identifier: Apache-2.0
"""Planning alone, without an API server: ``python -m tests.bench.bench_managed_plan``.

500 nodes with 8 cards each, as in the scale tests that KAI Scheduler publishes (2026-07 example:
500 simulated nodes, 4,000 GPUs). Their figures stand beside ours for orientation and are for the
whole system with API server; ours are the plan alone. Then 5,000 nodes with 40,000 cards: what one
event costs, and memory. Seconds of CPU (``process_time``), so a busy machine changes little.
"""

import argparse
import gc
import resource
import time
from collections.abc import Callable
from dataclasses import replace

from gpudra.driver.core.managed import JobPlacement, ManagedState, Plan, PlanOptions
from tests.support import managedscene as scene

Row = tuple[str, str, str, str]
NODES, LARGE, DEFRAG = 500, 5000, 1213


def timed(work: Callable[[], Plan]) -> tuple[float, Plan]:
    """Seconds of CPU, and the plan."""
    gc.collect()
    begin = time.process_time()
    plan = work()
    return time.process_time() - begin, plan


def fill(nodes: int) -> Row:
    """As many one-GPU pods as there are cards."""
    state = scene.cluster(nodes)
    scene.submit(state, "p", pods=nodes * 8)
    seconds, plan = timed(lambda: state.plan(0.0))
    assert len(plan.placements) == nodes * 8, "every card is given out"
    return f"fill {nodes * 8:,} GPUs with one-GPU pods", f"{seconds:.2f} s", "4 s", "6 min 38 s"


def racks(nodes: int) -> ManagedState:
    """Nodes in five racks."""
    state = scene.cluster(0)
    for number in range(nodes):
        name = f"node-{number:03d}"
        state.put_node(scene.node(name, labels={"rack": f"rack-{number * 5 // nodes}"}))
        state.put_slice(scene.gpus(name))
    return state


def topology_gang(nodes: int) -> Row:
    """512 pods in one rack, all or nothing."""
    state = racks(nodes)
    state.put_group(scene.group("gang", 512, topology={"required": ["rack"]}))
    scene.submit(state, "g", pods=512, group="default/gang")
    seconds, plan = timed(lambda: state.plan(0.0))
    assert len(plan.placements) == 1, "the gang fits"
    return "512-pod gang in one rack", f"{seconds:.2f} s", "1 s", "49 s"


def mixed_gang(nodes: int) -> Row:
    """A gang of three kinds of pods on a half-full cluster."""
    state = racks(nodes)
    scene.submit(state, "old", 3, pods=nodes)
    for placement in state.plan(0.0).placements:
        scene.carry_out(state, placement)
    state.put_group(scene.group("gang", 96, topology={"preferred": ["rack"]}))
    for name, count in (("one", 1), ("two", 2), ("four", 4)):
        scene.submit(state, name, count, pods=32, group="default/gang")
    seconds, plan = timed(lambda: state.plan(0.0))
    assert len(plan.placements) == 1, "the gang fits"
    return "96 pods of three kinds, cluster 3/8 full", f"{seconds:.2f} s", "1 s", "-"


def because(nodes: int) -> Row:
    """A job on a full cluster: why it waits."""
    state = scene.cluster(nodes, options=PlanOptions(evictions=False))
    scene.submit(state, "old", 8, pods=nodes)
    for placement in state.plan(0.0).placements:
        scene.carry_out(state, placement)
    scene.submit(state, "new", 4)
    seconds, plan = timed(lambda: state.plan(0.0))
    assert plan.waiting[0].reason == "NoRoom", "it has to wait"
    return "unschedulable, because ...", f"{seconds:.2f} s", "1 s", "249 s"


def backlog(nodes: int) -> Row:
    """Two thousand pods of twenty kinds wait for a full cluster."""
    state = scene.cluster(nodes, options=PlanOptions(evictions=False))
    scene.submit(state, "old", 8, pods=nodes)
    for placement in state.plan(0.0).placements:
        scene.carry_out(state, placement)
    for number in range(20):
        scene.submit(state, f"k{number}", 1 + number % 8, pods=100, cpu_milli=1000 + number)
    seconds, plan = timed(lambda: state.plan(0.0))
    assert len(plan.waiting) == 2000, "everything waits"
    return "2,000 waiting pods of 20 kinds, full cluster", f"{seconds:.2f} s", "-", "-"


def lent(nodes: int) -> ManagedState:
    """Two queues own half of the cards each, and one has all of them; everything runs."""
    half = nodes * 4
    queues = [scene.queue(name, quota={"gpus": half}) for name in ("mine", "theirs")]
    state = scene.cluster(nodes, queues=queues)
    pods = scene.submit(state, "old", pods=nodes * 8, queue="theirs")
    scene.run(state)
    for one in pods:
        state.put_pod(replace(state.pods[one.uid], started=0.0))
    state.plan(1000.0)
    return state


def reclaim(nodes: int) -> list[Row]:
    """One card, another one, and half of the cluster are taken back."""
    state = lent(nodes)
    scene.submit(state, "first", queue="mine")
    first, plan = timed(lambda: state.plan(1000.0))
    assert len(plan.evictions) == 1, "one pod has to go"
    scene.submit(state, "second", queue="mine")
    second, plan = timed(lambda: state.plan(1001.0))
    assert len(plan.evictions) == 2, "another one has to go, the first is asked again"
    state = lent(nodes)
    many = nodes * 4
    scene.submit(state, "many", pods=many, queue="mine")
    all_of_them, plan = timed(lambda: state.plan(1000.0))
    assert len(plan.evictions) == many, "all that was lent is taken back"
    state = lent(nodes)
    state.put_group(scene.group("gang", nodes // 2))
    scene.submit(state, "gang", 8, pods=nodes // 2, queue="mine", group="default/gang")
    as_one, plan = timed(lambda: state.plan(1000.0))
    assert len(plan.evictions) == many, "and for one job as well"
    return [
        ("reclaim one GPU, the first of a full cluster", _ms(first), "-", "13.9 s"),
        ("reclaim one GPU, the next", _ms(second), "50 ms", "13.9 s"),
        (f"reclaim {many:,} GPUs by one-GPU jobs", f"{all_of_them:.2f} s", "1 s", "102 s"),
        (f"reclaim {many:,} GPUs by one gang of {nodes // 2}", f"{as_one:.2f} s", "1 s", "102 s"),
    ]


def defrag(nodes: int) -> Row:
    """Half of every card is taken by a share, and a whole card is wanted: one share is moved."""
    options = PlanOptions(moves=1)
    state = scene.cluster(nodes, cards=2, share=True, options=options)
    half = {"memory": "40Gi"}
    pods = scene.submit(
        state, "half", kind="share", capacity=half, pods=nodes * 4, owner="ReplicaSet/x"
    )
    scene.run(state)
    begun: set[str] = set()
    for one in pods:
        claim = state.claims[one.claims[0].key]
        assert claim.status.allocation is not None, "every half card is given out"
        (result,) = claim.status.allocation.devices.results
        card = f"{result.pool}/{result.device}"
        if card in begun:
            scene.finish(state, state.pods[one.uid])
        else:
            state.put_pod(replace(state.pods[one.uid], started=0.0))
        begun.add(card)
    state.plan(1000.0)
    scene.submit(state, "whole")
    seconds, plan = timed(lambda: state.plan(1001.0))
    assert [one.reason for one in plan.evictions] == ["Moved"], "one share is moved"
    return f"defragmentation plan, {nodes:,} nodes", f"{seconds:.2f} s", "2 s", "-"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def large(nodes: int) -> list[Row]:
    """One event each, with the plan that follows it, on a large cluster that is nearly full."""
    before = _resident()
    state = scene.cluster(nodes)
    scene.submit(state, "p", pods=nodes * 8 - 100)
    seconds, plan = timed(lambda: state.plan(0.0))
    rows: list[Row] = [(f"fill {nodes * 8:,} GPUs", f"{seconds:.1f} s", "-", "-")]
    for placement in plan.placements:
        scene.carry_out(state, placement)
    del plan
    state.plan(0.0)
    rows += [_event(name, change) for name, change in _events(state).items()]
    more = (_resident() - before) / 2**20
    rows.append((f"memory at {nodes:,} nodes, {nodes * 8:,} GPUs", f"{more:.0f} MiB", "1 GiB", "-"))
    return rows


def _resident() -> int:
    """Most bytes that the process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _events(state: ManagedState) -> dict[str, list[Callable[[], object]]]:
    placed = sorted(state.pods.values(), key=lambda pod: pod.key)[:40]

    def one_more(number: int) -> Callable[[], object]:
        def work() -> None:
            scene.submit(state, f"new{number}")

        return work

    def again(number: int) -> Callable[[], object]:
        return lambda: state.put_slice(scene.gpus(f"node-{number:03d}"))

    def moved(number: int) -> Callable[[], object]:
        labels = {"seen": str(number)}
        return lambda: state.put_node(scene.node(f"node-{number:03d}", labels=labels))

    def plan() -> Callable[[], object]:
        return lambda: [_carry(state, one) for one in state.plan(0.0).placements]

    return {
        "event: pod and claim appear": [one_more(n) for n in range(20)],
        "plan after them": [plan()],
        "event: pod and claim go": [(lambda p=p: scene.finish(state, p)) for p in placed[:20]],
        "plan after them (nothing waits)": [plan()],
        "event: slice rewritten": [again(n) for n in range(20)],
        "event: node changed": [moved(n) for n in range(20)],
        "plan after those": [plan()],
        "event: pod changed": [
            (lambda p=p: state.put_pod(replace(p, priority=1))) for p in placed[20:]
        ],
        "plan when nothing changed": [plan()],
    }


def _carry(state: ManagedState, placement: JobPlacement) -> None:
    scene.carry_out(state, placement)


def _event(name: str, work: list[Callable[[], object]]) -> Row:
    worst = 0.0
    for one in work:
        begin = time.process_time()
        one()
        worst = max(worst, time.process_time() - begin)
    goal = "10 ms" if name.startswith("event") else "-"
    return name, f"{worst * 1e3:.1f} ms", goal, "-"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--large", type=int, default=LARGE, help="nodes of the large one; 0: none")
    parser.add_argument("--defrag", type=int, default=DEFRAG, help="nodes of it; 0: none")
    options = parser.parse_args()
    rows: list[Row] = []
    for work in (fill, topology_gang, mixed_gang, because, backlog):
        rows.append(work(options.nodes))
        print(f"... {rows[-1][0]}: {rows[-1][1]}", flush=True)
    rows += reclaim(options.nodes)
    if options.defrag:
        rows.append(defrag(options.defrag))
    if options.large:
        rows += large(options.large)
    print(
        f"\n| {options.nodes} nodes, {options.nodes * 8:,} GPUs | ours (plan alone, CPU) | goal | KAI, whole system |"
    )
    print("|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
