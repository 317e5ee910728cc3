# SPDX-License-Identifier: Apache-2.0
"""A cluster of its own on which ``make demo`` has installed the chart: agent and controller as pods."""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.controller.ctl.local.chart import Release
from gpudra.controller.ctl.local.layout import layout_for
from tests.support.cluster import CORE, RESOURCE, Cluster, gpudra_local
from tools.demo.world import ROOT

SLICES = f"{RESOURCE}/resourceslices"


@dataclass(frozen=True)
class Installation:
    """A cluster of one node on which the demo has installed the chart, and what the demo said."""

    cluster: Cluster
    told: str

    @property
    def release(self) -> Release:
        """The chart's."""
        return Release(self.cluster.layout)

    def upgrade(self, **changes: Any) -> None:
        """The same values but for some, until all pods are ready."""
        values = yaml.safe_load((self.cluster.layout.config_dir / "values.yaml").read_text())
        self.release.install({**values, **changes})

    def node_address(self) -> str:
        """Where pods of the node's network are reached."""
        node = self.cluster.get(f"{CORE}/nodes", "node-1")
        return next(
            str(one["address"])
            for one in node["status"]["addresses"]
            if one["type"] == "InternalIP"
        )

    def free_port(self) -> int:
        """A port on which nobody listens there."""
        with socket.socket() as probe:
            probe.bind((self.node_address(), 0))
            return int(probe.getsockname()[1])

    def versions(self) -> dict[str, str]:
        """Uid and resourceVersion of every slice, by name."""
        items = self.cluster.client.request("GET", SLICES)["items"]
        metas = [item["metadata"] for item in items]
        return {meta["name"]: f"{meta['uid']}@{meta['resourceVersion']}" for meta in metas}

    def refused(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl says about something that must not work."""
        layout = self.cluster.layout
        command = [layout.binary("kubectl"), f"--kubeconfig={layout.admin_kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode != 0, done.stdout
        return done.stderr


@contextlib.contextmanager
def demo_cluster() -> Iterator[Installation]:
    """The demo's own cluster, which stays up after it; taken down at the end."""
    base = Path(tempfile.mkdtemp(prefix="gpudra-chart-"))
    try:
        demo = subprocess.run(
            [sys.executable, "-m", "tools.demo", "--dir", str(base)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert demo.returncode == 0, demo.stdout[-3000:] + demo.stderr[-3000:]
        yield Installation(Cluster.of(layout_for(str(base))), demo.stdout)
    finally:
        gpudra_local("down", "--purge", "--dir", str(base))
        shutil.rmtree(base, ignore_errors=True)
