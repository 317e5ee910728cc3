# SPDX-License-Identifier: Apache-2.0
"""What ``gpudra slices`` publishes, given out by ``gpudra allocate``: forms exclude each other."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.main import main

CLASSES = Path(__file__).parents[3] / "deploy/manifests/deviceclasses.yaml"
ALL = "whole,mig,share,monitor"


class Desk:
    """Files in a folder, and the two commands over them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], profile: str) -> None:
        self.capsys = capsys
        self.file = folder / "objects.yaml"
        main(["slices", "--hardware", profile, "--node-name", "n", "--forms", ALL, "-o", "yaml"])
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
        slices = yaml.safe_load(capsys.readouterr().out)["items"]
        self.objects = [node, *slices, *yaml.safe_load_all(CLASSES.read_text())]
        self.write()

    def write(self) -> None:
        self.file.write_text(yaml.safe_dump_all(self.objects))

    def claim(self, name: str, class_: str, *selectors: str, **exactly: Any) -> str | None:
        """Allocates a claim of one device; the device, or None where there is none."""
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": one}} for one in selectors]
        request = {"name": "r", "exactly": {"deviceClassName": class_, **exactly}}
        self.objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        self.write()
        command = ["allocate", "-f", str(self.file), "--claim", name, "--commit", str(self.file)]
        code = main([*command, "-o", "json"])
        answer = json.loads(self.capsys.readouterr().out)
        self.objects = list(yaml.safe_load_all(self.file.read_text()))
        if code:
            assert answer["outcome"] == "unsatisfiable"
            self.objects.pop()
            return None
        return str(answer["results"][0]["device"])

    def mig(self, name: str, profile: str) -> str | None:
        """A claim of a part."""
        return self.claim(
            name,
            "mig.gpudra.io",
            f'device.attributes["gpu.gpudra.io"].profile == "{profile}"',
        )


def card(device: str | None) -> str:
    """The card's part of a device's name."""
    assert device is not None
    return "-".join(device.split("-")[:3])


def test_forms_of_a_card_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two 3g share a card, whole and shares go elsewhere, two small shares lie together."""
    desk = Desk(tmp_path, capsys, "dgx-h100-8x80")
    first, second = desk.mig("a", "3g.40gb"), desk.mig("b", "3g.40gb")
    assert card(first) == card(second)
    whole = desk.claim("c", "gpu.gpudra.io")
    wanted = {"memory": "10Gi"}
    small = desk.claim("d", "share.gpudra.io", capacity={"requests": {**wanted, "compute": "30"}})
    other = desk.claim("e", "share.gpudra.io", capacity={"requests": wanted})
    large = desk.claim("f", "share.gpudra.io", capacity={"requests": {"memory": "75Gi"}})
    assert small == other
    assert len({card(one) for one in (first, whole, small, large)}) == 4


def test_three_small_parts_leave_what_case_23_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Free memory slices that are not side by side make no 3g, with our own counters too."""
    desk = Desk(tmp_path, capsys, "a30-2x")
    # A30 has no dynamic switch and starts whole: nothing to cut there.
    assert desk.mig("none", "1g.6gb") is None
    desk = Desk(tmp_path, capsys, "dgx-h100-8x80")
    at = 'device.attributes["gpu.gpudra.io"].index == 0'
    profile = 'device.attributes["gpu.gpudra.io"].profile == "{}"'
    taken = [desk.claim(f"s{n}", "mig.gpudra.io", at, profile.format("1g.10gb")) for n in (1, 2)]
    assert [str(one)[-1] for one in taken] == ["6", "4"]
    big = desk.claim("x", "mig.gpudra.io", at, profile.format("3g.40gb"))
    assert str(big).endswith("-mig-3g40gb-0")
    # 1g.20gb may start at 0, 2, 4 and 6 only: slices 5 and 7 are free, and are no place for it.
    assert desk.claim("y", "mig.gpudra.io", at, profile.format("1g.20gb")) is None
    assert str(desk.claim("z", "mig.gpudra.io", at, profile.format("1g.10gb"))).endswith("-5")


def test_parts_of_one_card_by_constraint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 25 with our attributes: parentUUID ties parts to one card, round a card in use."""
    desk = Desk(tmp_path, capsys, "dgx-h100-8x80")
    first = desk.mig("small", "1g.10gb")
    requests = [
        {
            "name": f"r{slices}",
            "exactly": {
                "deviceClassName": "mig.gpudra.io",
                "selectors": [
                    {
                        "cel": {
                            "expression": f'device.attributes["gpu.gpudra.io"].profile == "{profile}"'
                        }
                    }
                ],
            },
        }
        for slices, profile in ((1, "1g.20gb"), (2, "2g.20gb"), (4, "4g.40gb"))
    ]
    spec = {
        "devices": {
            "requests": requests,
            "constraints": [{"matchAttribute": "gpu.gpudra.io/parentUUID"}],
        }
    }
    desk.objects.append(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "three", "namespace": "default", "uid": "three"},
            "spec": spec,
        }
    )
    desk.write()
    assert main(["allocate", "-f", str(desk.file), "--claim", "three", "-o", "json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    cards = {card(one["device"]) for one in results}
    assert len(cards) == 1
    assert cards != {card(first)}
