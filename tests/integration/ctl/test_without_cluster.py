# SPDX-License-Identifier: Apache-2.0
"""Every command that asks a cluster, where there is none, or one that lets us do nothing."""

import asyncio
import contextlib
import io
import shlex
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpudra.controller.ctl.main import COMMANDS, main
from gpudra.driver.kube.fakeserver import FakeApiServer

# One way to call each command that asks a cluster; FILE is a pod in a file, DIR an empty folder.
ASKING = {
    "devices": ("devices", "devices --watch", "devices --topology -o json"),
    "claims": ("claims", "claims --watch", "claims -n team"),
    "top": ("top --once",),
    "explain": ("explain claim/a", "explain pod/a"),
    "queues": ("queues",),
    "whatif": ("whatif -f FILE",),
    "defrag": ("defrag --plan",),
    "release": ("release --all",),
    "convert": ("convert -f FILE --managed --from-cluster",),
    "cordon": ("cordon gpu-1",),
    "uncordon": ("uncordon gpu-1",),
    "doctor": ("doctor", "doctor -o json"),
    "gather": ("gather --file DIR/report.tar.gz",),
}
# Answer from files, or about this machine.
ALONE = {"allocate", "validate", "slices", "simulate", "completion", "local"}
CALLS = [words for calls in ASKING.values() for words in calls]
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {gpudra.io/queue: q}}
spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}}]}
"""


@pytest.fixture(autouse=True)
def nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubeconfig in the environment, and a working folder of the test's own."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def called(words: str, folder: Path, kubeconfig: str | None) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of a call in this process."""
    file = folder / "pod.yaml"
    file.write_text(POD)
    argv = shlex.split(words.replace("FILE", str(file)).replace("DIR", str(folder)))
    if kubeconfig:
        argv += ["--kubeconfig", kubeconfig]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    return code, out.getvalue(), err.getvalue()


def kubeconfig_of(folder: Path, port: int) -> str:
    """A kubeconfig for an address of this machine."""
    path = folder / "kubeconfig"
    path.write_text(
        f"""\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{}}}}]
current-context: c
"""
    )
    return str(path)


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_command_is_looked_at_here() -> None:
    """A new command says whether it asks a cluster."""
    assert {command.name for command in COMMANDS} == ASKING.keys() | ALONE


@pytest.mark.parametrize("words", CALLS)
def test_without_a_kubeconfig_it_is_one_line(words: str, tmp_path: Path) -> None:
    """Exit code 1, the file that is missing, nothing on standard output."""
    code, out, err = called(words, tmp_path, None)
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert ".kube/config" in err


@pytest.mark.parametrize("words", CALLS)
def test_a_server_that_is_away_is_one_line(words: str, tmp_path: Path) -> None:
    """Exit code 1, the address in the message, nothing on standard output."""
    port = closed_port()
    code, out, err = called(words, tmp_path, kubeconfig_of(tmp_path, port))
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert err.startswith("gpudra: ")
    assert f"127.0.0.1:{port}" in err


@pytest.fixture
async def refusing(tmp_path: Path) -> AsyncIterator[str]:
    """A server that refuses every request."""
    async with FakeApiServer() as server:
        server.faults.fail(status=403, times=10_000)
        yield server.kubeconfig(tmp_path / "kubeconfig")


# The doctor and gather go on without what they may not read, and say what that is.
@pytest.mark.parametrize(
    "words", [words for words in CALLS if not words.startswith(("gather", "doctor"))]
)
async def test_a_refusal_is_one_line(words: str, tmp_path: Path, refusing: str) -> None:
    """Exit code 1 and the resource that may not be read; never a traceback."""
    code, _, err = await asyncio.to_thread(called, words, tmp_path, refusing)
    assert code == 1
    assert len(err.splitlines()) == 1, err
    assert "refused" in err or "may not" in err
