# SPDX-License-Identifier: Apache-2.0
"""CEL compared with the released Go libraries on generated expressions; more in ``make fuzz``."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.cel import ask_one
from tests.fuzz.cel_compare import verdict
from tests.fuzz.cel_explained import explained
from tests.support.oracle import Oracle


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """The Go program, once for all examples."""
    with Oracle("cel") as running:
        yield running


def unexplained(source: random.Random, oracle: Oracle) -> str | None:
    """What differs on one generated question, unless it is explained."""
    asked = ask_one(source)
    found = verdict(asked, oracle.ask(asked))
    if found is None or explained(asked["expr"], found):
        return None
    return f"{found}: {asked['env']} {asked['expr']}"


@pytest.mark.parametrize("seed", range(4))
def test_agrees_on_known_expressions(seed: int, oracle: Oracle) -> None:
    """Verdict, value and costs agree on 250 expressions of a fixed seed."""
    source = random.Random(seed)
    found = [unexplained(source, oracle) for _ in range(250)]
    assert [difference for difference in found if difference] == []


@given(source=st.randoms(use_true_random=False))
@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
def test_agrees_on_fresh_expressions(source: random.Random, oracle: Oracle) -> None:
    """Verdict, value and costs agree on expressions that hypothesis draws anew."""
    assert unexplained(source, oracle) is None
