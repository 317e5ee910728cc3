# SPDX-License-Identifier: Apache-2.0
"""The CEL tables: every row is asked of gpudra, and again of the released Go libraries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.driver.core.cel import (
    CelCompileError,
    CelCostExceeded,
    CelEvaluationError,
    compile_selector,
)
from tests.fuzz.cel_compare import question, to_device, verdict
from tests.support.oracle import Oracle

Row = dict[str, Any]

HERE = Path(__file__).parent
TABLES = sorted(path for path in HERE.glob("cel-*.yaml") if path.stem != "cel-generated")
DEVICE: Row = {
    "driver": "gpu.example.com",
    "device": {
        "name": "gpu-0",
        "attributes": {
            "model": {"string": "H100"},
            "index": {"int": 3},
            "healthy": {"bool": True},
            "driverVersion": {"version": "550.54.15"},
            "tags": {"strings": ["a", "b"]},
            "other.example.com/model": {"string": "other"},
        },
        "capacity": {"memory": {"value": "80Gi"}, "other.example.com/compute": {"value": "100"}},
        "allowMultipleAllocations": True,
    },
}


def rows() -> list[Any]:
    """Every row of every table, named by its sentence."""
    return [
        pytest.param(row, id=f"{path.stem}: {row['name']}")
        for path in TABLES
        for row in yaml.safe_load(path.read_text())
    ]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """The Go program, once for all rows."""
    with Oracle("cel") as running:
        yield running


def ours(row: Row) -> bool | str:
    """Our answer in the words of the tables."""
    try:
        selector = compile_selector(
            row["expression"], list_attributes=row.get("env", "stored") == "stored"
        )
    except CelCompileError:
        return "refused"
    try:
        return selector.matches(to_device(DEVICE))
    except CelCostExceeded:
        return "costly"
    except CelEvaluationError:
        return "error"


def theirs(answer: Row) -> bool | str:
    """The Go libraries' answer in the words of the tables."""
    if "compileError" in answer:
        return "refused"
    result = answer["results"][0]
    if "cost limit exceeded" in result.get("error", ""):
        return "costly"
    return "error" if "error" in result else bool(result.get("value", False))


@pytest.mark.parametrize("row", rows())
def test_sentence_holds(row: Row) -> None:
    """A sentence of the tables holds for gpudra."""
    assert ours(row) == row["want"]


@pytest.mark.parametrize("row", rows())
def test_sentence_holds_upstream(row: Row, oracle: Oracle) -> None:
    """A sentence holds for the Go libraries at the same cost, or the row says how they differ."""
    asked = question(row["expression"], [DEVICE], value=False, env=row.get("env", "stored"))
    answer = oracle.ask(asked)
    assert theirs(answer) == row.get("upstream", row["want"])
    if "upstream" not in row:
        assert verdict(asked, answer) is None


@pytest.mark.parametrize("row", [row for row in rows() if "position" in row.values[0]])
def test_refusal_has_a_position(row: Row) -> None:
    """A refusal says on which line and in which column."""
    with pytest.raises(CelCompileError) as caught:
        compile_selector(row["expression"], list_attributes=row.get("env") != "new")
    assert list(caught.value.position) == row["position"]
    assert caught.value.expression == row["expression"]


@pytest.mark.parametrize("row", [row for row in rows() if "hint" in row.values[0]])
def test_refusal_says_what_to_do(row: Row) -> None:
    """A refusal hints at what to write instead."""
    with pytest.raises(CelCompileError) as caught:
        compile_selector(row["expression"], list_attributes=row.get("env") != "new")
    assert row["hint"] in str(caught.value)


@pytest.mark.parametrize(
    "row", [row for row in rows() if {"estimate", "cost", "too_costly"} & set(row.values[0])]
)
def test_costs(row: Row) -> None:
    """Worst case and actual cost are those of the table."""
    selector = compile_selector(row["expression"], list_attributes=True)
    assert selector.too_costly == row.get("too_costly", False)
    if "estimate" in row:
        assert selector.cost_estimate == row["estimate"]
    if "cost" in row:
        assert selector.evaluate(to_device(DEVICE))[1] == row["cost"]


def test_generated_answers_stay() -> None:
    """Answers that once agreed with the Go libraries on generated expressions do not change."""
    table = yaml.load((HERE / "cel-generated.yaml").read_text(), Loader=yaml.CSafeLoader)
    changed = []
    for row in table["rows"]:
        asked = question(
            row["expr"],
            [table["devices"][index] for index in row["devices"]],
            value=row["value"],
            env=row["env"],
        )
        found = verdict(asked, row["answer"])
        if found:
            changed.append((row["expr"], found))
    assert not changed
    assert len(table["rows"]) >= 400
