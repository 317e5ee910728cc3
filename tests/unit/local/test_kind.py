# SPDX-License-Identifier: Apache-2.0
"""The files for people with Docker. tests/e2e/test_kind.py lets kind read the configuration."""

import os
import subprocess
import tomllib
from pathlib import Path

import yaml

from gpudra.controller.ctl.local.layout import checkout_dir

KIND = checkout_dir() / "deploy" / "kind"


def test_gates_and_cdi_are_what_the_driver_needs() -> None:
    """Counters, shares and taints are kept by the server, and the runtime reads CDI files."""
    document = yaml.safe_load((KIND / "cluster.yaml").read_text())
    patches = [tomllib.loads(patch)["plugins"] for patch in document["containerdConfigPatches"]]

    assert set(document["featureGates"]) == {
        "DRAConsumableCapacity",
        "DRADeviceTaints",
        "DRAPartitionableDevices",
    }
    for patch in patches:
        (runtime,) = patch.values()
        assert runtime["enable_cdi"] is True
        assert "/var/run/cdi" in runtime["cdi_spec_dirs"]


def test_the_script_is_a_script() -> None:
    """The shell can parse it, and every file that it names exists."""
    script = KIND / "up.sh"

    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    for name in (
        "deploy/kind/cluster.yaml",
        "deploy/container/Containerfile",
        "deploy/kind/values.yaml",
        "deploy/charts/gpudra",
        "deploy/examples/one-gpu",
    ):
        assert name in script.read_text()
        assert (checkout_dir() / name).exists()


def test_the_image_copies_what_the_package_is_made_of() -> None:
    """All four top folders go in, and nothing that is not let through by the ignore file."""
    folder = checkout_dir() / "deploy" / "container"
    copied = {
        name
        for line in (folder / "Containerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    allowed = {
        line[1:]
        for line in (folder / "Containerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }

    assert copied == allowed
    assert {"api", "driver", "kubelet_plugin", "controller"} < copied


def test_the_script_calls_what_it_needs_in_order(tmp_path: Path) -> None:
    """Cluster, image, workload image, kinds, namespace, chart: told by programs that only take notes."""
    log = tmp_path / "log"
    for name in ("docker", "kind", "helm", "kubectl"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $@" >> {log}\n')
        program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_IMAGE": "kindest/node:x"}

    done = subprocess.run([KIND / "up.sh"], env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    calls = log.read_text().splitlines()
    wanted = [
        "kind create cluster --config deploy/kind/cluster.yaml --wait 120s --image kindest/node:x",
        "docker build --tag gpudra.local/gpudra:dev --file deploy/container/Containerfile .",
        "kind load docker-image --name gpudra gpudra.local/gpudra:dev",
        "kind load docker-image --name gpudra gpudra.local/busybox:1",
        "kubectl apply --server-side --filename deploy/charts/gpudra/crds",
    ]
    places = [calls.index(call) for call in wanted]
    (helm,) = [number for number, call in enumerate(calls) if call.startswith("helm ")]
    assert [*places, helm] == sorted([*places, helm])
    assert "--values deploy/kind/values.yaml" in calls[helm]
    assert "image.tag=dev" in calls[helm]
