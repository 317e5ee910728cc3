# SPDX-License-Identifier: Apache-2.0
"""Device metadata files: what they say, where containers find them, and that they go away."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudra.kubelet_plugin.records import ClaimRef
from tests.support.formsnode import FormsNode, hardware, isolation
from tests.support.oracle import Oracle
from tests.support.plugin import DRIVER, NODE, Instance, claim_object, uid

INSIDE = "/var/run/kubernetes.io/dra-device-attributes"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FormsNode]:
    """A simulated node of every form."""
    with hardware("simulated", tmp_path) as found:
        yield FormsNode(tmp_path / "node", found.lib)


def mounted(node: FormsNode, ref: ClaimRef) -> dict[str, dict[str, Path]]:
    """By CDI device, what of the metadata is mounted: path inside to file on the host."""
    (file,) = (path for path in node.cdi_dir.iterdir() if ref.uid in path.name)
    document = json.loads(file.read_text())
    return {
        device["name"]: {
            mount["containerPath"]: Path(mount["hostPath"])
            for mount in device["containerEdits"].get("mounts", ())
            if mount["containerPath"].startswith(INSIDE)
        }
        for device in document["devices"]
    }


def objects(path: Path) -> list[dict[str, Any]]:
    """The objects of one file, decoded one after the other as readers do."""
    text, found = path.read_text(), []
    decoder = json.JSONDecoder()
    while text.strip():
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:].lstrip()
    return found


async def prepared(node: FormsNode, ref: ClaimRef) -> Instance:
    """An agent that has prepared a claim."""
    instance = await node.start()
    (answer,) = await instance.prepare(ref)
    assert answer.ok, answer.error
    return instance


FORMS = {
    "gpu": "gpu",
    "mig": "1g10gb-0",
    "share": "share",
    "monitor": "monitor",
}


def claimed(node: FormsNode, form: str) -> ClaimRef:
    """A claim of one device in a form."""
    result: Any = {"device": node.device(0, FORMS[form])}
    if form == "share":
        result = node.share(0)
    if form == "monitor":
        result["adminAccess"] = True
    return node.claim(1, result, config=(isolation("none"),) if form == "share" else ())


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_tells_its_container_what_it_is(node: FormsNode, form: str) -> None:
    """The file is in both versions, newest first, at the path that the pod knows."""
    name, ref = node.device(0, FORMS[form]), claimed(node, form)
    await prepared(node, ref)
    ((inside, host),) = next(iter(mounted(node, ref).values())).items()
    assert inside == f"{INSIDE}/resourceclaims/c1/gpu/{DRIVER}-metadata.json"
    newest, older = objects(host)
    assert newest["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
    assert older == {**newest, "apiVersion": "metadata.resource.k8s.io/v1alpha1"}
    assert newest["kind"] == "DeviceMetadata"
    assert newest["metadata"] == {
        "name": "c1",
        "namespace": "default",
        "uid": ref.uid,
        "generation": 1,
    }
    (request,) = newest["requests"]
    (device,) = request["devices"]
    assert (request["name"], device["driver"], device["pool"]) == ("gpu", DRIVER, NODE)
    assert (device["name"], device["attributes"]["type"]) == (name, {"string": form})
    if form == "mig":
        ((made,),) = node.instances().values()
        assert device["attributes"]["uuid"] == {"string": made.uuid}
    assert host.stat().st_mode & 0o777 == 0o644


async def test_a_claim_of_a_template_goes_by_the_name_that_the_pod_gives_it(
    node: FormsNode,
) -> None:
    """The claim's own name is made up by Kubernetes, so no program in the pod could know it."""
    claim = claim_object(uid(1), "train-gpu-x7k2p", node.device(0))
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "accelerator"}
    ref = node.api.put(claim)
    await prepared(node, ref)
    ((inside, host),) = next(iter(mounted(node, ref).values())).items()
    assert inside == f"{INSIDE}/resourceclaimtemplates/accelerator/gpu/{DRIVER}-metadata.json"
    newest = objects(host)[0]
    assert newest["podClaimName"] == "accelerator"
    assert newest["metadata"]["name"] == "train-gpu-x7k2p"


async def test_each_request_has_its_own_file_with_the_alternative_that_was_taken(
    node: FormsNode,
) -> None:
    """The path has the request alone, the content names the subrequest."""
    ref = node.claim(
        1,
        {"request": "big/eight", "device": node.device(0)},
        {"request": "big/eight", "device": node.device(1)},
        {"request": "small", "device": node.device(2)},
    )
    await prepared(node, ref)
    files = mounted(node, ref)
    big, small = (f"{INSIDE}/resourceclaims/c1/{name}" for name in ("big", "small"))
    assert [[*one] for one in files.values()] == [
        [f"{big}/{DRIVER}-metadata.json"],
        [f"{big}/{DRIVER}-metadata.json"],
        [f"{small}/{DRIVER}-metadata.json"],
    ]
    (request,) = objects(next(iter(next(iter(files.values())).values())))[0]["requests"]
    assert request["name"] == "big/eight"
    assert [one["name"] for one in request["devices"]] == [node.device(0), node.device(1)]


async def test_unprepare_removes_them(node: FormsNode) -> None:
    """Nothing of the claim stays."""
    ref = node.claim(1, node.device(0))
    instance = await prepared(node, ref)
    (answer,) = await instance.unprepare(ref)
    assert answer.ok
    assert list((node.run_dir / "metadata").iterdir()) == []


@pytest.mark.parametrize("damage", ["gone", "cut off", "changed"])
async def test_what_is_not_true_any_more_is_written_again_with_a_higher_generation(
    node: FormsNode, damage: str
) -> None:
    """A reader can tell by the generation that something changed."""
    ref = node.claim(1, node.device(0))
    instance = await prepared(node, ref)
    (host,) = next(iter(mounted(node, ref).values())).values()
    good = host.read_text()
    if damage == "gone":
        host.unlink()
    elif damage == "cut off":
        host.write_text(good[: len(good) // 3])
    else:
        host.write_text(good.replace("H100", "A100"))
    assert host.exists() == (damage != "gone")
    (answer,) = await instance.prepare(ref)
    assert answer.ok
    generation = 2 if damage == "changed" else 1
    assert host.read_text() == good.replace('"generation": 1', f'"generation": {generation}')


async def test_an_untouched_file_is_left_alone(node: FormsNode) -> None:
    """The kubelet asks again after each of its restarts; readers must not see changes then."""
    ref = node.claim(1, node.device(0))
    instance = await prepared(node, ref)
    (host,) = next(iter(mounted(node, ref).values())).values()
    before = host.stat()
    (answer,) = await instance.prepare(ref)
    assert answer.ok
    assert (host.stat().st_ino, host.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_folders_of_no_claim_are_swept_and_those_of_other_drivers_stay(
    node: FormsNode,
) -> None:
    """A checkpoint that was lost with its CDI files must not leave folders for ever."""
    ref = node.claim(1, node.device(0))
    instance = await prepared(node, ref)
    base = node.run_dir / "metadata"
    stray, foreign = base / f"{DRIVER}_{uid(7)}", base / f"other.example.com_{uid(7)}"
    for one in (stray, foreign):
        one.mkdir()
        (one / "gpu.json").touch()
    assert instance.metadata.sweep([ref.uid]) == (f"metadata of claim {uid(7)}",)
    assert {one.name for one in base.iterdir()} == {f"{DRIVER}_{ref.uid}", foreign.name}


@pytest.fixture(scope="module")
def reader() -> Iterator[Oracle]:
    """Kubernetes' own reader of such files."""
    with Oracle("metadata") as found:
        yield found


@pytest.mark.parametrize("form", FORMS)
async def test_the_reader_of_kubernetes_takes_them(
    node: FormsNode, form: str, reader: Oracle
) -> None:
    """Both versions decode and are valid by k8s.io/dynamic-resource-allocation/devicemetadata."""
    ref = claimed(node, form)
    await prepared(node, ref)
    (host,) = next(iter(mounted(node, ref).values())).values()
    both = objects(host)
    texts = [host.read_text(), *map(json.dumps, both)]
    answers = [reader.ask({"file": text}) for text in texts]
    assert [one["version"] for one in answers] == ["v1beta1", "v1beta1", "v1alpha1"]
    for one in answers:
        assert {"error", "invalid"}.isdisjoint(one), one
        assert json.dumps(ref.uid) in json.dumps(one["object"])
    assert len(both[0]["requests"][0]["devices"][0]["attributes"]) <= 32
