# SPDX-License-Identifier: Apache-2.0
"""What a container needs to use a device, as pure data.

Backends of gpudra.driver.devicelib say it, gpudra.driver.core.cdi writes it as a CDI document.
The fields are those of ``containerEdits`` in the CDI specification (cncf-tags/container-device-
interface, SPEC.md); paths named ``host_path`` are those that the container runtime sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device file in the container.

    Attributes:
        path: in the container.
        host_path: on the host, where it differs from ``path``.
        type: ``c``, ``b``, ``u`` or ``p``; empty lets the runtime look at the host's file.
        permissions: of the cgroup, ``rw`` or ``rwm``.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host that the container sees."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "rbind", "rprivate")
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program that the runtime starts, for example ``createContainer``."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Everything together. ``env`` are pairs of name and value, in order."""

    device_nodes: tuple[DeviceNode, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()


def merge(edits: Iterable[ContainerEdits]) -> ContainerEdits:
    """One set of edits from several: doubles are dropped, the last value of a variable wins."""
    parts = tuple(edits)
    env = {name: value for part in parts for name, value in part.env}
    return ContainerEdits(
        device_nodes=tuple(dict.fromkeys(node for part in parts for node in part.device_nodes)),
        env=tuple(env.items()),
        mounts=tuple(dict.fromkeys(mount for part in parts for mount in part.mounts)),
        hooks=tuple(dict.fromkeys(hook for part in parts for hook in part.hooks)),
        additional_gids=tuple(dict.fromkeys(gid for part in parts for gid in part.additional_gids)),
    )
