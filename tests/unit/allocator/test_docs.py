# SPDX-License-Identifier: Apache-2.0
"""docs/allocator.md and the package's own example stay true."""

import doctest
from pathlib import Path

import gpudra.driver.core.allocator

PAGE = Path(__file__).resolve().parents[3] / "docs" / "allocator.md"


def test_page() -> None:
    """The example of the page gives what the page shows."""
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 5
    assert failed == 0


def test_package() -> None:
    """The example in the package's docstring runs."""
    failed, tried = doctest.testmod(gpudra.driver.core.allocator)
    assert tried > 0
    assert failed == 0
