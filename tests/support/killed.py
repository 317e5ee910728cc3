# SPDX-License-Identifier: Apache-2.0
"""Ends a process by SIGKILL at the n-th point it passes: ``python -m tests.support.killed FOLDER CALL``.

Reads point numbers from standard input. For each it forks; the child prepares (or unprepares) a
claim on ``FOLDER/<number>`` and kills itself there; the parent answers with how the child ended
and which point it was. One interpreter start serves all points.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.support.logs import captured_logs
from tests.support.plugin import Node, claim_object, uid


async def run(folder: Path, call: str, number: int) -> None:
    """One claim's call, with worker threads as in production."""
    node = Node(folder)
    claim = node.api.put(claim_object(uid(1), "a", "gpu-0"))
    armed = False
    passed = 0

    def observe(point: str) -> None:
        nonlocal passed
        if armed:
            passed += 1
            if passed > number:
                os.write(1, f"{point}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    instance = await node.start(observe=observe, blocking=asyncio.to_thread)
    if call == "unprepare":
        await instance.prepare(claim)
    armed = True
    (answer,) = await getattr(instance, call)(claim)
    assert answer.ok, answer.error
    os.write(1, b"done\n")


def main() -> None:
    """Serves numbers until standard input ends."""
    base, call = Path(sys.argv[1]), sys.argv[2]
    for line in sys.stdin:
        number = int(line)
        folder = base / str(number)
        folder.mkdir()
        child = os.fork()
        if child == 0:
            with captured_logs():
                asyncio.run(run(folder, call, number))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, f"ended {status}\n".encode())


if __name__ == "__main__":
    main()
