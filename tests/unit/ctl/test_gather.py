# SPDX-License-Identifier: Apache-2.0
"""The report for support: complete, versioned, and nothing secret in it."""

import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpudra.controller.ctl.gather import LAYOUT, TOP, Report, gather_cluster, pack
from gpudra.controller.ctl.main import main
from gpudra.controller.ctl.redact import REDACTED, redacted, state_file
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.resources import Obj
from tests.fakenvml.machine import FakeMachine

DRIVER = "gpu.gpudra.io"
SECRET = "s3cr3t"


def parts(content: bytes) -> dict[str, Any]:
    """Files of an archive by path; JSON decoded."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            text = file.read().decode()
            path = member.name.removeprefix(f"{TOP}/")
            found[path] = json.loads(text) if path.endswith(".json") else text
    return found


def claim(name: str, pool: str = "") -> Obj:
    """A claim with parameters of ours and of somebody else."""

    def config(group: str) -> Obj:
        parameters = {"apiVersion": f"{group}/v1", "kind": "X", "token": SECRET}
        return {"opaque": {"driver": "d", "parameters": parameters}}

    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": "gpu-1"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "annotations": {"note": SECRET}},
        "spec": {
            "devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}],
                "config": [config("example.com")],
            }
        },
        "status": {"allocation": {"devices": {"results": results}}} if pool else {},
    }


async def test_objects_of_the_cluster_come_without_secrets() -> None:
    """Slices, nodes, claims of the node; a kind that is not served is a problem, not an error."""
    node: Obj = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "annotations": {"x": SECRET}, "labels": {"gpudra.io/gpu.count": "8"}},
        "status": {
            "addresses": [{"type": "InternalIP", "address": SECRET}],
            "nodeInfo": {"machineID": SECRET, "kernelVersion": "6"},
        },
    }  # fmt: skip
    one = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-1"}],
        },
    }
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "namespace": "x", "labels": {"app.kubernetes.io/name": "gpudra"}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "image": "i", "env": [{"name": "T", "value": SECRET}]}],
        },
    }  # fmt: skip
    objects = [node, one, pod, claim("held", "n1"), claim("elsewhere", "n2"), claim("waits")]
    report = Report()
    async with FakeApiServer(objects=objects) as server:
        client = await server.client()
        server.faults.fail(verb="list", resource="devicetaintrules", status=403, reason="Forbidden")
        versions = await gather_cluster(client, report, driver=DRIVER, nodes=["n1"])
    assert versions == {"kubernetes": "v1.37.2"}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    content = pack(report, versions=versions, now=now)
    assert content == pack(report, versions=versions, now=now)
    found = parts(content)
    assert found["manifest.json"]["layout"] == LAYOUT
    assert found["manifest.json"]["files"] == sorted(set(found) - {"manifest.json"})
    assert any("devicetaintrules" in problem for problem in found["manifest.json"]["problems"])
    claims = found["cluster/resourceclaims.json"]["items"]
    assert [one["metadata"]["name"] for one in claims] == ["held"]
    assert found["cluster/nodes.json"]["items"][0]["metadata"]["labels"]
    assert found["cluster/resourceslices.json"]["items"][0]["spec"]["devices"]
    assert found["cluster/pods.json"]["items"][0]["spec"]["containers"] == [
        {"name": "c", "image": "i"}
    ]
    assert SECRET not in json.dumps(found)


def test_own_parameters_are_kept() -> None:
    """They are what support asks about; those of others are none of our business."""
    ours = {"kind": "X", "parameters": {"apiVersion": "gpudra.io/v1alpha1", "sharing": 1}}
    theirs = {"kind": "X", "parameters": {"apiVersion": "example.com/v1"}}
    assert redacted(ours)["parameters"]["sharing"] == 1
    assert redacted(theirs)["parameters"] == REDACTED


def test_a_damaged_state_file_is_kept_as_it_is() -> None:
    """Its damage is what people want to see."""
    assert state_file(b'{"a": 1}\n{"b": \n') == b'{"a": 1}\n{"b": \n'


def test_this_machine_is_gathered_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readings without serial numbers, the matrix, state and CDI files without values of variables."""
    machine = FakeMachine("a30-2x", tmp_path / "machine")
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUDRA_HOST_ROOT", str(machine.root))
    state, cdi = tmp_path / "state", tmp_path / "cdi"
    state.mkdir()
    cdi.mkdir()
    (state / "health.json").write_text('{"version": 1}')
    (state / "token").write_text(SECRET)
    edits = {"containerEdits": {"env": [f"KEY={SECRET}"]}}
    (cdi / f"{DRIVER}-claim.json").write_text(json.dumps(edits))
    (cdi / "other.json").write_text(SECRET)
    out = tmp_path / "report.tar.gz"
    words = ["gather", "--local", "--no-cluster", "--file", str(out)]
    assert main([*words, "--state-dir", str(state), "--cdi-dir", str(cdi)]) == 0
    assert str(out) in capsys.readouterr().out
    found = parts(out.read_bytes())
    assert found["manifest.json"]["problems"] == []
    assert len(found["local/readings.json"]["gpus"]) == 2
    assert "NV4" in found["local/topology.txt"]
    assert found["local/state/health.json"] == {"version": 1}
    (file,) = [path for path in found if path.startswith("local/cdi/")]
    assert found[file]["containerEdits"]["env"] == [f"KEY={REDACTED}"]
    assert SECRET not in json.dumps(found)
    assert main([*words, "--state-dir", str(state)]) == 1
    assert "give another --file" in capsys.readouterr().err
