# SPDX-License-Identifier: Apache-2.0
"""``make test``: everything, in one pytest run, with one summary.

The end-to-end tests need a real Kubernetes, so the local cluster is brought up first (built on the
first run) and taken down again unless it was there before. Where that cannot be done (no root, no
Go), the rest runs and the last line says what did not; under CI that is a failure, because a green
run that tested less than it claims is worse than a red one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
LOCAL = ("unit", "tables", "integration")
NODES = 2


def main() -> int:
    """Runs the tests; the exit code is pytest's, or 1 when the cluster is missing under CI."""
    options = _options()
    paths = [f"tests/{name}" for name in LOCAL] if options.only != "e2e" else []
    if options.only == "local":
        return _pytest([*paths, *options.pytest])

    was_up = _cluster_is_up()
    trouble = "" if was_up else _bring_up()
    if trouble:
        return _without_cluster(paths, options.pytest, trouble)
    try:
        return _pytest([*paths, "tests/e2e", *options.pytest])
    finally:
        if not was_up:
            _say("taking the local cluster down")
            _gpudra("local", "down")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test", description=__doc__)
    parser.add_argument("--only", choices=("local", "e2e"), help="only one half of the tests")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    return parser.parse_args()


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _say(text: str) -> None:
    print(f"==> {time.strftime('%H:%M:%S')} {text}", flush=True)


def _gpudra(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([BIN / "gpudra", *words], cwd=ROOT, check=False)


def _cluster_is_up() -> bool:
    """Whether a healthy cluster with enough nodes runs already."""
    status = subprocess.run(
        [BIN / "gpudra", "local", "status", "-o", "json"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if status.returncode:
        return False
    nodes = json.loads(status.stdout).get("nodes", [])
    return len(nodes) >= NODES


def _bring_up() -> str:
    """Starts the local cluster. Returns why not, or nothing."""
    _say("local cluster for the end-to-end tests (the first time, it is built: about 12 minutes)")
    done = _gpudra("local", "up", "--nodes", str(NODES), "--agent-as", "processes")
    return "" if done.returncode == 0 else "the local cluster did not come up; its reason is above"


def _without_cluster(paths: list[str], extra: list[str], trouble: str) -> int:
    if _in_ci():
        _say(f"FAILED: {trouble}. Under CI nothing may be left out.")
        return 1
    code = _pytest([*paths, *extra]) if paths else 1
    _say(f"NOT RUN: the end-to-end tests, because {trouble}.")
    return code


def _pytest(arguments: list[str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
