# SPDX-License-Identifier: Apache-2.0
"""The attribute reference of the documentation."""

from tools.attributes import PAGE, page


def test_the_page_is_made_from_the_tables() -> None:
    """Run ``python -m tools.attributes`` after a change of the tables."""
    assert PAGE.read_text(encoding="utf-8") == page()
