# SPDX-License-Identifier: Apache-2.0
"""deploy/kind, read by kind itself: built from its Go module, with a `docker` that only takes notes."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpudra.controller.ctl.local.build import Builder, Tool
from gpudra.controller.ctl.local.layout import checkout_dir, layout_for
from gpudra.controller.ctl.local.progress import Progress
from tests.support.helm import Helm, find

FOLDER = checkout_dir() / "deploy" / "kind"
KIND = Tool(name="kind", module="sigs.k8s.io/kind", programs={"kind": "sigs.k8s.io/kind"})
# Answers what kind asks before it starts containers, and refuses these.
DOCKER = """#!/bin/sh
echo "$@" >> "$DOCKER_LOG"
case "$1" in
  info) echo '{}' ;;
  network) echo kind ;;
  run) echo "no containers here" >&2; exit 1 ;;
esac
"""


@dataclass(frozen=True)
class Kind:
    """The command, and a machine whose docker starts nothing."""

    binary: Path
    folder: Path

    @property
    def log(self) -> Path:
        """What docker was asked."""
        return self.folder / "log"

    def create(self, config: str) -> str:
        """What kind says to a configuration; it never succeeds."""
        file = self.folder / "config.yaml"
        file.write_text(config)
        docker = self.folder / "docker"
        docker.write_text(DOCKER)
        docker.chmod(0o755)
        self.log.write_text("")
        done = subprocess.run(
            [self.binary, "create", "cluster", "--retain", "--config", file],
            env={
                **os.environ,
                "PATH": f"{self.folder}:{os.environ['PATH']}",
                "DOCKER_LOG": str(self.log),
                "KUBECONFIG": str(self.folder / "kubeconfig"),
                "KIND_EXPERIMENTAL_PROVIDER": "docker",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        return done.stderr


@pytest.fixture
def kind(tmp_path: Path) -> Kind:
    """Built once, beside the cluster's programs."""
    bin_dir = layout_for(None).bin_dir
    Builder(checkout_dir() / "deploy" / "local" / "tools", bin_dir).build(KIND, Progress(1))
    return Kind(bin_dir / "kind", tmp_path)


def test_kind_starts_three_nodes(kind: Kind) -> None:
    """The configuration is read and valid: kind goes on to run a control plane and two workers."""
    said = kind.create((FOLDER / "cluster.yaml").read_text())

    assert "no containers here" in said
    runs = [line for line in kind.log.read_text().splitlines() if line.startswith("run ")]
    roles = sorted(re.findall(r"kind\.role=(\S+)", " ".join(runs)))
    assert set(roles) <= {"control-plane", "worker"}
    assert " 📦 📦 📦" in said, "three nodes are prepared"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("featureGate: {A: true}", "field featureGate not found"),
        ("name: Not_A_Name", "cluster name"),
    ],
)
def test_kind_would_tell_a_mistake(kind: Kind, wrong: str, said: str) -> None:
    """An unknown field or a bad name ends before any container is asked for."""
    text = (FOLDER / "cluster.yaml").read_text().replace("name: gpudra\n", "")

    assert said in kind.create(f"{text}\n{wrong}\n")
    assert "run " not in kind.log.read_text()


def test_every_node_with_cards_has_its_group() -> None:
    """The chart makes a DaemonSet for each kind of simulated hardware, on the nodes labelled so."""
    document = yaml.safe_load((FOLDER / "cluster.yaml").read_text())
    labels = [node["labels"] for node in document["nodes"] if "labels" in node]
    objects = Helm.built().template("--values", str(FOLDER / "values.yaml"))
    pods = [
        find(objects, "DaemonSet", f"gpudra-kubelet-plugin-{group}")["spec"]["template"]["spec"]
        for group in ("h100", "a30")
    ]

    assert [pod["nodeSelector"] for pod in pods] == labels
    for pod, label in zip(pods, labels, strict=True):
        assert f"--hardware={label['gpudra.io/hardware']}" in pod["containers"][0]["args"]
