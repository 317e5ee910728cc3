# SPDX-License-Identifier: Apache-2.0
"""Opens the device library that was asked for; called by the node agent and by the CLI.

Imports are lazy: none of the backends is small, and a process uses one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpudra.api.errors import InputError
from gpudra.driver.devicelib.protocol import DeviceLib

# Tests and tools point it at a library of their own; the agent has a flag of the same meaning.
LIBRARY_VARIABLE = "GPUDRA_NVML_LIBRARY"
HOST_ROOT_VARIABLE = "GPUDRA_HOST_ROOT"


class Backend(StrEnum):
    """Where the node's cards are read from."""

    NVML = "nvml"
    SIMULATED = "simulated"
    DECLARED = "declared"
    AMD = "amd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Which library, and where it finds things.

    Attributes:
        backend: which one.
        hardware: of ``simulated``: profile or Hardware file; of ``declared``: DeviceInventory file.
        node_name: salts uuids of simulated cards and link domains of declared ones.
        state_dir: of ``simulated``: its device files and MIG state.
        nvml_library: path of ``libnvidia-ml.so.1``; None looks below the driver root.
        driver_root: host path of the NVIDIA driver's files.
        host_root: the host's ``/`` as this process sees it.
    """

    backend: Backend
    hardware: str = ""
    node_name: str = ""
    state_dir: Path = Path("/var/lib/gpudra")
    nvml_library: Path | None = None
    driver_root: str = "/"
    host_root: Path = Path("/")


def open_device_lib(
    source: Source, on_call: Callable[[float, bool], object] | None = None
) -> DeviceLib:
    """The library. Whether its driver is there shows later (``readiness``).

    Args:
        source: which one.
        on_call: told of every call into a driver's library: seconds, and whether it answered.

    Raises:
        InputError: a profile or file that is missing or wrong.
        StateError: the state folder of simulated hardware is damaged.
    """
    if source.backend is Backend.NVML:
        from gpudra.driver.devicelib.nvml import NvmlLib  # noqa: PLC0415

        return NvmlLib(
            library=source.nvml_library,
            driver_root=source.driver_root,
            host_root=source.host_root,
            on_call=on_call,
        )
    if source.backend is Backend.AMD:
        from gpudra.driver.devicelib.amd import AmdLib  # noqa: PLC0415

        return AmdLib(host_root=source.host_root)
    if not source.hardware:
        raise InputError(f"device library {source.backend} needs a file", field="hardware")
    if source.backend is Backend.DECLARED:
        from gpudra.driver.devicelib.declared import DeclaredLib  # noqa: PLC0415

        return DeclaredLib(
            Path(source.hardware), host_root=source.host_root, node_name=source.node_name
        )
    from gpudra.driver.devicelib.simulated import open_simulated  # noqa: PLC0415

    return open_simulated(source.hardware, state_dir=source.state_dir, node_name=source.node_name)
