# SPDX-License-Identifier: Apache-2.0
"""The table of derived attributes: every row is asked of gpudra, and of the released Go libraries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.api.attributes import encode_attribute
from gpudra.driver.core.cel import CelCompileError, CelEvaluationError, compile_attribute
from tests.fuzz.cel_compare import question, to_device
from tests.support.oracle import Oracle
from tests.tables.test_cel import DEVICE

Row = dict[str, Any]
ROWS = [
    pytest.param(row, id=row["name"])
    for row in yaml.safe_load((Path(__file__).parent / "derived.yaml").read_text())
]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """The Go program, once for all rows."""
    with Oracle("cel") as running:
        yield running


def ours(row: Row) -> Any:
    """Our answer in the words of the table."""
    try:
        compiled = compile_attribute(row["expression"])
    except CelCompileError:
        return "refused"
    try:
        value = compiled.value_for(to_device(DEVICE))
    except CelEvaluationError:
        return "error"
    return {} if value == () else encode_attribute(value)


def theirs(answer: Row) -> Any:
    """The Go libraries' answer in the words of the table."""
    if "compileError" in answer:
        return "refused"
    result = answer["results"][0]
    return "error" if "error" in result else result["value"]


@pytest.mark.parametrize("row", ROWS)
def test_sentence_holds(row: Row) -> None:
    """A row holds for gpudra, a refusal with its position."""
    assert ours(row) == row["want"]
    if "position" in row:
        with pytest.raises(CelCompileError) as caught:
            compile_attribute(row["expression"])
        assert list(caught.value.position) == row["position"]


@pytest.mark.parametrize("row", ROWS)
def test_sentence_holds_upstream(row: Row, oracle: Oracle) -> None:
    """A row holds for the Go libraries, the worst-case cost included."""
    asked = question(row["expression"], [DEVICE], value=False, env="stored") | {"derived": True}
    answer = oracle.ask(asked)
    assert theirs(answer) == row["want"]
    if row["want"] != "refused":
        assert str(compile_attribute(row["expression"]).cost_estimate) == answer["maxCost"]
