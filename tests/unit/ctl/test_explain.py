# SPDX-License-Identifier: Apache-2.0
"""``gpudra explain``: from files, from a live cluster, and as shown in docs/explain.md."""

import asyncio
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.main import main
from gpudra.driver.kube.fakeserver import FakeApiServer

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = re.findall(
    r"\$ gpudra (explain [^\n]*)\n(.*?)```", (ROOT / "docs" / "explain.md").read_text(), re.DOTALL
)


def _run(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


def _fixture(number: int) -> str:
    (path,) = (ROOT / "tests" / "fixtures" / "explain").glob(f"{number:02d}-*.yaml")
    return str(path)


def _objects(number: int) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(Path(_fixture(number)).read_text()))


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[one[0] for one in EXAMPLES])
def test_page_shows_real_output(command: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example of the page is what the command prints."""
    monkeypatch.chdir(ROOT)
    assert _run(*command.split())[1] == shown


def test_page_has_ten_examples() -> None:
    """None of the examples escapes the comparison."""
    assert len(EXAMPLES) == 10


def test_json_for_programs() -> None:
    """Programs get counts, each device, and relaxations with field, before and after."""
    code, out, _ = _run("explain", "claim/notebook", "-f", _fixture(3), "-o", "json")
    report = json.loads(out)
    assert code == 3
    assert report["requests"][0]["reasons"] == {"capacity-in-use": 2}
    assert len(report["reasons"]) == 2
    (best,) = report["relaxations"]
    assert best["field"] == "spec.devices.requests[0].exactly.capacity.requests[memory]"
    assert (best["before"], best["after"]) == ("24Gi", "20Gi")


def test_unknown_subject() -> None:
    """A claim or pod that does not exist is an error that names it."""
    assert "there is no claim nobody" in _run("explain", "nobody", "-f", _fixture(1))[2]
    assert "there is no pod nobody" in _run("explain", "pod/nobody", "-f", _fixture(1))[2]
    assert "neither claim/NAME nor pod/NAME" in _run("explain", "job/x", "-f", _fixture(1))[2]
    assert "no node nowhere" in _run("explain", "train", "-f", _fixture(1), "--node", "nowhere")[2]


async def test_live_cluster_is_only_read(tmp_path: Path) -> None:
    """On a cluster the same answer is given from lists alone: nothing is written."""
    objects = _objects(1)
    async with FakeApiServer(objects=objects) as server:
        kubeconfig = server.kubeconfig(tmp_path / "config")
        code, out, _ = await asyncio.to_thread(
            _run, "explain", "claim/train", "--kubeconfig", kubeconfig
        )
        verbs = {record.verb for record in server.requests}
    assert code == 3
    assert out == _run("explain", "claim/train", "-f", _fixture(1))[1]
    assert verbs == {"list"}


def _pod(**spec: object) -> str:
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "worker", "namespace": "default", "labels": {"gpudra.io/queue": "q"}},
        "spec": spec,
    }  # fmt: skip
    return "\n---\n" + yaml.safe_dump(pod)


def test_pod_with_its_claims_and_what_else_it_waits_for(tmp_path: Path) -> None:
    """A pod stands for its claims; a queue's gate and a claim not made yet are told."""
    file = tmp_path / "objects.yaml"
    file.write_text(
        Path(_fixture(1)).read_text()
        + _pod(
            resourceClaims=[
                {"name": "a", "resourceClaimName": "train"},
                {"name": "b", "resourceClaimTemplateName": "made-later"},
            ],
            schedulingGates=[{"name": "gpudra.io/admission"}],
        )
    )
    code, out, _ = _run("explain", "pod/worker", "-f", str(file))
    assert code == 3
    assert "pod default/worker on node node-a: unsatisfiable" in out
    assert "note: no claim has been made from the template made-later yet" in out
    assert "note: it waits to be admitted by the queue q" in out


def test_allocated_claim() -> None:
    """A claim that is not pending shows what it has."""
    code, out, _ = _run("explain", "alice-run", "-f", _fixture(1))
    assert code == 0
    assert "claim default/alice-run is allocated" in out
    assert "gpu.gpudra.io/node-a/gpu-0, gpu.gpudra.io/node-a/gpu-1" in out


def test_node_can_be_chosen() -> None:
    """The explanation is about the node that was named."""
    out = _run("explain", "train", "-f", _fixture(1), "--node", "node-b")[1]
    assert "on node node-b: unsatisfiable" in out
    assert "4 x in use by claim default/carol-run" in out


def test_pod_is_tied_to_the_node_of_its_allocated_claim(tmp_path: Path) -> None:
    """When one claim of a pod is allocated, only the nodes that may use it count."""
    objects = _objects(1)
    field = {"key": "metadata.name", "operator": "In", "values": ["node-b"]}
    for one in objects:
        if one["metadata"]["name"] == "carol-run":
            one["status"]["allocation"]["nodeSelector"] = {
                "nodeSelectorTerms": [{"matchFields": [field]}]
            }
    file = tmp_path / "objects.yaml"
    claims = [
        {"name": "a", "resourceClaimName": "train"},
        {"name": "b", "resourceClaimName": "carol-run"},
    ]
    file.write_text(yaml.safe_dump_all(objects) + _pod(resourceClaims=claims))
    out = _run("explain", "pod/worker", "-f", str(file))[1]
    assert "pod default/worker on node node-b: unsatisfiable (all nodes: 1 unsatisfiable)" in out
    assert "note: default/carol-run is allocated already, so only these nodes count: node-b" in out
