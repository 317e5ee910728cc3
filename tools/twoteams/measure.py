# SPDX-License-Identifier: Apache-2.0
"""What a world got out of its cards."""

from dataclasses import dataclass, field

from tools.twoteams.workload import DAY, Work


@dataclass(slots=True)
class Measure:
    """Counts while a world runs.

    Attributes:
        cards: of the cluster.
        used: card seconds that jobs needed while they ran, inside the day; work that was lost to
            an eviction is taken out again.
        lost: card seconds of such work.
        waits: seconds between arrival and start, of jobs that started.
        unserved: jobs that were withdrawn, or had not started by the end of the day.
    """

    world: str
    cards: int
    used: float = 0.0
    lost: float = 0.0
    started: int = 0
    evicted: int = 0
    unserved: int = 0
    waits: list[float] = field(default_factory=list)

    def ran(self, work: Work, start: float, end: float) -> None:
        """A job runs from start to end; only what is inside the day counts."""
        self.started += 1
        self.waits.append(start - work.arrives)
        self.used += _need(work) * max(0.0, min(end, DAY) - start)

    def stopped(self, work: Work, start: float, end: float, now: float) -> None:
        """The job is evicted before its end: all that it did is lost."""
        self.evicted += 1
        self.started -= 1
        self.used -= _need(work) * max(0.0, min(end, DAY) - start)
        self.lost += _need(work) * (now - start)

    @property
    def utilisation(self) -> float:
        """See the package: between 0 and 1."""
        return self.used / (self.cards * DAY)

    def lines(self) -> list[str]:
        """For people."""
        waits = sorted(self.waits)
        median = waits[len(waits) // 2] / 60 if waits else 0.0
        head = f"{self.world:>10}: utilisation {100 * self.utilisation:4.1f} %"
        counts = f"jobs started {self.started}, withdrawn {self.unserved}"
        found = [f"{head}, {counts}, median wait {median:.0f} min"]
        if self.evicted:
            part = 100 * self.lost / (self.cards * DAY)
            found.append(
                f"{'':>10}  evicted and run again {self.evicted}, work lost {part:.1f} % of the day"
            )
        return found


def _need(work: Work) -> float:
    return work.need / 1000 * work.pods
