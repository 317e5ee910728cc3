# SPDX-License-Identifier: Apache-2.0
"""The protocol with departures: tasks come, stay for their time in the trace, and leave.

The trace itself loads its cluster to about one percent, so by default the load
is scaled: tasks are drawn from the list with replacement, arrivals are Poisson,
and the rate makes the offered GPU amount ``load`` times the cluster's. A task
stays ``deletion_time - creation_time`` seconds, at most ``longest_s`` (a handful
of tasks that ran for months would otherwise fill the cluster for good). The
run begins in the steady state of unlimited room: tasks drawn by duration, each
with a uniform part of it left. With ``load`` None the trace's own times are
replayed as they are.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from time import process_time

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.placementlog import PlacementLog
from gpudra.controller.ctl.simulate.published import Watch
from gpudra.controller.ctl.simulate.results import (
    DepartureRun,
    GangPoint,
    Stranded,
    mean,
    size_label,
)
from gpudra.controller.ctl.simulate.stranded import gang_member, largest_gang, stranded_now
from gpudra.controller.ctl.simulate.trace import Trace
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.policies import Maker
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import Placement, Request

SAMPLES = 100
"""Times per run at which stranded amounts and the largest gang are taken."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One task's arrival; ``stay_s`` is how long it will hold its cards."""

    at_s: float
    task: int
    stay_s: float


def durations(trace: Trace, longest_s: float) -> list[float]:
    """Stay of every task; raises InputError where the list gives no times."""
    stays: list[float] = []
    for number, task in enumerate(trace.tasks):
        if task.created_s is None or task.deleted_s is None:
            raise InputError(
                f"task {number} ({task.name}) has no creation_time or deletion_time",
                obj="task list",
                hint="the protocol with departures needs both columns",
            )
        stays.append(min(float(task.deleted_s - task.created_s), longest_s))
    return stays


def scaled_arrivals(
    trace: Trace, *, seed: int, load: float, count: int, longest_s: float
) -> Iterator[Arrival]:
    """The steady population at time 0, then ``count`` Poisson arrivals (module docstring)."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible stream, not a secret
    stays = durations(trace, longest_s)
    amounts = [task.request.amount_milli for task in trace.tasks]
    held = sum(a * s for a, s in zip(amounts, stays, strict=True)) / len(stays)
    if held <= 0:
        raise InputError("no task holds a GPU for any time", obj="task list")
    rate = load * trace.capacity_milli / held
    weights = list(accumulate(stays))
    indices = range(len(stays))
    offered = 0
    while offered < load * trace.capacity_milli:
        task = rng.choices(indices, cum_weights=weights)[0]
        offered += amounts[task]
        yield Arrival(0.0, task, rng.random() * stays[task])
    now = 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        task = rng.randrange(len(stays))
        yield Arrival(now, task, stays[task])


def replayed_arrivals(trace: Trace) -> Iterator[Arrival]:
    """The trace's own times, in order of creation (file order on ties)."""
    stays = durations(trace, float("inf"))
    created = [(float(task.created_s or 0), i) for i, task in enumerate(trace.tasks)]
    for at_s, task in sorted(created):
        yield Arrival(at_s, task, stays[task])


@dataclass(slots=True)
class _Tally:
    """Integrals over time, and counts."""

    last_s: float = 0.0
    allocated: int = 0
    area: float = 0.0
    requested: int = 0
    rejected: int = 0
    decisions: int = 0
    spent_s: float = 0.0
    sizes: Counter[str] = field(default_factory=Counter)
    stranded: list[Stranded] = field(default_factory=list)
    gangs: list[GangPoint] = field(default_factory=list)

    def move_to(self, at_s: float) -> None:
        self.area += self.allocated * (at_s - self.last_s)
        self.last_s = at_s


class _Run:
    """State of one run; the loop below feeds it arrivals in order of time."""

    def __init__(self, trace: Trace, mix: DemandMix, maker: Maker, seed: int, log: PlacementLog):
        self._trace = trace
        self._mix = mix
        self._log = log
        self._state = ClusterState(trace.nodes)
        self._placer = maker(self._state, seed)
        self._ends: list[tuple[float, int, Request, Placement]] = []
        self._placements = 0
        self._member = gang_member(mix)
        self.tally = _Tally()

    def arrive(self, arrival: Arrival) -> None:
        """Lets everything that ended before leave, then decides on the task."""
        self.leave_until(arrival.at_s)
        tally, request = self.tally, self._trace.tasks[arrival.task].request
        tally.move_to(arrival.at_s)
        begun = process_time()
        place = self._placer.choose(request)
        if place is not None:
            self._placer.commit(request, place)
        tally.spent_s += process_time() - begun
        tally.decisions += 1
        tally.requested += request.amount_milli
        if place is None:
            tally.rejected += request.amount_milli
            tally.sizes[size_label(request.cards, request.card_milli)] += 1
            self._log.dropped(arrival.task, arrival.at_s)
            return
        tally.allocated += request.amount_milli
        self._log.placed(arrival.task, place.node, place.cards, arrival.at_s)
        heappush(self._ends, (arrival.at_s + arrival.stay_s, self._placements, request, place))
        self._placements += 1

    def leave_until(self, at_s: float) -> None:
        """Releases what ends up to this time, in order of time."""
        while self._ends and self._ends[0][0] <= at_s:
            ended_s, number, request, place = heappop(self._ends)
            self.tally.move_to(ended_s)
            self._placer.release(request, place)
            self.tally.allocated -= request.amount_milli
            self._log.released(number, ended_s)

    def sample(self, at_s: float) -> None:
        """Takes stranded amounts and the largest gang now."""
        self.tally.stranded.append(stranded_now(self._state, self._mix))
        self.tally.gangs.append(GangPoint(at_s, largest_gang(self._state, self._member)))


def run_departures(
    trace: Trace,
    mix: DemandMix,
    maker: Maker,
    *,
    seed: int,
    arrivals: list[Arrival],
    log: PlacementLog,
    watch: Watch,
) -> DepartureRun:
    """One run over the given arrivals; means are taken over the time up to the last arrival."""
    run = _Run(trace, mix, maker, seed, log)
    begin_s, end_s = arrivals[0].at_s, arrivals[-1].at_s
    run.tally.last_s = begin_s
    step = max(end_s - begin_s, 1e-9) / SAMPLES
    for arrival in arrivals:
        while len(run.tally.gangs) < SAMPLES and arrival.at_s > begin_s + (
            due := step * len(run.tally.gangs)
        ):
            run.leave_until(begin_s + due)
            run.sample(begin_s + due)
            watch(due / (step * SAMPLES))
        run.arrive(arrival)
    result = _result(trace, run.tally, seed, end_s - begin_s, arrivals)
    log.end(result.as_json())
    return result


def _result(
    trace: Trace, tally: _Tally, seed: int, span_s: float, arrivals: list[Arrival]
) -> DepartureRun:
    capacity = trace.capacity_milli
    span = max(span_s, 1e-9)
    end_s = arrivals[-1].at_s
    offered = sum(
        trace.tasks[a.task].request.amount_milli * min(a.stay_s, end_s - a.at_s) for a in arrivals
    )
    causes = ("cpu", "memory", "fragmentation", "model")
    samples = tally.stranded or [Stranded()]
    return DepartureRun(
        seed=seed,
        allocated_percent=100.0 * tally.area / span / capacity,
        offered_percent=100.0 * offered / span / capacity,
        rejected_percent=100.0 * tally.rejected / max(1, tally.requested),
        stranded=Stranded(*(mean([getattr(s, cause) for s in samples]) for cause in causes)),
        dropped=tally.sizes.total(),
        us_per_decision=1e6 * tally.spent_s / max(1, tally.decisions),
        dropped_by_size=dict(sorted(tally.sizes.items())),
        arrivals=len(arrivals),
        gangs=tuple(tally.gangs),
    )
