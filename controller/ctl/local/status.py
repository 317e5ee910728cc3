# SPDX-License-Identifier: Apache-2.0
"""``gpudra local status``: every component, and whether it does its work."""

import json
from dataclasses import asdict, dataclass

from gpudra.api.errors import ApiError
from gpudra.controller.ctl.local import fakenodes, state
from gpudra.controller.ctl.local.agent import NAMESPACE, Agent
from gpudra.controller.ctl.local.apiclient import is_healthy
from gpudra.controller.ctl.local.components import (
    CONTROLLER_PORT,
    LOOPBACK,
    ControlPlane,
    control_plane,
)
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.node import accepts
from gpudra.controller.ctl.local.process import ProcessTable
from gpudra.controller.ctl.local.state import AS_PODS, ClusterState, NodeState
from gpudra.controller.ctl.local.up import is_ready


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One line of the table."""

    name: str
    healthy: bool
    pid: int | None
    endpoint: str
    detail: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole answer; ``state`` is None where no cluster was ever started."""

    state: ClusterState | None
    components: tuple[ComponentStatus, ...]

    @property
    def healthy(self) -> bool:
        """Whether there is a cluster and all of it is healthy."""
        return self.state is not None and all(component.healthy for component in self.components)

    def to_json(self) -> str:
        """For programs: the components, and the remembered state with all paths and ports."""
        document = {
            "healthy": self.healthy,
            "components": [asdict(component) for component in self.components],
            **(asdict(self.state) if self.state else {"nodes": []}),
        }
        return json.dumps(document, indent=2)

    def to_table(self) -> str:
        """For people."""
        rows = [("COMPONENT", "STATE", "PID", "ENDPOINT", "DETAIL")]
        for item in self.components:
            word = "healthy" if item.healthy else ("unhealthy" if item.pid else "stopped")
            rows.append((item.name, word, str(item.pid or "-"), item.endpoint, item.detail))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]
            ).rstrip()
            for row in rows
        ]
        return "\n".join(lines)


def cluster_status(layout: Layout) -> ClusterStatus:
    """Look at every component now.

    Raises:
        StateError: ``state.json`` is damaged.
    """
    remembered = state.load(layout)
    if remembered is None:
        return ClusterStatus(None, ())
    processes = ProcessTable(layout.pid_dir, layout.log_dir)
    plane = control_plane(layout, remembered)
    lines = [*_control_plane(remembered, processes)]
    for node in remembered.nodes:
        lines += _node(node, plane, processes)
        if remembered.hardware:
            agent = Agent(node, remembered.hardware)
            lines.append(_own(remembered, processes, agent.name, agent.endpoint))
    if remembered.hardware and remembered.agent_as == AS_PODS:
        endpoint = f"{LOOPBACK}:{remembered.ports[CONTROLLER_PORT]}"
        lines.append(_own(remembered, processes, "controller", endpoint))
    if remembered.fake_nodes:
        lines.append(_fake_nodes(plane, remembered.fake_nodes))
    return ClusterStatus(remembered, tuple(lines))


def _line(
    processes: ProcessTable, name: str, endpoint: str, serves: bool, detail: str = ""
) -> ComponentStatus:
    record = processes.running(name)
    if record is not None and not serves and not detail:
        detail = f"does not answer, see {processes.log_file(name)}"
    return ComponentStatus(
        name, record is not None and serves, record.pid if record else None, endpoint, detail
    )


def _own(
    remembered: ClusterState, processes: ProcessTable, name: str, endpoint: str
) -> ComponentStatus:
    """A part of gpudra, which may be a pod."""
    url = f"http://{endpoint}"
    serves = is_healthy(f"{url}/readyz")
    if remembered.agent_as == AS_PODS:
        detail = "pod" if serves else f"does not answer, see the pods in namespace {NAMESPACE}"
        return ComponentStatus(name, serves, None, url, detail)
    return _line(processes, name, url, serves)


def _control_plane(remembered: ClusterState, processes: ProcessTable) -> list[ComponentStatus]:
    paths = {
        "etcd": ("http", "/health"),
        "kube-apiserver": ("https", "/readyz"),
        "kube-controller-manager": ("https", "/healthz"),
        "kube-scheduler": ("https", "/healthz"),
    }
    lines = []
    for name, (scheme, path) in paths.items():
        endpoint = f"{scheme}://{LOOPBACK}:{remembered.ports[name]}"
        lines.append(_line(processes, name, endpoint, is_healthy(endpoint + path)))
    return lines


def _node(node: NodeState, plane: ControlPlane, processes: ProcessTable) -> list[ComponentStatus]:
    files = plane.layout.node(node.name)
    kubelet = f"http://{LOOPBACK}:{node.healthz_port}"
    try:
        ready = is_ready(plane.client.request("GET", f"/api/v1/nodes/{node.name}", timeout=5))
        detail = "node Ready" if ready else "node not Ready"
    except ApiError as error:
        ready, detail = False, f"node unknown: {error.what}"
    return [
        _line(
            processes,
            f"containerd-{node.name}",
            str(files.containerd_socket),
            accepts(files.containerd_socket),
        ),
        _line(
            processes,
            f"kubelet-{node.name}",
            kubelet,
            ready and is_healthy(f"{kubelet}/healthz"),
            detail,
        ),
    ]


def _fake_nodes(plane: ControlPlane, wanted: int) -> ComponentStatus:
    try:
        have = len(fakenodes.existing(plane.client))
    except ApiError as error:
        return ComponentStatus("fake nodes", False, None, "-", error.what)
    return ComponentStatus("fake nodes", have == wanted, None, "-", f"{have} of {wanted}")
