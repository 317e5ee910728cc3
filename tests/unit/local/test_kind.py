# SPDX-License-Identifier: Apache-2.0
"""The files for people with Docker. tests/e2e/test_kind.py lets kind read the configuration."""

import subprocess
import tomllib

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
