# SPDX-License-Identifier: Apache-2.0
"""What a node is configured with, and what nodes keep apart."""

import ipaddress
import tomllib
from pathlib import Path

import pytest

from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.mounts import mounts
from gpudra.controller.ctl.local.network import (
    FIRST_PORT,
    LAST_PORT,
    cni_config,
    free_ports,
    is_free,
    network_name,
    pod_subnet,
    remove_cni_cache,
)
from gpudra.controller.ctl.local.node import (
    Machine,
    Node,
    containerd_config,
    kubelet_config,
    parse_gates,
    remove_device_plugin_socket,
    remove_empty,
)
from gpudra.controller.ctl.local.plan import new_node

MACHINE = Machine(ip="10.0.0.1", runc=Path("/usr/sbin/runc"), cni_bin_dir=Path("/usr/lib/cni"))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A state folder."""
    return Layout(tmp_path, tmp_path / "bin")


def make_node(layout: Layout, index: int) -> Node:
    """A node with ports of its own."""
    return Node(
        layout, new_node(layout, index, iter(range(1000 * index, 1000 * index + 9)).__next__)
    )


def strings(value: object) -> list[str]:
    """Every string in a nested document."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_two_runtimes_share_no_path(layout: Layout) -> None:
    """Each containerd has its root, sockets, CNI and CDI folders; only the machine's programs are common."""
    paths = []
    for index in (1, 2):
        config = tomllib.loads(containerd_config(make_node(layout, index), MACHINE))
        paths.append({text for text in strings(config) if text.startswith("/")})

    assert paths[0] & paths[1] == {"/usr/sbin/runc", "/usr/lib/cni"}


def test_the_runtime_looks_for_cdi_in_the_node_folder(layout: Layout) -> None:
    """CDI is on, and the folder is the one that is remembered for the plugin."""
    node = make_node(layout, 1)

    runtime = tomllib.loads(containerd_config(node, MACHINE))["plugins"][
        "io.containerd.cri.v1.runtime"
    ]

    assert runtime["enable_cdi"] is True
    assert runtime["cdi_spec_dirs"] == [node.state.cdi_dir]
    assert runtime["netns_mounts_under_state_dir"] is True


def test_two_kubelets_share_no_port_and_no_cgroup(layout: Layout) -> None:
    """Ports, cgroup root and runtime differ; no firewall rule is made."""
    first, second = (kubelet_config(make_node(layout, index), MACHINE, "") for index in (1, 2))

    for key in ("port", "healthzPort", "cgroupRoot", "containerRuntimeEndpoint", "podLogsDir"):
        assert first[key] != second[key]
    assert first["makeIPTablesUtilChains"] is False
    assert first["enforceNodeAllocatable"] == []


def test_gates_reach_the_kubelet_as_booleans() -> None:
    """Its file wants a map, the other components a flag."""
    assert parse_gates("A=true,B=False, C = true") == {"A": True, "B": False, "C": True}
    assert parse_gates("") == {}


def test_networks_differ_and_make_no_firewall_rule(layout: Layout) -> None:
    """Every node has a subnet of its own, without masquerading."""
    import json

    first, second = (
        json.loads(
            cni_config(layout, layout.node(f"node-{i}"), make_node(layout, i).state.pod_subnet)
        )
        for i in (1, 2)
    )

    assert first["name"] != second["name"]
    assert first["plugins"][0]["ipMasq"] is False
    assert first["plugins"][0]["ipam"]["ranges"] != second["plugins"][0]["ipam"]["ranges"]


def test_cni_results_of_killed_pods_are_removed(layout: Layout, tmp_path: Path) -> None:
    """Only those of the node's own network."""
    cache = tmp_path / "cache"
    cache.mkdir()
    ours, other = cache / f"{network_name(layout, 'node-1')}-abc-eth0", cache / "bridge-abc-eth0"
    ours.touch()
    other.touch()

    remove_cni_cache(layout, "node-1", cache)

    assert list(cache.iterdir()) == [other]


def test_ports_are_free_and_never_given_twice() -> None:
    """Ports that are taken, or already planned, are passed over."""
    ports = free_ports(taken=[21000, 21001])

    first, second = next(ports), next(ports)

    assert first != second
    assert not {first, second} & {21000, 21001}
    assert is_free(first)
    assert is_free(second)


def test_mount_points_with_spaces_are_understood() -> None:
    """The kernel escapes blanks in its table."""
    table = "tmpfs /run tmpfs rw 0 0\noverlay /var/a\\040b/c overlay rw 0 0\n"

    assert mounts(table) == [(Path("/run"), "tmpfs"), (Path("/var/a b/c"), "overlay")]


def test_the_shared_socket_stays_while_a_kubelet_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device plugin folder belongs to every kubelet of the machine."""
    from gpudra.controller.ctl.local import node

    folder = tmp_path / "kubelet" / "device-plugins"
    folder.mkdir(parents=True)
    (folder / "kubelet.sock").touch()

    monkeypatch.setattr(node, "command_line", lambda pid: ("/x/kubelet", "--config=y"))
    remove_device_plugin_socket(folder)
    assert (folder / "kubelet.sock").exists()

    monkeypatch.setattr(node, "command_line", lambda pid: ("/bin/sh",))
    remove_device_plugin_socket(folder)
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_stay(tmp_path: Path) -> None:
    """A shared folder goes only when it is empty."""
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "file").touch()

    remove_empty(empty, full, tmp_path / "missing")

    assert list(tmp_path.iterdir()) == [full]


def test_networks_of_all_possible_nodes_differ() -> None:
    """Every port that a kubelet can get stands for another private network."""
    subnets = [ipaddress.ip_network(pod_subnet(port)) for port in range(FIRST_PORT, LAST_PORT)]

    assert len(set(subnets)) == len(subnets)
    assert all(subnet.is_private for subnet in subnets)
