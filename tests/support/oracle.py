# SPDX-License-Identifier: Apache-2.0
"""Drives tests/oracle, the Go program that answers with the released Kubernetes libraries.

Used by the differential tests and fuzzers of CEL and of the allocator. The program is built once per
change of its sources into ``.cache/oracle``; Go is a prerequisite of the tests.
"""

import fcntl
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "oracle"
BUILT = ROOT / ".cache" / "oracle"
_BUILD_SECONDS = 900


def build() -> Path:
    """The program, built if its sources are newer. Safe to call from several processes at once."""
    BUILT.mkdir(parents=True, exist_ok=True)
    binary = BUILT / "oracle"
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]
        newest = max(path.stat().st_mtime for path in sources)
        if binary.exists() and binary.stat().st_mtime > newest:
            return binary
        environment = {**os.environ, "CGO_ENABLED": "0"}
        built = subprocess.run(
            ["go", "build", "-o", str(binary), "."],
            cwd=SOURCES,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
        if built.returncode:
            raise RuntimeError(f"go build of tests/oracle failed:\n{built.stderr}")
    return binary


class Oracle:
    """One running sub-command. Ask it as often as you like, then close it."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            [str(build()), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the oracle ended on {question!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask_all(self, questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answers in the order of the questions."""
        return [self.ask(question) for question in questions]

    def close(self) -> None:
        """Ends the program and waits for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
