# SPDX-License-Identifier: Apache-2.0
"""The agent under the real kubelet of the local cluster, beside the Go example driver if it is given.

What is measured is what the kubelet itself counts: ``dra_grpc_operations_duration_seconds`` of each
driver. Between two readings lies one call, so its sum gives that call's time exactly; with pods at
once it gives the mean. Both drivers serve the same kinds of pods on the same kubelet in turns.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpudra.controller.ctl.local.layout import layout_for
from gpudra.controller.ctl.local.process import ProcessTable
from tests.bench.plugin_standin import hardware_file
from tests.bench.plugin_table import HEADER, row
from tests.support.cluster import CORE, RESOURCE, Cluster, Object, busybox_pod, gpudra_local
from tests.support.nvmlagent import device_class, drop_slices

NODE = "node-1"
OURS, PEER = "bench.test.gpudra.io", "gpu.example.com"
CARDS = 64
METHODS = ("NodePrepareResources", "NodeUnprepareResources")
# Claims a pod, and how many times fewer pods than of one claim.
SIZES = ((1, 1), (10, 3), (64, 5))
FLIGHTS = 16
_PATIENCE = 180.0
_LINE = re.compile(
    r'^dra_grpc_operations_duration_seconds_(sum|count)\{([^}]*)\} ([0-9.e+-]+)$', re.MULTILINE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that serves the node.

    Attributes:
        name: of the driver and of its DeviceClass.
        label: for the table.
        process: the running program.
    """

    name: str
    label: str
    process: "subprocess.Popen[bytes]"

    def resident_mib(self) -> float:
        """Memory of the process now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Meter:
    """The kubelet's own histogram."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def read(self, driver: str) -> dict[str, tuple[int, float]]:
        """Calls so far and their seconds, by method."""
        words = ("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics")
        found = {method: [0.0, 0.0] for method in METHODS}
        for what, labels, value in _LINE.findall(self._cluster.kubectl(*words)):
            if f'driver_name="{driver}"' not in labels:
                continue
            for method in METHODS:
                if f'method_name="{method}"' in labels or f'/{method}"' in labels:
                    found[method][what == "sum"] += float(value)
        return {method: (int(count), total) for method, (count, total) in found.items()}

    def wait(self, driver: str, method: str, count: int) -> float:
        """Seconds of all calls, once there were so many."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            seen, total = self.read(driver)[method]
            if seen >= count:
                return total
            time.sleep(0.2)
        raise AssertionError(f"{driver}: no {count} calls of {method} within {_PATIENCE:.0f} s")


def pod(name: str, driver: str, claims: int) -> list[Object]:
    """A pod with so many claims of one device."""
    names = [f"{name}-{number}" for number in range(claims)]
    made: list[Object] = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": one},
            "spec": {
                "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": driver}}]}
            },
        }
        for one in names
    ]
    selector = {"kubernetes.io/hostname": NODE}
    claimed = {f"c{number}": one for number, one in enumerate(names)}
    made.append(busybox_pod(name, "exec sleep infinity", claims=claimed, nodeSelector=selector))
    return made


class Desk:
    """Makes pods come and go."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.meter = Meter(cluster)
        self._namespace = namespace
        self._count = 0

    def round(self, driver: Driver, claims: int, pods: int) -> tuple[float, float]:
        """Mean seconds of Prepare and of Unprepare over so many pods at once."""
        before = self.meter.read(driver.name)
        names = []
        for _ in range(pods):
            self._count += 1
            names.append(f"{driver.label}-{self._count}")
        objects = [one for name in names for one in pod(name, driver.name, claims)]
        self.cluster.apply(*objects, namespace=self._namespace)
        for name in names:
            self.cluster.wait_pod(self._namespace, name, timeout=_PATIENCE)
        prepared = self._mean(driver, METHODS[0], before, pods)
        self._take_away(names, claims)
        return prepared, self._mean(driver, METHODS[1], before, pods)

    def _mean(
        self, driver: Driver, method: str, before: dict[str, tuple[int, float]], calls: int
    ) -> float:
        count, seconds = before[method]
        total = self.meter.wait(driver.name, method, count + calls)
        return (total - seconds) / (self.meter.read(driver.name)[method][0] - count)

    def _take_away(self, names: Sequence[str], claims: int) -> None:
        pods = f"{CORE}/namespaces/{self._namespace}/pods"
        base = f"{RESOURCE}/namespaces/{self._namespace}/resourceclaims"
        for name in names:
            self.cluster.client.request("DELETE", f"{pods}/{name}")
            for number in range(claims):
                self.cluster.client.request("DELETE", f"{base}/{name}-{number}")
        for name in names:
            self.cluster.wait_gone(pods, name)


@contextmanager
def started(
    cluster: Cluster, name: str, label: str, command: Sequence[str], folder: Path
) -> Iterator[Driver]:
    """A driver that has published its cards; everything of it is taken away afterwards."""
    class_path = f"{RESOURCE}/deviceclasses/{name}"
    cluster.client.apply(class_path, device_class(name, whole=name == OURS))
    with (folder / f"{label}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        cluster.wait_list(
            f"{RESOURCE}/resourceslices",
            lambda items: (
                sum(len(one["spec"].get("devices", ())) for one in items.values()) >= CARDS
            ),
            what=f"{label} to publish; {(folder / f'{label}.log').read_text()[-800:]}",
            query=f"fieldSelector=spec.driver%3D{name}",
        )
        yield Driver(name, label, process)
    finally:
        process.terminate()
        process.wait(timeout=60)
        drop_slices(cluster, name)
        cluster.client.request("DELETE", class_path)


def our_command(cluster: Cluster, folder: Path) -> list[str]:
    """The agent with simulated cards. Both drivers have the same rights: the administrator's."""
    node = cluster.node(NODE)
    return [
        *("gpudra-kubelet-plugin", f"--node-name={NODE}", f"--driver-name={OURS}"),
        f"--kubeconfig={cluster.layout.admin_kubeconfig}",
        f"--kubelet-root={node.kubelet_root}",
        f"--cdi-dir={node.cdi_dir}",
        f"--state-dir={folder / 'state'}",
        f"--runtime-dir={folder / 'run'}",
        "--device-lib=simulated",
        f"--hardware={hardware_file(folder, 'l4-24gb', CARDS)}",
        "--http-endpoint=",
        "--node-status=false",
    ]


def peer_command(cluster: Cluster, binary: str) -> list[str]:
    """The example driver with as many devices."""
    node = cluster.node(NODE)
    return [
        *(binary, f"--node-name={NODE}", f"--num-devices={CARDS}", f"--cdi-root={node.cdi_dir}"),
        f"--kubelet-registrar-directory-path={node.kubelet_root}/plugins_registry",
        f"--kubelet-plugins-directory-path={node.kubelet_root}/plugins",
        f"--kubeconfig={cluster.layout.admin_kubeconfig}",
    ]


def compare(desk: Desk, drivers: Sequence[Driver], name: str, load: tuple[int, int], rounds: int) -> None:  # fmt: skip
    """Rounds in turns; a line for each driver and method, and the ratio."""
    claims, pods = load
    seen: dict[str, list[tuple[float, float]]] = {one.label: [] for one in drivers}
    for number in range(rounds + 1):
        for one in drivers:
            found = desk.round(one, claims, pods)
            if number:  # the first round warms connections
                seen[one.label].append(found)
    for which, method in enumerate(("prepare", "unprepare")):
        means = []
        for one in drivers:
            values = [found[which] for found in seen[one.label]]
            means.append(sum(values) / len(values))
            print(row(f"{method:9} {name} {one.label}", values))
        if len(means) == 2:
            print(f"{method:9} {name}: {means[0] / means[1]:.2f} times the example driver")


def measure(cluster: Cluster, pods: int, peer: str, folder: Path) -> None:
    """Everything, on a running cluster."""
    namespace = f"bench-{os.getpid()}"
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    cluster.client.request("POST", f"{CORE}/namespaces", made)
    desk = Desk(cluster, namespace)
    ours = started(cluster, OURS, "gpudra", our_command(cluster, folder), folder)
    try:
        with ours as first:
            if not peer:
                compare_all(desk, [first], pods)
                return
            command = peer_command(cluster, peer)
            with started(cluster, PEER, "example", command, folder) as second:
                compare_all(desk, [first, second], pods)
    finally:
        cluster.delete_namespace(namespace)


def compare_all(desk: Desk, drivers: Sequence[Driver], pods: int) -> None:
    """All loads, and memory in the end."""
    print(HEADER)
    for claims, fewer in SIZES:
        compare(
            desk, drivers, f"{claims:2} a call,  1 in flight", (claims, 1), max(2, pods // fewer)
        )
    compare(desk, drivers, f" 1 a call, {FLIGHTS} in flight", (1, FLIGHTS), max(2, pods // 5))
    for one in drivers:
        print(f"resident {one.label}: {one.resident_mib():.1f} MiB")


def bench_cluster(pods: int, peer: str) -> None:
    """On the local cluster, which is started if it does not run, and stopped if it did not."""
    layout = layout_for(None)
    table = ProcessTable(layout.pid_dir, layout.log_dir)
    was_running = table.running("kube-apiserver") is not None
    if not was_running:
        up = gpudra_local("up", "--nodes", "1", "--yes", "--no-agent")
        assert up.returncode == 0, up.stderr[-4000:]
    try:
        with tempfile.TemporaryDirectory(prefix="gpudra-") as folder:
            measure(Cluster.of(layout), pods, peer, Path(folder))
    finally:
        if not was_running:
            gpudra_local("down")
