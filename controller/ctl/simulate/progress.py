# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error; silent when that is not a terminal."""

import sys
from typing import IO

WIDTH = 30


class Progress:
    """One bar for a number of equal steps (runs), each reporting its finished part."""

    def __init__(
        self, steps: int, *, stream: IO[str] | None = None, show: bool | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._show = self._stream.isatty() if show is None else show
        self._steps = steps
        self._done = 0
        self._label = ""

    def start(self, label: str) -> None:
        """Names what runs now."""
        self._label = label
        self.part(0.0)

    def part(self, part: float) -> None:
        """The current step is finished to ``part`` (0 to 1)."""
        if not self._show:
            return
        whole = min(1.0, (self._done + min(part, 1.0)) / max(1, self._steps))
        bar = "#" * int(whole * WIDTH)
        self._stream.write(f"\r[{bar:<{WIDTH}}] {100 * whole:3.0f} %  {self._label:<40.40}")
        self._stream.flush()

    def step(self) -> None:
        """The current step is finished."""
        self._done += 1
        self.part(0.0)

    def close(self) -> None:
        """Clears the line."""
        if self._show:
            self._stream.write("\r" + " " * (WIDTH + 52) + "\r")
            self._stream.flush()
