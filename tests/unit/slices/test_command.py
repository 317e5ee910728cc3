# SPDX-License-Identifier: Apache-2.0
"""``gpudra slices``: from a Hardware file to slices, without a cluster."""

import json
from pathlib import Path

import pytest
import yaml

from gpudra.api.resource_v1 import ResourceSlice
from gpudra.controller.ctl.main import main
from gpudra.driver.devicelib.simulated import profile_names


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["slices", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("profile", profile_names())
def test_yaml_is_one_list_that_reads_back(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What kubectl is given is one List of complete slices with the true count."""
    code, out, err = _run(capsys, "--hardware", profile, "--node-name", "node-7", "-o", "yaml")
    assert (code, err) == (0, "")
    raw = yaml.safe_load(out)
    assert (raw["apiVersion"], raw["kind"]) == ("v1", "List")
    slices = [ResourceSlice.from_dict(item) for item in raw["items"]]
    assert [one.to_dict() for one in slices] == raw["items"]
    assert {one.spec.node_name for one in slices} == {"node-7"}
    assert {one.spec.pool.resource_slice_count for one in slices} == {len(slices)}


def test_json_and_yaml_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs may choose."""
    _, as_json, _ = _run(capsys, "--hardware", "mixed", "-o", "json")
    _, as_yaml, _ = _run(capsys, "--hardware", "mixed", "-o", "yaml")
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


def test_the_table_has_a_row_for_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    """People see slice, product, memory and topology at a glance."""
    code, out, _ = _run(capsys, "--hardware", "dgx-h100-8x80", "--forms", "whole")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split()[:2] == ["SLICE", "DEVICE"]
    assert len(lines) == 9
    assert all("81559Mi" in line and "NVIDIA H100" in line for line in lines[1:])


def test_a_wrong_file_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for what the user can mend."""
    path = tmp_path / "h.yaml"
    path.write_text(
        "apiVersion: gpudra.io/v1alpha1\nkind: Hardware\nmetadata: {name: a}\nspec: {}\n"
    )
    code, out, err = _run(capsys, "--hardware", str(path))
    assert (code, out) == (1, "")
    assert f"{path}:4: spec.gpus: is required" in err


def test_another_driver_name_keeps_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Attributes belong to whatever the driver is called."""
    _, out, _ = _run(capsys, "--hardware", "l4-4x", "--driver", "gpu.example.com")
    assert "node-gpu.example.com-devices-00003" in out
    assert "NVIDIA L4" in out
