# SPDX-License-Identifier: Apache-2.0
"""docs/isolation.md and what claims are told say the same."""

import re
from pathlib import Path

from gpudra.driver.core.sharing import Backend
from gpudra.driver.core.sharing.reports import REASONS

PAGE = Path(__file__).parents[3] / "docs/isolation.md"


def test_each_backend_has_a_row_with_its_reason_and_a_part_of_its_own() -> None:
    """In order of strength."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \(`([A-Za-z]+)`\)", text, flags=re.MULTILINE)
    assert rows == [(backend.value, REASONS[backend]) for backend in Backend]
    assert re.findall(r"^## ([a-z-]+)$", text, flags=re.MULTILINE) == list(Backend)


def test_what_has_not_run_on_hardware_is_said_so() -> None:
    """Until somebody has."""
    text = PAGE.read_text(encoding="utf-8")
    assert "**Not run on hardware.**" in text
    assert "**not on a GPU**" in text
