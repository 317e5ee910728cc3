# SPDX-License-Identifier: Apache-2.0
"""How two cards reach each other, as nvidia-smi topo -m would say it."""

from pathlib import Path

import pytest

from gpudra.controller.ctl.main import main
from gpudra.driver.core.topologymatrix import Place, between, matrix, places
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware
from tests.fakenvml.machine import FakeMachine


def place(key: str, *bridges: str, root: str | None = "pci0", numa: int | None = 0) -> Place:
    """A card below some bridges."""
    return Place(key=key, root=root, bridges=bridges, numa=numa)


@pytest.mark.parametrize(
    ("one", "other", "word"),
    [
        (place("a"), place("a"), "X"),
        (place("a", "rp", "up", "d1"), place("b", "rp", "up", "d2"), "PIX"),
        (
            place("a", "rp", "up", "d1", "up1", "e1"),
            place("b", "rp", "up", "d2", "up2", "e2"),
            "PXB",
        ),
        (place("a", "rp", "up", "d1"), place("b", "rp", "up", "d2", "up2", "e2"), "PXB"),
        (place("a", "rp1"), place("b", "rp2"), "PHB"),
        (place("a"), place("b", root="pci1"), "NODE"),
        (place("a"), place("b", root="pci1", numa=1), "SYS"),
        (place("a", root=None, numa=None), place("b", root=None, numa=None), "SYS"),
        (Place(key="a", domain="d"), Place(key="b", domain="d"), "NV"),
        (Place(key="a", links={"b": 4}), Place(key="b"), "NV4"),
        (Place(key="a", root="r", switch="s"), Place(key="b", root="r", switch="s"), "PXB"),
    ],
)
def test_the_best_way_between_two_cards(one: Place, other: Place, word: str) -> None:
    """NVLink before PCIe, and the nearest common bridge decides."""
    assert between(one, other) == word


@pytest.mark.parametrize(
    "profile", ["dgx-a100-8x40", "dgx-h100-8x80", "a30-2x", "l4-4x", "rtx4090-2x", "mixed"]
)
def test_the_matrix_is_symmetric(profile: str) -> None:
    """Whatever the machine, both ways are one way."""
    cells = matrix(places(build_inventory(load_hardware(profile))))
    assert cells == tuple(zip(*cells, strict=True))
    assert all(row[number] == "X" for number, row in enumerate(cells))


def test_switches_carry_as_many_links_as_both_cards_have() -> None:
    """Behind NVSwitches no link names a GPU: NV18 between any two of a DGX H100."""
    cells = matrix(places(build_inventory(load_hardware("dgx-h100-8x80"))))
    assert {cell for row in cells for cell in row} == {"X", "NV18"}


def test_this_machines_cards_are_listed_with_their_topology(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`GPUDRA_NVML_LIBRARY=<library> gpudra devices`, nothing else given."""
    machine = FakeMachine("dgx-h100-8x80", tmp_path)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert text.count("NVIDIA H100 80GB HBM3") == 8
    assert "GPU7   NV18   NV18   NV18   NV18   NV18   NV18   NV18   X " in text


def test_published_slices_give_the_matrix_too(capsys: pytest.CaptureFixture[str]) -> None:
    """From a Hardware file, with the names of the devices and a legend of what is used."""
    assert main(["devices", "--hardware", "l4-4x", "--topology"]) == 0
    text = capsys.readouterr().out
    assert "GPU3" in text
    assert "the card itself" in text
    assert "NVLinks" not in text
