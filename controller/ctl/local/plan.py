# SPDX-License-Identifier: Apache-2.0
"""From what a person asked for, and what is remembered, to the cluster that ``up`` makes so."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from gpudra.api.errors import InputError
from gpudra.controller.ctl.local.agent import DEFAULT_HARDWARE
from gpudra.controller.ctl.local.components import CONTROLLER_PORT, PORT_NAMES
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.network import (
    first_port,
    free_ports,
    ip_forward,
    is_free,
    pod_subnet,
)
from gpudra.controller.ctl.local.state import AS_PODS, ClusterState, NodeState

T = TypeVar("T")

MAX_NODES = 9
MAX_FAKE_NODES = 9999


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of ``up``; None keeps what an earlier ``up`` was told, else the default."""

    nodes: int | None = None
    fake_nodes: int | None = None
    hardware: str | None = None
    agent: bool = True
    agent_as: str | None = None
    feature_gates: str | None = None
    runtime_config: str | None = None
    api_port: int | None = None

    def check(self) -> None:
        """Raise for a value that no cluster can have.

        Raises:
            InputError: names the option.
        """
        if self.nodes is not None and not 1 <= self.nodes <= MAX_NODES:
            raise InputError(f"must be from 1 to {MAX_NODES}, not {self.nodes}", field="--nodes")
        if self.fake_nodes is not None and not 0 <= self.fake_nodes <= MAX_FAKE_NODES:
            raise InputError(
                f"must be from 0 to {MAX_FAKE_NODES}, not {self.fake_nodes}", field="--fake-nodes"
            )


def node_name(index: int) -> str:
    """``node-1`` and so on."""
    return f"node-{index}"


def new_node(layout: Layout, index: int, next_port: Callable[[], int]) -> NodeState:
    """A node with ports and paths."""
    name = node_name(index)
    files = layout.node(name)
    kubelet_port = next_port()
    return NodeState(
        name=name,
        index=index,
        pod_subnet=pod_subnet(kubelet_port),
        kubelet_port=kubelet_port,
        healthz_port=next_port(),
        agent_port=next_port(),
        kubelet_root=str(files.kubelet_root),
        cdi_dir=str(files.cdi_dir),
        containerd_socket=str(files.containerd_socket),
        agent_dir=str(files.agent_dir),
    )


def plan(
    layout: Layout, old: ClusterState | None, wishes: Wishes, is_running: Callable[[str], bool]
) -> ClusterState:
    """The wanted cluster. Ports stay as they were unless somebody else took them meanwhile.

    Args:
        layout: files of the cluster.
        old: what is remembered; None at the first time.
        wishes: what was asked for now.
        is_running: whether the component of this name runs, so that its port is its own.
    """
    wishes.check()
    state = old or ClusterState(ports={}, ip_forward_before=ip_forward())
    taken = {*state.ports.values(), *(port for node in state.nodes for port in _ports(node))}
    ports = free_ports(taken, first_port(layout.identity))
    count = wishes.nodes if wishes.nodes is not None else max(1, len(state.nodes))
    kept = {node.index: _with_own_ports(node, is_running, ports.__next__) for node in state.nodes}
    nodes = tuple(
        kept.get(index) or new_node(layout, index, ports.__next__) for index in range(1, count + 1)
    )
    hardware = _first(wishes.hardware, state.hardware or DEFAULT_HARDWARE) if wishes.agent else ""
    agent_as = _first(wishes.agent_as, state.agent_as)
    as_pods = bool(hardware) and agent_as == AS_PODS
    # Nobody listens on a port of a part that does not run, so another cluster would take it, too.
    names = (*PORT_NAMES, CONTROLLER_PORT) if as_pods else PORT_NAMES
    return replace(
        state,
        ports=_cluster_ports(names, state.ports, wishes.api_port, is_running, ports.__next__),
        nodes=nodes,
        fake_nodes=_first(wishes.fake_nodes, state.fake_nodes),
        hardware=hardware,
        agent_as=agent_as,
        feature_gates=_first(wishes.feature_gates, state.feature_gates),
        runtime_config=_first(wishes.runtime_config, state.runtime_config),
        kubeconfig=str(layout.admin_kubeconfig),
        kubectl=str(layout.binary("kubectl")),
    )


def _first(asked: T | None, remembered: T) -> T:
    return remembered if asked is None else asked


def _ports(node: NodeState) -> tuple[int, ...]:
    return node.kubelet_port, node.healthz_port, node.agent_port


def _cluster_ports(
    names: Iterable[str],
    old: dict[str, int],
    api_port: int | None,
    is_running: Callable[[str], bool],
    next_port: Callable[[], int],
) -> dict[str, int]:
    ports = {}
    for name in names:
        port = old.get(name)
        usable = port is not None and (is_running(name.removesuffix("-peer")) or is_free(port))
        ports[name] = port if usable and port is not None else next_port()
    if api_port is not None:
        ports["kube-apiserver"] = api_port
    return ports


def _with_own_ports(
    node: NodeState, is_running: Callable[[str], bool], next_port: Callable[[], int]
) -> NodeState:
    """The node, with new ports where a component that does not run lost its old one."""
    if not is_running(f"kubelet-{node.name}"):
        if not is_free(node.kubelet_port, ""):
            port = next_port()
            node = replace(node, kubelet_port=port, pod_subnet=pod_subnet(port))
        if not is_free(node.healthz_port):
            node = replace(node, healthz_port=next_port())
    if not is_running(f"agent-{node.name}") and not is_free(node.agent_port):
        node = replace(node, agent_port=next_port())
    return node
