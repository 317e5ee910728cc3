# SPDX-License-Identifier: Apache-2.0
"""Hardware files: shipped profiles, and what a wrong file is told."""

from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.api.hardware import Hardware
from gpudra.api.yamlfile import parse_documents
from gpudra.driver.devicelib.files import read_documents
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware, profile_names
from gpudra.driver.devicelib.simulated.catalog import board_catalog

WANTED = {
    "dgx-a100-8x40",
    "dgx-h100-8x80",
    "hgx-h200-8x141",
    "hgx-b200-8x180",
    "gb200-nvl72-4x",
    "a30-2x",
    "l4-4x",
    "t4-1x",
    "rtx4090-2x",
    "mixed",
}

GOOD = """\
apiVersion: gpudra.io/v1alpha1
kind: Hardware
metadata:
  name: test
spec:
  boards:
    small:
      productName: Small
      pci: {vendorId: 0x10de, deviceId: 0x1234}
      memory: 1Gi
      mig:
        computeSlices: 2
        memorySlices: 2
        profiles:
          - {id: 1, name: 1g.1gb, slices: 1, memory: 512Mi, max: 2, placements: "0-1:1"}
  gpus:
    - board: small
      pci: {busId: 0000:15:01.0}
    - board: l4-24gb
      pci: {busId: "0000:18:00.0"}
  faults:
    - {gpu: 0, kind: xid, xid: 79}
"""


def _load(tmp_path: Path, text: str) -> Hardware:
    path = tmp_path / "hardware.yaml"
    path.write_text(text, encoding="utf-8")
    return load_hardware(str(path))


def test_every_promised_profile_is_shipped() -> None:
    """The names are part of the command line's contract."""
    assert set(profile_names()) == WANTED


@pytest.mark.parametrize("profile", sorted(WANTED))
def test_every_profile_gives_as_many_cards_as_its_name_says(profile: str) -> None:
    """Each card has a uuid, an address, memory and a product name."""
    inventory = build_inventory(load_hardware(profile))
    counts = {"mixed": 4, "gb200-nvl72-4x": 4}
    last = profile.rsplit("-", 1)[-1]
    assert len(inventory.gpus) == counts.get(profile) or len(inventory.gpus) == int(
        last.partition("x")[0]
    )
    for gpu in inventory.gpus:
        assert gpu.uuid
        assert gpu.pci
        assert gpu.memory_bytes
        assert gpu.product_name
    assert inventory.problems == ()


def test_big_boards_offer_25_placements() -> None:
    """7 + 7 + 4 + 3 + 2 + 1 + 1 on every board with eight memory slices, 13 on A30."""
    counts = {
        name: sum(len(profile.placements.starts) for profile in board.mig.profiles)
        for name, board in board_catalog().items()
        if board.mig
    }
    assert counts.pop("a30-24gb") == 13
    assert set(counts.values()) == {25}


def test_two_nodes_have_different_cards_and_one_node_always_the_same() -> None:
    """Uuids that a file does not give are made of file, place and node name."""
    first, again, other = (
        [gpu.uuid for gpu in build_inventory(load_hardware("l4-4x"), node_name=node).gpus]
        for node in ("a", "a", "b")
    )
    assert first == again
    assert not set(first) & set(other)
    assert len(set(first)) == 4


def test_a_file_of_ones_own_may_use_the_catalogue(tmp_path: Path) -> None:
    """Own boards and shipped ones side by side; addresses need no quotes."""
    hardware = _load(tmp_path, GOOD)
    gpus = build_inventory(hardware).gpus
    assert [gpu.product_name for gpu in gpus] == ["Small", "NVIDIA L4"]
    assert gpus[0].pci is not None
    assert gpus[0].pci.bus_id == "0000:15:01.0"
    assert set(hardware.spec.boards) == {"small", "l4-24gb"}


def test_a_resolved_file_reads_back_as_json(tmp_path: Path) -> None:
    """What the fake NVML library is given is a Hardware file again, complete with its boards."""
    hardware = _load(tmp_path, GOOD)
    again = tmp_path / "again.json"
    again.write_text(hardware.model_dump_json(), encoding="utf-8")
    assert load_hardware(str(again)) == hardware


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metadata:", "metadta:", ":3: metadta: is not a field here; 1 more like this"),
        ("memory: 1Gi", "memroy: 1Gi", ":10: spec.boards.small.memroy: is not a field here"),
        ("memory: 1Gi", "memory: -1Gi", ":10: spec.boards.small.memory: '-1Gi' is not a positive"),
        ("memory: 1Gi", "memory: much", ":10: spec.boards.small.memory: 'much' is not a quantity"),
        ("board: small", "board: smal", ":17: spec.gpus[0].board: there is no board 'smal'"),
        ("0000:18:00.0", "0000:18:00", ":20: spec.gpus[1].pci.busId: '0000:18:00' is not a PCI"),
        ("0000:18:00.0", "0000:15:01.0", ":5: spec: PCI address 0000:15:01.0 belongs to two cards"),
        ('"0-1:1"', '"0-2:1"', ":11: spec.boards.small.mig: placement 2:1 of 1g.1gb is outside"),
        ('"0-1:1"', '"all"', ":15: spec.boards.small.mig.profiles[0].placements: 'all' is not"),
        ("gpu: 0,", "gpu: 7,", ":5: spec: fault of card 7, but there are 2 cards"),
        (", xid: 79", "", ":22: spec.faults[0]: an xid fault needs the number xid"),
        ("kind: xid", "kind: fire", ":22: spec.faults[0].kind: input should be 'xid'"),
        ("name: test", "name: test\n  name: best", ":5: is not YAML: key 'name' comes twice"),
        ("spec:", "spec: [", ":7: is not YAML: expected"),
        ("kind: Hardware", "kind: Pod", ":2: kind: input should be 'Hardware'"),
    ],
)
def test_a_wrong_file_is_told_file_line_and_field(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """The message points at the line that must be changed."""
    with pytest.raises(InputError) as caught:
        _load(tmp_path, GOOD.replace(old, new, 1))
    assert f"hardware.yaml{message}" in str(caught.value)


def test_a_profile_that_does_not_exist_lists_those_that_do() -> None:
    """A typing error is answered with the right names."""
    with pytest.raises(InputError, match=r"no hardware profile 'dgx-h100'.*dgx-h100-8x80"):
        load_hardware("dgx-h100")


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    """A missing file, a folder, and bytes that are no text."""
    with pytest.raises(InputError, match="No such file"):
        load_hardware(str(tmp_path / "missing.yaml"))
    with pytest.raises(InputError, match="directory"):
        read_documents(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_documents(binary)


def test_a_file_holds_exactly_one_document(tmp_path: Path) -> None:
    """Two nodes in one file would silently be one."""
    with pytest.raises(InputError, match="holds 2 documents"):
        _load(tmp_path, f"{GOOD}---\n{GOOD}")
    with pytest.raises(InputError, match="holds 0 documents"):
        _load(tmp_path, "# nothing\n")


def test_mig_at_start_must_be_possible(tmp_path: Path) -> None:
    """Instances that the board does not offer are an error of the file."""
    for mig, message in (
        ("{enabled: true, instances: [{profile: 9, start: 0}]}", "no MIG profile 9"),
        ("{enabled: true, instances: [{profile: 1, start: 5}]}", "1g.1gb cannot start at 5"),
    ):
        with pytest.raises(InputError, match=message):
            _load(tmp_path, GOOD.replace("board: small", f"board: small\n      mig: {mig}"))
    with pytest.raises(InputError, match="NVIDIA L4 has no MIG"):
        _load(
            tmp_path,
            GOOD.replace("board: l4-24gb", "board: l4-24gb\n      mig: {enabled: true}"),
        )


def test_plain_words_mean_what_yaml_1_2_says() -> None:
    """Addresses are text, not numbers to base 60; "no" is a word."""
    (document,) = parse_documents(
        "a: 0000:15:01.0\nb: no\nc: 0x10\nd: 010\ne: 1e3\nf: ~\ng: 12:30:00\n", "f"
    )
    assert document.data == {
        "a": "0000:15:01.0",
        "b": "no",
        "c": 16,
        "d": 10,
        "e": 1000.0,
        "f": None,
        "g": "12:30:00",
    }
