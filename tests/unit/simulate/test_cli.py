# SPDX-License-Identifier: Apache-2.0
"""``gpudra simulate`` as a command: options, output and exit codes."""

import argparse
import json
from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate import plot
from gpudra.controller.ctl.simulate.__main__ import main
from gpudra.controller.ctl.simulate.cli import add_arguments, run
from gpudra.controller.ctl.simulate.progress import Progress
from tests.unit.simulate.lists import NODE_HEADER, NODES, TASK_HEADER, TASKS, write, write_both


def call(folder: Path, *options: str) -> int:
    """Runs the command on the small lists."""
    nodes, tasks = write_both(folder)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(["--nodes", str(nodes), "--pods", str(tasks), *options]))


def test_json_of_one_policy_is_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours by default, seeds counted up from --seed, nothing else on standard output."""
    assert call(tmp_path, "--seed", "5", "--repeat", "2", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["policy"] == "gpudra"
    assert [r["seed"] for r in answer["runs"]] == [5, 6]


def test_several_policies_give_a_list_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Repeating --policy compares; --plot draws all of them."""
    for suffix in ("png", "svg"):
        picture = tmp_path / f"out.{suffix}"
        options = ["--policy", "fgd", "--policy", "random", "--policy", "fgd", "-o", "json"]
        assert call(tmp_path, *options, "--plot", str(picture)) == 0
        answers = json.loads(capsys.readouterr().out)
        assert [a["policy"] for a in answers] == ["fgd", "random"]
        assert picture.stat().st_size > 5000


def test_tables_show_causes_and_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People get a line a run, a mean, what was dropped and what was left over."""
    assert call(tmp_path, "--policy", "spread", "--repeat", "2") == 0
    out = capsys.readouterr().out
    assert "spread   mean" in out
    assert "FRAGMENTATION" in out
    assert call(tmp_path, "--policy", "spread", "--protocol", "departures", "--arrivals", "50") == 0
    assert "OFFERED %" in capsys.readouterr().out


def test_departures_in_json_and_by_the_traces_own_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--load trace replays the list; the answer names its protocol."""
    options = ("--protocol", "departures", "--load", "trace", "--policy", "best-fit", "-o", "json")
    assert call(tmp_path, *options) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["protocol"] == "departures"
    assert answer["runs"][0]["arrivals"] == len(TASKS)
    assert answer["runs"][0]["dropped"] == 0


def test_a_log_can_be_checked_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--log and --check belong together, for both protocols."""
    log = tmp_path / "placements.log"
    assert call(tmp_path, "--log", str(log), "--repeat", "2", "-o", "json") == 0
    capsys.readouterr()
    assert call(tmp_path, "--check", str(log), "-o", "json") == 0
    assert [r["seed"] for r in json.loads(capsys.readouterr().out)["runs"]] == [42, 43]
    options = ("--protocol", "departures", "--arrivals", "200", "--policy", "fgd")
    assert call(tmp_path, *options, "--log", str(log)) == 0
    capsys.readouterr()
    assert call(tmp_path, "--check", str(log)) == 0
    assert "agrees" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "magic"),
        ("--seed", "-1"),
        ("--seed", "x"),
        ("--repeat", "0"),
        ("--until", "0"),
        ("--until", "nan"),
        ("--until", "inf"),
        ("--load", "-2"),
        ("--arrivals", "1.5"),
        ("-o", "yaml"),
    ],
)
def test_wrong_options_are_usage_errors(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Argparse ends with exit code 2 before anything is read."""
    with pytest.raises(SystemExit) as caught:
        call(tmp_path, *options)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--check", "x", "--policy", "fgd"),
        ("--check", "x", "--log", "y"),
        ("--plot", "x.png", "--protocol", "departures"),
    ],
)
def test_options_that_clash_are_usage_errors(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one sentence."""
    assert call(tmp_path, *options) == 2
    assert "leave out" in capsys.readouterr().err


def test_a_log_never_overwrites_an_input(tmp_path: Path) -> None:
    """--log with the name of a list is refused."""
    assert call(tmp_path, "--log", str(tmp_path / "tasks.csv")) == 2
    assert (tmp_path / "tasks.csv").read_text(encoding="utf-8").startswith("name,")


def test_pictures_are_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another ending, a missing folder and a missing matplotlib are found at once."""
    with pytest.raises(InputError, match=r"use \.png or \.svg"):
        call(tmp_path, "--plot", str(tmp_path / "x.pdf"))
    with pytest.raises(InputError, match="folder does not exist"):
        call(tmp_path, "--plot", str(tmp_path / "no" / "x.png"))
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'gpudra\[plot\]'"):
        plot.check_plot_file(tmp_path / "x.png")


def test_errors_are_one_line_and_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad list ends the command with its place; --lenient goes on and says what it left out."""
    nodes = write(tmp_path, "nodes.csv", NODE_HEADER, (*NODES, "n9,1,1,0,T4"))
    tasks = write(tmp_path, "tasks.csv", TASK_HEADER, TASKS)
    arguments = ["simulate", "--nodes", str(nodes), "--pods", str(tasks), "--policy", "fgd"]
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 1
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.startswith(f"gpudra simulate: {nodes}:5: column gpu: ")
    assert caught.err.count("\n") == 1
    monkeypatch.setattr("sys.argv", [*arguments, "--lenient"])
    assert main() == 0
    assert "left out 1 row(s)" in capsys.readouterr().err


class _Terminal:
    """Remembers what a progress bar wrote."""

    def __init__(self, *, tty: bool) -> None:
        self.text = ""
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def test_the_progress_bar_is_for_terminals_only() -> None:
    """It counts runs and parts of runs, and writes nothing into a pipe."""
    terminal, pipe = _Terminal(tty=True), _Terminal(tty=False)
    for stream in (terminal, pipe):
        bar = Progress(2, stream=stream)  # type: ignore[arg-type]
        bar.start("fgd: seed 42")
        bar.part(0.5)
        bar.step()
        bar.close()
    assert " 25 %  fgd: seed 42" in terminal.text
    assert " 50 %" in terminal.text
    assert pipe.text == ""
