# SPDX-License-Identifier: Apache-2.0
"""A real node: its own containerd, its own kubelet, and everything that they keep apart.

Two kubelets on one machine live together as long as they share no container runtime, root
folder, port, cgroup root, CNI network or CDI folder.
"""

import contextlib
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.controller.ctl.local.apiclient import is_healthy
from gpudra.controller.ctl.local.certs import certificate_user, kubeconfig
from gpudra.controller.ctl.local.cgroups import Cgroups
from gpudra.controller.ctl.local.components import CLIENT_QPS, LOOPBACK, ControlPlane
from gpudra.controller.ctl.local.images import PAUSE_IMAGE, import_archive, remove_others
from gpudra.controller.ctl.local.layout import RUN_DIR, Layout, NodeLayout
from gpudra.controller.ctl.local.mounts import filesystem_of, unmount_below
from gpudra.controller.ctl.local.network import CNI_CACHE, cni_config, remove_cni_cache
from gpudra.controller.ctl.local.process import Component, ProcessTable, command_line, kill_matching
from gpudra.controller.ctl.local.state import NodeState, write_atomic

MAX_PODS = 200
POD_LOG_LINKS = Path("/var/log/containers")
DEVICE_PLUGIN_DIR = Path("/var/lib/kubelet/device-plugins")
"""Compiled into the kubelet: the one folder that the nodes of a machine share."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the nodes take from the machine: its address, and the distribution's programs."""

    ip: str
    runc: Path
    cni_bin_dir: Path


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a cluster; ``files`` and ``state`` are of the same node."""

    layout: Layout
    state: NodeState

    @property
    def files(self) -> NodeLayout:
        """Where its files lie."""
        return self.layout.node(self.state.name)

    @property
    def cgroup(self) -> str:
        """Name of its cgroup root."""
        return f"gpudra-{self.layout.identity}-{self.state.name}"

    @property
    def shim_socket_dir(self) -> Path:
        """Sockets of containerd's shims; containerd allows it 42 characters."""
        return RUN_DIR / f"{self.layout.identity}-{self.state.index}"

    @property
    def containerd_dirs(self) -> tuple[Path, Path]:
        """Root (images, snapshots) and state (running containers)."""
        return self.files.base / "containerd", self.files.base / "containerd-state"

    @property
    def process_names(self) -> tuple[str, str]:
        """Component names, in the order in which they stop."""
        return f"kubelet-{self.state.name}", f"containerd-{self.state.name}"

    def make_dirs(self) -> None:
        """Create folders and cgroups."""
        files = self.files
        for path in (
            files.base,
            files.kubelet_root,
            files.cdi_dir,
            files.agent_dir,
            self.shim_socket_dir,
            *self.containerd_dirs,
        ):
            path.mkdir(
                mode=0o711 if path in self.containerd_dirs else 0o755, parents=True, exist_ok=True
            )
        Cgroups().create(self.cgroup)

    def containerd(self, machine: Machine) -> Component:
        """Write the runtime's configuration and describe its process."""
        config = self.files.base / "containerd.toml"
        write_atomic(config, containerd_config(self, machine))
        write_atomic(
            self.files.base / "cni" / "10-gpudra.conflist",
            cni_config(self.layout, self.files, self.state.pod_subnet),
        )
        bin_dir = str(self.layout.bin_dir)
        return Component(
            self.process_names[1],
            [str(self.layout.binary("containerd")), "--config", str(config)],
            lambda: accepts(self.files.containerd_socket),
            env={"PATH": f"{bin_dir}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            config_files=[config],
        )

    def kubelet(self, plane: ControlPlane, machine: Machine) -> Component:
        """Write the kubelet's configuration and describe its process."""
        name = self.state.name
        user = plane.authority.issue(f"kubelet-{name}", f"system:node:{name}", ["system:nodes"])
        serving = plane.authority.issue(
            f"kubelet-{name}-server", name, hosts=[name, machine.ip, LOOPBACK]
        )
        kubeconfig_file = self.files.base / "kubelet.kubeconfig"
        write_atomic(
            kubeconfig_file,
            kubeconfig(plane.state.server, plane.authority.ca.cert, certificate_user(user)),
        )
        document = kubelet_config(self, machine, plane.state.feature_gates)
        document["authentication"]["x509"] = {"clientCAFile": str(plane.authority.ca.cert)}
        document["tlsCertFile"], document["tlsPrivateKeyFile"] = str(serving.cert), str(serving.key)
        config = self.files.base / "kubelet.yaml"
        write_atomic(config, yaml.safe_dump(document, sort_keys=False))
        argv = [
            str(self.layout.binary("kubelet")),
            f"--config={config}",
            f"--kubeconfig={kubeconfig_file}",
            f"--root-dir={self.files.kubelet_root}",
            f"--cert-dir={self.files.base / 'kubelet-pki'}",
            f"--hostname-override={name}",
            f"--node-ip={machine.ip}",
        ]
        url = f"http://{LOOPBACK}:{self.state.healthz_port}/healthz"
        return Component(
            self.process_names[0],
            argv,
            lambda: is_healthy(url),
            env={"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            config_files=[config, kubeconfig_file],
        )

    def import_images(self, archives: Sequence[Path]) -> None:
        """Give the archives to the runtime, which must be running."""
        for archive in archives:
            stamp = self.containerd_dirs[0] / f"{archive.stem}.imported"
            import_archive(self.layout.binary("ctr"), self.files.containerd_socket, archive, stamp)

    def import_image(self, archive: Path, name: str) -> None:
        """Give gpudra's image to the runtime, unless it has the one of this name; forget older ones."""
        stamp = self.containerd_dirs[0] / "own-image.imported"
        ctr, socket_path = self.layout.binary("ctr"), self.files.containerd_socket
        import_archive(ctr, socket_path, archive, stamp, digest=name)
        remove_others(ctr, socket_path, name)

    def stop(self, processes: ProcessTable) -> None:
        """End kubelet, runtime, shims and containers, and undo what they did to the machine."""
        for name in self.process_names:
            processes.stop(name)
        self.kill_shims()
        # Kills what ran in the containers: killing a shim does not.
        Cgroups().remove(self.cgroup)
        unmount_below(self.files.base.resolve())
        remove_cni_cache(self.layout, self.state.name)
        self._remove_log_links()
        for path in (*self.containerd_dirs, self.shim_socket_dir, self.files.base / "ipam"):
            shutil.rmtree(path, ignore_errors=True)
        self.files.containerd_socket.unlink(missing_ok=True)
        self.files.containerd_socket.with_name("containerd.sock.ttrpc").unlink(missing_ok=True)
        remove_empty(RUN_DIR, CNI_CACHE, CNI_CACHE.parent)
        remove_device_plugin_socket()

    def kill_shims(self) -> list[int]:
        """Kill the shims that serve this node's containerd, known by its socket."""
        socket_path = str(self.files.containerd_socket)
        return kill_matching(lambda argv: "containerd-shim" in argv[0] and socket_path in argv)

    def _remove_log_links(self, links: Path = POD_LOG_LINKS) -> None:
        """Remove the links that the kubelet makes outside its root for every container's log."""
        base = str(self.files.base)
        for link in links.glob("*.log") if links.is_dir() else ():
            if link.is_symlink() and str(link.readlink()).startswith(f"{base}/"):
                link.unlink()
        remove_empty(links)


def containerd_config(node: Node, machine: Machine) -> str:
    """The runtime's configuration: CDI on, and no path shared with another containerd."""
    files, (root, state) = node.files, node.containerd_dirs
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    # Overlay cannot be stacked on itself, as when the machine is a container.
    snapshotter = "native" if filesystem_of(files.base.resolve()) == "overlay" else "overlayfs"
    return f"""\
version = 4
root = '{root}'
state = '{state}'

[plugins.'io.containerd.server.v1.grpc']
address = '{files.containerd_socket}'
[plugins.'io.containerd.server.v1.ttrpc']
address = '{files.containerd_socket}.ttrpc'

# Its socket has a fixed path on the machine.
[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.shim.v1.manager']
socket_dir = '{node.shim_socket_dir}'

[plugins.'io.containerd.internal.v1.opt']
path = '{root}/opt'

[plugins.'io.containerd.cri.v1.images']
snapshotter = '{snapshotter}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE_IMAGE}'

[{runtime}]
enable_cdi = true
cdi_spec_dirs = ['{files.cdi_dir}']
# Without the capability CAP_SYS_RESOURCE the kernel refuses a lower score.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[{runtime}.cni]
bin_dirs = ['{machine.cni_bin_dir}']
conf_dir = '{files.base}/cni'
use_internal_loopback = true
[{runtime}.containerd]
default_runtime_name = 'runc'
[{runtime}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[{runtime}.containerd.runtimes.runc.options]
BinaryName = '{machine.runc}'
Root = '{state}/runc'
SystemdCgroup = false
"""


def kubelet_config(node: Node, machine: Machine, feature_gates: str) -> dict[str, Any]:
    """The KubeletConfiguration of a node, without the certificates."""
    files = node.files
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": machine.ip,
        "port": node.state.kubelet_port,
        "readOnlyPort": 0,
        "healthzBindAddress": LOOPBACK,
        "healthzPort": node.state.healthz_port,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{files.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "resolvConf": "/dev/null",
        "podLogsDir": str(files.base / "pod-logs"),
        "volumePluginDir": str(files.base / "volume-plugins"),
        "makeIPTablesUtilChains": False,
        "maxPods": MAX_PODS,
        # A full disk of the machine must not evict the tests' pods or collect their images.
        "evictionHard": {
            "memory.available": "64Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "kubeAPIQPS": CLIENT_QPS,
        "kubeAPIBurst": 2 * CLIENT_QPS,
        "eventRecordQPS": 0,
        "featureGates": parse_gates(feature_gates),
    }


def parse_gates(text: str) -> dict[str, bool]:
    """``A=true,B=false`` as the configuration file wants it."""
    pairs = (item.partition("=") for item in text.split(",") if item)
    return {name.strip(): value.strip().lower() == "true" for name, _, value in pairs}


def accepts(path: Path) -> bool:
    """Whether somebody listens on a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def remove_device_plugin_socket(directory: Path = DEVICE_PLUGIN_DIR) -> None:
    """Remove the socket that kubelets leave outside their root, unless one still runs here."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    if any((argv := command_line(pid)) and Path(argv[0]).name == "kubelet" for pid in pids):
        return
    for name in ("kubelet.sock", "kubelet_internal_checkpoint"):
        (directory / name).unlink(missing_ok=True)
    remove_empty(directory, directory.parent)


def remove_empty(*directories: Path) -> None:
    """Remove folders that were made for us and are shared by others: only while nothing is in them."""
    for directory in directories:
        with contextlib.suppress(OSError):  # not empty, or never there
            directory.rmdir()
