# SPDX-License-Identifier: Apache-2.0
"""What every test gets: logging as it was before, whatever the test configured."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Takes back what a program under test did to logging.

    A program that runs inside a test writes to that test's captured stream. Left in place, the next
    test's log line would go to a stream that is closed by then, and fail whoever wrote it.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
