# SPDX-License-Identifier: Apache-2.0
"""The rows of case 36: names, versions and moments at which runtimes refuse CDI files."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpudra.api.errors import InputError
from gpudra.driver.core import cdi
from gpudra.driver.core.edits import ContainerEdits, DeviceNode
from gpudra.kubelet_plugin.cdi_store import CdiStore
from tests.support.plugin import DRIVER, Node, claim_object, uid

CASE = Path(__file__).parents[2] / "fixtures/cases/36-cdi-files"
ROWS = {row["id"]: row for row in json.loads((CASE / "scenario.json").read_text())["rows"]}
EXPECTED = json.loads((CASE / "expected.json").read_text())["answers"]
EDITS = ContainerEdits(env=(("NAME", "value"),), device_nodes=(DeviceNode(path="/dev/nvidia0"),))


def document(row: dict[str, Any], edits: ContainerEdits = EDITS) -> dict[str, Any]:
    """The document of a row."""
    vendor, _, class_ = row["kind"].partition("/")
    devices = (cdi.CdiDevice(row["device_name"], edits),)
    return cdi.to_json(cdi.CdiDocument(vendor, class_, devices))


def version(text: str) -> tuple[int, ...]:
    """Comparable form of a version."""
    return tuple(int(part) for part in text.split("."))


def test_a_uid_that_starts_with_a_digit_needs_0_5_0() -> None:
    """Half of all uids begin with a digit, which versions before 0.5.0 refuse."""
    row, expected = ROWS["uid-starts-with-digit"], EXPECTED["uid-starts-with-digit"]
    found = document(row)
    assert found["cdiVersion"] == expected["cdiVersion"]
    assert cdi.device_id(DRIVER, row["device_name"]) == expected["id"]


def test_a_uid_that_starts_with_a_letter_takes_an_old_version() -> None:
    """Nothing newer is asked for than the content needs."""
    assert version(document(ROWS["uid-starts-with-letter"])["cdiVersion"]) >= (0, 3, 0)


def test_a_colon_is_valid() -> None:
    """MIG-like names with a colon pass."""
    assert document(ROWS["colon"])["devices"][0]["name"] == "0:1"
    assert EXPECTED["colon"] == "valid"


@pytest.mark.parametrize("row", ["slash", "ends-with-dash", "class-with-digit-first"])
def test_names_that_runtimes_refuse_are_refused_before_anything_is_written(row: str) -> None:
    """The error names the name; a file of it never comes to be."""
    assert EXPECTED[row] == "refused before anything is written"
    with pytest.raises(InputError, match="is not a CDI"):
        document(ROWS[row])


def test_another_host_path_needs_0_5_0() -> None:
    """``hostPath`` of a device node came with 0.5.0."""
    node = DeviceNode(path="/dev/nvidia0", host_path="/run/nvidia/driver/dev/nvidia0")
    found = document(ROWS["host-path-differs"], ContainerEdits(device_nodes=(node,)))
    assert found["cdiVersion"] == EXPECTED["host-path-differs"]["cdiVersion"]
    (written,) = found["devices"][0]["containerEdits"]["deviceNodes"]
    assert written["hostPath"] == node.host_path


def test_a_device_without_edits_is_refused_and_ours_never_lacks_one() -> None:
    """Runtimes refuse it; the prepare plan always sets the device's own variable."""
    with pytest.raises(InputError, match="no edits"):
        document(ROWS["no-edits"], ContainerEdits())


def test_a_reader_sees_whole_files_only(tmp_path: Path) -> None:
    """While files are written and replaced, the runtime reads the old one, none, or the new one."""
    store = CdiStore(tmp_path, DRIVER)
    name = cdi.file_name(DRIVER, uid(1))
    documents = [{"kind": "a", "filler": "x" * size} for size in (10, 9_000)]
    done = threading.Event()
    seen: list[Any] = []

    def read() -> None:
        while not done.is_set():
            for path in tmp_path.glob("*.json"):
                try:
                    seen.append(orjson.loads(path.read_bytes()))
                except FileNotFoundError:
                    continue

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        store.write(name, documents[turn % 2])
        if turn % 5 == 0:
            store.remove(name)
    done.set()
    reader.join()
    assert all(one in documents for one in seen)


async def test_a_missing_device_file_fails_the_claim_and_leaves_nothing(tmp_path: Path) -> None:
    """The message names the missing file; no CDI file and no checkpoint entry are left."""
    node = Node(tmp_path)
    claim = node.api.put(claim_object(uid(1), "a", "gpu-0"))
    missing = node.lib.node(0)
    missing.unlink()
    instance = await node.start()
    (answer,) = await instance.prepare(claim)
    assert str(missing) in answer.error
    assert node.cdi_files() == []
    assert dict(instance.state.records) == {}
    missing.touch()
    (answer,) = await instance.prepare(claim)
    assert answer.ok
    await asyncio.sleep(0)


def test_every_row_of_the_case_has_a_test() -> None:
    """A row that the case gains is not passed over in silence."""
    covered = {
        "uid-starts-with-digit", "uid-starts-with-letter", "colon", "slash", "ends-with-dash",
        "class-with-digit-first", "host-path-differs", "no-edits", "written-while-read",
        "node-missing",
    }  # fmt: skip
    assert covered == set(ROWS) == set(EXPECTED)
