# SPDX-License-Identifier: Apache-2.0
"""``gpudra convert``: what it prints, what it leaves alone, and how it refuses."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gpudra.controller.ctl.convertfile import read_parts, yaml_text
from gpudra.controller.ctl.main import main

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: team}
spec:
  containers:
  - name: c
    image: x
    command: ["sh", "-c", "echo 1\\necho 2\\n"]
    args: ["1e3", "10:20", "yes", 0x1f, plain]
    resources:
      limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: %s}
"""
OTHER = """\
# stays as it is
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data: {mode: "0644", when: 2026-01-01}   # all of it
"""
NAME = "gpudra-nvidia-1x-share-m3000"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pod between other objects."""
    path = tmp_path / "f.yaml"
    path.write_text(f"---\n{OTHER}---\n{POD % 3000}\n--- # last\n{OTHER}")
    return path


def test_yaml_keeps_what_is_not_converted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other documents leave as they came; the template comes before the pod, comments say what was done."""
    assert main(["convert", "-f", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.count(OTHER.strip()) == 2
    assert f"# gpudra convert: requests are claims now, by {NAME}" in printed
    kinds = [one["kind"] for one in yaml.safe_load_all(printed)]
    assert kinds == ["ConfigMap", "ResourceClaimTemplate", "Pod", "ConfigMap"]


def test_texts_mean_the_same_afterwards(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What some reader could take for a number is quoted; long texts are blocks."""
    main(["convert", "-f", str(file)])
    pod = list(yaml.safe_load_all(capsys.readouterr().out))[2]
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["1e3", "10:20", "yes", 31, "plain"]
    assert container["command"] == ["sh", "-c", "echo 1\necho 2\n"]
    assert '"1e3"' in yaml_text({"a": "1e3"})
    assert '"12:30:45"' in yaml_text({"a": "12:30:45"})
    assert "20480Mi\n" in yaml_text({"a": "20480Mi", "b": 1})


def test_numbers_are_read_as_kubernetes_reads_them(tmp_path: Path) -> None:
    """0644 is octal, minutes are text, times are text."""
    path = tmp_path / "f.yaml"
    path.write_text("{kind: X, a: 0644, b: 1:30, c: 2026-01-01, d: 12}")
    (part,) = read_parts(str(path))
    assert part.document.data == {"kind": "X", "a": 420, "b": "1:30", "c": "2026-01-01", "d": 12}


def test_json_is_one_list(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All objects, also those that were not converted; JSON is read as well."""
    assert main(["convert", "-f", str(file), "-o", "json"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert [one["kind"] for one in found["items"]][1] == "ResourceClaimTemplate"
    again = file.with_suffix(".json")
    again.write_text(printed.replace("  ", "\t"))
    assert main(["convert", "-f", str(again), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == found["items"]


def test_the_items_of_a_list_become_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one template for equal requests."""
    path = tmp_path / "f.yaml"
    pods = [yaml.safe_load(POD % 3000) for _ in range(2)]
    pods[1]["metadata"]["name"] = "q"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": pods}))
    assert main(["convert", "-f", str(path)]) == 0
    kinds = [one["kind"] for one in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["ResourceClaimTemplate", "Pod", "Pod"]


def test_a_refusal_prints_nothing_and_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every refusal with file, line, object, field and value, and no half conversion on stdout."""
    path = tmp_path / "f.yaml"
    path.write_text(f"{POD % 3000}---\n{POD % '16Gi'}---\n{POD % '8Gi'}")
    assert main(["convert", "-f", str(path)]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = printed.err.splitlines()
    where = f"refused: {path}:23: Pod p: spec.containers[0].resources.limits[nvidia.com/gpumem]"
    assert first.startswith(f"{where}: '16Gi' is no plain whole number")
    assert "'8Gi'" in second


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (["--card-memory", "40Gi, 81559Mi"], "40Gi,81559Mi"),
        (["--hardware", "l4-4x", "--hardware", "dgx-h100-8x80"], "23034Mi,81559Mi"),
    ],
)
def test_a_part_of_a_card_is_taken_of_the_cards_that_are_named(
    options: list[str], sizes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The template and a note say which; without them it is refused, and it is said how to say so."""
    path = tmp_path / "f.yaml"
    path.write_text((POD % 1).replace("gpumem", "gpumem-percentage"))
    assert main(["convert", "-f", str(path)]) == 3
    assert "by --card-memory, --hardware or --from-cluster" in capsys.readouterr().err
    assert main(["convert", "-f", str(path), *options]) == 0
    printed = capsys.readouterr()
    template = next(iter(yaml.safe_load_all(printed.out)))
    assert template["metadata"]["annotations"] == {"gpudra.io/card-sizes": sizes}
    assert f"sizes considered are {sizes}" in printed.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "is no Kubernetes object"),
        ("kind: Pod\nkind: Job", "the key 'kind' stands twice"),
        ("&a [*a]", "cannot be read as YAML"),
        ("kind: Pod\nmetadata: {annotations: {1: x}}", "metadata.annotations: 1 is not text"),
        ("kind: Pod\nspec: {containers: 1}", "spec.containers: 1 is not a list"),
    ],
)
def test_what_is_no_object_is_named(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file, as one line."""
    path = tmp_path / "f.yaml"
    path.write_text(text)
    assert main(["convert", "-f", str(path)]) in (1, 3)
    printed = capsys.readouterr()
    assert message in printed.err
    assert str(path) in printed.err
    assert printed.out == ""


def test_kinds_that_are_not_known_may_hold_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers for keys, text for metadata: passed as they are, with a word on what they hold."""
    path = tmp_path / "f.yaml"
    path.write_text("kind: Odd\nmetadata: x\nspec: {1: [nvidia.com/gpumem: 1]}")
    assert main(["convert", "-f", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == path.read_text()
    assert "holds nvidia.com/gpumem" in printed.err


@pytest.mark.parametrize("size", ["", "0", "much", "-1Gi"])
def test_sizes_of_cards_are_amounts(
    size: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else."""
    assert main(["convert", "-f", str(file), f"--card-memory={size}"]) == 1
    assert "--card-memory" in capsys.readouterr().err


def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``-``."""
    stdin = SimpleNamespace(buffer=io.BytesIO((POD % 3000).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["convert", "-f", "-"]) == 0
    assert NAME in capsys.readouterr().out
