# SPDX-License-Identifier: Apache-2.0
"""Managed mode on the real cluster: nodes that are only objects, a controller that can be killed.

The object-only nodes have real slices, so pods are placed and bound there, and never run. Nothing
of it touches the real nodes; all of it is gone after the block.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from gpudra.api.errors import ApiError, ConflictError, NotFoundError
from gpudra.controller.ctl.local.certs import kubeconfig
from gpudra.controller.ctl.local.fakenodes import fake_node
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.forms import CardForms, PublishPolicy
from gpudra.driver.core.resourceslices import ServerFeatures, build_pool, resource_slices
from gpudra.driver.devicelib.simulated.catalog import load_hardware
from gpudra.driver.devicelib.simulated.model import build_inventory
from tests.support.cluster import CORE, RESOURCE, Cluster, Object
from tests.support.helm import Helm

DRIVER = "gpu.gpudra.io"
QUEUES = "/apis/gpudra.io/v1alpha1/queues"
GROUPS = "/apis/gpudra.io/v1alpha1/namespaces/{}/podgroups"
SPACE = "gpudra-managed-e2e"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases"
NAME = "gpudra-managed-e2e-controller"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
FEATURES = ServerFeatures(counters=True, consumable_capacity=True, device_taints=True)
# kube-controller-manager gives a node up after 40 s without a sign of life.
_BEAT_SECONDS = 5.0


def managed_node(name: str, **labels: str) -> Object:
    """A node object as an agent leaves it whose NodePolicy says ``managed``."""
    made = fake_node(name)
    del made["metadata"]["labels"]["gpudra.io/fake"]
    made["metadata"]["labels"] |= {
        "gpudra.io/managed": "true",
        "gpudra.io/e2e": "managed",
        **labels,
    }
    return made


def managed_slices(
    name: str, hardware: str, kinds: Sequence[DeviceKind] = (DeviceKind.WHOLE,)
) -> list[Object]:
    """What the agent of such a node would publish."""
    pool = build_pool(
        build_inventory(load_hardware(hardware), node_name=name),
        driver=DRIVER,
        node_name=name,
        features=FEATURES,
        policy=PublishPolicy(forms=CardForms(kinds=frozenset(kinds)), managed=True),
    )
    return [one.to_dict() for one in resource_slices(pool)]


@contextlib.contextmanager
def managed_nodes(cluster: Cluster, *nodes: tuple[Object, list[Object]]) -> Iterator[None]:
    """Nodes and their slices, kept alive inside the block."""
    ended = threading.Event()
    names = [node["metadata"]["name"] for node, _ in nodes]
    beat = threading.Thread(target=_beat, args=(cluster, names, ended), daemon=True)
    try:
        for node, slices in nodes:
            cluster.client.request("POST", f"{CORE}/nodes", node)
            for one in slices:
                cluster.client.request("POST", f"{RESOURCE}/resourceslices", one)
        beat.start()
        cluster.wait_list(
            f"{CORE}/nodes",
            lambda items: all(
                name in items and not items[name]["spec"].get("taints") for name in names
            ),
            what="the nodes to have no taint",
        )
        yield
    finally:
        ended.set()
        if beat.is_alive():
            beat.join()
        for name, (_, slices) in zip(names, nodes, strict=True):
            for one in slices:
                _delete(cluster, f"{RESOURCE}/resourceslices/{one['metadata']['name']}")
            _delete(cluster, f"{CORE}/nodes/{name}")


def _beat(cluster: Cluster, names: list[str], ended: threading.Event) -> None:
    """What a kubelet does every few seconds: a new time in the node's lease.

    Later than any of an earlier run on the same cluster, of which the lease is still there.
    """
    base = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    count = 0
    while not ended.wait(0 if count == 0 else _BEAT_SECONDS):
        count += 1
        for name in names:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {
                    "holderIdentity": name,
                    "leaseDurationSeconds": 40,
                    "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                },
            }
            with contextlib.suppress(ApiError):
                cluster.client.apply(f"{base}/{name}", lease)


def _delete(cluster: Cluster, path: str) -> None:
    with contextlib.suppress(NotFoundError):
        cluster.client.request("DELETE", path)


@dataclass
class ManagedController:
    """``gpudra-controller`` as a process, with the rights that the chart gives it.

    Attributes:
        flags: more of its command line.
    """

    cluster: Cluster
    folder: Path
    config: Path
    flags: tuple[str, ...] = ()
    count: int = 0
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """Where the present process writes."""
        return self.folder / f"log-{self.count}"

    def start(self) -> None:
        """A new process; returns when it leads."""
        assert self.process is None
        self.count += 1
        name = f"managed-{self.count}"
        command = [
            *(sys.executable, "-m", "gpudra.controller", f"--kubeconfig={self.config}"),
            *(f"--namespace={SPACE}", f"--instance={name}", "--http-endpoint=127.0.0.1:0"),
            *self.flags,
        ]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stderr=out)
        self.cluster.wait_for(
            LEASE,
            "gpudra-controller",
            lambda lease: lease["spec"].get("holderIdentity") == name,
            what="to be held by the new controller",
        )

    def kill(self) -> None:
        """SIGKILL. The lease is given back for it, so that nobody waits for it to run out."""
        assert self.process is not None
        process, self.process = self.process, None
        process.kill()
        process.wait()
        # A renewal that was under way may still arrive: then it is given back once more.
        for last in (*[False] * 4, True):
            lease = self.cluster.get(LEASE, "gpudra-controller")
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            try:
                self.cluster.client.request("PUT", f"{LEASE}/gpudra-controller", lease)
            except ConflictError:
                if last:
                    raise
            else:
                return

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=60)

    def lines(self) -> list[dict[str, Any]]:
        """What the present process logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextlib.contextmanager
def managed_controller(cluster: Cluster, folder: Path, *flags: str) -> Iterator[ManagedController]:
    """The chart's account for managed mode, and the controller, started."""
    objects = [
        one
        for one in Helm.built().template(
            "--set", "managed.enabled=true", release=SPACE, namespace=SPACE
        )
        if one["kind"] in RIGHTS and one["metadata"]["name"] == NAME
    ]
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    text = yaml.safe_dump_all([space, *objects])
    # That of the module before this one may still be going.
    cluster.wait_list(
        f"{CORE}/namespaces",
        lambda found: "deletionTimestamp" not in found.get(SPACE, space)["metadata"],
        what=f"the namespace {SPACE} of before to be gone",
    )
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    config = folder / "kubeconfig"
    token = cluster.kubectl("create", "token", NAME, "-n", SPACE).strip()
    authority = cluster.layout.pki_dir / "ca.crt"
    config.write_text(kubeconfig(cluster.state.server, authority, {"token": token}))
    running = ManagedController(cluster, folder, config, flags)
    try:
        running.start()
        yield running
    finally:
        if running.process is not None:
            running.process.kill()
            running.process.wait()
        cluster.kubectl("delete", "-f", "-", "--wait=false", stdin=text)


def queue(name: str, **spec: Any) -> Object:
    """A Queue."""
    return {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": name, "labels": {"gpudra.io/e2e": "managed"}},
        "spec": spec,
    }


def group(name: str, count: int, **spec: Any) -> Object:
    """A PodGroup."""
    return {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minCount": count, **spec},
    }


def gpu_template(name: str = "gpu", count: int = 1, **devices: Any) -> Object:
    """A template for whole cards."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request], **devices}}},
    }


def queued_pod(
    name: str, queue_name: str, *, template: str = "gpu", member_of: str = "", **spec: Any
) -> Object:
    """A pod for a queue, which would sleep if there were a kubelet."""
    labels = {"gpudra.io/queue": queue_name}
    if member_of:
        labels["gpudra.io/pod-group"] = member_of
    container = {
        "name": "c",
        "image": "gpudra.local/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
            "containers": [container],
            **spec,
        },
    }


def word(pod: Object, kind: str = "Queued") -> tuple[str, str, str]:
    """Status, reason and message of a condition of ours."""
    for one in pod["status"].get("conditions", ()):
        if one["type"] == f"gpudra.io/{kind}":
            return one["status"], one["reason"], one.get("message", "")
    return "", "", ""


def is_gated(pod: Object) -> bool:
    """Whether it waits at our gate."""
    gates = pod["spec"].get("schedulingGates", ())
    return any(one["name"] == "gpudra.io/admission" for one in gates)
