# SPDX-License-Identifier: Apache-2.0
"""Relaxations: each one helps, and nothing smaller of its kind does; brute force says so."""

import random
from typing import Any

import pytest

from gpudra.driver.core.allocator import Change, Outcome, Refusal, Relaxation, relaxations
from tests.support.alloccompare import asked, draw_case, index_of
from tests.support.allocgen import Case
from tests.support.bruteforce import brute_force

_PART = "device.attributes"


def _with_claims(case: Case, raws: list[dict[str, Any]]) -> Case:
    by_name = {raw["metadata"]["name"]: raw for raw in raws}
    claims = [by_name.get(one["metadata"]["name"], one) for one in case.objects["claims"]]
    return Case({**case.objects, "claims": claims}, case.ask, case.predicates, case.tags)


def _satisfiable(case: Case, claims: tuple[Any, ...], node: str) -> bool | None:
    verdict = brute_force(_with_claims(case, [claim.to_dict() for claim in claims]), node)
    return None if verdict is None or verdict.selector_fails else verdict.satisfiable


def _drawn(seed: int) -> tuple[Case, str] | None:
    """A case without spoilt pools that does not fit on its first node."""
    case = draw_case(random.Random(f"relax {seed}"), 4)
    if case.tags & {"double", "dangling", "count", "rule", "unguarded", "incomplete", "lost"}:
        return None
    node = case.objects["nodes"][0]["metadata"]["name"]
    answer = index_of(case).allocate(asked(case), node)
    return (case, node) if answer.outcome is Outcome.UNSATISFIABLE else None


def _found(case: Case, node: str) -> list[Relaxation]:
    try:
        return relaxations(index_of(case), asked(case), node)
    except Refusal:
        return []


@pytest.mark.parametrize("block", range(12))
def test_each_relaxation_helps(block: int) -> None:
    """With any proposed change made, brute force finds an answer."""
    for seed in range(block * 10, block * 10 + 10):
        drawn = _drawn(seed)
        if drawn is None:
            continue
        case, node = drawn
        for one in _found(case, node):
            assert _satisfiable(case, one.claims, one.node) in {True, None}, one.text


def _one_more(one: Relaxation) -> tuple[Any, ...] | None:
    """The claims with the smallest change of the same kind that is smaller than the proposed one."""
    raws = [claim.to_dict() for claim in one.claims]
    name = one.claim.partition("/")[2]
    raw = next(raw for raw in raws if raw["metadata"]["name"] == name)
    requests = raw["spec"]["devices"]["requests"]
    at = int(one.field.partition("requests[")[2].partition("]")[0])
    request = requests[at]
    asking = request.get("exactly")
    if asking is None:
        sub = int(one.field.partition("firstAvailable[")[2].partition("]")[0])
        asking = request["firstAvailable"][sub]
    if one.change is Change.COUNT:
        asking["count"] = one.after + 1
        return tuple(raws) if one.after + 1 < one.before else None
    key = one.field.partition("capacity.requests[")[2].rstrip("]")
    fractional = str(one.before).endswith("m")
    after = int(str(one.after).removesuffix("m")) * (1 if str(one.after).endswith("m") else 1000)
    more = after + (1 if fractional else 1000)
    asking["capacity"]["requests"][key] = f"{more}m"
    before = int(str(one.before).removesuffix("m")) * (1 if fractional else 1000)
    return tuple(raws) if more < before else None


@pytest.mark.parametrize("block", range(12))
def test_nothing_smaller_helps(block: int) -> None:
    """One device more, or one unit of capacity more, than proposed does not fit any longer."""
    for seed in range(block * 10, block * 10 + 10):
        drawn = _drawn(seed)
        if drawn is None:
            continue
        case, node = drawn
        for one in _found(case, node):
            if one.change not in {Change.COUNT, Change.CAPACITY}:
                continue
            more = _one_more(one)
            if more is not None:
                verdict = brute_force(_with_claims(case, list(more)), node)
                assert verdict is None or not verdict.satisfiable, one.text


@pytest.mark.parametrize("block", range(6))
def test_all_single_constraints_are_found(block: int) -> None:
    """A constraint is proposed for dropping if and only if dropping it helps."""
    for seed in range(block * 20, block * 20 + 20):
        drawn = _drawn(seed)
        if drawn is None:
            continue
        case, node = drawn
        proposed = {
            (one.claim, one.field) for one in _found(case, node) if one.change is Change.CONSTRAINT
        }
        for claim in asked(case):
            raw = claim.to_dict()
            for index in range(len(raw["spec"]["devices"].get("constraints", ()))):
                less = claim.to_dict()
                del less["spec"]["devices"]["constraints"][index]
                verdict = brute_force(_with_claims(case, [less]), node)
                if verdict is None:
                    continue
                path = (claim.key, f"spec.devices.constraints[{index}]")
                assert verdict.satisfiable == (path in proposed), path
