# SPDX-License-Identifier: Apache-2.0
"""What ``gpudra local`` tells a waiting person: which step of how many, and since when."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

REPORT_SECONDS = 10.0
"""A long step says how far it is at least this often."""


def duration(seconds: float) -> str:
    """``75`` -> ``1m15s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Progress:
    """Numbered steps with elapsed time, one line each, flushed at once.

    Args:
        total: number of steps.
        out: where to write.
        clock: monotonic seconds.
    """

    def __init__(
        self, total: int, out: TextIO = sys.stderr, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._out = out
        self._clock = clock
        self._started = clock()
        self._step = 0
        self._title = ""
        self._reported = self._started

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._step += 1
        self._title = title
        self._say(title)

    def note(self, text: str) -> None:
        """One line about the running step, now."""
        self._say(f"{self._title}: {text}")

    def tick(self, text: str) -> None:
        """As `note`, but only when the last line is `REPORT_SECONDS` old. Call it often."""
        if self._clock() - self._reported >= REPORT_SECONDS:
            self.note(text)

    def _say(self, text: str) -> None:
        self._reported = self._clock()
        elapsed = duration(self._reported - self._started)
        print(
            f"[{self._step}/{self._total}] {text} ({elapsed} elapsed)", file=self._out, flush=True
        )
