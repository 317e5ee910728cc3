# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the driver's user-space libraries, and a program that uses them as a container.

They prove that limits reach a process and hold there; they prove nothing about a real driver.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpudra.driver.core.edits import ContainerEdits

HERE = Path(__file__).parent
# In a mount namespace of its own: room for what a container mounts, then the mounts, then the
# program. Arguments: pairs of source and target, "--", command.
_MOUNTS = """
set -e
mount -t tmpfs tmpfs /run
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "$(dirname "$2")"; touch "$2"; fi
  mount --bind "$1" "$2"
  shift 2
done
shift
exec "$@"
"""


def build(out: Path | None = None) -> Path:
    """Builds the libraries; returns their folder."""
    folder = out or HERE.parents[1] / ".cache/stubcuda"
    subprocess.run(["make", "-s", "-C", HERE, f"OUT={folder}"], check=True)
    return folder


class CudaProgram:
    """The program, running; see client.py for commands."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def ask(self, *words: object) -> str:
        """One command and its answer.

        Raises:
            RuntimeError: the program has ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if not answer:
            self.process.wait(30)
            raise RuntimeError(f"the program ended with {self.process.returncode}")
        return answer


@contextlib.contextmanager
def container(edits: ContainerEdits, state: Path) -> Iterator[CudaProgram]:
    """Runs the program with exactly these variables and mounts, and the stand-in driver.

    Takes the right to mount: root, or namespaces of users.
    """
    unshare = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    mounts = [path for one in edits.mounts for path in (one.host_path, one.container_path)]
    program = [sys.executable, "-I", str(HERE / "client.py")]
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(build()),
        "FAKENVML_STATE": str(state),
    }
    # The limits are the program's, not those of the shell that mounts.
    inside = ["env", *(f"{name}={value}" for name, value in edits.env)]
    process = subprocess.Popen(
        [*unshare, "sh", "-c", _MOUNTS, "sh", *mounts, "--", *inside, *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield CudaProgram(process)
    finally:
        process.communicate(timeout=60)
