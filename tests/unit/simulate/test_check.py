# SPDX-License-Identifier: Apache-2.0
"""The independent checker: true logs agree, and every kind of lie is found at its line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.check import check_log
from gpudra.controller.ctl.simulate.departures import run_departures, scaled_arrivals
from gpudra.controller.ctl.simulate.placementlog import PlacementLog
from gpudra.controller.ctl.simulate.published import run_published
from gpudra.controller.ctl.simulate.trace import Trace
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.policies import NAMES, OURS, prepare
from gpudra.driver.core.placement.types import Weights
from tests.unit.simulate.lists import small_trace


def quiet(_part: float) -> None:
    """Nobody watches."""


def published_log(trace: Trace, path: Path, policy: str = "best-fit") -> None:
    """Writes the log of one run."""
    mix = DemandMix.of(t.request for t in trace.tasks)
    maker = prepare(policy, trace.nodes, mix, weights=Weights() if policy == OURS else None)
    with path.open("w", encoding="utf-8") as file:
        log = PlacementLog(file)
        log.begin(
            policy=policy, protocol="published", seed=3, until=1.3,
            nodes=len(trace.nodes), tasks=len(trace.tasks),
        )  # fmt: skip
        run_published(trace, mix, maker, seed=3, until=1.3, log=log, watch=quiet)


def departures_log(trace: Trace, path: Path) -> None:
    """Writes the log of one run with departures."""
    mix = DemandMix.of(t.request for t in trace.tasks)
    maker = prepare("fgd", trace.nodes, mix)
    arrivals = list(scaled_arrivals(trace, seed=3, load=1.2, count=300, longest_s=500.0))
    with path.open("w", encoding="utf-8") as file:
        log = PlacementLog(file)
        log.begin(
            policy="fgd", protocol="departures", seed=3, load=1.2,
            nodes=len(trace.nodes), tasks=len(trace.tasks),
        )  # fmt: skip
        run_departures(trace, mix, maker, seed=3, arrivals=arrivals, log=log, watch=quiet)


def rewrite(path: Path, change: Callable[[list[Any]], None]) -> None:
    """Changes the log's entries in place."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(entries)
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n", encoding="utf-8")


@pytest.mark.parametrize("policy", NAMES)
def test_true_logs_agree(tmp_path: Path, policy: str) -> None:
    """Every policy's log holds together, and the checker finds the figures by itself."""
    trace, path = small_trace(tmp_path), tmp_path / "log"
    published_log(trace, path, policy)
    verdict = check_log(path, trace)[0]
    claimed = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["result"]
    assert verdict.policy == policy
    assert verdict.allocated_percent == pytest.approx(claimed["allocatedPercent"], abs=1e-3)
    assert verdict.placed > 5


def test_true_logs_with_departures_agree(tmp_path: Path) -> None:
    """Releases are replayed and means over time recomputed."""
    trace, path = small_trace(tmp_path), tmp_path / "log"
    departures_log(trace, path)
    verdict = check_log(path, trace)[0]
    assert verdict.released > 50
    assert verdict.dropped > 0


def first(entries: list[Any], kind: str) -> int:
    """Index of the first entry of a kind."""
    return next(i for i, e in enumerate(entries) if isinstance(e, list) and e[0] == kind)


def crowd(entries: list[Any]) -> None:
    """Every task goes to the first cards of the first node."""
    for entry in entries:
        if isinstance(entry, list) and entry[0] == "p":
            entry[2], entry[3] = 0, list(range(len(entry[3])))


LIES: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "figure": (lambda e: e[-1]["result"].update(allocatedPercent=99.9), "allocatedPercent is 99.9"),
    "at 100": (lambda e: e[-1]["result"].update(allocatedPercentAt100=None), "At100 is None"),
    "dropped": (lambda e: e[-1]["result"].update(dropped=0), "dropped is 0"),
    "by size": (lambda e: e[-1]["result"].update(droppedBySize={}), "droppedBySize is"),
    "order": (lambda e: e.__setitem__(slice(1, 3), [e[2], e[1]]), "arrived where the seed gives"),
    "left out": (lambda e: e.pop(2), "arrived where the seed gives"),
    "cut short": (lambda e: e.__delitem__(slice(-3, -1)), "ended before the requested amount"),
    "false drop": (lambda e: e.__setitem__(1, ["d", e[1][1]]), "was dropped but fits on"),
    "overfull": (crowd, "does not fit on node"),
    "unknown node": (lambda e: e[1].__setitem__(2, 99), "not a line of a placement log"),
    "negative node": (lambda e: e[1].__setitem__(2, -1), "different cards"),
    "other lists": (lambda e: e[0]["run"].update(tasks=8), "8 tasks"),
    "two runs": (lambda e: e.insert(1, e[0]), "before the last one ended"),
    "no end": (lambda e: e.pop(), "in the middle of a run"),
    "no begin": (lambda e: e.pop(0), "no run is open"),
    "odd event": (lambda e: e.insert(1, ["z", 0]), "unknown event 'z'"),
    "release": (lambda e: e.insert(2, ["r", 0]), "unknown event 'r'"),
}


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_found(tmp_path: Path, lie: str) -> None:
    """A changed log is refused with the file, a line and what contradicts what."""
    trace, path = small_trace(tmp_path), tmp_path / "log"
    published_log(trace, path)
    change, words = LIES[lie]
    rewrite(path, change)
    with pytest.raises(InputError, match=words) as caught:
        check_log(path, trace)
    assert f"{path}:" in str(caught.value)


TIMED_LIES: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "twice": (lambda e: e.insert(first(e, "r") + 1, e[first(e, "r")]), "ended twice"),
    "backwards": (lambda e: e[first(e, "r") + 1].__setitem__(-1, -1.0), "time runs backwards"),
    "mean": (lambda e: e[-1]["result"].update(allocatedPercent=1.0), "allocatedPercent is 1.0"),
    "rejected": (lambda e: e[-1]["result"].update(rejectedPercent=0.0), "rejectedPercent is 0.0"),
}


@pytest.mark.parametrize("lie", TIMED_LIES)
def test_lies_about_departures_are_found(tmp_path: Path, lie: str) -> None:
    """Double releases, time running backwards and wrong means are contradictions."""
    trace, path = small_trace(tmp_path), tmp_path / "log"
    departures_log(trace, path)
    change, words = TIMED_LIES[lie]
    rewrite(path, change)
    with pytest.raises(InputError, match=words):
        check_log(path, trace)


@pytest.mark.parametrize("content", ["", "not json\n", "[]\n", "{}\n", '["p",0,0,[0]]\n', "3\n"])
def test_what_is_no_log_is_refused(tmp_path: Path, content: str) -> None:
    """Empty and foreign files end in one sentence."""
    trace, path = small_trace(tmp_path), tmp_path / "log"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError):
        check_log(path, trace)
    with pytest.raises(InputError, match="cannot be read"):
        check_log(tmp_path / "absent", trace)
