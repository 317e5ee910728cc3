# SPDX-License-Identifier: Apache-2.0
"""The tables of the docs that come from code are those of the code."""

from pathlib import Path

import pytest

from tools import gen_docs

PAGES = [
    gen_docs.API,
    gen_docs.CLI,
    gen_docs.CONFIG,
    gen_docs.METRICS,
    gen_docs.CHART_PAGE,
    gen_docs.CHART_FILE,
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_not_stale(page: Path) -> None:
    """Flags, metrics, values and the version are as the code has them; else run python -m tools.gen_docs."""
    assert page.read_text() == gen_docs.pages()[page]


def test_only_the_table_below_the_heading_is_replaced() -> None:
    """Text around it, and tables of other headings, stay."""
    page = "# P\n\n## A\n\n| x |\n|---|\n| old |\n\nafter\n\n## B\n\n| y |\n|---|\n| keep |\n"
    wanted = page.replace("| old |\n", "| new |\n| more |\n")
    assert gen_docs._with_table(page, "A", iter(["| new |", "| more |"])) == wanted
