# SPDX-License-Identifier: Apache-2.0
"""What a waiting person is told."""

import io

import pytest

from gpudra.controller.ctl.local.progress import REPORT_SECONDS, Progress, duration


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def test_steps_are_numbered_with_the_time_that_passed() -> None:
    """Every line says which step of how many, and since when."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(2, out, clock)

    progress.step("first")
    clock.now = 75
    progress.step("second")

    assert out.getvalue() == "[1/2] first (0s elapsed)\n[2/2] second (1m15s elapsed)\n"


def test_a_long_step_speaks_at_intervals() -> None:
    """Ticks are silent until the last line is old enough, then one line is printed."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(1, out, clock)
    progress.step("build")

    for second in range(60):
        clock.now = second
        progress.tick(f"{second} done")

    lines = out.getvalue().splitlines()
    assert lines[1] == "[1/1] build: 10 done (10s elapsed)"
    assert len(lines) == 1 + 5
    assert REPORT_SECONDS < 15


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (3661, "61m01s")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    """Minutes appear from one minute on."""
    assert duration(seconds) == text
