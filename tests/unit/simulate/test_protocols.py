# SPDX-License-Identifier: Apache-2.0
"""Both protocols on small clusters: streams from seeds, figures, and what is left over."""

import random
from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.arrivals import check_amounts, published_order
from gpudra.controller.ctl.simulate.departures import (
    Arrival,
    replayed_arrivals,
    run_departures,
    scaled_arrivals,
)
from gpudra.controller.ctl.simulate.placementlog import PlacementLog
from gpudra.controller.ctl.simulate.published import run_published
from gpudra.controller.ctl.simulate.results import (
    DepartureRun,
    PublishedRun,
    departures_json,
    published_json,
)
from gpudra.controller.ctl.simulate.stranded import gang_member, largest_gang, stranded_now
from gpudra.controller.ctl.simulate.trace import Task, Trace
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.policies import prepare
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import NodeSpec, Placement, Request, share, whole_cards
from tests.unit.simulate.lists import small_trace


def quiet(_part: float) -> None:
    """Nobody watches."""


def mix_of(trace: Trace) -> DemandMix:
    """The mix of a trace."""
    return DemandMix.of(task.request for task in trace.tasks)


def published(trace: Trace, *, policy: str = "first-fit", until: float = 1.3) -> PublishedRun:
    """One run with seed 7."""
    maker = prepare(policy, trace.nodes, mix_of(trace))
    return run_published(
        trace, mix_of(trace), maker, seed=7, until=until, log=PlacementLog(), watch=quiet
    )


def one_node(*requests: Request, cards: int = 2) -> Trace:
    """One node and tasks without times."""
    tasks = tuple(Task(f"t{i}", r, 0, 100) for i, r in enumerate(requests))
    return Trace((NodeSpec("n", 64_000, 1 << 20, cards, "T4"),), tasks)


def test_the_stream_is_the_shuffled_list_then_samples() -> None:
    """Arrivals are exactly what the documented use of random.Random(seed) gives."""
    amounts = [100, 200, 300, 0, 500]
    found = list(published_order(amounts, 2000, 42, 1.3))
    rng, order = random.Random(42), list(range(5))
    rng.shuffle(order)
    expected, total = [], 0
    while total < 2600:
        index = order[len(expected)] if len(expected) < 5 else rng.randrange(5)
        expected.append(index)
        total += amounts[index]
    assert found == expected
    assert sorted(found[:5]) == [0, 1, 2, 3, 4]


def test_the_stream_of_a_seed_never_changes() -> None:
    """Fixed once and for all: the arrivals of seed 42 over ten tasks."""
    found = list(published_order([100] * 10, 1000, 42, 1.3))
    assert found == [7, 3, 2, 8, 5, 6, 9, 4, 0, 1, 9, 6, 0]


def test_a_long_list_ends_within_itself() -> None:
    """The stream stops as soon as enough is requested, though the list is longer."""
    assert len(list(published_order([1000] * 50, 2000, 1, 1.5))) == 3


@pytest.mark.parametrize("amounts", [[0, 0], [0] * 9_999_999 + [1]])
def test_lists_that_never_fill_a_cluster_are_refused(amounts: list[int]) -> None:
    """A list without GPU requests, or with hardly any, would run for ever."""
    with pytest.raises(InputError):
        check_amounts(amounts, 1000, 1.3)


def test_figures_of_a_run_can_be_counted_by_hand() -> None:
    """Two cards, only whole-card tasks: full at 100 %, everything after is dropped."""
    run = published(one_node(whole_cards(1), whole_cards(1)), until=2.0)
    assert run.allocated_percent == 100.0
    assert run.allocated_percent_at_100 == 100.0
    assert run.dropped == 2
    assert run.dropped_by_size == {"1": 2}
    assert run.curve[0].requested == 0
    assert run.curve[-1].requested == pytest.approx(200.0)
    assert run.stranded.total == 0


def test_at_100_is_empty_when_the_run_ends_before() -> None:
    """With --until below 1 the point is never reached, which is said, not guessed."""
    run = published(one_node(share(500)), until=0.5)
    assert run.allocated_percent_at_100 is None
    answer = published_json("first-fit", [run])
    assert answer["mean"] == {
        "allocatedPercent": 50.0,
        "allocatedPercentAt100": None,
        "dropped": 0,
        "usPerDecision": pytest.approx(run.us_per_decision, abs=0.01),
    }


def test_the_answer_has_exactly_the_agreed_keys(tmp_path: Path) -> None:
    """policy, runs (seed and four figures each) and mean, nothing else."""
    answer = published_json("fgd", [published(small_trace(tmp_path), policy="fgd")])
    assert list(answer) == ["policy", "runs", "mean"]
    figures = ["allocatedPercent", "allocatedPercentAt100", "dropped", "usPerDecision"]
    assert [list(run) for run in answer["runs"]] == [["seed", *figures]]  # type: ignore[attr-defined]
    assert list(answer["mean"]) == figures  # type: ignore[call-overload]


@pytest.mark.parametrize("policy", ["gpudra", "fgd", "random", "best-fit"])
def test_a_seed_gives_the_same_run_twice(tmp_path: Path, policy: str) -> None:
    """Everything but the time is a function of lists, policy and seed."""
    trace = small_trace(tmp_path)
    first, second = published(trace, policy=policy), published(trace, policy=policy)
    assert (first.allocated_percent, first.dropped_by_size, first.curve) == (
        second.allocated_percent,
        second.dropped_by_size,
        second.curve,
    )


def test_stranded_amounts_are_counted_by_their_first_cause() -> None:
    """Wrong model, cards too small or too few, then CPU, then memory."""
    nodes = [
        NodeSpec("model", 9000, 900, 1, "G2"),
        NodeSpec("cpu", 0, 900, 1, "T4"),
        NodeSpec("memory", 9000, 0, 1, "T4"),
        NodeSpec("fine", 9000, 900, 1, "T4"),
        NodeSpec("small", 9000, 900, 1, "T4"),
    ]
    state = ClusterState(nodes)
    state.take(share(600), Placement(4, (0,)))
    request = Request(1000, 100, 1, 500, 500, frozenset({"T4"}))
    found = stranded_now(state, DemandMix.of([request, Request(cpu_milli=10**6)]))
    assert found.model == pytest.approx(20.0)
    assert found.cpu == pytest.approx(20.0)
    assert found.memory == pytest.approx(20.0)
    assert found.fragmentation == pytest.approx(8.0)


def test_the_largest_gang_is_limited_by_cpu_memory_and_cards() -> None:
    """Members that fit all at once, node by node."""
    nodes = [NodeSpec("a", 10_000, 10_000, 4, "T4"), NodeSpec("b", 99_000, 1000, 4, "T4")]
    member = gang_member(
        DemandMix.of([whole_cards(1, cpu_milli=4000, memory_mib=500)] * 2 + [share(5)])
    )
    assert largest_gang(ClusterState(nodes), member) == 2 + 2
    assert gang_member(DemandMix.of([share(500)])) == whole_cards(1)


def departed(trace: Trace, arrivals: list[Arrival]) -> DepartureRun:
    """One run with departures, first fit."""
    maker = prepare("first-fit", trace.nodes, mix_of(trace))
    return run_departures(
        trace, mix_of(trace), maker, seed=1, arrivals=arrivals, log=PlacementLog(), watch=quiet
    )


def test_departures_give_room_to_those_who_come_later() -> None:
    """A card freed at 10 s serves the arrival at 10 s; means are over time."""
    trace = one_node(whole_cards(1), cards=1)
    run = departed(
        trace,
        [
            Arrival(0.0, 0, 10.0),
            Arrival(5.0, 0, 10.0),
            Arrival(10.0, 0, 10.0),
            Arrival(20.0, 0, 1.0),
        ],
    )
    assert run.dropped == 1
    assert run.rejected_percent == 25.0
    assert run.allocated_percent == pytest.approx(100.0)
    assert run.offered_percent == pytest.approx(150.0)
    assert run.arrivals == 4


def test_the_trace_itself_is_replayed_in_order_of_creation(tmp_path: Path) -> None:
    """Own times: arrivals at creation, stays to deletion, nothing scaled."""
    trace = small_trace(tmp_path)
    arrivals = list(replayed_arrivals(trace))
    assert [a.at_s for a in arrivals] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    assert arrivals[1].stay_s == 390.0
    answer = departures_json("first-fit", [departed(trace, arrivals)])
    assert answer["protocol"] == "departures"
    assert set(answer["mean"]) >= {"strandedPercent", "rejectedPercent", "usPerDecision"}  # type: ignore[call-overload]


def test_scaled_arrivals_offer_the_wanted_load(tmp_path: Path) -> None:
    """Over a long run the offered amount is the load times the cluster, from the first second."""
    trace = small_trace(tmp_path)
    arrivals = list(scaled_arrivals(trace, seed=3, load=0.8, count=4000, longest_s=300.0))
    run = departed(trace, arrivals)
    assert run.offered_percent == pytest.approx(80.0, abs=4.0)
    assert max(a.stay_s for a in arrivals) <= 300.0
    assert len(run.gangs) == 100


def test_lists_without_times_cannot_depart(tmp_path: Path) -> None:
    """The first task without times is named."""
    trace = Trace(small_trace(tmp_path).nodes, (Task("x", share(10)),))
    with pytest.raises(InputError, match=r"task 0 \(x\) has no creation_time"):
        list(replayed_arrivals(trace))
    idle = Trace(trace.nodes, (Task("x", share(10), 5, 5),))
    with pytest.raises(InputError, match="no task holds a GPU"):
        list(scaled_arrivals(idle, seed=1, load=1.0, count=5, longest_s=10.0))
