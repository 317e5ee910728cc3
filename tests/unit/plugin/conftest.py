# SPDX-License-Identifier: Apache-2.0
"""Logs of the plugin go into memory: its tests provoke thousands of failures."""

from collections.abc import Iterator

import pytest

from tests.support.logs import Captured, captured_logs


@pytest.fixture(autouse=True)
def logs() -> Iterator[Captured]:
    """What the code under test logged."""
    with captured_logs() as captured:
        yield captured
