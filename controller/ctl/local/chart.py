# SPDX-License-Identifier: Apache-2.0
"""gpudra on the local cluster as on any other: the chart, installed by helm; used by ``up``.

Agent and controller are pods of an image that ``ownimage`` makes from this checkout. The nodes of a
machine differ in nothing but the paths that a kubelet may choose, and these are values of the chart:
each node is a group of its own.
"""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.local.agent import NAMESPACE
from gpudra.controller.ctl.local.components import CONTROLLER_PORT, LOOPBACK
from gpudra.controller.ctl.local.layout import Layout, checkout_dir
from gpudra.controller.ctl.local.ownimage import REPOSITORY
from gpudra.controller.ctl.local.state import ClusterState, NodeState, write_atomic

RELEASE = "gpudra"
WAIT_SECONDS = 180
_TICK_SECONDS = 0.5


class ChartError(GpudraError):
    """The chart cannot be installed, or its pods do not become ready."""


def chart_dir() -> Path:
    """The chart of this checkout."""
    return checkout_dir() / "deploy" / "charts" / "gpudra"


def values(state: ClusterState, tag: str) -> dict[str, Any]:
    """What a person would write for this cluster.

    Pods use the node's network, since the API server listens on loopback; for the same reason they
    serve their status there. All nodes are this one machine, so one replica of the controller has
    room for its port.

    Args:
        state: the cluster; its ``hardware`` is a profile's name or a file.
        tag: of the image.
    """
    server = urlsplit(state.server)
    process = {"hostNetwork": True, "httpHost": LOOPBACK}
    return {
        "image": {"repository": REPOSITORY, "tag": tag, "pullPolicy": "Never"},
        "apiServer": {"host": server.hostname, "port": str(server.port)},
        "kubeletPlugin": {
            **process,
            **_hardware(state.hardware),
            "deviceLib": "simulated",
            "groups": {node.name: _group(node) for node in state.nodes},
        },
        "controller": {
            **process,
            "httpPort": state.ports[CONTROLLER_PORT],
            "replicas": 1,
            "nodeSelector": _only(state.nodes[0]),
        },
    }


def _hardware(hardware: str) -> dict[str, Any]:
    file = Path(hardware)
    if file.suffix in {".yaml", ".yml", ".json"} or file.is_file():
        return {"hardware": yaml.safe_load(file.read_text())}
    return {"hardwareProfile": hardware}


def _group(node: NodeState) -> dict[str, Any]:
    return {
        "nodeSelector": _only(node),
        "kubeletRoot": node.kubelet_root,
        "cdiDir": node.cdi_dir,
        "runtimeDir": str(Path(node.agent_dir) / "run"),
        "httpPort": node.agent_port,
    }


def _only(node: NodeState) -> dict[str, str]:
    return {"kubernetes.io/hostname": node.name}


@dataclass(frozen=True, slots=True)
class Release:
    """The chart's release on a cluster that runs."""

    layout: Layout

    def install(
        self,
        wanted: dict[str, Any],
        *,
        wait: int = WAIT_SECONDS,
        tick: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """Install or change it, and wait until its pods are ready.

        Args:
            wanted: values of the chart.
            wait: seconds until it has failed.
            tick: told twice a second what is waited for.

        Raises:
            ChartError: with what helm, or the pods, say.
        """
        file = self.layout.config_dir / "values.yaml"
        write_atomic(file, yaml.safe_dump(wanted, sort_keys=False))
        # Ownership: the same objects may be there from an agent that ran as a process.
        done = self._helm(
            *("upgrade", "--install", RELEASE, str(chart_dir()), "--values", str(file)),
            *("--take-ownership", "--force-conflicts", "--history-max=2"),
            *("--wait", f"--timeout={wait}s"),
            tick=tick,
        )
        if done.returncode != 0:
            raise ChartError(
                f"helm failed: {done.stderr.strip()[-1500:]}{self._troubles()}",
                obj=f"release {RELEASE}",
                hint=f"look at the pods in namespace {NAMESPACE}, then run the command again",
            )

    def preview(self) -> str:
        """What an update with the values of last time would send, which reads the cluster.

        Raises:
            ChartError: with helm's words.
        """
        file = self.layout.config_dir / "values.yaml"
        done = self._helm(
            *("upgrade", RELEASE, str(chart_dir()), "--values", str(file), "--dry-run=server")
        )
        if done.returncode != 0:
            raise ChartError(
                f"helm failed: {done.stderr.strip()[-1500:]}", obj=f"release {RELEASE}"
            )
        return done.stdout

    def uninstall(self) -> None:
        """Remove it, unless there is none.

        Raises:
            ChartError: with helm's words.
        """
        done = self._helm("uninstall", RELEASE, "--ignore-not-found", "--wait", "--timeout=60s")
        if done.returncode != 0:
            raise ChartError(
                f"helm failed: {done.stderr.strip()[-1500:]}", obj=f"release {RELEASE}"
            )

    def _helm(
        self, *arguments: str, tick: Callable[[str], None] = lambda _text: None
    ) -> subprocess.CompletedProcess[str]:
        config = f"--kubeconfig={self.layout.admin_kubeconfig}"
        command = [str(self.layout.binary("helm")), *arguments, "--namespace", NAMESPACE, config]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            while True:
                try:
                    out, err = process.communicate(timeout=_TICK_SECONDS)
                except subprocess.TimeoutExpired:
                    tick("waiting for agent and controller")
                else:
                    return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _troubles(self) -> str:
        """What the pods and their events say, for a person who has to mend it."""
        told = ""
        for words in (
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", "-l=app.kubernetes.io/component=kubelet-plugin", "--prefix", "--tail=4"),
            ("logs", "-l=app.kubernetes.io/component=controller", "--prefix", "--tail=4"),
        ):
            command = [
                str(self.layout.binary("kubectl")),
                f"--kubeconfig={self.layout.admin_kubeconfig}",
                f"--namespace={NAMESPACE}",
                *words,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            told += f"\n$ kubectl {' '.join(words)}\n{(done.stdout or done.stderr)[-1500:]}"
        return told
