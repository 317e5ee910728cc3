# SPDX-License-Identifier: Apache-2.0
"""The control groups of the nodes: one root a node, in every hierarchy; used by ``node``.

Two kubelets on one machine must not share a cgroup root: each would take the other's pods for
leftovers. Both cgroup v1 (one hierarchy a controller) and v2 (one for all) are served.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from gpudra.api.errors import GpudraError

CGROUP_ROOT = Path("/sys/fs/cgroup")
_V1_REQUIRED = ("cpu", "memory", "cpuset", "pids")
_V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "hugetlb", "pids")


class CgroupError(GpudraError):
    """A control group could not be made or removed."""


class Cgroups:
    """The hierarchies below ``root``.

    Args:
        root: where they are mounted; tests give a folder.
    """

    def __init__(self, root: Path = CGROUP_ROOT) -> None:
        self._root = root

    @property
    def is_v2(self) -> bool:
        """Whether there is one unified hierarchy."""
        return (self._root / "cgroup.controllers").is_file()

    def problem(self) -> str:
        """Why no node can run with these hierarchies; empty when one can."""
        if self.is_v2:
            have = (self._root / "cgroup.controllers").read_text().split()
            missing = [name for name in ("cpu", "memory", "pids") if name not in have]
        else:
            missing = [name for name in _V1_REQUIRED if not (self._root / name).is_dir()]
        if not missing:
            return ""
        return f"no cgroup controller {', '.join(missing)} below {self._root}: mount them (a container needs --privileged)"

    def hierarchies(self) -> list[Path]:
        """Folders below which a node's root must exist."""
        if self.is_v2:
            return [self._root]
        return sorted(
            {path.resolve() for path in self._root.iterdir() if (path / "cgroup.procs").is_file()}
        )

    def create(self, name: str) -> None:
        """Make the root ``name`` (no slash) in every hierarchy, ready for children.

        Raises:
            CgroupError: the kernel refuses it.
        """
        try:
            for hierarchy in self.hierarchies():
                group = hierarchy / name
                group.mkdir(exist_ok=True)
                self._fill_cpuset(hierarchy, group)
            if self.is_v2:
                self._delegate(self._root)
                self._delegate(self._root / name)
        except OSError as error:
            raise CgroupError(
                f"cannot be made ({error})",
                obj=f"cgroup {name}",
                hint="inside a container give it its own cgroup namespace and --privileged",
            ) from error

    def _fill_cpuset(self, hierarchy: Path, group: Path) -> None:
        """A v1 cpuset takes no process before it has cpus and memory nodes."""
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (
                not self.is_v2
                and (hierarchy / file).is_file()
                and not (group / file).read_text().strip()
            ):
                (group / file).write_text((hierarchy / file).read_text())

    def _delegate(self, group: Path) -> None:
        """Let the children of a v2 group use the controllers."""
        have = (group / "cgroup.controllers").read_text().split()
        wanted = [name for name in _V2_CONTROLLERS if name in have]
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))

    def remove(self, name: str, timeout: float = 10) -> None:
        """Kill what still runs in the root ``name``, and remove it with its children everywhere.

        Raises:
            CgroupError: a group stays busy.
        """
        deadline = time.monotonic() + timeout
        for hierarchy in self.hierarchies():
            while (hierarchy / name).is_dir() and not _remove_tree(hierarchy / name):
                if time.monotonic() > deadline:
                    raise CgroupError(
                        f"stays busy after {timeout:.0f} s", obj=f"cgroup {hierarchy / name}"
                    )
                time.sleep(0.05)

    def leftovers(self, name: str) -> list[Path]:
        """Hierarchies in which the root ``name`` exists."""
        return [hierarchy / name for hierarchy in self.hierarchies() if (hierarchy / name).is_dir()]


def _groups_below(group: Path) -> Iterator[Path]:
    """The group and all below it, children first."""
    for parent, _, _ in os.walk(group, topdown=False):
        yield Path(parent)


def _remove_tree(group: Path) -> bool:
    """One try to empty and remove a group; False when something in it is not gone yet."""
    for child in _groups_below(group):
        for pid in _members(child):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            child.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _members(group: Path) -> list[int]:
    """Processes in a group; none in one that is gone."""
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []
