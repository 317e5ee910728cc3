# SPDX-License-Identifier: Apache-2.0
"""Reads the PCI tree of the host from sysfs.

``/sys/bus/pci/devices/<address>`` is a link into the tree: each folder on its way is a bridge, the
first one the root complex (Linux, Documentation/ABI/testing/sysfs-bus-pci). ACS does not show in
the tree and is left out on purpose: it decides how peers may talk, not who sits beside whom.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciNode:
    """What sysfs tells of one device. None: not told.

    Attributes:
        root: ``pci0000:15``.
        bridges: addresses from the root port down, without the device itself.
        numa_node: never -1.
    """

    root: str | None = None
    bridges: tuple[str, ...] | None = None
    numa_node: int | None = None


def normal_address(text: str) -> str:
    """``00000000:1B:00.0`` (NVML) → ``0000:1b:00.0`` (sysfs); domains beyond 16 bits keep theirs."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


class PciTree:
    """One host's PCI devices below ``<root>/sys``; ``root`` is ``/`` but for tests and containers."""

    def __init__(self, root: Path) -> None:
        self._devices = root / "sys/bus/pci/devices"

    def node(self, address: str) -> PciNode:
        """What is known of a device; all None where sysfs does not show it."""
        entry = self._devices / address
        try:
            parts = entry.resolve(strict=True).parts
        except OSError:
            return PciNode()
        root = next((part for part in parts if _ROOT.fullmatch(part)), None)
        bridges = tuple(part for part in parts if _ADDRESS.fullmatch(part))[:-1]
        return PciNode(root=root, bridges=bridges if root else None, numa_node=_numa(entry))

    def names(self) -> frozenset[str]:
        """Addresses of all devices; one read of a folder."""
        try:
            return frozenset(os.listdir(self._devices))  # noqa: PTH208 - every two seconds
        except OSError:
            return frozenset()

    def addresses(self, vendor: int, classes: tuple[int, ...]) -> tuple[str, ...]:
        """Devices of a vendor whose base class is one of ``classes``, ascending by address."""
        try:
            entries = sorted(self._devices.iterdir())
        except OSError:
            return ()
        return tuple(
            entry.name
            for entry in entries
            if _number(entry / "vendor") == vendor
            and ((_number(entry / "class") or 0) >> 16) in classes
        )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").strip(), 0)
    except (OSError, ValueError):
        return None


def _numa(entry: Path) -> int | None:
    node = _number(entry / "numa_node")
    return node if node is not None and node >= 0 else None
