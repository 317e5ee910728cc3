# SPDX-License-Identifier: Apache-2.0
"""What the local cluster remembers between calls: ``state.json``, written by ``up``.

Tests and people read it too: it names, for every node, the folders and sockets that a kubelet
plugin has to be pointed to.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from gpudra.api.errors import StateError
from gpudra.controller.ctl.local.layout import Layout

STATE_VERSION = 1
AS_PODS = "pods"
AS_PROCESSES = "processes"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One real node: its name, number (from 1), ports on this machine and paths."""

    name: str
    index: int
    pod_subnet: str
    kubelet_port: int
    healthz_port: int
    agent_port: int
    kubelet_root: str
    cdi_dir: str
    containerd_socket: str
    agent_dir: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The wanted cluster and the ports it was given.

    Attributes:
        ports: port on 127.0.0.1 by component; ``etcd-peer`` beside the component names.
        fake_nodes: number of nodes that are objects only.
        hardware: profile or file given to the agents; empty means that no agent is wanted.
        agent_as: "pods" of the chart, or "processes" of this machine.
        feature_gates: ``Name=true,...`` for all Kubernetes components, beside their defaults.
        runtime_config: ``--runtime-config`` of the API server, beside its defaults.
        ip_forward_before: what ``net.ipv4.ip_forward`` was before the first node started.
    """

    ports: dict[str, int]
    nodes: tuple[NodeState, ...] = ()
    fake_nodes: int = 0
    hardware: str = ""
    agent_as: str = AS_PODS
    feature_gates: str = ""
    runtime_config: str = ""
    ip_forward_before: str = ""
    kubeconfig: str = ""
    kubectl: str = ""
    version: int = field(default=STATE_VERSION)

    @property
    def server(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self.ports['kube-apiserver']}"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The state in the form of its file.

        Raises:
            TypeError, KeyError: the file was written by another version.
        """
        nodes = tuple(NodeState(**node) for node in data["nodes"])
        return cls(**{**data, "nodes": nodes})

    def with_nodes(self, nodes: tuple[NodeState, ...]) -> "ClusterState":
        """The same cluster with other real nodes."""
        return replace(self, nodes=nodes)


def load(layout: Layout) -> ClusterState | None:
    """The remembered cluster, or None when there is none in this folder.

    Raises:
        StateError: the file is damaged or of another version.
    """
    try:
        text = layout.state_file.read_text()
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
        if data["version"] != STATE_VERSION:
            raise StateError(
                f"version {data['version']} is not the version {STATE_VERSION} of this gpudra",
                obj=str(layout.state_file),
                hint="run `gpudra local down --purge`, then `up` again",
            )
        return ClusterState.from_dict(data)
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the file is damaged ({error})",
            obj=str(layout.state_file),
            hint="run `gpudra local down --purge`, then `up` again",
        ) from error


def save(layout: Layout, state: ClusterState) -> None:
    """Write the state; a crash leaves the old file or the new one."""
    write_atomic(layout.state_file, json.dumps(asdict(state), indent=2) + "\n")


def write_atomic(path: Path, text: str, mode: int = 0o600) -> bool:
    """Replace the file if its content differs, and say whether it did."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(path)
    return True


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Hold the cluster for one ``up`` or ``down``; the lock ends with the process.

    Raises:
        StateError: another command is at work on the same folder.
    """
    layout.base.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(layout.lock_file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(
                "another `gpudra local up` or `down` is at work on it",
                obj=str(layout.base),
                hint="wait for it to end, or stop it, and run the command again",
            ) from error
        yield
    finally:
        os.close(descriptor)
