# SPDX-License-Identifier: Apache-2.0
"""Reads what the code under test logged, as the JSON lines an operator would see."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from gpudra.driver.observability.logging import configure


class Captured:
    """Lines written so far."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        """Everything, as written."""
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Every line, decoded."""
        return [json.loads(line) for line in self.text.splitlines()]

    def event(self, text: str) -> dict[str, Any]:
        """The only line with this event."""
        (line,) = [line for line in self.lines if line["event"] == text]
        return line


@contextmanager
def captured_logs(level: str = "debug", **options: Any) -> Iterator[Captured]:
    """Logging goes into memory inside the block; defaults are restored afterwards."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, root_level = list(root.handlers), root.level
    configure(level=level, stream=stream, **options)
    try:
        yield Captured(stream)
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(root_level)
