# SPDX-License-Identifier: Apache-2.0
"""``gpudra devices`` and ``gpudra claims`` against an API server, as a shell runs them."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import RESOURCE_CLAIMS, Obj

DRIVER = "gpu.gpudra.io"


@dataclass(frozen=True)
class Result:
    """What the shell sees."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Shell:
    """Runs the command with a kubeconfig."""

    kubeconfig: str
    server: FakeApiServer | None = None

    async def gpudra(self, *words: str) -> Result:
        """``gpudra WORDS --kubeconfig …``."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "gpudra.controller.ctl.main", *words, "--kubeconfig", self.kubeconfig),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return Result(process.returncode, out.decode(), err.decode())


def claim(name: str, namespace: str, device: str) -> Obj:
    """A claim that holds a device for one pod."""
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-a", "device": device}
    exact = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exact}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "trainer", "uid": "1"}],
        },
    }


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    """Two nodes with four L4 each; one GPU of the first is held."""
    slices = [
        one
        for node in ("node-a", "node-b")
        for one in slices_of_hardware("l4-4x", driver=DRIVER, node_name=node)
    ]
    held = slices[0].spec.devices[0].name
    objects = [one.to_dict() for one in slices]
    objects += [claim("mine", "team-a", held), {**claim("waits", "team-b", held), "status": {}}]
    async with FakeApiServer(objects=objects) as server:
        yield Shell(server.kubeconfig(tmp_path / "kubeconfig"), server)


async def test_devices_show_every_gpu_and_its_holder(shell: Shell) -> None:
    """One line a device, the holder with its pod on the one that is held."""
    done = await shell.gpudra("devices")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) == 1 + 8
    assert [line for line in lines if "team-a/mine (trainer)" in line] == [lines[1]]


async def test_free_devices_are_those_that_nobody_holds(shell: Shell) -> None:
    """Seven cards of eight, by card and by form."""
    assert len((await shell.gpudra("devices", "--free")).out.splitlines()) == 1 + 7
    forms = await shell.gpudra("devices", "--free", "--forms")
    assert len(forms.out.splitlines()) == 1 + 7
    assert "team-a/mine" not in forms.out


@pytest.mark.parametrize("command", ["claims", "devices"])
async def test_watch_prints_again_on_a_change(shell: Shell, command: str) -> None:
    """The first answer, then another one once a claim is gone; ends with its reader."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gpudra.controller.ctl.main", command, "--watch", "--kubeconfig", shell.kubeconfig),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    seen = b""
    async with asyncio.timeout(60):
        while b"mine" not in seen:
            seen += await process.stdout.read(4096)
        assert shell.server is not None
        shell.server.objects.delete(RESOURCE_CLAIMS, "mine", "team-a")
        seen = b""
        while seen.count(b"\n") < 2 or b"mine" in seen.split(b"\n\n")[-1]:
            seen += await process.stdout.read(4096)
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    await drained(process.stdout)


async def drained(stream: asyncio.StreamReader) -> None:
    """Reads the rest, so that the transport is closed."""
    while await stream.read(4096):
        pass


async def test_devices_of_one_node_for_programs(shell: Shell) -> None:
    """``--node`` and ``-o json``: attributes, capacity and holders of four devices."""
    done = await shell.gpudra("devices", "--node", "node-a", "-o", "json")
    items = json.loads(done.out)["items"]
    assert [item["pool"] for item in items] == ["node-a"] * 4
    assert items[0]["heldBy"][0]["claim"] == "team-a/mine"
    assert items[0]["attributes"]["vendor"] == {"string": "nvidia"}


async def test_a_driver_that_publishes_nothing_is_told(shell: Shell) -> None:
    """An empty answer is no error, and stdout stays empty."""
    done = await shell.gpudra("devices", "--driver", "other.example")
    assert (done.code, done.out) == (0, "")
    assert done.err == "no devices of other.example found\n"


async def test_claims_show_state_and_devices(shell: Shell) -> None:
    """Held and waiting claims, by namespace."""
    done = await shell.gpudra("claims")
    _, mine, waits = done.out.splitlines()
    assert mine.split()[:3] == ["team-a", "mine", "InUse"]
    assert waits.split()[:3] == ["team-b", "waits", "Pending"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("-n", "team-b"), ["waits"]),
        (("--node", "node-a"), ["mine"]),
        (("-n", "nobody"), []),
    ],
)
async def test_claims_are_one_list_for_programs(
    shell: Shell, words: tuple[str, ...], names: list[str]
) -> None:
    """``-o yaml`` gives the raw objects in a List, none included."""
    done = await shell.gpudra("claims", *words, "-o", "yaml")
    found = yaml.safe_load(done.out)
    assert found["kind"] == "List"
    assert [item["metadata"]["name"] for item in found["items"]] == names


@pytest.mark.parametrize("command", ["devices", "claims"])
async def test_a_server_that_does_not_answer_is_one_line(command: str, tmp_path: Path) -> None:
    """Exit code 1, the address in the message, no traceback."""
    async with FakeApiServer() as server:
        gone = Shell(server.kubeconfig(tmp_path / "kubeconfig"))
        url = server.url
    done = await gone.gpudra(command)
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert done.err.startswith("gpudra: ")
    assert url in done.err


async def test_a_missing_kubeconfig_is_one_line(tmp_path: Path) -> None:
    """Exit code 1, the file in the message."""
    done = await Shell(str(tmp_path / "nowhere")).gpudra("claims")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert str(tmp_path / "nowhere") in done.err


async def test_devices_from_hardware_need_no_cluster(tmp_path: Path) -> None:
    """``--hardware`` never connects."""
    done = await Shell(str(tmp_path / "nowhere")).gpudra("devices", "--hardware", "l4-4x")
    assert done.code == 0
    assert done.out.count("NVIDIA L4") == 4


async def test_unknown_hardware_is_one_line(tmp_path: Path) -> None:
    """The message names the profiles that exist."""
    done = await Shell("x").gpudra("devices", "--hardware", "abacus")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "dgx-h100-8x80" in done.err
