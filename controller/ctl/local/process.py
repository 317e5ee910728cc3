# SPDX-License-Identifier: Apache-2.0
"""Start a component, wait until it is healthy, stop it by its own pid.

A component outlives the command that started it. Its record in ``pids/`` is written by the
child itself, before it becomes the component, so a command that is killed at any point leaves
no process that a later command does not know. A record counts only while the process of that
pid still has the recorded command line: pids are used again.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpudra.api.errors import GpudraError

PROC = Path("/proc")
_LOG_TAIL_LINES = 8


class ComponentError(GpudraError):
    """A component of the local cluster did not start, or ended at once."""


@dataclass(frozen=True, slots=True)
class Component:
    """One process of the cluster.

    Attributes:
        name: unique in the cluster, for example ``kubelet-node-1``.
        argv: program and arguments.
        healthy: tells whether it serves; called again and again, must return quickly.
        start_timeout: seconds it may take until healthy.
        stop_timeout: seconds it may take to end after SIGTERM, before SIGKILL.
        env: variables beside those of this process.
        config_files: files it reads only at its start: written anew means start anew.
    """

    name: str
    argv: Sequence[str]
    healthy: Callable[[], bool]
    start_timeout: float = 60
    stop_timeout: float = 30
    env: Mapping[str, str] = field(default_factory=dict)
    config_files: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """What ``pids/NAME.json`` says."""

    pid: int
    argv: tuple[str, ...]


def command_line(pid: int) -> tuple[str, ...]:
    """The command line of a running process; empty for one that is gone or a zombie."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(os.fsdecode(part) for part in raw.split(b"\0")[:-1])


class ProcessTable:
    """The processes of one cluster, by component name.

    Args:
        pid_dir: folder of the records.
        log_dir: folder of the logs, one a component, appended to.
    """

    def __init__(self, pid_dir: Path, log_dir: Path) -> None:
        self._pid_dir = pid_dir
        self._log_dir = log_dir

    def record_file(self, name: str) -> Path:
        """Where the record of a component lies."""
        return self._pid_dir / f"{name}.json"

    def log_file(self, name: str) -> Path:
        """Where a component's output goes."""
        return self._log_dir / f"{name}.log"

    def names(self) -> list[str]:
        """Components with a record, running or not."""
        return sorted(path.stem for path in self._pid_dir.glob("*.json"))

    def running(self, name: str) -> Record | None:
        """The record of a component whose process is alive."""
        try:
            data = json.loads(self.record_file(name).read_text())
            record = Record(pid=int(data["pid"]), argv=tuple(data["argv"]))
        except (FileNotFoundError, ValueError, KeyError):
            return None
        # Scripts have their interpreter in front of the recorded command line.
        actual = command_line(record.pid)
        return record if actual and actual[-len(record.argv) :] == record.argv else None

    def is_current(self, component: Component) -> bool:
        """Whether the running process has these arguments and has read these files."""
        record = self.running(component.name)
        if record is None or record.argv != tuple(component.argv):
            return False
        started = self.record_file(component.name).stat().st_mtime
        files = [Path(component.argv[0]), *component.config_files]
        return all(path.stat().st_mtime <= started for path in files)

    def ensure(self, component: Component) -> bool:
        """Have the component running and healthy; return whether it was started now.

        Raises:
            ComponentError: it ended, or was not healthy in time; the message ends with its log.
        """
        started = not self.is_current(component)
        if started:
            self.stop(component.name, component.stop_timeout)
            self._start(component)
        self._wait_healthy(component)
        return started

    def _start(self, component: Component) -> None:
        record_file = self.record_file(component.name)
        argv = [str(part) for part in component.argv]

        def leave_record() -> None:
            partial = record_file.with_suffix(".partial")
            partial.write_text(json.dumps({"pid": os.getpid(), "argv": argv}))
            partial.replace(record_file)

        with self.log_file(component.name).open("ab") as log:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env={**os.environ, **component.env},
                    start_new_session=True,
                    preexec_fn=leave_record,  # noqa: PLW1509 - this command has one thread
                )
            except OSError as error:
                raise ComponentError(f"cannot be started: {error}", obj=component.name) from error
        # It outlives this command: the object must neither wait for it nor warn about it.
        process.returncode = 0

    def _wait_healthy(self, component: Component) -> None:
        deadline = time.monotonic() + component.start_timeout
        while not component.healthy():
            if self._has_ended(component.name):
                raise ComponentError(
                    "ended instead of serving" + self._log_tail(component.name), obj=component.name
                )
            if time.monotonic() > deadline:
                raise ComponentError(
                    f"not healthy after {component.start_timeout:.0f} s"
                    + self._log_tail(component.name),
                    obj=component.name,
                )
            time.sleep(0.1)

    def _has_ended(self, name: str) -> bool:
        record_file = self.record_file(name)
        if not record_file.exists():
            return False
        pid = int(json.loads(record_file.read_text())["pid"])
        reap(pid)
        return self.running(name) is None and not command_line(pid)

    def _log_tail(self, name: str) -> str:
        path = self.log_file(name)
        lines = (
            path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            if path.exists()
            else []
        )
        return "".join(f"\n    {line}" for line in [f"the end of {path}:", *lines])

    def stop(self, name: str, timeout: float = 30) -> bool:
        """End a component and forget it; return whether it was running.

        SIGTERM to its pid; after ``timeout`` seconds SIGKILL to its process group, which is its
        own since it was started in a new session.
        """
        record = self.running(name)
        if record is not None:
            _signal(record.pid, signal.SIGTERM)
            if not _wait_gone(record.pid, timeout):
                _signal_group(record.pid, signal.SIGKILL)
                _wait_gone(record.pid, 10)
        self.record_file(name).unlink(missing_ok=True)
        return record is not None


def reap(pid: int) -> None:
    """Collect a child that ended, so that it does not stay a zombie of this process."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(pid: int, number: int) -> None:
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return


def _wait_gone(pid: int, timeout: float) -> bool:
    """Wait for a process to end; False when it is still there after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while command_line(pid):
        reap(pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def kill_matching(wanted: Callable[[tuple[str, ...]], bool]) -> list[int]:
    """SIGKILL every process whose command line is ``wanted``, wait, and return the pids.

    For processes that our components left behind and that no record names: the shims of
    containerd. The caller's test must hold for ours only.
    """
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    found = [pid for pid in pids if (argv := command_line(pid)) and wanted(argv)]
    for pid in found:
        _signal(pid, signal.SIGKILL)
    for pid in found:
        _wait_gone(pid, 10)
    return found
