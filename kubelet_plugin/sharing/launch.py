# SPDX-License-Identifier: Apache-2.0
"""How ``nvidia-cuda-mps-control`` is called: program, driver root, patience.

The daemon and its clients share ``/dev/shm``. So that containers see nothing else there, the daemon
gets a folder of its own as ``/dev/shm``, in a mount namespace of its own.

Commands and variables: NVIDIA, Multi-Process Service, "Appendix: Tools and Interface Reference".
"""

from dataclasses import dataclass
from pathlib import Path

# Found in the environment of every process that a daemon of ours starts, and of no other.
MARK = "GPUDRA_MPS_DAEMON"
_SHM = "/dev/shm"  # noqa: S108 - the folder that CUDA uses
_BIND = f'mount --bind "$1" {_SHM} && shift && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsLaunch:
    """How the program is started and how long it may take.

    Attributes:
        program: path, below ``root`` if there is one.
        root: the driver's folder, to change into; empty or ``/`` for none. The folder of runtime
            files has to be visible in it at the same path.
        own_shm: give the daemon a ``/dev/shm`` of its own; takes CAP_SYS_ADMIN.
        start_seconds: until it has to answer after its start.
        answer_seconds: until it has to answer a command.
        stop_seconds: until it has to be gone after ``quit``.
    """

    program: str = "nvidia-cuda-mps-control"
    root: str = ""
    own_shm: bool = True
    start_seconds: float = 10.0
    answer_seconds: float = 5.0
    stop_seconds: float = 5.0

    def daemon_command(self, folder: Path) -> list[str]:
        """The daemon, staying in the foreground so that its process is the one we started."""
        command = [*self._inside(), self.program, "-f"]
        if not self.own_shm:
            return command
        unshare = ["unshare", "--mount", "--propagation", "private"]
        return [*unshare, "sh", "-c", _BIND, "sh", str(folder / "shm"), *command]

    def ask_command(self) -> list[str]:
        """The program as it takes commands on its standard input."""
        return [*self._inside(), self.program]

    def _inside(self) -> list[str]:
        return ["chroot", self.root] if self.root not in ("", "/") else []

    def seen_program(self) -> Path | None:
        """The program as this process sees it; None if only PATH knows."""
        if "/" not in self.program:
            return None
        return Path(self.root or "/") / self.program.lstrip("/")


def daemon_environment(
    base: dict[str, str], folder: Path, target: str, *, with_mark: bool = True
) -> dict[str, str]:
    """Variables of the daemon, or of a caller of it.

    Args:
        base: what else it needs (PATH).
        folder: of the daemon.
        target: uuid of the one device that it serves.
        with_mark: for the daemon itself.
    """
    found = {name: value for name, value in base.items() if not name.startswith("CUDA_")}
    found |= {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        "CUDA_VISIBLE_DEVICES": target,
    }
    if with_mark:
        found[MARK] = str(folder)
    return found
