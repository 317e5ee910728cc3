# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is."""

import random
from typing import Any

import pytest

from gpudra.api.queue import Queue
from gpudra.driver.core.queueing import Amounts, Book, QueueTree, Waiting, order


def queue(name: str, **spec: Any) -> Queue:
    """A queue as the API has it."""
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    return Queue.decode({**head, "spec": spec})


def waiting(job: str, queue: str, gpus: float = 1, **more: Any) -> Waiting:
    """A job that wants so many cards."""
    return Waiting(job, queue, amounts=Amounts({"gpus": round(gpus * 1000)}), **more)


def book(*queues: Queue, gpus: int = 10) -> Book:
    """A cluster with these queues."""
    return Book(QueueTree.of(queues), Amounts({"gpus": gpus * 1000}))


def served(found: Book, jobs: list[Waiting], rounds: int = 1000) -> list[str]:
    """The order in which jobs get what they want, as long as the cluster has room."""
    turn = order(found, jobs)
    names: list[str] = []
    while (one := turn.next()) is not None and len(names) < rounds:
        used = found.used().of("gpus") + one.amounts.of("gpus")
        if used <= found.capacity.of("gpus") and found.verdict(one.queue, one.amounts).ok:
            turn.placed(one.job, one.amounts)
            names.append(one.job)
        else:
            turn.blocked(one.job)
    return names


def test_in_a_queue_priority_and_then_age_decide() -> None:
    """And a gang that lost a member goes before all."""
    jobs = [
        waiting("old", "a", created=1),
        waiting("new", "a", created=5),
        waiting("vip", "a", priority=9, created=9),
        waiting("mended", "a", created=8, first=True),
    ]
    found = book(queue("a"))
    assert order(found, jobs).positions == {"mended": 1, "vip": 2, "old": 3, "new": 4}
    assert served(found, jobs) == ["mended", "vip", "old", "new"]


def test_weights_divide_what_is_borrowed() -> None:
    """Two teams without quota get cards in proportion to their weights."""
    jobs = [waiting(f"{name}{n}", name) for name in ("a", "b") for n in range(20)]
    found = book(queue("a", weight=2), queue("b", weight=1), gpus=9)
    got = served(found, jobs)
    assert sum(name.startswith("a") for name in got) == 6
    assert len(got) == 9


def test_quota_comes_before_borrowing() -> None:
    """A team within its quota is served before one that borrows, whatever shares and priorities say."""
    found = book(queue("a", quota={"gpus": 4}), queue("b", priority=100))
    found.charge("earlier", "a", Amounts({"gpus": 3000}))
    jobs = [waiting("b0", "b"), waiting("a0", "a"), waiting("a1", "a")]
    assert served(found, jobs) == ["a0", "b0", "a1"]


def test_priority_divides_those_who_borrow() -> None:
    """The higher band is served first, then the lower."""
    found = book(queue("a", priority=1), queue("b"), gpus=3)
    jobs = [waiting(f"{name}{n}", name) for name in ("a", "b") for n in range(2)]
    assert served(found, jobs) == ["a0", "a1", "b0"]


def test_what_is_not_used_is_lent_up_the_tree() -> None:
    """A department shares with its own teams first, then with others."""
    found = book(
        queue("left", quota={"gpus": 6}),
        queue("l1", parent="left"),
        queue("l2", parent="left"),
        queue("right", quota={"gpus": 4}),
        gpus=10,
    )
    jobs = [waiting(f"l1-{n}", "l1") for n in range(12)] + [
        waiting(f"r{n}", "right") for n in range(2)
    ]
    got = served(found, jobs)
    assert sum(name.startswith("l1") for name in got) == 8
    assert {"r0", "r1"} <= set(got)


def test_past_use_counts_where_it_is_kept() -> None:
    """Of equals the one that used less before goes first."""
    found = book(queue("a"), queue("b"), gpus=1)
    found.history = {"a": 0.5}
    assert served(found, [waiting("a0", "a"), waiting("b0", "b")]) == ["b0"]


def test_bad_queues_do_not_stop_others() -> None:
    """Their jobs are told apart, with the reason."""
    found = book(queue("a"), queue("lost", parent="gone"))
    turn = order(found, [waiting("x", "lost"), waiting("y", "nowhere"), waiting("z", "a")])
    assert [(one.job, problem.reason) for one, problem in turn.refused] == [
        ("x", "UnknownParent"),
        ("y", "UnknownQueue"),
    ]
    one = turn.next()
    assert one is not None
    assert one.job == "z"
    with pytest.raises(ValueError, match="not the one whose turn it is"):
        turn.blocked("x")


@pytest.mark.parametrize("seed", range(20))
def test_the_heap_agrees_with_looking_at_all_queues(seed: int) -> None:
    """The next job is the one that a search through the whole tree finds."""
    rng = random.Random(seed)
    names = [f"q{n}" for n in range(8)]
    queues = [
        queue(
            name,
            **({"parent": names[rng.randrange(n)]} if n and rng.random() < 0.6 else {}),
            weight=rng.choice([0.5, 1, 3]),
            quota={"gpus": rng.randrange(4)},
            priority=rng.randrange(3),
        )
        for n, name in enumerate(names)
    ]
    found = book(*queues, gpus=20)
    leaves = [name for name in names if found.tree.refusal(name) is None]
    jobs = [
        waiting(f"j{n}", rng.choice(leaves), rng.choice([0.5, 1, 2]), created=rng.random())
        for n in range(40)
    ]
    turn, left = order(found, jobs), list(jobs)
    while (one := turn.next()) is not None:
        assert one == searched(found, left)
        left.remove(one)
        if rng.random() < 0.7:
            turn.placed(one.job, one.amounts)
        else:
            turn.blocked(one.job)
    assert not left


def searched(found: Book, left: list[Waiting]) -> Waiting:
    """The rule written down without any cleverness."""

    def best(name: str) -> Waiting | None:
        below = found.tree.children.get(name, ())
        if not below:
            own = [one for one in left if one.queue == name]
            return min(own, key=lambda one: (-one.priority, one.created, one.job), default=None)
        heads = [(child, head) for child in below if (head := best(child)) is not None]
        return min(heads, key=lambda pair: key(*pair))[1] if heads else None

    def key(name: str, head: Waiting) -> tuple[int, int, float, str]:
        band = found.band(name, head.amounts)
        share = found.share(name, surplus=band == 2)
        return band, -found.tree.grants[name].priority if band == 2 else 0, share, name

    one = best("")
    assert one is not None
    return one
