# SPDX-License-Identifier: Apache-2.0
"""All or nothing against brute force: what can be placed is placed, and never anything else."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.driver.core.gangs.ground import Sketch
from gpudra.driver.core.gangs.solver import Failed, Floor, Need, solve
from gpudra.driver.core.gangs.types import Placed
from gpudra.driver.core.managed import ManagedState
from tests.support import managedscene as scene

Nodes = list[tuple[int, int, list[int]]]
Pods = list[tuple[int, int, bool]]
"""Nodes: cpu, seats, cards per domain. Pods: cpu, cards, all cards in one domain."""


def drawn(rng: random.Random) -> tuple[Nodes, Pods]:
    """A small cluster, and pods that nearly fill it."""
    nodes = [
        (rng.randrange(2, 7), rng.randrange(1, 4), [rng.randrange(1, 3) for _ in range(2)])
        for _ in range(rng.randrange(1, 4))
    ]
    pods = [
        (rng.randrange(1, 4), rng.choice((1, 1, 2, 3)), rng.random() < 0.4)
        for _ in range(rng.randrange(2, 6))
    ]
    return nodes, pods


def built(nodes: Nodes) -> ManagedState:
    """The cluster."""
    state = scene.cluster(0)
    for number, (cpu, seats, cards) in enumerate(nodes):
        name = f"node-{number:03d}"
        own = {"cpu": str(cpu), "memory": "64Gi", "pods": str(seats)}
        state.put_node(scene.node(name, allocatable=own))
        domains = [f"{name}-{domain}" for domain, count in enumerate(cards) for _ in range(count)]
        state.put_slice(scene.gpus(name, len(domains), domains=domains))
    return state


def needs_of(state: ManagedState, pods: Pods) -> list[Need]:
    """The pods with a claim each."""
    needs = []
    for number, (cpu, cards, linked) in enumerate(pods):
        name = f"p-{number}"
        matching = [{"matchAttribute": "gpu.gpudra.io/nvlinkDomain"}] if linked else []
        state.put_claim(scene.claim(name, cards, constraints=matching))
        view = scene.pod(name, name, cpu_milli=cpu * 1000)
        needs.append(Need(view, (state.claims[f"default/{name}"],)))
    return needs


def node_holds(cards: list[int], pods: list[tuple[int, int, bool]]) -> bool:
    """Whether the cards of one node serve these pods, by trying everything."""
    if not pods:
        return True
    (_, wanted, linked), *rest = pods
    for first in range(min(wanted, cards[0]) + 1):
        second = wanted - first
        if second > cards[1] or (linked and first and second):
            continue
        if node_holds([cards[0] - first, cards[1] - second], rest):
            return True
    return False


def possible(nodes: Nodes, pods: Pods) -> bool:
    """Whether there is any way, by trying every node for every pod."""
    for chosen in itertools.product(range(len(nodes)), repeat=len(pods)):
        good = True
        for number, (cpu, seats, cards) in enumerate(nodes):
            own = [pod for pod, at in zip(pods, chosen, strict=True) if at == number]
            good &= len(own) <= seats and sum(pod[0] for pod in own) <= cpu
            good = good and node_holds(cards, own)
            if not good:
                break
        if good:
            return True
    return False


def check(nodes: Nodes, pods: Pods, placed: tuple[Placed, ...]) -> None:
    """The answer keeps every rule."""
    devices = Counter(
        (one.pool, one.device)
        for each in placed
        for allocation in each.allocations.values()
        for one in allocation.devices.results
    )
    assert all(count == 1 for count in devices.values())
    seats = Counter(one.node for one in placed)
    cpu: Counter[str] = Counter()
    for one in placed:
        cpu[one.node] += one.pod.cpu_milli
    for number, (most, most_pods, _) in enumerate(nodes):
        name = f"node-{number:03d}"
        assert seats[name] <= most_pods
        assert cpu[name] <= most * 1000
    assert len(placed) == len(pods)


def compare(seed: int) -> bool:
    """One random case; whether it had an answer."""
    nodes, pods = drawn(random.Random(seed))
    state = built(nodes)
    needs = needs_of(state, pods)
    state.refresh()
    found = solve(Floor(state.board, Sketch(state.ground)), needs)
    assert isinstance(found, Failed) != possible(nodes, pods), (nodes, pods)
    if not isinstance(found, Failed):
        check(nodes, pods, found)
    return not isinstance(found, Failed)


def test_fixed_cases_agree_with_brute_force() -> None:
    """A hundred cases, of which some have an answer and some have none."""
    answers = Counter(compare(seed) for seed in range(100))
    assert min(answers[True], answers[False]) >= 10


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_fresh_cases_agree_with_brute_force(seed: int) -> None:
    """New cases on every run."""
    compare(seed)


def test_the_search_ends_at_its_deadline() -> None:
    """When the time is up nothing is known, and that is what is said."""
    state = scene.cluster(2)
    needs = needs_of(state, [(1, 1, False)] * 4)
    state.refresh()
    found = solve(Floor(state.board, Sketch(state.ground), deadline=lambda: True), needs)
    assert isinstance(found, Failed)
    assert found.late


def test_solving_changes_nothing() -> None:
    """The sketch is as before, and the answer the same again."""
    state = scene.cluster(2)
    needs = needs_of(state, [(1, 2, False), (1, 4, True), (2, 1, False)])
    state.refresh()
    floor = Floor(state.board, Sketch(state.ground))
    assert solve(floor, needs) == solve(floor, needs)
    assert floor.sketch.journal == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_linked_cards_go_together_unasked(count: int) -> None:
    """A claim that says nothing of NVLink gets linked cards where a set holds them."""
    state = built([(8, 8, [1, 3])])
    needs = needs_of(state, [(1, count, False)])
    state.refresh()
    found = solve(Floor(state.board, Sketch(state.ground)), needs)
    assert not isinstance(found, Failed)
    (allocation,) = found[0].allocations.values()
    indices = {int(one.device[-1]) for one in allocation.devices.results}
    assert len({index > 0 for index in indices}) == 1
