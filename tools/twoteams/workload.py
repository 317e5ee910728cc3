# SPDX-License-Identifier: Apache-2.0
"""The workload: jobs with the needs of openb's tasks, of a team that works by day and one by night.

What is taken from the trace is what a job needs of a card, its CPU and memory, and how long it ran.
What is added, since the trace does not tell: whose a job is and at what hour it comes; a job that has
not started when its team's twelve hours are over is withdrawn, as notebooks and the inference of the
day are; every `GANG_EVERY`-th job is a gang of whole cards. Run times are cut to between five minutes and six hours,
so that a day has many of them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpudra.controller.ctl.simulate.csvfile import read_trace
from gpudra.controller.ctl.simulate.trace import Task

FIXTURES = Path(__file__).parents[2] / "tests/fixtures/openb"
NODES = FIXTURES / "openb_node_list_gpu_node.csv"
TASKS = FIXTURES / "openb_pod_list_gpushare100.csv.gz"
DAY = 24 * 3600.0
SHORTEST, LONGEST = 300.0, 6 * 3600.0
GANG_EVERY = 40
GANG_PODS = 4
AT_WORK = 0.95
LOAD = 1.0
"""Work that comes in a day, in days of the whole cluster."""

TEAMS = ("day", "night")


@dataclass(frozen=True, slots=True)
class Work:
    """A job: ``pods`` equal pods that run ``seconds`` together.

    Attributes:
        leaves: it is withdrawn then, if it has not started.
        need: of one card, in thousandths; whole cards are 1000.
    """

    name: str
    team: str
    arrives: float
    leaves: float
    seconds: float
    need: int
    cpu_milli: int
    memory_mib: int
    pods: int = 1

    @property
    def card_seconds(self) -> float:
        """What it needs in all."""
        return self.need / 1000 * self.pods * self.seconds


def workload(cards: int, seed: int) -> list[Work]:
    """A day's jobs for a cluster of so many cards, by arrival. The same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - a workload, no secret
    trace, _ = read_trace(NODES, TASKS)
    tasks = [task for task in trace.tasks if task.request.cards == 1]
    found: list[Work] = []
    left = {team: cards * DAY * LOAD / len(TEAMS) for team in TEAMS}
    for team in TEAMS:
        for work in _of_team(team, tasks, rng):
            if left[team] <= 0:
                break
            left[team] -= work.card_seconds
            found.append(work)
    return sorted(found, key=lambda work: (work.arrives, work.name))


def _of_team(team: str, tasks: Sequence[Task], rng: random.Random) -> Iterator[Work]:
    number = 0
    while True:
        number += 1
        task = rng.choice(tasks)
        need, pods = task.request.card_milli, 1
        if number % GANG_EVERY == 0:
            need, pods = 1000, GANG_PODS
        arrives = _arrival(team, rng)
        yield Work(
            f"{team}-{number}",
            team,
            arrives,
            DAY / 2 if arrives < DAY / 2 else DAY,
            _seconds(task, rng),
            need,
            # A pod asks for what its card can feed; the trace's CPU figures are of older nodes.
            min(task.request.cpu_milli, 8_000),
            min(task.request.memory_mib, 32 * 1024),
            pods,
        )


def _arrival(team: str, rng: random.Random) -> float:
    """Nearly all jobs come in the twelve hours in which the team is at work."""
    at_work = rng.random() < AT_WORK
    start = 0.0 if (team == "day") is at_work else DAY / 2
    return start + rng.random() * DAY / 2


def _seconds(task: Task, rng: random.Random) -> float:
    if task.created_s is None or task.deleted_s is None:
        return rng.uniform(SHORTEST, LONGEST)
    return min(LONGEST, max(SHORTEST, float(task.deleted_s - task.created_s)))
