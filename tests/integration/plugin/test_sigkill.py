# SPDX-License-Identifier: Apache-2.0
"""Real processes, really killed, at every point of prepare and unprepare."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.logs import captured_logs
from tests.support.plugin import Instance, Node, claim_object, uid


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
def test_sigkill_at_every_point_is_healed(tmp_path: Path, call: str) -> None:
    """The next process starts, the retry succeeds, and nothing is left at the end."""
    points = []
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed", str(tmp_path), call],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(100):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            point = process.stdout.readline().strip()
            ended = process.stdout.readline().strip()
            if point == "done":
                assert ended == "ended 0"
                break
            assert ended == f"ended {signal.SIGKILL.value}"
            points.append(point)
        process.stdin.close()
    assert "reserve:before" in points or "undo:cdi-file:before" in points
    assert len(points) >= 6
    with captured_logs():
        for number, point in enumerate(points):
            asyncio.run(healed(tmp_path / str(number), call, point))


async def healed(folder: Path, call: str, point: str) -> None:
    """What the next process and the kubelet do."""
    node = Node(folder)
    claim = node.api.put(claim_object(uid(1), "a", "gpu-0"))
    instance: Instance = await node.start()
    if call == "prepare":
        assert (await instance.prepare(claim))[0].ok, point
        assert len(node.cdi_files()) == 1
    assert (await instance.unprepare(claim))[0].ok, point
    assert node.cdi_files() == [], point
    assert dict(instance.state.records) == {}, point
    assert list(node.state_dir.glob(".*")) == [], point
    instance.end()
