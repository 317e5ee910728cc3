# SPDX-License-Identifier: Apache-2.0
"""A second cluster beside the first: killed while starting, started again, hurt, and removed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudra.controller.ctl.local.cgroups import Cgroups
from gpudra.controller.ctl.local.down import leftovers
from gpudra.controller.ctl.local.layout import RUN_DIR, Layout, layout_for
from gpudra.controller.ctl.local.mounts import mounts_below
from gpudra.controller.ctl.local.node import Node
from tests.support.cluster import CORE, Cluster, busybox_pod, gpudra_local

KILL_AT = "control plane"
UP = ("up", "--nodes", "1", "--fake-nodes", "3", "--no-agent", "--yes")


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    """A state folder whose path is too long for sockets, removed with its cluster afterwards."""
    parent = Path(tempfile.mkdtemp(prefix="gpudra-e2e-"))
    layout = layout_for(str(parent / "a-folder-with-a-name-that-is-too-long-for-unix-sockets"))
    yield layout
    gpudra_local("down", "--purge", "--dir", str(layout.base))
    shutil.rmtree(parent)


@pytest.fixture(scope="module")
def second(cluster: Cluster, layout: Layout) -> Cluster:
    """The second cluster, whose first ``up`` is killed while components start."""
    command = [sys.executable, "-m", "gpudra.controller.ctl.local", *UP, "--dir", str(layout.base)]
    first = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    with first.stderr as lines:
        said = next((line for line in lines if KILL_AT in line), "")
    assert said, "the first `up` ended before it started the control plane"
    first.kill()
    first.wait()

    again = gpudra_local(*UP, "--dir", str(layout.base))
    assert again.returncode == 0, again.stderr
    return Cluster.of(layout)


def test_an_up_that_was_killed_is_taken_up_again(cluster: Cluster, second: Cluster) -> None:
    """After SIGKILL in the middle, the next ``up`` ends with one healthy process of each kind."""
    status = gpudra_local("status", "--dir", str(second.layout.base))

    assert status.returncode == 0, status.stdout
    assert not set(second.pids().values()) & set(cluster.pids().values())
    assert sorted(second.pids()) == [
        "containerd-node-1",
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet-node-1",
    ]


def test_ports_of_two_clusters_differ(cluster: Cluster, second: Cluster) -> None:
    """Every port of the second cluster was chosen beside those of the first."""
    assert not set(second.state.ports.values()) & set(cluster.state.ports.values())


def test_pods_run_on_it_despite_a_long_folder_name(second: Cluster) -> None:
    """Sockets are reached through a short link, so a pod starts and ends as usual."""
    second.apply(busybox_pod("short", "echo done", node="node-1"))

    second.wait_pod("default", "short", "Succeeded")
    assert second.kubectl("logs", "short") == "done\n"


def test_fake_nodes_take_pods_that_never_run(second: Cluster) -> None:
    """The scheduler binds a pod to a node that is only an object; deleting it with grace 0 ends it."""
    second.apply(busybox_pod("ghost", "true", nodeSelector={"gpudra.io/fake": "true"}))

    pod = second.wait_for(
        f"{CORE}/namespaces/default/pods",
        "ghost",
        lambda pod: pod if pod["spec"].get("nodeName") else None,
        what="bound",
    )
    assert pod["spec"]["nodeName"].startswith("fake-")
    second.kubectl("delete", "pod", "ghost", "--grace-period=0", "--force")
    second.wait_gone(f"{CORE}/namespaces/default/pods", "ghost")


def test_a_dead_component_is_told_and_repaired(second: Cluster) -> None:
    """With its scheduler killed ``status`` exits 1 and names it; ``up`` starts just that one anew."""
    before = second.pids()
    os.kill(before["kube-scheduler"], signal.SIGKILL)

    status = gpudra_local("status", "--dir", str(second.layout.base))
    repaired = gpudra_local("up", "--no-agent", "--yes", "--dir", str(second.layout.base))

    assert status.returncode == 1
    assert [line.split()[:2] for line in status.stdout.splitlines() if "stopped" in line] == [
        ["kube-scheduler", "stopped"]
    ]
    assert repaired.returncode == 0, repaired.stderr
    after = second.pids()
    assert {name for name in before if before[name] != after[name]} == {"kube-scheduler"}


def test_down_leaves_nothing_on_the_machine(cluster: Cluster, second: Cluster) -> None:
    """With pods running, ``down --purge`` removes processes, mounts, sockets, cgroups and files."""
    layout = second.layout
    node = Node(layout, second.state.nodes[0])
    second.apply(busybox_pod("sleeper", "sleep 1000", node="node-1"))
    second.wait_pod("default", "sleeper")
    assert leftovers(layout, [node])
    assert mounts_below(layout.base.resolve())

    down = gpudra_local("down", "--purge", "--dir", str(layout.base))

    assert down.returncode == 0, down.stderr
    assert leftovers(layout, [node]) == []
    assert Cgroups().leftovers(node.cgroup) == []
    assert not layout.base.exists()
    assert not any(layout.identity in path.name for path in RUN_DIR.iterdir())
    assert gpudra_local("status").returncode == 0, "the first cluster was hurt"
