# SPDX-License-Identifier: Apache-2.0
"""Whatever the text, only CEL's own errors come out."""

import random
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudra.driver.core.cel import CelCompileError, CelEvaluationError, compile_selector
from tests.fuzz.cel_compare import to_device
from tests.fuzz.cel_devices import device
from tests.fuzz.cel_generator import Generator
from tests.fuzz.cel_literals import STRINGS

DEVICE = to_device(device(random.Random(0)))
PIECES = [
    "device", ".driver", ".attributes", '["gpu.example.com"]', ".model", ".?x", "[?0]", "(", ")", "[", "]", "{", "}",
    ",", ":", "?", "!", "-", "&&", "||", "==", "!=", "<", "in", "+", "*", "/", "%", "1", "2u", "1.5", "true", "null",
    ".exists(x, ", ".map(x, ", ".all(i, v, ", "has(", "cel.bind(y, ", "x", "y", ".size()", ".orValue(", "quantity(",
    "semver(", "type(", "dyn(", "`", "\\", " ", "\n", ".sort()", ".format([", "optional.of(", "lists.range(", *STRINGS,
]  # fmt: skip
SETTINGS = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def ask(text: str) -> None:
    """Compiles, evaluates and explains; lets nothing but CEL's errors be an answer."""
    for listed in (False, True):
        try:
            selector = compile_selector(text, list_attributes=listed)
        except CelCompileError as error:
            line, column = error.position
            assert line >= 1
            assert column >= 1
            continue
        selector.explain(DEVICE)
        try:
            assert type(selector.matches(DEVICE)) is bool
        except CelEvaluationError:
            continue


@given(st.text(max_size=60))
@SETTINGS
def test_any_text(text: str) -> None:
    """Arbitrary characters are compiled or refused."""
    ask(text)


@given(st.lists(st.sampled_from(PIECES), max_size=40))
@SETTINGS
def test_pieces_of_cel(pieces: list[str]) -> None:
    """Pieces of expressions in any order are compiled or refused."""
    ask("".join(pieces))


@given(st.randoms(use_true_random=False), st.integers(0, 3))
@SETTINGS
def test_damaged_expressions(source: random.Random, damages: int) -> None:
    """Expressions with a few spoilt places are compiled or refused, and evaluated or failed."""
    generator = Generator(source)
    text = generator.make("bool", 4)
    for _ in range(damages):
        text = generator.damage(text) or "x"
    ask(text)


def test_deep_but_legal_nesting_evaluates() -> None:
    """What the depth limit admits runs, even where Python's own limit is low."""
    depth = 120
    text = "".join(f"[1].exists(x{i}, " for i in range(depth)) + "true" + ")" * depth
    assert compile_selector(text).matches(DEVICE)
    assert compile_selector("(" * 240 + "true" + ")" * 240).matches(DEVICE)
    assert sys.getrecursionlimit() >= 1000
