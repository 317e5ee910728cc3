# SPDX-License-Identifier: Apache-2.0
"""The control plane: etcd, API server, controller manager and scheduler, as `Component` values.

Everything listens on loopback only. Feature gates keep their defaults unless the person asked for
others. The default client limits (20 requests a second) are lifted: in a load test they would be
what is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpudra.controller.ctl.local.apiclient import ApiClient, is_healthy
from gpudra.controller.ctl.local.certs import Authority, KeyPair, certificate_user, kubeconfig
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.process import Component
from gpudra.controller.ctl.local.state import ClusterState, write_atomic

PORT_NAMES = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CONTROLLER_PORT = "gpudra-controller"
"""Beside them where gpudra's controller runs as a pod."""
CLIENT_QPS = 1000
SERVICE_SUBNET = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
ADMIN_GROUP = "system:masters"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Certificates and kubeconfigs of a cluster, written, and the components that use them."""

    layout: Layout
    state: ClusterState
    authority: Authority
    admin: KeyPair

    @property
    def client(self) -> ApiClient:
        """API requests as administrator."""
        return ApiClient(self.state.server, self.authority.ca.cert, self.admin.cert, self.admin.key)

    def components(self) -> list[Component]:
        """In the order in which they start; they stop in the reverse order."""
        return [self._etcd(), self._apiserver(), self._controller_manager(), self._scheduler()]

    def _port(self, name: str) -> int:
        return self.state.ports[name]

    def _gates(self) -> list[str]:
        return [f"--feature-gates={self.state.feature_gates}"] if self.state.feature_gates else []

    def user_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write the kubeconfig of a component that calls itself ``user``."""
        name = user.removeprefix("system:").replace(":", "-")
        pair = self.authority.issue(name, user, groups)
        path = self.layout.config_dir / f"{name}.kubeconfig"
        write_atomic(
            path, kubeconfig(self.state.server, self.authority.ca.cert, certificate_user(pair))
        )
        return path

    def _etcd(self) -> Component:
        client, peer = (f"http://{LOOPBACK}:{self._port(name)}" for name in ("etcd", "etcd-peer"))
        argv = [
            str(self.layout.binary("etcd")),
            "--name=gpudra",
            f"--data-dir={self.layout.etcd_dir}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=gpudra={peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            "--log-level=warn",
        ]
        return Component("etcd", argv, lambda: is_healthy(f"{client}/health"))

    def _apiserver(self) -> Component:
        pki = self.authority
        serving = pki.issue(
            "kube-apiserver",
            "kube-apiserver",
            hosts=[LOOPBACK, SERVICE_ADDRESS, "localhost", "kubernetes.default.svc"],
        )
        kubelet_client = pki.issue(
            "kube-apiserver-kubelet", "kube-apiserver-kubelet", [ADMIN_GROUP]
        )
        signing = pki.signing_key("service-account")
        argv = [
            str(self.layout.binary("kube-apiserver")),
            f"--etcd-servers=http://{LOOPBACK}:{self._port('etcd')}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self._port('kube-apiserver')}",
            f"--advertise-address={LOOPBACK}",
            # A loopback address cannot be an endpoint of the Service `kubernetes`.
            "--endpoint-reconciler-type=none",
            # Webhooks are called at their pods, as nothing here makes Service addresses work.
            "--enable-aggregator-routing=true",
            f"--service-cluster-ip-range={SERVICE_SUBNET}",
            f"--client-ca-file={pki.ca.cert}",
            f"--tls-cert-file={serving.cert}",
            f"--tls-private-key-file={serving.key}",
            f"--kubelet-certificate-authority={pki.ca.cert}",
            f"--kubelet-client-certificate={kubelet_client.cert}",
            f"--kubelet-client-key={kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing.cert}",
            f"--service-account-signing-key-file={signing.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
            *self._gates(),
            *(
                [f"--runtime-config={self.state.runtime_config}"]
                if self.state.runtime_config
                else []
            ),
        ]
        url = f"{self.state.server}/readyz"
        # It lets open watches end before it ends itself.
        return Component(
            "kube-apiserver", argv, lambda: is_healthy(url), start_timeout=120, stop_timeout=90
        )

    def _controller_manager(self) -> Component:
        config = self.user_kubeconfig("system:kube-controller-manager")
        port = self._port("kube-controller-manager")
        argv = [
            str(self.layout.binary("kube-controller-manager")),
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.authority.signing_key('service-account').key}",
            f"--root-ca-file={self.authority.ca.cert}",
            f"--kube-api-qps={CLIENT_QPS}",
            f"--kube-api-burst={2 * CLIENT_QPS}",
            *self._gates(),
        ]
        if self.state.fake_nodes:
            # Nodes that are only objects send no heartbeat: after the usual 50 s they would be
            # tainted unreachable and their pods evicted.
            argv.append("--node-monitor-grace-period=10000h")
        return Component(
            "kube-controller-manager",
            argv,
            lambda: is_healthy(f"https://{LOOPBACK}:{port}/healthz"),
            config_files=[config],
        )

    def _scheduler(self) -> Component:
        config = self.user_kubeconfig("system:kube-scheduler")
        port = self._port("kube-scheduler")
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(config),
                "qps": CLIENT_QPS,
                "burst": 2 * CLIENT_QPS,
            },
            "leaderElection": {"leaderElect": False},
        }
        file = self.layout.config_dir / "kube-scheduler.yaml"
        write_atomic(file, yaml.safe_dump(document, sort_keys=False))
        argv = [
            str(self.layout.binary("kube-scheduler")),
            f"--config={file}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            *self._gates(),
        ]
        return Component(
            "kube-scheduler",
            argv,
            lambda: is_healthy(f"https://{LOOPBACK}:{port}/healthz"),
            config_files=[file, config],
        )


def control_plane(layout: Layout, state: ClusterState) -> ControlPlane:
    """Make or renew certificates and the administrator's kubeconfig, and describe the components."""
    authority = Authority(layout.pki_dir)
    admin = authority.issue("admin", "admin", [ADMIN_GROUP])
    text = kubeconfig(state.server, authority.ca.cert, certificate_user(admin))
    write_atomic(layout.admin_kubeconfig, text)
    return ControlPlane(layout, state, authority, admin)
