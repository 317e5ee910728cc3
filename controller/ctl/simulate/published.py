# SPDX-License-Identifier: Apache-2.0
"""The published protocol: tasks come one by one and stay; how much of the cluster is used?"""

from collections import Counter
from collections.abc import Callable
from time import process_time

from gpudra.controller.ctl.simulate.arrivals import published_order
from gpudra.controller.ctl.simulate.placementlog import PlacementLog
from gpudra.controller.ctl.simulate.results import CurvePoint, PublishedRun, size_label
from gpudra.controller.ctl.simulate.stranded import stranded_now
from gpudra.controller.ctl.simulate.trace import Trace
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.policies import Maker
from gpudra.driver.core.placement.state import ClusterState

Watch = Callable[[float], None]
"""Told the finished part of a run, 0 to 1; the progress bar listens."""

CURVE_POINTS = 200


def run_published(
    trace: Trace,
    mix: DemandMix,
    maker: Maker,
    *,
    seed: int,
    until: float,
    log: PlacementLog,
    watch: Watch,
) -> PublishedRun:
    """One run. A task that fits nowhere is dropped; nothing leaves. Time is CPU time of choose and commit."""
    state = ClusterState(trace.nodes)
    placer = maker(state, seed)
    amounts = [task.request.amount_milli for task in trace.tasks]
    capacity, wanted = trace.capacity_milli, until * trace.capacity_milli
    allocated = requested = decisions = 0
    at_100: float | None = None
    sizes: Counter[str] = Counter()
    curve = [CurvePoint(0.0, 0.0)]
    spent = 0.0
    for index in published_order(amounts, capacity, seed, until):
        request = trace.tasks[index].request
        begun = process_time()
        place = placer.choose(request)
        if place is not None:
            placer.commit(request, place)
        spent += process_time() - begun
        decisions += 1
        requested += amounts[index]
        if place is None:
            sizes[size_label(request.cards, request.card_milli)] += 1
            log.dropped(index)
        else:
            allocated += amounts[index]
            log.placed(index, place.node, place.cards)
        if at_100 is None and requested >= capacity:
            at_100 = 100.0 * allocated / capacity
        if requested >= len(curve) * wanted / CURVE_POINTS:
            curve.append(CurvePoint(100.0 * requested / capacity, 100.0 * allocated / capacity))
            watch(requested / wanted)
    run = PublishedRun(
        seed=seed,
        allocated_percent=100.0 * allocated / capacity,
        allocated_percent_at_100=at_100,
        dropped=sizes.total(),
        us_per_decision=1e6 * spent / max(1, decisions),
        dropped_by_size=dict(sorted(sizes.items())),
        curve=tuple(curve),
        stranded=stranded_now(state, mix),
    )
    log.end({**run.as_json(), "droppedBySize": run.dropped_by_size})
    return run
