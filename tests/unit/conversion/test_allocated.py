# SPDX-License-Identifier: Apache-2.0
"""Converted claims on simulated hardware: the allocator gives what the old words meant."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.controller.ctl.main import main
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.conversion.live import cards_of, sizes_in
from gpudra.driver.core.conversion.names import ask_of
from gpudra.driver.core.conversion.templates import template_of
from gpudra.driver.core.forms import EVERYTHING

CLASSES = checkout_dir() / "deploy" / "manifests" / "deviceclasses.yaml"
DRIVER = "gpu.gpudra.io"


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    """A node with eight H100, and the classes."""
    slices = slices_of_hardware("dgx-h100-8x80", driver=DRIVER, node_name="n", policy=EVERYTHING)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    classes = list(yaml.safe_load_all(CLASSES.read_text()))
    return [*(one.to_dict() for one in slices), *classes, node]


@pytest.mark.parametrize(
    ("name", "requests", "amounts"),
    [
        ("gpudra-nvidia-2x-gpu-numa", ["gpu"] * 2, {}),
        ("gpudra-nvidia-4x-gpu-nnvlink", ["gpu/nvlink"] * 4, {}),
        ("gpudra-nvidia-1x-gpu-ta100.h100", ["gpu"], {}),
        ("gpudra-nvidia-1x-gpu-xa10.t4", ["gpu"], {}),
        ("gpudra-nvidia-1x-share-f3333", ["gpu"], {"memory": "27183Mi", "compute": "0"}),
        ("gpudra-nvidia-1x-share-c25", ["gpu"], {"memory": "81559Mi", "compute": "25"}),
        (
            "gpudra-nvidia-2x-share-f2500-c20-nnuma",
            ["gpu/numa-of-81559mi"] * 2,
            {"memory": "20389Mi", "compute": "20"},
        ),
        ("gpudra-nvidia-1x-mig-m8000", ["gpu/of-9984mi"], {}),
        ("gpudra-nvidia-2x-mig-m30000", ["gpu/of-40448mi"] * 2, {}),
        ("gpudra-nvidia-1x-mig-p1g.10gb.me", ["gpu"], {}),
    ],
)
def test_a_converted_claim_gets_what_the_old_words_meant(
    name: str,
    requests: list[str],
    amounts: dict[str, str],
    objects: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The wish that can be had, the amount of that card, the smallest part; never twice one card."""
    found = allocate(name, objects, tmp_path, capsys)
    assert requests == [one["request"] for one in found]
    assert [amounts] * len(found) == [one.get("consumedCapacity", {}) for one in found]
    cards = {one["device"].partition("-mig-")[0] for one in found}
    assert len(cards) == len(found)


@pytest.mark.parametrize(
    "name",
    [
        "gpudra-nvidia-1x-gpu-ta100",
        "gpudra-nvidia-1x-gpu-xh100",
        "gpudra-nvidia-1x-gpu-u0f01d86180c158818bfc0ebb3e92ac5e",
        "gpudra-amd-1x-gpu",
        "gpudra-nvidia-9x-share-m1000",
    ],
)
def test_another_card_is_never_taken(
    name: str,
    objects: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of another type, another vendor, another uuid, or the same one twice."""
    assert allocate(name, objects, tmp_path, capsys) == []


def allocate(
    name: str,
    objects: list[dict[str, Any]],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> list[dict[str, Any]]:
    """What ``gpudra allocate`` gives to a claim from the template of this name."""
    ask = ask_of(name)
    assert ask is not None
    cards = cards_of(sizes_in(one) for one in objects if one["kind"] == "ResourceSlice")
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": template_of(ask, cards=cards)["spec"]["spec"],
    }
    file = folder / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, claim]}))
    main(["allocate", "-f", str(file), "--claim", "default/c", "-o", "json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["results"]
    return found
