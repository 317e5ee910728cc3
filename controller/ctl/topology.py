# SPDX-License-Identifier: Apache-2.0
"""The matrix of ``gpudra devices --topology``, and the cards of this machine for it.

Called by gpudra.controller.ctl.devices.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpudra.api.names import split_qualified_name
from gpudra.api.resource_v1 import Device, ResourceSlice
from gpudra.controller.ctl import printers
from gpudra.driver.core.allocatable import gpu_name
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.core.topologymatrix import LEGEND, Place, matrix, places
from gpudra.driver.devicelib.open import (
    HOST_ROOT_VARIABLE,
    LIBRARY_VARIABLE,
    Backend,
    Source,
    open_device_lib,
)

_STANDARD = "resource.kubernetes.io"
_NODES = "sys/devices/system/node"


def host_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The root below which this machine's sysfs lies; a variable moves it, for tests."""
    return Path(environment.get(HOST_ROOT_VARIABLE) or "/")


def read_local(backend: Backend, environment: Mapping[str, str] = os.environ) -> Inventory:
    """The cards of this machine.

    Raises:
        HardwareError: the driver does not answer.
    """
    library = environment.get(LIBRARY_VARIABLE)
    source = Source(
        backend=backend,
        nvml_library=Path(library) if library else None,
        host_root=host_root(environment),
    )
    lib = open_device_lib(source)
    try:
        return lib.discover()
    finally:
        lib.close()


def local_node_name() -> str:
    """The name under which this machine's cards are shown."""
    return socket.gethostname().lower()


def inventory_matrix(inventory: Inventory, root: Path | None = None) -> str:
    """The matrix of an inventory as text.

    Args:
        inventory: the cards.
        root: of the machine's files, for the CPUs of each NUMA node; None leaves them out.
    """
    names = [_name(gpu, place) for place, gpu in enumerate(inventory.gpus)]
    return _text(names, places(inventory), root)


def slices_matrix(slices: Sequence[ResourceSlice], driver: str) -> dict[str, str]:
    """The matrix of each pool, as far as published attributes tell it."""
    pools: dict[str, dict[str, Place]] = {}
    for one in slices:
        for device in one.spec.devices:
            place = _place(device, driver)
            if place is not None:
                pools.setdefault(one.spec.pool.name, {}).setdefault(place.key, place)
    return {
        pool: _text(list(found), list(found.values()), None)
        for pool, found in sorted(pools.items())
    }


def _place(device: Device, driver: str) -> Place | None:
    """A whole card; other forms of it sit at the same place."""
    values = {
        split_qualified_name(name, driver): value for name, value in device.attributes.items()
    }

    def text(name: str, domain: str = driver) -> str | None:
        value = values.get((domain, name))
        return str(value) if value is not None else None

    if text("type") != "gpu":
        return None
    numa = text("numaNode", _STANDARD)
    return Place(
        key=device.name,
        root=text("pcieRoot", _STANDARD),
        switch=text("pcieSwitch"),
        numa=int(numa) if numa is not None and numa.isdigit() else None,
        domain=text("nvlinkDomain"),
    )


def _name(gpu: Gpu, place: int) -> str:
    return gpu_name(gpu) if gpu.key else f"#{place}"


def _text(names: Sequence[str], cards: Sequence[Place], root: Path | None) -> str:
    if not cards:
        return "no GPUs"
    short = [f"GPU{number}" for number in range(len(cards))]
    cells = matrix(cards)
    headers = ("", *short, "NUMA", *(("CPUS",) if root is not None else ()), "DEVICE")
    rows = [
        (
            short[number],
            *cells[number],
            card.numa,
            *((_cpus(root, card.numa),) if root is not None else ()),
            names[number],
        )
        for number, card in enumerate(cards)
    ]
    return printers.format_table(headers, rows) + "\n" + _legend(cells)


def _legend(cells: Sequence[Sequence[str]]) -> str:
    used = {"NV#" if cell[:2] == "NV" and cell != "NV" else cell for row in cells for cell in row}
    return "\n".join(f"  {word:<5}{text}" for word, text in LEGEND.items() if word in used)


def _cpus(root: Path, numa: int | None) -> str:
    if numa is None:
        return ""
    try:
        return (root / _NODES / f"node{numa}" / "cpulist").read_text(encoding="ascii").strip()
    except OSError:
        return ""
