# SPDX-License-Identifier: Apache-2.0
"""Results of simulated runs, as values; the JSON of ``-o json`` is made here."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Allocated against requested GPU amount, both in percent of the cluster."""

    requested: float
    allocated: float


@dataclass(frozen=True, slots=True)
class Stranded:
    """Free GPU amount that the expected next request cannot use, by cause, in percent of the cluster.

    For every GPU request of the mix, weighted by how often it comes: the free
    amount of all nodes on which it cannot be placed (the first cause that
    applies: the model is not allowed, the CPU or the memory is short, the cards
    are too small or too few), and on the other nodes the cards too small for it.
    """

    cpu: float = 0.0
    memory: float = 0.0
    fragmentation: float = 0.0
    model: float = 0.0

    @property
    def total(self) -> float:
        """All causes together."""
        return self.cpu + self.memory + self.fragmentation + self.model

    def as_json(self) -> dict[str, float]:
        """Object with the four causes and their sum."""
        return {
            "cpu": round(self.cpu, 4),
            "memory": round(self.memory, 4),
            "fragmentation": round(self.fragmentation, 4),
            "model": round(self.model, 4),
            "total": round(self.total, 4),
        }


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run of the published protocol."""

    seed: int
    allocated_percent: float
    allocated_percent_at_100: float | None
    dropped: int
    us_per_decision: float
    dropped_by_size: dict[str, int] = field(default_factory=dict)
    curve: tuple[CurvePoint, ...] = ()
    stranded: Stranded = field(default_factory=Stranded)

    def as_json(self) -> dict[str, object]:
        """The agreed object of one run."""
        return {"seed": self.seed, **_figures(self)}


@dataclass(frozen=True, slots=True)
class GangPoint:
    """The largest group of whole cards that one node, and one task kind, could get at a time."""

    at_s: float
    cards: int


@dataclass(frozen=True, slots=True)
class DepartureRun:
    """One run of the protocol with departures; percentages are means over time."""

    seed: int
    allocated_percent: float
    offered_percent: float
    rejected_percent: float
    stranded: Stranded
    dropped: int
    us_per_decision: float
    dropped_by_size: dict[str, int]
    arrivals: int
    gangs: tuple[GangPoint, ...]

    def as_json(self) -> dict[str, object]:
        """The object of one run with departures."""
        return {
            "seed": self.seed,
            "allocatedPercent": round(self.allocated_percent, 4),
            "offeredPercent": round(self.offered_percent, 4),
            "rejectedPercent": round(self.rejected_percent, 4),
            "strandedPercent": self.stranded.as_json(),
            "dropped": self.dropped,
            "droppedBySize": self.dropped_by_size,
            "arrivals": self.arrivals,
            "largestGang": [{"atSeconds": round(g.at_s, 3), "cards": g.cards} for g in self.gangs],
            "usPerDecision": round(self.us_per_decision, 2),
        }


def _figures(run: PublishedRun) -> dict[str, object]:
    at_100 = run.allocated_percent_at_100
    return {
        "allocatedPercent": round(run.allocated_percent, 4),
        "allocatedPercentAt100": None if at_100 is None else round(at_100, 4),
        "dropped": run.dropped,
        "usPerDecision": round(run.us_per_decision, 2),
    }


def mean(values: list[float]) -> float:
    """Plain mean; there is always at least one run."""
    return sum(values) / len(values)


def published_json(policy: str, runs: list[PublishedRun]) -> dict[str, object]:
    """The agreed answer: ``{"policy", "runs": [...], "mean": {...}}``."""
    at_100 = [r.allocated_percent_at_100 for r in runs if r.allocated_percent_at_100 is not None]
    return {
        "policy": policy,
        "runs": [run.as_json() for run in runs],
        "mean": {
            "allocatedPercent": round(mean([r.allocated_percent for r in runs]), 4),
            "allocatedPercentAt100": round(mean(at_100), 4) if len(at_100) == len(runs) else None,
            "dropped": round(mean([r.dropped for r in runs]), 2),
            "usPerDecision": round(mean([r.us_per_decision for r in runs]), 2),
        },
    }


def departures_json(policy: str, runs: list[DepartureRun]) -> dict[str, object]:
    """The answer of the protocol with departures: the same outline with its own keys."""
    stranded = Stranded(
        *(
            mean([getattr(run.stranded, cause) for run in runs])
            for cause in ("cpu", "memory", "fragmentation", "model")
        )
    )
    return {
        "policy": policy,
        "protocol": "departures",
        "runs": [run.as_json() for run in runs],
        "mean": {
            "allocatedPercent": round(mean([r.allocated_percent for r in runs]), 4),
            "offeredPercent": round(mean([r.offered_percent for r in runs]), 4),
            "rejectedPercent": round(mean([r.rejected_percent for r in runs]), 4),
            "strandedPercent": stranded.as_json(),
            "dropped": round(mean([r.dropped for r in runs]), 2),
            "usPerDecision": round(mean([r.us_per_decision for r in runs]), 2),
        },
    }


def size_label(cards: int, card_milli: int) -> str:
    """Name of a request size in reports: ``cpu``, ``share`` or the number of cards."""
    if not cards:
        return "cpu"
    return "share" if cards == 1 and card_milli < 1000 else str(cards)
