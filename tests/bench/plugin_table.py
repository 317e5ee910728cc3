# SPDX-License-Identifier: Apache-2.0
"""Numbers of the plugin's benches, as lines of a table."""

import statistics
from collections.abc import Sequence

HEADER = f"{'':44} {'calls':>6} {'mean':>8} {'p50':>8} {'p90':>8} {'p99':>8}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(name: str, seconds: Sequence[float], note: str = "") -> str:
    """One line, in milliseconds."""
    p50, p90, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.99))
    mean = statistics.fmean(seconds) * 1000
    return (
        f"{name:44} {len(seconds):6} {mean:8.2f} {p50:8.2f} {p90:8.2f} {p99:8.2f}  {note}".rstrip()
    )
