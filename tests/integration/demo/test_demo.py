# SPDX-License-Identifier: Apache-2.0
"""``make demo`` where no cluster can run: the story holds, and it says what it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpudra.controller.ctl.devices import DeviceView
from tools.demo import __main__ as demo
from tools.demo import story
from tools.demo.kubelet import KubeletStandIn
from tools.demo.world import ROOT, ContainerView


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The demo as ``make`` calls it."""
    return subprocess.run(
        [sys.executable, "-m", "tools.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def told() -> "subprocess.CompletedProcess[str]":
    """One run with stand-ins."""
    return run("--stand-in")


def test_the_story_is_told_to_its_end(told: "subprocess.CompletedProcess[str]") -> None:
    """Exit code 0, and the last line is for programs: it says that this was the fallback."""
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    assert told.stdout.splitlines()[-1] == "demo: fallback"
    assert "This was NOT a Kubernetes cluster" in told.stdout


def test_it_shows_slices_claim_and_container(told: "subprocess.CompletedProcess[str]") -> None:
    """Eight GPUs, the allocated claim, the variables and files of each container."""
    assert told.stdout.count("NVIDIA H100 80GB HBM3") == 8
    assert "allocationTimestamp" in told.stdout
    assert "/dev: nvidia-uvm nvidia-uvm-tools nvidia0 nvidiactl" in told.stdout
    assert "matchAttribute pcieSwitch" in told.stdout


def test_nothing_is_left_running(told: "subprocess.CompletedProcess[str]") -> None:
    """The agent has ended and its folder is gone."""
    (line,) = (one for one in told.stdout.splitlines() if one.startswith("$ gpudra-kubelet-plugin"))
    config = next(word for word in line.split() if word.startswith("--kubeconfig="))
    folder = Path(config.partition("=")[2]).parent
    assert not folder.exists()
    running = Path("/proc").glob("[0-9]*/cmdline")
    assert not [path for path in running if str(folder).encode() in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""


def test_under_ci_the_fallback_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the machine lacks something, each thing is named; CI must not take that for success."""

    async def nothing(_: object) -> None:
        """The story itself is told elsewhere."""

    monkeypatch.setattr(demo, "obstacles", lambda: ["containers need root", "Go is missing"])
    monkeypatch.setattr(demo, "_run", nothing)
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.delenv("CI", raising=False)
    assert demo.main() == 0
    monkeypatch.setenv("CI", "true")
    assert demo.main() == 1
    out = capsys.readouterr().out
    assert "  - containers need root\n  - Go is missing\n" in out
    assert out.splitlines()[-1] == "demo: fallback"


def test_what_is_not_as_told_is_a_failure() -> None:
    """The comparison is checked, not only printed."""
    view = DeviceView("d", "p", "n", None, ())
    with pytest.raises(story.DemoError, match="expected two different ones"):
        story._compare([view, view], [view, view])


def test_the_stand_in_reads_cdi_as_a_runtime_does(tmp_path: Path) -> None:
    """Only what the ids name, and the edits that go with any device of the file."""
    (tmp_path / "a.json").write_text(
        '{"kind": "v/c", "containerEdits": {"env": ["ALL=1"]}, "devices": ['
        '{"name": "x", "containerEdits": {"deviceNodes": [{"path": "/dev/x"}]}},'
        '{"name": "y", "containerEdits": {"env": ["Y=2"]}}]}'
    )
    kubelet = KubeletStandIn(tmp_path, tmp_path)
    assert kubelet.view(["v/c=x"]) == ContainerView({"ALL": "1"}, ("x",))
    assert kubelet.view(["v/c=x", "v/c=y"]).environment == {"ALL": "1", "Y": "2"}
    assert kubelet.view(["v/c=z"]) == ContainerView({}, ())
