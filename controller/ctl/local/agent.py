# SPDX-License-Identifier: Apache-2.0
"""Our kubelet plugin as a process for each node: account, token, process; used by ``up``.

By default it runs as a pod (see ``chart``). A process is what tests kill, and what starts fastest.
It is never imported. It gets no more rights than
on any cluster: a service account with the least role, and a token bound to its node. The API
server puts the node's name into the identity of such a token, which the admission policy in
``deploy/manifests/rbac.yaml`` compares with the slice that is written.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.local.apiclient import ApiClient, is_healthy
from gpudra.controller.ctl.local.certs import kubeconfig
from gpudra.controller.ctl.local.components import LOOPBACK, ControlPlane
from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.controller.ctl.local.process import Component
from gpudra.controller.ctl.local.state import NodeState, write_atomic

DEFAULT_HARDWARE = "dgx-h100-8x80"
NAMESPACE = "gpudra-system"
SERVICE_ACCOUNT = "gpudra-kubelet-plugin"
SCRIPT = "gpudra-kubelet-plugin"
DRIVER = "gpu.gpudra.io"
TOKEN_SECONDS = 30 * 24 * 3600
"""Tokens outlive any sitting with the cluster, and every ``up`` issues new ones."""

SOURCE_FOLDERS = ("api", "driver", "kubelet_plugin", "controller/resourceslices")

_COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


class AgentError(GpudraError):
    """The kubelet plugin cannot be started."""


def manifests() -> list[dict[str, Any]]:
    """Namespace, account, role and admission policy of the plugin; DeviceClasses; our own kinds."""
    folder = checkout_dir() / "deploy" / "manifests"
    return [*_documents(folder / "rbac.yaml", folder / "deviceclasses.yaml"), *_kinds()]


def prerequisites() -> list[dict[str, Any]]:
    """What must be there before the chart: the namespace, and our kinds, which helm never updates."""
    rights = _documents(checkout_dir() / "deploy" / "manifests" / "rbac.yaml")
    return [*(one for one in rights if one["kind"] == "Namespace"), *_kinds()]


def _kinds() -> list[dict[str, Any]]:
    folder = checkout_dir() / "deploy" / "charts" / "gpudra" / "crds"
    return _documents(*sorted(folder.glob("*.yaml")))


def _documents(*files: Path) -> list[dict[str, Any]]:
    return [
        document for file in files for document in yaml.safe_load_all(file.read_text()) if document
    ]


def object_path(document: dict[str, Any]) -> str:
    """API path of an object of the manifest.

    Raises:
        KeyError: a kind that the manifest is not meant to have.
    """
    metadata = document["metadata"]
    collection = _COLLECTIONS[document["kind"]].format(namespace=metadata.get("namespace", ""))
    return f"{collection}/{metadata['name']}"


def apply_all(client: ApiClient, documents: Iterable[dict[str, Any]]) -> None:
    """Create or update objects."""
    for document in documents:
        client.apply(object_path(document), document)


def node_token(client: ApiClient, node: str, seconds: int = TOKEN_SECONDS) -> str:
    """A token of the plugin's account that is good only as long as the node's object lives."""
    uid = client.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    bound = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds, "boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{SERVICE_ACCOUNT}/token"
    return str(client.request("POST", path, body)["status"]["token"])


def script_path() -> Path:
    """The plugin's command, beside the Python that runs this."""
    return Path(sys.executable).with_name(SCRIPT)


def check_script() -> None:
    """Find out whether the plugin can be run at all, with a message that helps.

    Raises:
        AgentError: it is not installed, or does not even tell its version.
    """
    script = script_path()
    if not script.is_file():
        raise AgentError(
            "is not installed",
            obj=str(script),
            hint="pip install -e . in the checkout, or give --no-agent",
        )
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AgentError(
            f"does not run:\n{(result.stderr or result.stdout).strip()[-1500:]}",
            obj=str(script),
            hint="give --no-agent to start without it",
        )


def newest_source(root: Path, folders: Sequence[str] = SOURCE_FOLDERS) -> float:
    """When the plugin's source was changed last, in seconds since the epoch."""
    files = (
        Path(parent) / name
        for folder in folders
        for parent, _, names in os.walk(root / folder)
        for name in names
    )
    return max(
        (file.stat().st_mtime for file in files if file.suffix in {".py", ".yaml"}), default=0.0
    )


@dataclass(frozen=True, slots=True)
class Agent:
    """The plugin of one node; ``hardware`` is a profile's name or a file."""

    node: NodeState
    hardware: str

    @property
    def name(self) -> str:
        """Component name."""
        return f"agent-{self.node.name}"

    @property
    def endpoint(self) -> str:
        """Where it serves health and metrics."""
        return f"{LOOPBACK}:{self.node.agent_port}"

    @property
    def state_dir(self) -> Path:
        """Its checkpoint lies where a pod's would, so that one takes over from the other."""
        return Path(self.node.kubelet_root) / "plugins" / DRIVER

    def prepare(self, plane: ControlPlane) -> Path:
        """Issue a new token and write the kubeconfig that points to it."""
        directory = Path(self.node.agent_dir)
        token_file = directory / "token"
        write_atomic(token_file, node_token(plane.client, self.node.name))
        config = directory / "kubeconfig"
        write_atomic(
            config,
            kubeconfig(plane.state.server, plane.authority.ca.cert, {"tokenFile": str(token_file)}),
        )
        return config

    def component(self, config: Path) -> Component:
        """Its process. A changed source file restarts it, a new token does not."""
        argv = [
            str(script_path()),
            f"--node-name={self.node.name}",
            f"--kubeconfig={config}",
            f"--kubelet-root={self.node.kubelet_root}",
            f"--cdi-dir={self.node.cdi_dir}",
            f"--runtime-dir={Path(self.node.agent_dir) / 'run'}",
            "--device-lib=simulated",
            f"--hardware={self.hardware}",
            f"--http-endpoint={self.endpoint}",
        ]
        url = f"http://{self.endpoint}/readyz"
        return Component(
            self.name,
            argv,
            lambda: is_healthy(url),
            stop_timeout=20,
            config_files=[self.source_mark(), config],
        )

    def source_mark(self) -> Path:
        """A file that is as old as the newest source file."""
        mark = Path(self.node.agent_dir) / "source"
        mark.touch()
        newest = newest_source(checkout_dir())
        os.utime(mark, (newest, newest))
        return mark
