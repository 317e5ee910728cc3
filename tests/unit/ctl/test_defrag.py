# SPDX-License-Identifier: Apache-2.0
"""``gpudra defrag --plan`` from files: shares on two cards, and a pod that wants a whole one."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.main import main
from tests.support.managedscene import DRIVER, claim, counters, device_class, gpus, node

Obj = dict[str, Any]


def pod(name: str, *, gated: bool, owner: str = "Job") -> Obj:
    """A pod with one claim of its own name."""
    maker = {
        "apiVersion": "batch/v1",
        "kind": owner,
        "name": "work",
        "uid": "o",
        "controller": True,
    }
    owners = [maker] if owner else []
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "labels": {"gpudra.io/queue": "team"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": owners,
    }
    spec: Obj = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    status: Obj = {"startTime": "2026-01-01T00:00:01Z", "phase": "Running"}
    if gated:
        spec["schedulingGates"], status = [{"name": "gpudra.io/admission"}], {"phase": "Pending"}
    else:
        spec["nodeName"] = "n"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def held(name: str, device: str) -> Obj:
    """A share claim that was allocated."""
    raw: Obj = claim(name, kind="share", capacity={"memory": "40Gi"}).to_dict()
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": "n",
        "device": device,
        "shareID": f"00000000-0000-4000-8000-00000000000{device[4]}",
        "consumedCapacity": {"memory": "40Gi", "compute": "0"},
    }
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    raw["status"] = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": terms},
        }
    }
    return raw


def scene(folder: Path, *, owner: str = "Job") -> str:
    """The file of a cluster."""
    objects = [
        {"apiVersion": "gpudra.io/v1alpha1", "kind": "Queue", "metadata": {"name": "team"}},
        {"apiVersion": "v1", "kind": "Node", **node("n")},
        *(one.to_dict() for one in (gpus("n", 2, share=True), counters("n", 2))),
        *(device_class(kind).to_dict() for kind in ("gpu", "share")),
        held("a", "gpu-0-share"),
        held("b", "gpu-1-share"),
        claim("whole").to_dict(),
        pod("a", gated=False, owner=owner),
        pod("b", gated=False, owner=owner),
        pod("whole", gated=True),
    ]
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return str(file)


def test_a_move_that_helps_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which pod, what that frees, and for whom; for programs with the reason."""
    file = scene(tmp_path)
    assert main(["defrag", "--plan", "--cluster", file]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    head, row = told.out.splitlines()
    assert head.split() == ["MOVE", "FROM", "NODE", "FREES", "SO", "THAT", "FITS"]
    assert row.split()[:2] in (["default/a", "n"], ["default/b", "n"])
    assert "0.5 gpus" in row
    assert row.endswith("pod/default/whole")
    assert main(["defrag", "--plan", "--cluster", file, "-o", "json"]) == 0
    (move,) = json.loads(capsys.readouterr().out)["moves"]
    assert "room for it elsewhere" in move["message"]


def test_no_move_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pods that nobody would make anew stay where they are; the exit code is that of "no"."""
    assert main(["defrag", "--plan", "--cluster", scene(tmp_path, owner="")]) == 3
    assert "nothing to move" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((), "--plan"), (("--plan", "--moves", "0"), "from 1 to 64")],
)
def test_wrong_use_is_told(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """One line that says what is wrong; nothing is read."""
    assert main(["defrag", *arguments]) == 1
    assert words in capsys.readouterr().err
