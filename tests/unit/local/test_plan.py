# SPDX-License-Identifier: Apache-2.0
"""From wishes and memory to the wanted cluster."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.network import FIRST_PORT, LAST_PORT, first_port, pod_subnet
from gpudra.controller.ctl.local.plan import Wishes, plan
from gpudra.controller.ctl.local.state import ClusterState


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A state folder."""
    return Layout(tmp_path, tmp_path / "bin")


def nothing_runs(name: str) -> bool:
    """No component runs."""
    return False


def everything_runs(name: str) -> bool:
    """Every component runs, so each holds its own port."""
    return True


def all_ports(state: ClusterState) -> list[int]:
    """Every port that the cluster uses."""
    nodes = [(node.kubelet_port, node.healthz_port, node.agent_port) for node in state.nodes]
    return [*state.ports.values(), *(port for ports in nodes for port in ports)]


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def test_a_first_cluster_has_one_node_and_ports_of_its_own(layout: Layout) -> None:
    """Without wishes it is one real node, no fake ones, the default hardware, distinct ports."""
    state = plan(layout, None, Wishes(), nothing_runs)

    assert [node.name for node in state.nodes] == ["node-1"]
    assert (state.fake_nodes, state.hardware) == (0, "dgx-h100-8x80")
    assert len(set(all_ports(state))) == len(all_ports(state)) == 9


def test_what_was_asked_for_once_is_kept(layout: Layout) -> None:
    """A later ``up`` without options asks for the same cluster."""
    wishes = Wishes(
        nodes=2, fake_nodes=5, hardware="a30-2x", feature_gates="A=true", runtime_config="x/v1=true"
    )
    first = plan(layout, None, wishes, nothing_runs)

    assert plan(layout, first, Wishes(), everything_runs) == first


def test_the_agent_is_left_out_only_when_asked(layout: Layout) -> None:
    """``--no-agent`` forgets the hardware; the next plain ``up`` has the default again."""
    without = plan(layout, None, Wishes(agent=False), nothing_runs)

    assert without.hardware == ""
    assert plan(layout, without, Wishes(), nothing_runs).hardware == "dgx-h100-8x80"


def test_pods_or_processes_is_remembered(layout: Layout) -> None:
    """Pods of the chart unless asked otherwise, and then so until asked again."""
    first = plan(layout, None, Wishes(), nothing_runs)
    second = plan(layout, first, Wishes(agent_as="processes"), everything_runs)

    assert first.agent_as == "pods"
    assert set(first.ports) - set(second.ports) == {"gpudra-controller"}
    assert plan(layout, second, Wishes(), everything_runs).agent_as == "processes"


def test_nodes_are_added_and_removed_at_the_end(layout: Layout) -> None:
    """The nodes that stay keep their ports and networks."""
    two = plan(layout, None, Wishes(nodes=2), nothing_runs)
    three = plan(layout, two, Wishes(nodes=3), everything_runs)
    one = plan(layout, three, Wishes(nodes=1), everything_runs)

    assert three.nodes[:2] == two.nodes
    assert one.nodes == two.nodes[:1]
    assert len({node.pod_subnet for node in three.nodes}) == 3


def test_a_port_that_somebody_took_is_given_up(layout: Layout, taken_port: int) -> None:
    """Only the component that lost its port gets a new one."""
    first = plan(layout, None, Wishes(api_port=taken_port), nothing_runs)

    second = plan(layout, first, Wishes(), nothing_runs)

    assert first.ports["kube-apiserver"] == taken_port
    changed = {name for name in first.ports if first.ports[name] != second.ports[name]}
    assert changed == {"kube-apiserver"}
    assert second.nodes == first.nodes


def test_a_node_that_lost_its_ports_gets_others(layout: Layout, taken_port: int) -> None:
    """Its pod network goes with the kubelet's port; its paths stay."""
    first = plan(layout, None, Wishes(), nothing_runs)
    (node,) = first.nodes
    robbed = replace(node, kubelet_port=taken_port, healthz_port=taken_port, agent_port=taken_port)

    (mended,) = plan(layout, first.with_nodes((robbed,)), Wishes(), nothing_runs).nodes

    assert taken_port not in (mended.kubelet_port, mended.healthz_port, mended.agent_port)
    assert mended.pod_subnet == pod_subnet(mended.kubelet_port)
    assert mended.kubelet_root == node.kubelet_root


def test_a_running_component_keeps_the_port_it_listens_on(layout: Layout, taken_port: int) -> None:
    """A taken port is its own when it runs."""
    first = plan(layout, None, Wishes(api_port=taken_port), nothing_runs)

    assert plan(layout, first, Wishes(), everything_runs).ports == first.ports


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (Wishes(nodes=0), "--nodes: must be from 1 to 9, not 0"),
        (Wishes(nodes=10), "--nodes: must be from 1 to 9, not 10"),
        (Wishes(fake_nodes=-1), "--fake-nodes: must be from 0 to 9999, not -1"),
    ],
)
def test_impossible_wishes_are_refused(layout: Layout, wishes: Wishes, message: str) -> None:
    """The error names the option and its range."""
    with pytest.raises(InputError, match=message):
        plan(layout, None, wishes, nothing_runs)


def test_clusters_begin_to_look_for_ports_at_different_places(layout: Layout) -> None:
    """Two that start at once do not choose the same, though neither listens yet."""
    assert len({first_port(identity) for identity in ("00000000", "00000400", "ffffffff")}) == 3
    for identity in ("00000000", "ffffffff"):
        assert FIRST_PORT <= first_port(identity) < LAST_PORT
    assert min(all_ports(plan(layout, None, Wishes(), nothing_runs))) >= first_port(layout.identity)
