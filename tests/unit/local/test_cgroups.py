# SPDX-License-Identifier: Apache-2.0
"""Cgroup roots of the nodes, on folders that look like the kernel's."""

from pathlib import Path

import pytest

from gpudra.controller.ctl.local.cgroups import Cgroups


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """Four hierarchies of version 1, and a link as distributions make them."""
    for name in ("cpu", "memory", "cpuset", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    (tmp_path / "cpu,cpuacct").symlink_to("cpu")
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """One unified hierarchy."""
    for group in (tmp_path, tmp_path / "node"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text("cpuset cpu io memory pids rdma\n")
        (group / "cgroup.procs").touch()
    return tmp_path


def test_every_v1_hierarchy_gets_the_root(v1: Path) -> None:
    """Links to a hierarchy do not count twice."""
    cgroups = Cgroups(v1)
    (v1 / "cpuset" / "node").mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        (v1 / "cpuset" / "node" / file).touch()

    cgroups.create("node")

    assert cgroups.leftovers("node") == [
        v1 / name / "node" for name in ("cpu", "cpuset", "memory", "pids")
    ]


def test_a_v1_cpuset_is_filled(v1: Path) -> None:
    """The kernel lets no process into one without cpus and memory nodes."""
    group = v1 / "cpuset" / "node"
    group.mkdir()
    (group / "cpuset.cpus").write_text("\n")
    (group / "cpuset.mems").write_text("1\n")

    Cgroups(v1).create("node")

    assert (group / "cpuset.cpus").read_text() == "0-1\n"
    assert (group / "cpuset.mems").read_text() == "1\n"


def test_v2_controllers_are_handed_down(v2: Path) -> None:
    """Controllers that kubelets need and the kernel has are given to the root and to its children."""
    Cgroups(v2).create("node")

    expected = "+cpu +cpuset +io +memory +pids"
    assert (v2 / "cgroup.subtree_control").read_text() == expected
    assert (v2 / "node" / "cgroup.subtree_control").read_text() == expected


def test_roots_are_removed_with_their_children(tmp_path: Path, v1: Path) -> None:
    """Children go first; other groups stay; removing again does no harm."""
    for hierarchy in ("cpu", "memory"):
        (v1 / hierarchy / "node" / "kubepods" / "pod1").mkdir(parents=True)
        (v1 / hierarchy / "other").mkdir()
    cgroups = Cgroups(v1)

    cgroups.remove("node")
    cgroups.remove("node")

    assert cgroups.leftovers("node") == []
    assert (v1 / "memory" / "other").is_dir()


@pytest.mark.parametrize(
    ("missing", "problem"),
    [(None, ""), ("memory", "no cgroup controller memory"), ("pids", "no cgroup controller pids")],
)
def test_a_missing_v1_controller_is_named(v1: Path, missing: str | None, problem: str) -> None:
    """Without it no kubelet starts."""
    if missing:
        (v1 / missing / "cgroup.procs").unlink()
        (v1 / missing).rmdir()

    assert Cgroups(v1).problem().startswith(problem)
    assert bool(Cgroups(v1).problem()) is bool(missing)


def test_a_missing_v2_controller_is_named(v2: Path) -> None:
    """A container without delegation has an empty list."""
    (v2 / "cgroup.controllers").write_text("\n")

    assert "cpu, memory, pids" in Cgroups(v2).problem()
