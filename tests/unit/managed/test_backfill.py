# SPDX-License-Identifier: Apache-2.0
"""Room kept for blocked jobs: small jobs pass only where they delay nobody."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.driver.core.managed import ManagedState, Plan, PlanOptions
from tests.support import managedscene as scene

CALM = PlanOptions(evictions=False)


def jobs(plan: Plan) -> list[str]:
    """Names of the placed jobs without their prefix."""
    return [one.job.rpartition("/")[2] for one in plan.placements]


def half_used(runtime: float | None, nodes: int = 1) -> ManagedState:
    """Nodes of four cards; on the first one, two are in use, since 0 and for so long."""
    state = scene.cluster(nodes, 4, options=CALM)
    scene.submit(state, "old", 2, max_runtime=runtime, started=0.0)
    scene.run(state)
    return state


def test_a_small_job_does_not_pass_a_large_one_on_its_node() -> None:
    """Two cards are free, but the node is kept for the job that needs four."""
    state = half_used(None)
    scene.submit(state, "large", 4, created=1.0)
    scene.submit(state, "small", 1, created=2.0)
    plan = state.plan(5.0)
    assert plan.placements == ()
    assert [(one.job, one.reason) for one in plan.waiting] == [
        ("pod/default/large-0", "NoRoom"),
        ("pod/default/small-0", "NoRoom"),
    ]
    assert "1 kept free for pod/default/large-0" in plan.waiting[1].message


def test_a_small_job_passes_on_other_nodes() -> None:
    """The large job's node is the emptier one of two that are in use; the other is open."""
    state = half_used(None, nodes=2)
    scene.submit(state, "more", 3, created=1.0)
    scene.run(state)
    scene.submit(state, "large", 4, created=2.0)
    scene.submit(state, "small", 1, created=3.0)
    assert jobs(state.plan(5.0)) == ["small-0"]


@pytest.mark.parametrize(("runtime", "passes"), [(50.0, True), (200.0, False), (None, False)])
def test_what_ends_in_time_may_pass(runtime: float | None, passes: bool) -> None:
    """The node becomes free at 100: a job of 50 seconds fits before, one of 200 does not."""
    state = half_used(100.0)
    scene.submit(state, "large", 4, created=1.0)
    scene.submit(state, "small", 1, created=2.0, max_runtime=runtime)
    assert jobs(state.plan(10.0)) == (["small-0"] if passes else [])


def test_what_fits_beside_it_at_its_time_may_pass() -> None:
    """At 100 four of four are free and three are needed: one card may be used for as long as it likes."""
    state = half_used(100.0)
    scene.submit(state, "large", 3, created=1.0)
    scene.submit(state, "small", 1, pods=2, created=2.0)
    assert jobs(state.plan(10.0)) == ["small-0"]


def test_a_job_blocked_by_its_limit_keeps_nothing() -> None:
    """Room would not help it, so nobody waits for it."""
    queues = [scene.queue(limit={"gpus": "2"}), scene.queue("other")]
    state = scene.cluster(1, 4, queues=queues, options=CALM)
    scene.submit(state, "old", 2)
    scene.run(state)
    scene.submit(state, "large", 2, created=1.0)
    scene.submit(state, "small", 1, created=2.0, queue="other")
    plan = state.plan(5.0)
    assert jobs(plan) == ["small-0"]
    assert [one.reason for one in plan.waiting] == ["OverLimit"]


def test_a_stream_of_small_jobs_does_not_starve_a_large_one() -> None:
    """Every second a small job ends and a new one comes; the large one runs all the same."""
    state = scene.cluster(3, 4, options=CALM)
    scene.submit(state, "s0", pods=12)
    scene.run(state)
    scene.submit(state, "large", 4, created=1.0)
    rng = random.Random(7)
    for second in range(1, 200):
        running = sorted(p.uid for p in state.pods.values() if p.node)
        scene.finish(state, state.pods[rng.choice(running)])
        scene.submit(state, f"s{second}", created=float(second) + 1)
        plan = scene.run(state, float(second))
        if "large-0" in jobs(plan):
            return
    raise AssertionError("the large job never ran")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_gang_runs_although_small_jobs_keep_coming(seed: int) -> None:
    """The same for a gang over several nodes, with run times that are promised or not."""
    rng = random.Random(seed)
    state = scene.cluster(4, 2, options=CALM)
    runtimes = (None, 5.0, 20.0)
    for number in range(8):
        scene.submit(state, f"s0-{number}", max_runtime=rng.choice(runtimes), started=0.0)
    scene.run(state)
    state.put_group(scene.group("g", 3))
    scene.submit(state, "g", 2, pods=3, group="default/g", created=1.0)
    for second in range(1, 300):
        for pod in sorted((p for p in state.pods.values() if p.node), key=lambda p: p.key):
            late = pod.max_runtime is not None and second - (pod.started or 0) >= pod.max_runtime
            if late or rng.random() < 0.1:
                scene.finish(state, pod)
        scene.submit(
            state,
            f"s{second}",
            created=second + 1.0,
            started=float(second),
            max_runtime=rng.choice(runtimes),
        )
        if "g" in jobs(scene.run(state, float(second))):
            return
    raise AssertionError("the gang never ran")
