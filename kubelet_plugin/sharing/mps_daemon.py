# SPDX-License-Identifier: Apache-2.0
"""One MPS control daemon: started, asked, adopted after a restart of the agent, ended.

Its folder holds ``pipe`` (clients mount it), ``log``, ``shm`` and ``daemon.json`` (which process it
is). A daemon belongs to us if it is that process, or if it carries our mark in its environment;
nothing else is ever signalled.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import orjson

from gpudra.api.errors import HardwareError
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.sharing.launch import MARK, MpsLaunch, daemon_environment
from gpudra.kubelet_plugin.sharing.processes import Identity, end, identify, marked

_NOTE = "daemon.json"
# How often a starting daemon is asked.
_RETRY_SECONDS = 0.05
# Longest piece of an answer that goes into a message.
_SHOWN = 200
log = get_logger(__name__)


class NoAnswerError(HardwareError):
    """The daemon did not answer in time: it hangs, or is only just starting."""


class MpsDaemon:
    """The daemon of one device.

    Args:
        folder: of the device.
        launch: how the program is called.

    Attributes:
        target: uuid of the device; needed to start it.
    """

    def __init__(self, folder: Path, launch: MpsLaunch) -> None:
        self.folder = folder
        self.target = ""
        self._launch = launch
        self._child: subprocess.Popen[bytes] | None = None

    def running(self) -> bool:
        """Whether the process is there, ours by id, start time and boot, or by its mark."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        known = self._noted()
        if known is not None:
            return known.alive()
        # Killed between start and note: nobody noted it, but the mark tells.
        found = marked(MARK, str(self.folder))
        identity = identify(found[0]) if found else None
        if identity is not None:
            self._note(identity)
        return identity is not None

    def start(self) -> None:
        """Starts it and waits until it answers; nothing happens if it runs and answers.

        Raises:
            HardwareError: it ends, or does not answer in time; then it is gone again.
            StateError: its folder cannot be made.
        """
        if self.running():
            self.ask("get_server_list")
            return
        self.stop()  # servers that outlived their daemon
        for name, mode in (("pipe", 0o777), ("log", 0o755), ("shm", 0o1777)):
            files.make_folder(self.folder / name)
            # Clients run as any user; make_folder is subject to the umask.
            (self.folder / name).chmod(mode)
        self._child = self._spawn()
        identity = identify(self._child.pid)
        if identity is not None:
            self._note(identity)
        try:
            self._wait_ready(self._child)
        except HardwareError:
            self.stop()
            raise
        log.info("started an MPS daemon", device=self.folder.name, pid=self._child.pid)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        command = self._launch.daemon_command(self.folder)
        environment = daemon_environment(dict(os.environ), self.folder, self.target)
        try:
            with (self.folder / "log/output").open("ab") as output:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise HardwareError(
                f"the MPS control daemon cannot be started ({error})", obj=command[0]
            ) from error

    def _wait_ready(self, child: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + self._launch.start_seconds
        problem: HardwareError | None = None
        while problem is None or time.monotonic() < deadline:
            try:
                child.wait(_RETRY_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            else:
                raise HardwareError(
                    f"the MPS control daemon ended at once with code {child.returncode}: "
                    f"{self._last_words()}",
                    obj=self._label,
                    hint="look at its log",
                )
            try:
                self.ask("get_server_list")
            except HardwareError as error:
                problem = error
            else:
                return
        raise HardwareError(
            f"the MPS control daemon does not answer after its start: {problem}",
            obj=self._label,
            hint="look at its log",
        ) from problem

    def ask(self, command: str) -> str:
        """Sends one command, or several in lines, and returns the answers.

        Raises:
            NoAnswerError: none in time.
            HardwareError: the daemon is not there, or refuses.
        """
        environment = daemon_environment(
            dict(os.environ), self.folder, self.target, with_mark=False
        )
        try:
            done = subprocess.run(
                self._launch.ask_command(),
                input=f"{command}\n",
                capture_output=True,
                text=True,
                timeout=self._launch.answer_seconds,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NoAnswerError(
                f"the MPS control daemon does not answer {command!r} within "
                f"{self._launch.answer_seconds:g} s",
                obj=self._label,
            ) from error
        except OSError as error:
            raise HardwareError(
                f"the MPS control program cannot be run ({error})", obj=self._launch.program
            ) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-_SHOWN:]
            raise HardwareError(
                f"the MPS control daemon refuses {command!r}: {said or done.returncode}",
                obj=self._label,
            )
        return done.stdout.strip()

    def servers(self) -> tuple[int, ...]:
        """Ids of the servers that it runs."""
        words = self.ask("get_server_list").split()
        return tuple(int(word) for word in words if word.isdigit())

    def stop(self) -> None:
        """Ends it and everything that it started; nothing happens if nothing runs.

        Raises:
            HardwareError: a process survives SIGKILL (it hangs in the driver).
        """
        if self.running():
            self._quit()
        left = self._ours()
        if left:
            left = end(left, signal.SIGTERM, self._launch.stop_seconds)
        if left:
            log.warning("killing an MPS daemon", device=self.folder.name, pids=list(left))
            left = end(left, signal.SIGKILL, self._launch.stop_seconds)
        self._reap()
        if left:
            raise HardwareError(
                f"processes {', '.join(map(str, left))} of the MPS daemon cannot be ended",
                obj=self._label,
                hint="they hang in the driver: the node may have to be rebooted",
            )
        files.remove(self.folder / _NOTE)

    def _quit(self) -> None:
        """Asks it to end, and waits for that as long as is due."""
        known = self._noted()
        try:
            self.ask(f"quit -t {max(1, int(self._launch.stop_seconds / 2))}")
        except HardwareError as error:
            log.debug("the MPS daemon does not quit", device=self.folder.name, error=str(error))
            return
        if known is not None and known.alive():
            end((known.pid,), 0, self._launch.stop_seconds)

    def _ours(self) -> tuple[int, ...]:
        known = self._noted()
        noted = (known.pid,) if known is not None and known.alive() else ()
        return tuple(dict.fromkeys((*noted, *marked(MARK, str(self.folder)))))

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    def _noted(self) -> Identity | None:
        try:
            found = orjson.loads((self.folder / _NOTE).read_bytes())
            return Identity(int(found["pid"]), int(found["start"]), str(found["boot"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none yet, or cut off: then the mark decides

    def _note(self, identity: Identity) -> None:
        content = {"pid": identity.pid, "start": identity.start, "boot": identity.boot}
        files.write_atomically(self.folder / _NOTE, orjson.dumps(content), sync=False)

    def _last_words(self) -> str:
        try:
            return (self.folder / "log/output").read_text(errors="replace").strip()[-_SHOWN:]
        except OSError:
            return ""

    @property
    def _label(self) -> str:
        return f"device {self.folder.name}"
