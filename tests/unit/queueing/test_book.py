# SPDX-License-Identifier: Apache-2.0
"""Limits, guarantees, quotas and shares; and the costs of devices."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.quantity import Quantity
from gpudra.api.queue import Queue
from gpudra.api.resource_v1 import CounterSet, Device
from gpudra.driver.core.queueing import NOTHING, Amounts, Book, QueueTree, pool_costs
from gpudra.driver.core.queueing.book import Band
from gpudra.driver.core.queueing.charges import capacity_of
from tests.support.profilepools import pool_of_profile

GIB = 2**30


def queue(name: str, **spec: Any) -> Queue:
    """A queue as the API has it."""
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    return Queue.decode({**head, "spec": spec})


def cards(number: float, **more: int) -> Amounts:
    """So many cards."""
    return Amounts({"gpus": round(number * 1000), **more})


def book(*queues: Queue, gpus: float = 10) -> Book:
    """A cluster with these queues."""
    return Book(QueueTree.of(queues), cards(gpus))


def test_a_limit_holds_for_everything_below_it() -> None:
    """The parent's limit is named when the parent's limit is in the way."""
    found = book(
        queue("dept", limit={"gpus": 3}), queue("a", parent="dept"), queue("b", parent="dept")
    )
    found.charge("j1", "a", cards(2))
    assert found.verdict("b", cards(1)).ok
    refused = found.verdict("b", cards(1.5))
    assert (refused.ok, refused.reason, refused.queue, refused.resource) == (
        False,
        "OverLimit",
        "dept",
        "gpus",
    )
    assert refused.message == "asks for 1.5 gpus, and queue dept uses 2 of its limit of 3"
    found.release("j1")
    assert found.verdict("b", cards(3)).ok
    assert found.used() == NOTHING


def test_a_limit_of_nothing_is_a_limit() -> None:
    """An amount of 0 shuts the queue."""
    assert not book(queue("a", limit={"gpus": 0})).verdict("a", cards(0.1)).ok


def test_a_job_above_the_limit_is_known_to_wait_for_ever() -> None:
    """What could not run in an empty cluster is told apart from what must wait."""
    found = book(queue("a", limit={"gpus": 3}))
    assert found.never("a", cards(3)) is None
    never = found.never("a", cards(4))
    assert never is not None
    assert never.message == "asks for 4 gpus, and the limit of queue a is 3"


def test_a_guarantee_is_never_lent() -> None:
    """Others may use only what leaves it free; its owner may use it; and it shrinks as it is used."""
    found = book(queue("a", guarantee={"gpus": 4}), queue("b"), queue("c", parent="a"))
    assert found.verdict("b", cards(6)).ok
    refused = found.verdict("b", cards(6.5))
    assert refused.reason == "GuaranteeOfOthers"
    assert refused.message == (
        "asks for 6.5 gpus; 10 are free, of which 4 are guaranteed to other queues"
    )
    found.charge("b1", "b", cards(6))
    assert not found.verdict("b", cards(0.1)).ok
    assert found.verdict("c", cards(4)).ok
    found.charge("c1", "c", cards(4))
    found.release("b1")
    assert found.verdict("b", cards(6)).ok


def test_an_owner_gets_its_guarantee_even_when_cards_went_missing() -> None:
    """With fewer cards than are guaranteed nobody is worse off than before by its owner's use."""
    found = book(queue("a", guarantee={"gpus": 4}), queue("b", guarantee={"gpus": 4}), gpus=5)
    assert found.verdict("a", cards(4)).ok
    found.charge("x", "a", cards(4))
    assert not found.verdict("a", cards(1)).ok
    assert found.verdict("b", cards(1)).ok


def test_what_is_above_the_quota_is_borrowed() -> None:
    """By resource that the quota names; a guarantee is part of the quota."""
    found = book(queue("a", quota={"gpus": 2}, guarantee={"gpus": 1, "compute": 100}), queue("b"))
    assert [found.band("a", cards(n)) for n in (1, 2, 3)] == [*Band]
    assert not found.verdict("a", cards(2)).borrowed
    assert found.verdict("a", cards(2.5)).borrowed
    assert found.verdict("b", cards(0.1)).borrowed
    found.charge("j", "a", cards(3, memory=5))
    assert found.borrowed("a") == cards(1)


@pytest.mark.parametrize(
    ("name", "reason", "words"),
    [
        ("x", "UnknownQueue", "no queue 'x'"),
        ("dept", "NotALeaf", "its parts do: a"),
        ("lost", "UnknownParent", "gone does not exist"),
        ("below", "UnknownParent", "of its ancestor lost gone"),
        ("r1", "Cycle", "r1 in r2 in r1"),
    ],
)
def test_bad_queues_admit_nothing_and_say_why(name: str, reason: str, words: str) -> None:
    """The others go on."""
    found = book(
        queue("dept"),
        queue("a", parent="dept"),
        queue("lost", parent="gone"),
        queue("below", parent="lost"),
        queue("r1", parent="r2"),
        queue("r2", parent="r1"),
    )
    verdict = found.verdict(name, cards(1))
    assert (verdict.ok, verdict.reason) == (False, reason)
    assert words in verdict.message
    assert found.verdict("a", cards(1)).ok


def test_a_queue_that_is_deleted_while_used_still_counts_for_the_cluster() -> None:
    """Its jobs keep what they have, and what they have is not given twice."""
    found = book(queue("a"), queue("b", guarantee={"gpus": 5}))
    found.charge("j", "a", cards(5))
    found.set_tree(QueueTree.of([queue("b", guarantee={"gpus": 5}), queue("c")]))
    assert found.used() == cards(5)
    assert not found.verdict("c", cards(1)).ok
    assert found.verdict("b", cards(5)).ok
    found.release("j")
    assert found.used() == NOTHING


def test_shares_are_dominant_and_weighted() -> None:
    """The largest part of the cluster in any resource, divided by the weight."""
    tree = QueueTree.of([queue("a", weight=2), queue("b", quota={"gpus": 1})])
    found = Book(tree, cards(10, memory=100, compute=1000))
    found.charge("j", "a", cards(1, memory=60))
    found.charge("k", "b", cards(4))
    assert found.share("a") == pytest.approx(0.3)
    assert found.share("b") == pytest.approx(0.4)
    assert found.share("b", surplus=True) == pytest.approx(0.3)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.integers(0, 4000)), max_size=40
    )
)
def test_a_book_that_lived_equals_a_fresh_one(steps: list[tuple[int, str, int]]) -> None:
    """Whatever was charged, replaced and released before, only what is charged now counts."""
    queues = [
        queue("top", guarantee={"gpus": 3}),
        queue("a", parent="top"),
        queue("b", parent="top"),
    ]
    tree = QueueTree.of([*queues, queue("c", limit={"gpus": 6})])
    lived, now = Book(tree, cards(10)), {}
    for number, name, amount in steps:
        job = f"j{number}"
        if amount:
            lived.charge(job, name, Amounts({"gpus": amount}))
            now[job] = (name, amount)
        else:
            lived.release(job)
            now.pop(job, None)
    fresh = Book(tree, cards(10))
    for job, (name, amount) in now.items():
        fresh.charge(job, name, Amounts({"gpus": amount}))
    assert lived.views() == fresh.views()
    assert all(
        lived.verdict(name, cards(2)) == fresh.verdict(name, cards(2)) for name in ("a", "b", "c")
    )
    twin = lived.copy()
    twin.charge("other", "c", cards(1))
    assert lived.views() == fresh.views()


def test_costs_follow_the_part_of_the_card() -> None:
    """Of an H100: whole, a MIG device, a share, and nothing for a monitor."""
    devices, sets = pool_of_profile("dgx-h100-8x80")
    costs = pool_costs(devices, sets)
    by_type = {}
    for device in devices:
        by_type.setdefault((device.attributes["type"], device.attributes.get("profile")), device)
    whole = by_type["gpu", None]
    charge = costs[whole.name].charge("gpu.gpudra.io")
    assert (charge.of("gpus"), charge.of("compute")) == (1000, 100)
    assert charge.of("memory") == whole.capacity["memory"].value.value
    assert charge.of("class/gpu.gpudra.io") == 1
    assert charge.of("model/NVIDIA-H100-80GB-HBM3") == 1000
    part = costs[by_type["mig", "3g.40gb"].name].charge()
    assert (part.of("gpus"), part.of("compute")) == (500, 43)
    share = costs[by_type["share", None].name]
    little = share.charge("s", {"memory": Quantity.parse("8Gi"), "compute": Quantity.parse("25")})
    assert (little.of("gpus"), little.of("memory"), little.of("compute")) == (250, 8 * GIB, 25)
    assert share.charge("s") == share.charge("s", {})
    assert costs[by_type["monitor", None].name].charge("m") == NOTHING
    assert costs[whole.name].charge(admin_access=True) == NOTHING
    everything = capacity_of(costs, devices)
    assert (everything.of("gpus"), everything.of("compute")) == (8000, 800)
    assert everything.of("memory") == 8 * charge.of("memory")


def test_a_device_of_unknown_kind_is_not_free() -> None:
    """Nothing that can be allocated costs nothing by accident."""
    costs = pool_costs([Device(name="d")], [CounterSet(name="unused")])
    assert costs["d"].charge("c") == Amounts({"gpus": 1000, "compute": 100, "class/c": 1})


def test_amounts_are_written_as_people_read_them() -> None:
    """Thousandths of cards as decimals, memory in the largest whole unit."""
    texts = Amounts({"gpus": 2500, "memory": 3 * GIB, "compute": 7, "model/x": -1250}).texts()
    assert texts == {"compute": "7", "gpus": "2.5", "memory": "3Gi", "model/x": "-1.25"}
    assert Amounts({"memory": 2**20 * 3 + 1024}).texts() == {"memory": "3073Ki"}
    assert Amounts({"gpus": 0}) == NOTHING
