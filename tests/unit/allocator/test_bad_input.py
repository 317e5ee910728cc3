# SPDX-License-Identifier: Apache-2.0
"""Files that are wrong: an error names file, object and field; nothing crashes."""

import contextlib
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudra.controller.ctl.main import main
from tests.support.cases import FOLDER

GOOD = (FOLDER / "05-live-share-holds-counters" / "objects.yaml").read_text()
_EXIT_CODES = {0, 1, 2, 3}


def _run(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["allocate", *words])
    return code, out.getvalue(), err.getvalue()


def _file(folder: Path, text: str) -> str:
    path = folder / "objects.yaml"
    path.write_text(text)
    return str(path)


_WRONG = {
    "not YAML": ("a: [", ["objects.yaml", "is not YAML"]),
    "no object": ("- 1\n- 2\n", ["objects.yaml", "instead of a Kubernetes object"]),
    "a number": ("42", ["objects.yaml", "instead of a Kubernetes object"]),
    "no kind": ("apiVersion: v1\nmetadata: {name: a}", ["objects.yaml", "kind", "is required"]),
    "no name": ("apiVersion: v1\nkind: Node\nmetadata: {}", ["Node", "metadata.name"]),
    "strange version": ("apiVersion: v1/v2/x\nkind: Node\nmetadata: {name: a}", ["not a version"]),
    "old version": (
        "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata: {name: a}",
        ["v1beta1 is not supported", "convert"],
    ),
    "the same twice": (
        "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\n" * 2,
        ["Node a", "stands twice"],
    ),
    "a key twice": ("apiVersion: v1\nkind: Node\nkind: Pod", ["stands twice"]),
    "itself": ("&a\nx: *a\n", ["contains itself"]),
    "too deep": ("[" * 300 + "]" * 300, ["objects.yaml", "nested deeper"]),
    "wrong type": (
        """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a}
spec: {devices: {requests: [{name: x, exactly: {deviceClassName: c, count: many}}]}}
""",
        ["ResourceClaim a", "spec.devices.requests[0].exactly.count", "'many' is not an integer"],
    ),
    "a name that is none": (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: Bad_Name}",
        ["ResourceClaim Bad_Name", "metadata.name", "is not a DNS subdomain"],
    ),
    "a request's name that is none": (
        """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a}
spec: {devices: {requests: [{name: "x/y", exactly: {deviceClassName: c}}]}}
""",
        ["ResourceClaim a", "spec.devices.requests[0].name", "is not a DNS label"],
    ),
    "no claim": ("apiVersion: v1\nkind: Node\nmetadata: {name: a}", ["--claim", "no claim"]),
}


@pytest.mark.parametrize("name", _WRONG)
def test_wrong_file(name: str, tmp_path: Path) -> None:
    """What is wrong with a file is said with file, object and field, in one line."""
    text, pieces = _WRONG[name]
    code, _, err = _run("-f", _file(tmp_path, text))
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    for piece in pieces:
        assert piece in err


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    code, _, err = _run("-f", str(tmp_path / "nothing.yaml"))
    assert code == 1
    assert "nothing.yaml: cannot be read" in err


def test_file_that_unfolds_for_ever(tmp_path: Path) -> None:
    """A file of a few lines that means gigabytes is refused."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    code, _, err = _run("-f", _file(tmp_path, "\n".join(lines)))
    assert code == 1
    assert "unfolds to too many values" in err


def test_names_on_the_command_line(tmp_path: Path) -> None:
    """Nodes, claims and rules that the files do not hold are refused by name."""
    file = _file(tmp_path, GOOD)
    for words, piece in (
        (["--node", "nowhere"], "no node nowhere"),
        (["--claim", "nobody"], "no claim named nobody"),
        (["--taint-rule", "none"], "no DeviceTaintRule none"),
    ):
        code, _, err = _run("-f", file, *words)
        assert code == 1
        assert piece in err


def test_unreadable_slice_costs_its_pool_only(tmp_path: Path) -> None:
    """A slice with a negative counter is reported, and the other pools still serve."""
    bad = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "bad"},
        "spec": {
            "driver": "gpu.example.com", "nodeName": "node-a",
            "pool": {"name": "other", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "-1Gi"}}}],
        },
    }  # fmt: skip
    file = _file(tmp_path, GOOD + "\n---\n" + yaml.safe_dump(bad))
    code, out, err = _run("-f", file, "--node", "node-a", "--claim", "wants-share", "-o", "json")
    assert code == 0
    assert json.loads(out)["results"][0]["device"] == "half-a"
    assert "ResourceSlice bad: spec.devices[0].capacity[memory].value: -1Gi is negative" in err
    code, out, _ = _run("-f", file, "--node", "node-a", "--claim", "wants-full", "-o", "json")
    assert code == 1
    assert json.loads(out)["outcome"] == "node-error"
    assert "gpu.example.com/other" in json.loads(out)["message"]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (
            [{"name": "x"}, {"name": "x"}],
            "objects.yaml: pool gpu.example.com/other: device name x twice",
        ),
        (
            [{"name": "y", "consumesCounters": [
                {"counterSet": "nope", "counters": {"m": {"value": "1"}}}]}],
            "pool gpu.example.com/other: device y refers to the missing counter set nope",
        ),
    ],
)  # fmt: skip
def test_pool_that_contradicts_itself_is_reported(
    devices: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    """A pool with double devices or without its counters is named; the others still serve."""
    bad = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "bad"},
        "spec": {
            "driver": "gpu.example.com", "nodeName": "node-a",
            "pool": {"name": "other", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }  # fmt: skip
    file = _file(tmp_path, GOOD + "\n---\n" + yaml.safe_dump(bad))
    code, _, err = _run("-f", file, "--node", "node-a", "--claim", "wants-share")
    assert code == 0
    assert said in err


def test_expression_with_a_syntax_error(tmp_path: Path) -> None:
    """The place in the expression is shown, and the selector is named."""
    text = GOOD.replace('.profile == "full"', '.profile === "full"')
    code, out, _ = _run("-f", _file(tmp_path, text), "--claim", "wants-full", "-o", "json")
    assert code == 1
    answer = json.loads(out)
    assert answer["outcome"] == "claim-error"
    assert "request gpu: selector #0: CEL compile error" in answer["message"]
    assert "line 1, column" in answer["message"]


def _spoil(value: Any, rng: random.Random) -> Any:
    """The same document with something replaced, dropped or doubled somewhere."""
    if rng.random() < 0.03:
        return rng.choice([None, -1, 10**30, "", "x" * 70, [], {}, [[]], True, 1.5, "é", {"a": 1}])
    if isinstance(value, dict):
        kept = {key: _spoil(item, rng) for key, item in value.items() if rng.random() > 0.01}
        return {**kept, "surprise": 1} if rng.random() < 0.02 else kept
    if isinstance(value, list):
        items = [_spoil(item, rng) for item in value]
        return items + items[:1] if rng.random() < 0.05 else items
    return value


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**48))
def test_spoilt_objects_never_crash(seed: int, tmp_path: Path) -> None:
    """Whatever stands in the fields, the command ends with one of its exit codes."""
    rng = random.Random(seed)
    folder = rng.choice(sorted(path for path in FOLDER.iterdir() if path.name[:2] < "17"))
    documents = [
        _spoil(one, rng) for one in yaml.safe_load_all((folder / "objects.yaml").read_text())
    ]
    file = _file(tmp_path, yaml.safe_dump_all(documents))
    code, out, err = _run("-f", file, "-o", "json", "--timeout", "5")
    assert code in _EXIT_CODES
    assert "Traceback" not in err
    if out:
        assert json.loads(out)["outcome"]


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, len(GOOD)), junk=st.text(max_size=12))
def test_cut_and_spoilt_text_never_crashes(cut: int, junk: str, tmp_path: Path) -> None:
    """Text that is cut and continued with anything ends with one of the exit codes."""
    path = tmp_path / "objects.yaml"
    path.write_bytes((GOOD[:cut] + junk + GOOD[cut + len(junk) :]).encode(errors="surrogatepass"))
    code, _, err = _run("-f", str(path), "-o", "json")
    assert code in _EXIT_CODES
    assert "Traceback" not in err
