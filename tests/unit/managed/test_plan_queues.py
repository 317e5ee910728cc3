# SPDX-License-Identifier: Apache-2.0
"""What queues say in a plan: exact amounts, limits, and what can never be."""

import pytest

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.managed import ManagedState, PlanOptions
from tests.support import managedscene as scene


def calm(*queues: object, nodes: int = 1, cards: int = 8, **more: object) -> ManagedState:
    """A cluster in which nobody is evicted."""
    options = PlanOptions(evictions=False)
    return scene.cluster(nodes, cards, queues=queues, options=options, **more)  # type: ignore[arg-type]


def test_a_limit_is_kept_and_told() -> None:
    """Five cards are allowed: the sixth pod waits with the amounts in its message."""
    state = calm(scene.queue(limit={"gpus": "5"}))
    scene.submit(state, "p", pods=6)
    plan = state.plan(0.0)
    assert len(plan.placements) == 5
    (waiting,) = plan.waiting
    assert waiting.reason == "OverLimit"
    assert waiting.message == "asks for 1 gpus, and queue main uses 5 of its limit of 5"


def test_what_is_above_the_limit_at_once_never_runs() -> None:
    """One pod that asks for more than the limit is told so, not that it is over it now."""
    state = calm(scene.queue(limit={"gpus": "2"}))
    scene.submit(state, "p", 3)
    assert [one.reason for one in state.plan(0.0).waiting] == ["AboveLimit"]


def test_a_limit_of_one_model_leads_to_another_model() -> None:
    """The queue may not use more of the first model; the next node has another one."""
    state = calm(scene.queue(limit={"model/NVIDIA-H100-80GB-HBM3": "1"}))
    state.put_node(scene.node("other"))
    state.put_slice(scene.gpus("other", 2, model="NVIDIA L4", memory="24Gi"))
    scene.submit(state, "p", pods=3)
    plan = state.plan(0.0)
    by_node = sorted(one.pods[0].node for one in plan.placements)
    assert by_node == ["node-000", "other", "other"]


def test_shares_are_charged_by_what_they_take() -> None:
    """A share of 20 of 80 GiB is a quarter of a card, in the book as in the placement."""
    state = calm(share=True, cards=1)
    scene.submit(state, "p", kind="share", capacity={"memory": "20Gi"})
    plan = scene.run(state)
    assert plan.placements[0].amounts.of("gpus") == 250
    assert state.book.used("main").of("memory") == 20 * scene.GIB


def test_a_queue_admits_only_what_some_card_can_hold() -> None:
    """Totals would allow a share of 50 GiB; no card has it."""
    state = calm(share=True, cards=2)
    scene.submit(state, "p", kind="share", capacity={"memory": "40Gi"}, pods=2)
    scene.run(state)
    scene.submit(state, "q", kind="share", capacity={"memory": "50Gi"}, pods=2, created=1.0)
    plan = state.plan(0.0)
    assert len(plan.placements) == 1
    assert [one.reason for one in plan.waiting] == ["NoRoom"]


def test_a_job_larger_than_every_node_can_never_be_placed() -> None:
    """Nine cards of eight: told at once, with the reason."""
    state = calm(nodes=3)
    scene.submit(state, "p", 9)
    (waiting,) = state.plan(0.0).waiting
    assert waiting.reason == "NeverPlaceable"
    assert "would not fit if nothing else ran: 0 of 3 nodes" in waiting.message


def test_a_full_cluster_is_no_reason_for_never() -> None:
    """What fits an empty cluster waits for room, and the message counts nodes."""
    state = calm(nodes=3)
    scene.submit(state, "old", 8, pods=3)
    scene.run(state)
    scene.submit(state, "p", 2, created=1.0)
    (waiting,) = state.plan(0.0).waiting
    assert waiting.reason == "NoRoom"
    assert "0 of 3 nodes for pod default/p-0: 3 no devices" in waiting.message
    assert "At most 0 of 8 cards are untouched" in waiting.message


@pytest.mark.parametrize(
    ("queue", "reason"),
    [("nobody", "UnknownQueue"), ("parent", "NotALeaf"), ("orphan", "UnknownParent")],
)
def test_a_bad_queue_keeps_its_own_pods_only(queue: str, reason: str) -> None:
    """Pods of a queue that cannot be used wait with the reason; others are placed."""
    state = calm(
        scene.queue(),
        scene.queue("parent"),
        scene.queue("child", parent="parent"),
        scene.queue("orphan", parent="missing"),
    )
    scene.submit(state, "bad", queue=queue)
    scene.submit(state, "good")
    plan = state.plan(0.0)
    assert [one.reason for one in plan.waiting] == [reason]
    assert [one.job for one in plan.placements] == ["pod/default/good-0"]


def test_a_class_that_does_not_exist_is_named() -> None:
    """The claim is at fault, and its pod says which class is missing."""
    state = calm()
    scene.submit(state, "bad", kind="tpu")
    scene.submit(state, "good")
    plan = state.plan(0.0)
    (waiting,) = plan.waiting
    assert waiting.reason == "InvalidClaim"
    assert "tpu.gpudra.io" in waiting.message
    assert len(plan.placements) == 1


def test_a_removed_queue_keeps_its_charge_and_admits_nothing() -> None:
    """Running pods stay charged to the cluster; waiting ones name the missing queue."""
    state = calm(scene.queue(), scene.queue("gone"))
    scene.submit(state, "p", queue="gone")
    scene.run(state)
    state.remove_queue("gone")
    scene.submit(state, "q", queue="gone")
    plan = state.plan(0.0)
    assert [one.reason for one in plan.waiting] == ["UnknownQueue"]
    assert state.book.used().of("gpus") == 1000


def test_ended_pods_are_not_charged() -> None:
    """A pod that has succeeded gives its amounts back although it is still listed."""
    state = calm()
    scene.submit(state, "p", 4)
    scene.run(state)
    (pod,) = state.pods.values()
    state.put_pod(scene.pod("p-0", "p-0", gated=False, node=pod.node, ended=True))
    assert state.book.used("main").of("gpus") == 0


def test_administrative_access_costs_nothing() -> None:
    """A claim with adminAccess is allocated beside the owner and charged nothing."""
    state = calm(cards=1)
    scene.submit(state, "owner")
    scene.run(state)
    raw = scene.claim("watch").to_dict()
    raw["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    state.put_claim(ResourceClaim.from_dict(raw))
    state.put_pod(scene.pod("watch", "watch"))
    (placement,) = state.plan(0.0).placements
    assert not placement.amounts


def test_first_available_is_counted_dearest_until_chosen() -> None:
    """Estimated as the dearest alternative, charged as the one that was taken."""
    state = calm(share=True, cards=2)
    raw = scene.claim("p").to_dict()
    raw["spec"]["devices"]["requests"] = [
        {
            "name": "gpu",
            "firstAvailable": [
                {
                    "name": "part",
                    "deviceClassName": "share.gpudra.io",
                    "capacity": {"requests": {"memory": "20Gi"}},
                },
                {"name": "all", "deviceClassName": "gpu.gpudra.io"},
            ],
        }
    ]
    claim = ResourceClaim.from_dict(raw)
    state.put_claim(claim)
    state.put_pod(scene.pod("p", "p"))
    state.refresh()
    assert state.estimate([state.claims["default/p"]]).of("gpus") == 1000
    (placement,) = state.plan(0.0).placements
    assert placement.claims[0].allocation.devices.results[0].request == "gpu/part"
    assert placement.amounts.of("gpus") == 250
