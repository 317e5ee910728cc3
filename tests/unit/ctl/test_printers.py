# SPDX-License-Identifier: Apache-2.0
"""Tables for people, lists for programs."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl import printers


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    """Cells are left-aligned, empty ones are dashes, booleans are words, no line has trailing blanks."""
    text = printers.format_table(
        ("NAME", "N", "LAST"), [("a", 1, None), ("longer", 20, ""), ("b", True, "x")]
    )
    assert text == ("NAME     N     LAST\na        1     -\nlonger   20    -\nb        yes   x\n")


def test_an_empty_table_is_a_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads stdout gets nothing, a person is told."""
    printers.print_table(("NAME",), [], nothing="no claims found")
    assert capsys.readouterr() == ("", "no claims found\n")


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_objects_are_always_one_list(output: str, load: Callable[[str], Any], count: int) -> None:
    """None, one or many: the same shape, keys in order, text beyond ASCII readable."""
    out = io.StringIO()
    objects = [{"kind": "X", "apiVersion": "v1", "note": "größer"} for _ in range(count)]
    printers.print_objects(objects, output, out=out)
    assert load(out.getvalue()) == {"apiVersion": "v1", "kind": "List", "items": objects}
    if count:
        assert "größer" in out.getvalue()
        assert out.getvalue().index("kind") < out.getvalue().index("note")
