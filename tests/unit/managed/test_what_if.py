# SPDX-License-Identifier: Apache-2.0
"""What-if: the answer of the next plan, and nothing is changed by asking."""

from gpudra.driver.core.managed import PlanOptions
from tests.support import managedscene as scene


def test_it_tells_where_pods_would_go() -> None:
    """The answer is the placement that the next plan would make."""
    state = scene.cluster(1)
    asked = state.what_if([scene.pod("p", "p")], [scene.claim("p", 2)], None, 0.0)
    assert asked.placement is not None
    assert asked.placement.pods[0].node == "node-000"
    assert asked.amounts.of("gpus") == 2000
    assert state.plan(0.0).placements == ()
    scene.submit(state, "p", 2)
    assert state.plan(0.0).placements[0].pods[0].node == "node-000"


def test_waiting_jobs_come_first() -> None:
    """The only card goes to the pod that waits already; the asked one is told its position."""
    state = scene.cluster(1, 1, options=PlanOptions(evictions=False))
    scene.submit(state, "first", created=1.0)
    asked = state.what_if([scene.pod("p", "p", created=2.0)], [scene.claim("p")], None, 5.0)
    assert asked.placement is None
    assert (asked.reason, asked.position, asked.queue) == ("NoRoom", 2, "main")


def test_it_says_why_something_can_never_be() -> None:
    """Nine cards of eight."""
    asked = scene.cluster(1).what_if([scene.pod("p", "p")], [scene.claim("p", 9)], None, 0.0)
    assert asked.reason == "NeverPlaceable"


def test_a_gang_is_asked_about_with_its_group() -> None:
    """Neither group nor claims exist; the whole gang gets its nodes."""
    state = scene.cluster(2, 2)
    pods = [scene.pod(f"g-{n}", f"g-{n}", group="default/g") for n in range(4)]
    claims = [scene.claim(f"g-{n}") for n in range(4)]
    group = scene.group("g", 4, topology={"preferred": ["nvlinkDomain"]})
    asked = state.what_if(pods, claims, group, 0.0)
    assert asked.placement is not None
    assert len(asked.placement.pods) == 4
    assert state.groups == {}


def test_a_pod_without_gate_cannot_be_asked_about() -> None:
    """It would never wait, and the answer says so; the same for no pod at all."""
    state = scene.cluster(1)
    assert "gate" in state.what_if([scene.pod("p", gated=False)], [], None, 0.0).message
    assert state.what_if([], [], None, 0.0).reason == "InvalidPod"
