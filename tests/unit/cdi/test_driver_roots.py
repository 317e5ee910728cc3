# SPDX-License-Identifier: Apache-2.0
"""Whole CDI documents for four driver roots, checked against the shape that runtimes accept."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpudra.driver.core import cdi, prepare
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.edits import merge
from gpudra.driver.core.inventory import Gpu, MigInstance, Placement
from gpudra.driver.devicelib.nvml.driverfiles import DriverFiles
from tests.support.driverroots import FIXTURES, ROOTS, lay_out
from tests.support.plugin import DRIVER, uid

SCHEMA = yaml.safe_load((FIXTURES.parent / "cdi/schema.yaml").read_text())
CAPS = {"gpu1/mig/gi3/access": 30, "gpu1/mig/gi3/ci0/access": 31, "mig/config": 1, "mig/monitor": 2}


def host_with(root: str, host: Path) -> DriverFiles:
    """Device nodes below the driver root, capabilities below the host's."""
    dev = host / root.strip("/") / "dev"
    names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    for name in (*names, *(f"nvidia-caps/nvidia-cap{cap}" for cap in CAPS.values())):
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).touch()
    for path, minor in CAPS.items():
        file = host / "proc/driver/nvidia/capabilities" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"DeviceFileMinor: {minor}\n")
    return DriverFiles(host_root=host, dev_root=root)


def document(name: str, host: Path) -> Any:
    """A whole card, a MIG device and a monitor of one claim, as a file would hold them."""
    driver = lay_out(name, host)
    files = host_with(driver.root, host)
    gpus = [Gpu(uuid=f"GPU-{number:08x}", minor=number) for number in (0, 1)]
    made = MigInstance(
        uuid="MIG-1",
        profile_id=9,
        gpu_instance_id=3,
        compute_instance_id=0,
        placement=Placement(start=4, size=4),
    )
    kinds = {DeviceKind.WHOLE: gpus[0], DeviceKind.MIG: gpus[1], DeviceKind.MONITOR: gpus[1]}
    parts = {
        cdi.device_name(uid(1), f"{gpu.minor}-{kind}"): AllocatableDevice(
            name=f"{gpu.minor}-{kind}", kind=kind, gpu=gpu
        )
        for kind, gpu in kinds.items()
    }
    whole, mig, monitor = parts
    edits = {
        whole: files.gpu(0),
        mig: files.mig(1, made),
        monitor: merge((files.gpu(1), files.mig_monitor())),
    }
    common = merge((files.common(), driver.edits()))
    found = prepare.document(parts, DRIVER, edits, common, {mig: "MIG-1"})
    return json.loads(json.dumps(found))


@pytest.mark.parametrize("name", ROOTS)
def test_documents_are_the_golden_ones_and_well_formed(name: str, tmp_path: Path) -> None:
    """Nodes and driver files of the right root, in a document that no runtime refuses.

    GPUDRA_UPDATE_GOLDEN=1 writes the files anew.
    """
    found = document(name, tmp_path)
    golden = FIXTURES / f"{name}.cdi.json"
    if os.environ.get("GPUDRA_UPDATE_GOLDEN"):
        golden.write_text(json.dumps(found, indent=1) + "\n")
    jsonschema.validate(found, SCHEMA)
    assert found == json.loads(golden.read_text())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cdiVersion",), "0.2"),
        (("kind",), "no-class"),
        (("devices",), []),
        (("devices", 0, "containerEdits"), {}),
        (("devices", 0, "more"), 1),
        (("containerEdits", "mounts", 0, "containerPath"), "relative"),
    ],
)
def test_the_shape_refuses_what_runtimes_refuse(
    path: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    """A check that accepts everything would prove nothing."""
    found = document("host-driver", tmp_path)
    place = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, SCHEMA)
