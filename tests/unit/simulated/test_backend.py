# SPDX-License-Identifier: Apache-2.0
"""The simulated backend: readiness, discovery, edits, faults."""

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import DeviceGoneError, HardwareError, InputError
from gpudra.api.hardware import Fault, Hardware
from gpudra.driver.core.edits import ContainerEdits
from gpudra.driver.devicelib.protocol import DeviceLib, HealthEvent, HealthKind
from gpudra.driver.devicelib.simulated import SimulatedLib, load_hardware, open_simulated
from gpudra.driver.devicelib.simulated.state import FAULTS_FILE


class _Time:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _with(profile: str, **changes: Any) -> Hardware:
    hardware = load_hardware(profile)
    raw = hardware.model_dump(mode="json")
    raw["spec"].update(changes)
    return Hardware.model_validate_json(json.dumps(raw))


def _lib(hardware: Hardware, folder: Path, time: _Time | None = None) -> SimulatedLib:
    return SimulatedLib(
        hardware,
        state_dir=folder,
        node_name="n",
        monotonic=time or _Time(),
        pause=lambda _: None,
    )


def _uuid(lib: SimulatedLib, index: int) -> str:
    uuid = lib.discover().gpus[index].uuid
    assert uuid is not None
    return uuid


def test_it_is_a_device_library(tmp_path: Path) -> None:
    """The type checker holds it against the protocol here; what it lacks, it says."""
    lib: DeviceLib = open_simulated("l4-4x", state_dir=tmp_path, node_name="n")
    assert lib.name == "simulated"
    assert lib.readiness().ready
    assert lib.partitions is None
    assert (lib.tuning, lib.usage) == (None, None)
    assert lib.health is not None
    assert open_simulated("a30-2x", state_dir=tmp_path).partitions is not None
    lib.close()
    lib.close()


def test_a_late_driver_is_waited_for(tmp_path: Path) -> None:
    """Before the driver is there nothing is known, which is not the same as no cards."""
    time = _Time()
    driver = {"version": "580.1", "cuda": "13.0", "root": "/", "readyAfterSeconds": 5}
    lib = _lib(_with("t4-1x", driver=driver), tmp_path, time)
    assert (lib.readiness().ready, lib.readiness().reason) == (False, "DriverMissing")
    with pytest.raises(HardwareError, match="comes 5 s after start"):
        lib.discover()
    time.now += 5
    assert lib.readiness().ready
    assert len(lib.discover().gpus) == 1


def _host_files(edits: ContainerEdits) -> dict[str, str]:
    return {node.path: node.host_path or node.path for node in edits.device_nodes}


def test_edits_map_device_files_into_the_container(tmp_path: Path) -> None:
    """Each card has its own file; control files are common to all."""
    lib = _lib(load_hardware("l4-4x"), tmp_path)
    files = [_host_files(lib.gpu_edits(_uuid(lib, index))) for index in range(4)]
    assert [list(one) for one in files] == [[f"/dev/nvidia{index}"] for index in range(4)]
    common = _host_files(lib.common_edits())
    assert set(common) == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    for host in (*common.values(), *(host for one in files for host in one.values())):
        found = Path(host).stat()
        assert stat.S_ISCHR(found.st_mode)
        assert found.st_rdev == Path("/dev/null").stat().st_rdev


def test_without_the_right_to_make_nodes_dev_null_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user can run everything as well."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", refuse)
    lib = _lib(load_hardware("t4-1x"), tmp_path)
    assert _host_files(lib.gpu_edits(_uuid(lib, 0))) == {"/dev/nvidia0": "/dev/null"}


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "dev").write_text("")
    lib = _lib(load_hardware("t4-1x"), tmp_path)
    with pytest.raises(HardwareError, match="cannot make the device file"):
        lib.gpu_edits(_uuid(lib, 0))


def test_unknown_cards_are_refused(tmp_path: Path) -> None:
    """A key that was never reported is a mistake of the caller."""
    with pytest.raises(InputError, match="GPU-none"):
        _lib(load_hardware("t4-1x"), tmp_path).gpu_edits("GPU-none")


def test_faults_of_the_file_happen_in_time(tmp_path: Path) -> None:
    """An XID after ten seconds, the loss of another card after twenty, its return after thirty."""
    time = _Time()
    faults = [
        {"gpu": 1, "kind": "lost", "afterSeconds": 20, "message": "fell off the bus"},
        {"gpu": 0, "kind": "xid", "xid": 79, "afterSeconds": 10},
        {"gpu": 1, "kind": "recovered", "afterSeconds": 30},
    ]
    lib = _lib(_with("a30-2x", faults=faults), tmp_path, time)
    first, second = (_uuid(lib, 0), _uuid(lib, 1))
    assert lib.wait(0) == ()
    time.now += 10
    assert lib.wait(0) == (HealthEvent(gpu=first, kind=HealthKind.XID, xid=79),)
    time.now += 10
    assert [gpu.lost for gpu in lib.discover().gpus] == [False, True]
    with pytest.raises(DeviceGoneError):
        lib.gpu_edits(second)
    assert lib.wait(0) == (
        HealthEvent(gpu=second, kind=HealthKind.LOST, message="fell off the bus"),
    )
    time.now += 10
    assert not lib.discover().gpus[1].lost
    assert [event.kind for event in lib.wait(0)] == [HealthKind.RECOVERED]


def test_a_recovered_xid_does_not_bring_a_lost_card_back(tmp_path: Path) -> None:
    """Each cause ends on its own."""
    lib = _lib(load_hardware("t4-1x"), tmp_path)
    uuid = _uuid(lib, 0)
    for raw in ('{"gpu": 0, "kind": "lost"}', '{"gpu": 0, "kind": "recovered", "xid": 79}'):
        lib.inject(Fault.model_validate_json(raw))
    gpu = lib.discover().gpu(uuid)
    assert gpu is not None
    assert gpu.lost


def test_faults_can_be_thrown_in_through_a_file(tmp_path: Path) -> None:
    """Whoever appends to faults.yaml in the state folder makes trouble in a running agent."""
    lib = _lib(load_hardware("l4-4x"), tmp_path)
    path = tmp_path / FAULTS_FILE
    path.write_text("- {gpu: 2, kind: xid, xid: 48}\n")
    assert [event.xid for event in lib.wait(0)] == [48]
    assert lib.wait(0) == ()
    path.write_text(path.read_text() + f"- {{gpu: {_uuid(lib, 3)}, kind: lost}}\n")
    assert [event.kind for event in lib.wait(0)] == [HealthKind.LOST]
    assert [gpu.lost for gpu in lib.discover().gpus] == [False, False, False, True]


def test_a_malformed_faults_file_is_named_once(tmp_path: Path) -> None:
    """A typing error is an error with file and line, and the next call goes on."""
    lib = _lib(load_hardware("t4-1x"), tmp_path)
    (tmp_path / FAULTS_FILE).write_text("- {gpu: 0, kind: xid, xid: 79}\n- {gpu: 0, kidn: lost}\n")
    with pytest.raises(HardwareError, match=r"faults\.yaml:2: "):
        lib.wait(0)
    assert lib.wait(0) == ()


def test_closing_wakes_whoever_waits_for_events(tmp_path: Path) -> None:
    """The agent's event thread ends at once when the agent stops."""
    lib = open_simulated("t4-1x", state_dir=tmp_path)
    results: list[tuple[HealthEvent, ...]] = []
    thread = threading.Thread(target=lambda: results.append(lib.wait(3600)))
    thread.start()
    lib.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert results == [()]


def test_readings_that_fail_cost_only_themselves(tmp_path: Path) -> None:
    """NotSupported is silent, NoPermission and bytes that are no text are told."""
    hardware = load_hardware("rtx4090-2x")
    raw = hardware.model_dump(mode="json")
    raw["spec"]["gpus"][0]["unreadable"] = {
        "memory": "notSupported",
        "productName": "notText",
        "mig": "noPermission",
    }
    raw["spec"]["gpus"][0]["slowMilliseconds"] = 50
    waited: list[float] = []
    lib = SimulatedLib(
        Hardware.model_validate_json(json.dumps(raw)),
        state_dir=tmp_path,
        pause=waited.append,
    )
    inventory = lib.discover()
    first, second = inventory.gpus
    assert (first.memory_bytes, first.product_name) == (None, None)
    assert second.memory_bytes
    assert [problem.reading for problem in inventory.problems] == ["productName", "mig"]
    assert waited == [0.05]
