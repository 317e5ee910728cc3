# SPDX-License-Identifier: Apache-2.0
"""The node agent with the fake NVML on a node of the local cluster, beside the one that runs there."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpudra.controller.ctl.local.agent import node_token, script_path
from gpudra.controller.ctl.local.certs import kubeconfig
from tests.fakenvml.machine import FakeMachine
from tests.support.cluster import RESOURCE, Cluster, Object

SLICES = f"{RESOURCE}/resourceslices"


@dataclass(frozen=True, slots=True)
class NvmlAgent:
    """A running agent with a name of its own.

    Attributes:
        cluster: where it runs.
        machine: the pretended hardware; `machine.ctl` lets things happen to it.
        driver: its driver name; a DeviceClass of the same name exists.
        node: the node that it serves.
        log: its log file.
    """

    cluster: Cluster
    machine: FakeMachine
    driver: str
    node: str
    log: Path

    def devices(self, items: dict[str, Object]) -> dict[str, Object]:
        """Its published whole cards by name; nothing while the pool is being rewritten."""
        mine = [one["spec"] for one in items.values() if one["spec"]["driver"] == self.driver]
        newest = max((spec["pool"]["generation"] for spec in mine), default=0)
        current = [spec for spec in mine if spec["pool"]["generation"] == newest]
        if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
            return {}
        return {
            device["name"]: device
            for spec in current
            for device in spec.get("devices", ())
            if device["attributes"]["type"]["string"] == "gpu"
        }

    def wait_devices(self, wanted, what: str, timeout: float = 30):  # type: ignore[no-untyped-def]
        """Follow the slices until ``wanted(devices by name)`` gives an answer."""
        return self.cluster.wait_list(
            SLICES,
            lambda items: wanted(self.devices(items)),
            what=what,
            timeout=timeout,
            query=f"fieldSelector=spec.driver%3D{self.driver}",
        )


@contextmanager
def nvml_agent(
    cluster: Cluster,
    *,
    driver: str,
    node: str = "node-1",
    hardware: str = "dgx-h100-8x80",
    options: Sequence[str] = (),
) -> Iterator[NvmlAgent]:
    """Starts it, and takes away everything of it afterwards. Needs root, for device nodes.

    ``options`` are further words of its command line.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpudra-nvml-"))
    machine = FakeMachine(hardware, folder / "machine", node_name=node)
    _make_nodes(machine.root / "dev")
    class_path = f"{RESOURCE}/deviceclasses/{driver}"
    cluster.client.apply(class_path, device_class(driver))
    log = folder / "agent.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*_command(cluster, folder, machine, driver, node), *options],
            stdout=out,
            stderr=out,
            env={**os.environ, **machine.environment},
        )
    try:
        yield NvmlAgent(cluster, machine, driver, node, log)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-6000:]}") from error
    finally:
        process.terminate()
        process.wait(timeout=60)
        drop_slices(cluster, driver)
        cluster.client.request("DELETE", class_path)
        shutil.rmtree(folder)


def drop_slices(cluster: Cluster, driver: str) -> None:
    """Takes away what a driver that is no more has published."""
    selector = f"fieldSelector=spec.driver%3D{driver}"
    for item in cluster.client.request("GET", f"{SLICES}?{selector}")["items"]:
        cluster.client.request("DELETE", f"{SLICES}/{item['metadata']['name']}")


def _command(
    cluster: Cluster, folder: Path, machine: FakeMachine, driver: str, node: str
) -> list[str]:
    found = cluster.node(node)
    config, token = folder / "kubeconfig", folder / "token"
    token.write_text(node_token(cluster.client, node, seconds=3600))
    authority = cluster.client.ca_file
    config.write_text(kubeconfig(cluster.state.server, authority, {"tokenFile": str(token)}))
    return [
        str(script_path()),
        f"--node-name={node}",
        f"--driver-name={driver}",
        f"--kubeconfig={config}",
        f"--kubelet-root={found.kubelet_root}",
        f"--cdi-dir={found.cdi_dir}",
        f"--state-dir={folder / 'state'}",
        f"--runtime-dir={folder / 'run'}",
        "--device-lib=nvml",
        f"--driver-root={machine.root}",
        f"--host-root={machine.root}",
        "--http-endpoint=",
        "--node-status=false",  # the node's own agent speaks for it
    ]


def _make_nodes(folder: Path) -> None:
    """Real device nodes (of /dev/null) where the machine has plain files: containers get them."""
    null = Path("/dev/null").stat().st_rdev
    for path in [one for one in folder.rglob("*") if one.is_file()]:
        path.unlink()
        os.mknod(path, stat.S_IFCHR | 0o666, null)


def device_class(driver: str, *, whole: bool = True) -> Object:
    """A DeviceClass of the driver's name: its whole cards, or whatever it publishes."""
    expression = f'device.driver == "{driver}"'
    if whole:
        expression += f' && device.attributes["{driver}"].type == "gpu"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
