# SPDX-License-Identifier: Apache-2.0
"""Who may be taken from, and who never."""

from typing import Any

import pytest

from gpudra.api.queue import Queue
from gpudra.driver.core.preemption import Cause, Rules, Runner, harm_of
from gpudra.driver.core.queueing import Amounts, Book, QueueTree, Waiting

NOW = 1000.0


def queue(name: str, **spec: Any) -> Queue:
    """A queue as the API has it."""
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    return Queue.decode({**head, "spec": spec})


def gpus(number: float) -> Amounts:
    """So many cards."""
    return Amounts({"gpus": round(number * 1000)})


def rules(*queues: Queue, **running: Any) -> tuple[Rules, dict[str, Runner]]:
    """A cluster of ten cards; ``running`` gives name=(queue, cards, more of the runner)."""
    book = Book(QueueTree.of(queues), gpus(10))
    runners = {}
    for name, (where, cards, *more) in running.items():
        book.charge(name, where, gpus(cards))
        extra = {"since": 0.0, **(more[0] if more else {})}
        runners[name] = Runner(job=name, queue=where, amounts=gpus(cards), **extra)
    return Rules(book, NOW), runners


def wanting(queue: str, cards: float = 1, priority: int = 0) -> Waiting:
    """A job that waits."""
    return Waiting("new", queue, priority=priority, amounts=gpus(cards))


def test_in_a_queue_only_lower_priority_gives_way() -> None:
    """Never an equal or higher one, whatever it uses."""
    found, runners = rules(
        queue("a"), low=("a", 1, {"priority": 1}), same=("a", 1, {"priority": 5})
    )
    assert found.cause(wanting("a", priority=5), runners["low"]) is Cause.PREEMPTED
    assert found.cause(wanting("a", priority=5), runners["same"]) is None
    assert found.cause(wanting("a", priority=0), runners["low"]) is None


@pytest.mark.parametrize(("since", "old"), [(NOW - 299, False), (NOW - 300, True), (None, False)])
def test_a_minimum_of_runtime_is_kept(since: float | None, old: bool) -> None:
    """In a queue by its own, across queues by that of the one that loses."""
    found, runners = rules(
        queue("a", preemptMinRuntime="5m", quota={"gpus": 1}),
        queue("b", reclaimMinRuntime="5m"),
        mine=("a", 1, {"since": since, "priority": -1}),
        theirs=("b", 2, {"since": since}),
    )
    assert (found.cause(wanting("a"), runners["mine"]) is Cause.PREEMPTED) is old
    found.book.release("mine")
    assert (found.cause(wanting("a"), runners["theirs"]) is Cause.RECLAIMED) is old


def test_a_quota_is_taken_back_from_those_who_borrow() -> None:
    """As far as the quota goes, and only from those above theirs."""
    found, runners = rules(
        queue("a", quota={"gpus": 2}),
        queue("b", quota={"gpus": 3}),
        queue("c", quota={"gpus": 3}),
        over=("b", 4),
        within=("c", 3),
    )
    assert found.cause(wanting("a", 2), runners["over"]) is Cause.RECLAIMED
    assert found.cause(wanting("a", 2.5), runners["over"]) is None
    assert found.cause(wanting("a", 2), runners["within"]) is None
    found.book.release("over")
    found.book.charge("over", "b", gpus(3))
    assert found.cause(wanting("a", 2), runners["over"]) is None


def test_priority_of_pods_does_not_count_across_queues() -> None:
    """A team cannot make its own jobs more important than those of another."""
    found, runners = rules(queue("a"), queue("b"), theirs=("b", 1, {"priority": -5}))
    assert found.cause(wanting("a", priority=1000), runners["theirs"]) is None


def test_what_may_not_be_taken_back_is_not() -> None:
    """A queue or one above it says so; or the runner cannot be evicted at all."""
    queues = (
        queue("a", quota={"gpus": 2}),
        queue("safe", reclaimable=False),
        queue("dept"),
        queue("inner", parent="dept", reclaimable=False),
        queue("open", parent="dept"),
    )
    found, runners = rules(
        *queues,
        x=("safe", 1),
        y=("inner", 1),
        z=("open", 1),
        f=("open", 1, {"fixed": "its namespace is protected"}),
    )
    causes = {name: found.cause(wanting("a"), one) for name, one in runners.items()}
    assert causes == {"x": None, "y": None, "z": Cause.RECLAIMED, "f": None}


def test_a_department_settles_among_its_teams() -> None:
    """Queues are compared where their paths part."""
    queues = (
        queue("dept", quota={"gpus": 4}),
        queue("t1", parent="dept", quota={"gpus": 2}),
        queue("t2", parent="dept", quota={"gpus": 2}),
        queue("other"),
    )
    found, runners = rules(*queues, mate=("t2", 4), far=("other", 4))
    assert found.cause(wanting("t1"), runners["mate"]) is Cause.RECLAIMED
    assert found.cause(wanting("t1"), runners["far"]) is None, "the department is at its quota"
    found.book.release("mate")
    assert found.cause(wanting("t1"), runners["far"]) is Cause.RECLAIMED


def test_a_guarantee_is_restored_from_those_above_theirs() -> None:
    """When cards went missing, quota gives way to guarantee."""
    found, runners = rules(
        queue("a", guarantee={"gpus": 3}),
        queue("b", guarantee={"gpus": 2}, quota={"gpus": 8}),
        theirs=("b", 8),
    )
    assert found.cause(wanting("a", 3), runners["theirs"]) is Cause.RECLAIMED
    found.book.charge("theirs", "b", gpus(2))
    assert found.cause(wanting("a", 3), runners["theirs"]) is None


def test_two_queues_at_their_share_leave_each_other_alone() -> None:
    """After taking back, the other side has no reason to take back in turn."""
    queues = (queue("a", quota={"gpus": 5}), queue("b", quota={"gpus": 5}))
    found, runners = rules(*queues, a1=("a", 5), b1=("b", 5))
    for name, other in (("a", "b1"), ("b", "a1")):
        assert found.cause(wanting(name, 1, priority=9), runners[other]) is None


def test_harm_is_ordered() -> None:
    """By importance, then pods, then devices, then how long they ran; names make it certain."""
    base = Runner(job="a", queue="q", priority=1, since=900.0, amounts=gpus(1))
    more = Runner(job="b", queue="q", priority=2, since=900.0, amounts=gpus(0.1))
    larger = Runner(job="c", queue="q", priority=1, since=900.0, amounts=gpus(2))
    older = Runner(job="d", queue="q", priority=1, since=100.0, amounts=gpus(1))
    ranked = sorted([more, larger, older, base], key=lambda one: harm_of([one], NOW))
    assert [one.job for one in ranked] == ["a", "d", "c", "b"]
    assert harm_of([], NOW) < harm_of([base], NOW) < harm_of([base, larger], NOW)
