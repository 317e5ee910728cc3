# SPDX-License-Identifier: Apache-2.0
"""The chart on the local cluster: its values, and how helm is called."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpudra.controller.ctl.local.chart import ChartError, Release, chart_dir, values
from gpudra.controller.ctl.local.images import ImageError, remove_others
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.plan import Wishes, plan
from gpudra.controller.ctl.local.state import ClusterState
from gpudra.controller.ctl.local.up import is_running


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Folders in which helm and kubectl write down how they are called."""
    found = Layout(tmp_path / "cluster", tmp_path / "bin")
    found.make_dirs()
    found.bin_dir.mkdir()
    for name in ("helm", "kubectl"):
        program = found.binary(name)
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.log\n'
            f'[ -e {tmp_path}/fail ] && [ {name} = helm ] && {{ echo "no such thing" >&2; exit 1; }}\n'
            f"echo said by {name}\n"
        )
        program.chmod(0o755)
    return found


@pytest.fixture
def state(layout: Layout) -> ClusterState:
    """Two nodes."""
    return plan(layout, None, Wishes(nodes=2), lambda _: False)


def test_every_node_is_a_group_of_its_own(state: ClusterState) -> None:
    """With its folders and its port; all of it on loopback, where the API server is."""
    found = values(state, "1")
    groups = found["kubeletPlugin"]["groups"]

    assert list(groups) == ["node-1", "node-2"]
    for node in state.nodes:
        group = groups[node.name]
        assert group["nodeSelector"] == {"kubernetes.io/hostname": node.name}
        assert (group["kubeletRoot"], group["cdiDir"]) == (node.kubelet_root, node.cdi_dir)
        assert group["httpPort"] == node.agent_port
    assert len({group["runtimeDir"] for group in groups.values()}) == 2
    assert {found[part]["httpHost"] for part in ("kubeletPlugin", "controller")} == {"127.0.0.1"}
    assert found["apiServer"]["port"] in state.server


def test_the_values_are_values_of_the_chart(state: ClusterState) -> None:
    """The schema knows every one."""
    schema = json.loads((chart_dir() / "values.schema.json").read_text())
    found = values(state, "1")

    for section, inner in found.items():
        assert set(inner) <= set(schema["properties"][section]["properties"])


def test_hardware_is_a_profile_or_a_document(state: ClusterState, tmp_path: Path) -> None:
    """A file goes into the values whole, since a pod does not see it."""
    file = tmp_path / "mine.yaml"
    file.write_text("kind: Hardware\n")

    assert values(state, "1")["kubeletPlugin"]["hardwareProfile"] == "dgx-h100-8x80"
    own = values(replace(state, hardware=str(file)), "1")["kubeletPlugin"]
    assert own["hardware"] == {"kind": "Hardware"}
    assert "hardwareProfile" not in own


def test_a_release_is_installed_with_the_values(layout: Layout, tmp_path: Path) -> None:
    """They lie beside the cluster's other settings, for people to look at."""
    Release(layout).install({"log": {"level": "debug"}})

    file = layout.config_dir / "values.yaml"
    assert yaml.safe_load(file.read_text()) == {"log": {"level": "debug"}}
    (line,) = (tmp_path / "helm.log").read_text().splitlines()
    assert line.startswith(f"upgrade --install gpudra {chart_dir()} --values {file}")
    assert "--namespace gpudra-system" in line


def test_a_failure_shows_helm_and_the_pods(layout: Layout, tmp_path: Path) -> None:
    """What helm says, then what pods and events say, which is where the reason is."""
    (tmp_path / "fail").touch()

    with pytest.raises(ChartError, match="helm failed: no such thing") as raised:
        Release(layout).install({})

    assert "$ kubectl get events" in str(raised.value)
    assert "said by kubectl" in str(raised.value)
    for action in (Release(layout).uninstall, Release(layout).preview):
        with pytest.raises(ChartError, match="no such thing"):
            action()


class Running:
    """Some components."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def running(self, name: str) -> object:
        """Something if it runs."""
        return name if name in self.names else None


def test_the_ports_of_pods_are_theirs_while_their_kubelet_runs(state: ClusterState) -> None:
    """Else every `up` would take them for lost, and change agent and controller."""
    table = Running("kubelet-node-1")
    processes = replace(state, agent_as="processes")

    assert is_running("agent-node-1", table, state)  # type: ignore[arg-type]
    assert is_running("gpudra-controller", table, state)  # type: ignore[arg-type]
    assert not is_running("agent-node-2", table, state)  # type: ignore[arg-type]
    assert not is_running("agent-node-1", table, processes)  # type: ignore[arg-type]
    assert not is_running("agent-node-1", table, None)  # type: ignore[arg-type]


def fake_ctr(tmp_path: Path, images: str, code: int = 0) -> Path:
    """A ctr that lists these images and notes what it is to remove."""
    program = tmp_path / "ctr"
    program.write_text(
        f'#!/bin/sh\nfor word in "$@"; do last=$word; done\n'
        f'case "$*" in *" ls "*) printf "{images}" ;; '
        f'*) echo "$@" >> {tmp_path}/removed; echo busy >&2; exit {code} ;; esac\n'
    )
    program.chmod(0o755)
    return program


def test_old_images_of_ours_are_removed(tmp_path: Path) -> None:
    """A node does not fill up with every change; other images stay."""
    ctr = fake_ctr(tmp_path, "a/gpudra:1\\na/gpudra:2\\na/busybox:1\\n")

    remove_others(ctr, Path("/s"), "a/gpudra:2")

    assert (tmp_path / "removed").read_text() == "-a /s -n k8s.io images rm a/gpudra:1\n"


def test_nothing_is_removed_where_nothing_is_old(tmp_path: Path) -> None:
    """The usual case asks the runtime once."""
    remove_others(fake_ctr(tmp_path, "a/gpudra:2\\n"), Path("/s"), "a/gpudra:2")

    assert not (tmp_path / "removed").exists()


def test_a_runtime_that_refuses_is_told(tmp_path: Path) -> None:
    """With its words."""
    ctr = fake_ctr(tmp_path, "a/gpudra:1\\n", code=1)

    with pytest.raises(ImageError, match="a/gpudra: old images of it cannot be removed: busy"):
        remove_others(ctr, Path("/s"), "a/gpudra:2")
