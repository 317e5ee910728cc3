# SPDX-License-Identifier: Apache-2.0
"""Processes that outlive the command, with real ones of the shell."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudra.controller.ctl.local.process import (
    Component,
    ComponentError,
    ProcessTable,
    command_line,
    kill_matching,
)

IDLE = "while :; do sleep 0.05; done"


class Bench:
    """A process table in a folder, and components whose health is a file."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("pids", "logs"):
            (base / name).mkdir()
        self.table = ProcessTable(base / "pids", base / "logs")

    def component(
        self, script: str, *, ready: Callable[[], bool] | None = None, **fields: object
    ) -> Component:
        """A shell that says it is ready by making a file."""
        mark = self.base / "ready"
        argv = ["/bin/sh", "-c", f"touch {mark}; {script}", "component"]
        return Component("shell", argv, ready or mark.exists, **fields)  # type: ignore[arg-type]

    def pid(self) -> int:
        """Of the component."""
        record = self.table.running("shell")
        assert record is not None
        return record.pid


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench that is cleared afterwards."""
    bench = Bench(tmp_path)
    yield bench
    bench.table.stop("shell", 1)


def test_a_component_is_started_once(bench: Bench) -> None:
    """Asked again for the same, the running process stays."""
    component = bench.component(IDLE)

    assert bench.table.ensure(component)
    pid = bench.pid()
    assert not bench.table.ensure(component)
    assert bench.pid() == pid


def test_its_output_goes_to_its_log(bench: Bench) -> None:
    """Both streams are kept in one file, over restarts."""
    script = f"echo out; echo err >&2; touch {bench.base}/said; {IDLE}"
    said = bench.base / "said"

    bench.table.ensure(bench.component(script, ready=said.exists))

    assert bench.table.log_file("shell").read_text() == "out\nerr\n"


def test_other_arguments_start_it_anew(bench: Bench) -> None:
    """A changed command line replaces the process."""
    bench.table.ensure(bench.component(IDLE))
    before = bench.pid()

    assert bench.table.ensure(bench.component(f"true; {IDLE}"))

    assert bench.pid() != before
    assert command_line(before) == ()


def test_a_rewritten_configuration_starts_it_anew(bench: Bench) -> None:
    """A file that is newer than the process has not been read by it."""
    config = bench.base / "config"
    config.touch()
    component = bench.component(IDLE, config_files=[config])
    bench.table.ensure(component)
    assert bench.table.is_current(component)

    later = bench.table.record_file("shell").stat().st_mtime + 1
    os.utime(config, (later, later))

    assert not bench.table.is_current(component)


def test_a_dead_component_is_started_again(bench: Bench) -> None:
    """A record whose process is gone counts for nothing."""
    component = bench.component(IDLE)
    bench.table.ensure(component)
    before = bench.pid()
    os.kill(before, signal.SIGKILL)
    os.waitpid(before, 0)

    assert bench.table.running("shell") is None
    assert bench.table.ensure(component)
    assert bench.pid() != before


def test_a_pid_that_was_used_again_is_not_touched(bench: Bench) -> None:
    """Another process under the recorded pid is neither believed nor ended."""
    with subprocess.Popen(["/bin/sh", "-c", IDLE]) as stranger:
        record = {"pid": stranger.pid, "argv": ["/bin/sh", "-c", "something else", "component"]}
        bench.table.record_file("shell").write_text(json.dumps(record))

        assert bench.table.running("shell") is None
        assert not bench.table.stop("shell")
        assert stranger.poll() is None
        stranger.kill()


def test_a_script_is_known_behind_its_interpreter(bench: Bench) -> None:
    """The kernel puts the interpreter before a script's own command line."""
    script = bench.base / "script"
    script.write_text(f"#!/bin/sh\n{IDLE}\n")
    script.chmod(0o755)

    bench.table.ensure(Component("shell", [str(script), "--flag"], lambda: True))

    assert command_line(bench.pid()) == ("/bin/sh", str(script), "--flag")


@pytest.mark.parametrize("content", ["", "{", "{}", '{"pid": "x"}'])
def test_a_damaged_record_is_no_record(bench: Bench, content: str) -> None:
    """A command that was killed while writing leaves nothing that misleads."""
    bench.table.record_file("shell").write_text(content)

    assert bench.table.running("shell") is None


def test_one_that_ends_at_once_is_an_error_with_its_last_words(bench: Bench) -> None:
    """The message names the component and shows the end of its log."""
    component = bench.component("echo port is taken; exit 3", ready=lambda: False)

    with pytest.raises(ComponentError, match=r"(?s)shell: ended instead of serving.*port is taken"):
        bench.table.ensure(component)


def test_one_that_never_gets_healthy_is_an_error(bench: Bench) -> None:
    """The wait is bounded, and the process is left for looking at."""
    component = bench.component(IDLE, ready=lambda: False, start_timeout=0)

    with pytest.raises(ComponentError, match="not healthy after 0 s"):
        bench.table.ensure(component)

    assert bench.table.running("shell")


def test_a_program_that_is_not_there_is_an_error(bench: Bench) -> None:
    """The error names the component, not only the file."""
    component = Component("shell", [str(bench.base / "missing")], lambda: True)

    with pytest.raises(ComponentError, match="shell: cannot be started"):
        bench.table.ensure(component)


def test_stopping_waits_for_the_end(bench: Bench) -> None:
    """After ``stop`` the process is gone and forgotten."""
    bench.table.ensure(bench.component(IDLE))
    pid = bench.pid()

    assert bench.table.stop("shell")

    assert command_line(pid) == ()
    assert bench.table.names() == []
    assert not bench.table.stop("shell")


def test_one_that_ignores_sigterm_is_killed_with_its_children(bench: Bench) -> None:
    """SIGKILL goes to the whole group, which is the component's own."""
    child = bench.base / "child"
    script = f"trap '' TERM; (trap '' TERM; {IDLE}) & echo $! > {child}.partial; mv {child}.partial {child}; wait"
    bench.table.ensure(bench.component(script, ready=child.exists))
    pid, child_pid = bench.pid(), int(child.read_text())

    bench.table.stop("shell", 0)

    assert command_line(pid) == ()
    assert kill_matching(lambda argv: argv == command_line(child_pid) != ()) == []


def test_only_matching_processes_are_killed() -> None:
    """The caller's test of the command line decides."""
    mark = f"mark-{os.getpid()}"
    with (
        subprocess.Popen(["/bin/sh", "-c", IDLE, mark]) as ours,
        subprocess.Popen(["/bin/sh", "-c", IDLE]) as other,
    ):
        assert kill_matching(lambda argv: mark in argv) == [ours.pid]
        assert other.poll() is None
        other.kill()
