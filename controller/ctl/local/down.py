# SPDX-License-Identifier: Apache-2.0
"""``gpudra local down``: end the cluster and leave nothing of it on the machine.

Works from the process records and node folders, not from the remembered state alone, so it also
clears what a killed ``up`` or a damaged ``state.json`` left.
"""

import ipaddress
import re
import shutil
import sys
import time
from pathlib import Path

from gpudra.api.errors import GpudraError, StateError
from gpudra.controller.ctl.local import state
from gpudra.controller.ctl.local.agent import SCRIPT
from gpudra.controller.ctl.local.cgroups import Cgroups
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.mounts import mounts_below, unmount_below
from gpudra.controller.ctl.local.network import restore_ip_forward
from gpudra.controller.ctl.local.node import Node
from gpudra.controller.ctl.local.plan import new_node
from gpudra.controller.ctl.local.process import PROC, ProcessTable, command_line
from gpudra.controller.ctl.local.state import ClusterState

_CONTROL_PLANE = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
_STOP_SECONDS = {"kube-apiserver": 90.0}
_ROUTES = Path("/proc/net/route")
_SETTLE_SECONDS = 10


class LeftoverError(GpudraError):
    """Something of the cluster stayed on the machine."""


def down(layout: Layout, *, purge: bool = False) -> bool:
    """Stop everything; with ``purge`` also delete all files but the Go binaries.

    Returns:
        Whether there was anything to stop or delete.

    Raises:
        LeftoverError: something could not be removed; it is named.
        StateError: another command is at work on this cluster.
    """
    if not layout.pid_dir.is_dir():
        return False
    with state.locked(layout):
        processes = ProcessTable(layout.pid_dir, layout.log_dir)
        remembered = _remembered(layout)
        nodes = _nodes(layout, remembered)
        # First the kubelets: one that loses its plugin before it ends would wipe the slices.
        for node in nodes:
            _say(f"stopping {node.state.name}")
            processes.stop(f"kubelet-{node.state.name}")
            processes.stop(f"agent-{node.state.name}")
            node.stop(processes)
        _say("stopping the control plane")
        for name in [*_CONTROL_PLANE, *processes.names()]:
            processes.stop(name, _STOP_SECONDS.get(name, 30.0))
        unmount_below(layout.base.resolve())
        if remembered is not None:
            restore_ip_forward(remembered.ip_forward_before)
        _check_clean(layout, nodes)
        layout.remove_link()
        if purge:
            _purge(layout)
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _remembered(layout: Layout) -> ClusterState | None:
    """The state if it can be read; a damaged one must not keep a cluster from ending."""
    try:
        return state.load(layout)
    except StateError as error:
        _say(f"going on without what was remembered: {error}")
        return None


def _nodes(layout: Layout, remembered: ClusterState | None) -> list[Node]:
    """All nodes that have a folder, remembered or not."""
    known = {node.index: node for node in remembered.nodes} if remembered else {}
    names = (re.fullmatch(r"node-(\d+)", path.name) for path in layout.base.iterdir())
    indexes = sorted(int(match.group(1)) for match in names if match)
    return [
        Node(layout, known.get(index) or new_node(layout, index, lambda: 0)) for index in indexes
    ]


def leftovers(layout: Layout, nodes: list[Node]) -> list[str]:
    """What of the cluster is still on the machine, other than files in its folder."""
    found = [f"process {pid} {' '.join(argv[:2])}" for pid, argv in _processes_of(layout)]
    found += [f"mount {point}" for point in mounts_below(layout.base.resolve())]
    for node in nodes:
        found += [f"cgroup {path}" for path in Cgroups().leftovers(node.cgroup)]
        found += [f"socket folder {node.shim_socket_dir}"] if node.shim_socket_dir.exists() else []
        found += [f"interface {name}" for name in _interfaces_in(node.state.pod_subnet)]
    return found


def _processes_of(layout: Layout) -> list[tuple[int, tuple[str, ...]]]:
    """Processes with a component's program or a file of this cluster's nodes in their command line."""
    bases = {f"{layout.base}/", f"{layout.short_base}/"}
    programs = {"etcd", "containerd", "containerd-shim-runc-v2", "kubelet", SCRIPT}
    found = []
    for entry in PROC.iterdir():
        argv = command_line(int(entry.name)) if entry.name.isdigit() else ()
        # A script stands behind its interpreter.
        names = {Path(argument).name for argument in argv[:2]}
        ours = names & programs or any(name.startswith("kube-") for name in names)
        if ours and any(base in argument for argument in argv[1:] for base in bases):
            found.append((int(entry.name), argv))
    return found


def _interfaces_in(subnet: str, routes: Path = _ROUTES) -> list[str]:
    """Interfaces that have a route into a pod subnet."""
    network = ipaddress.ip_network(subnet)
    names = set()
    for line in routes.read_text().splitlines()[1:]:
        fields = line.split()
        # The kernel prints addresses as little-endian words.
        destination = ipaddress.ip_address(int.from_bytes(bytes.fromhex(fields[1]), "little"))
        if destination in network:
            names.add(fields[0])
    return sorted(names)


def _check_clean(layout: Layout, nodes: list[Node]) -> None:
    """Wait for what the kernel takes away late, then complain about the rest."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while found := leftovers(layout, nodes):
        if time.monotonic() > deadline:
            raise LeftoverError("left behind:\n  - " + "\n  - ".join(found), obj=str(layout.base))
        time.sleep(0.1)


def _purge(layout: Layout) -> None:
    """Delete the cluster's files; the lock goes last, and the folder if nothing else is in it."""
    for path in layout.base.iterdir():
        if path in {layout.bin_dir, layout.lock_file}:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    layout.lock_file.unlink()
    if not any(layout.base.iterdir()):
        layout.base.rmdir()
