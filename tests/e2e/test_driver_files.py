# SPDX-License-Identifier: Apache-2.0
"""Driver files as the real containerd puts them into a container, for four layouts on disk."""

import shutil
from collections.abc import Iterator

import pytest

from gpudra.driver.devicelib.nvml.driverroot import DriverRoot
from tests.support.cluster import CORE, RESOURCE, Cluster, Object, busybox_pod
from tests.support.driverroots import ROOTS, lay_out_driver
from tests.support.nvmlagent import NvmlAgent, nvml_agent

DRIVER = "files.test.gpudra.io"
NODE = "node-2"
CARDS = 4
FOLDERS = ("usr", "lib", "lib64")


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[NvmlAgent]:
    """Four L4 on node-2."""
    with nvml_agent(cluster, driver=DRIVER, node=NODE, hardware="l4-4x") as found:
        found.wait_devices(lambda cards: len(cards) == CARDS, "the cards to be published")
        yield found


@pytest.fixture(params=ROOTS)
def driver(request: pytest.FixtureRequest, agent: NvmlAgent) -> Iterator[DriverRoot]:
    """The driver that the agent's host has now; it may change while the agent runs."""
    root = agent.machine.root
    version = agent.machine.inventory.gpus[0].driver_version
    assert version is not None
    lay_out_driver(request.param, root, version)
    yield DriverRoot(root=str(root), seen=root, host=root, version=version)
    for name in FOLDERS:
        if (root / name).is_symlink():
            (root / name).unlink()
        shutil.rmtree(root / name, ignore_errors=True)


def _claim() -> Object:
    request = {"name": "r", "exactly": {"deviceClassName": DRIVER}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "card"},
        "spec": {"devices": {"requests": [request]}},
    }


def test_every_file_of_the_driver_is_where_programs_look(
    cluster: Cluster, namespace: str, driver: DriverRoot
) -> None:
    """What the agent meant to mount is there, short names of libraries included."""
    wanted = [mount.container_path for mount in driver.edits().mounts]
    assert any(path.endswith("/libcuda.so.1") for path in wanted)
    script = "; ".join(f"test -f {path} || echo missing {path}" for path in wanted)
    pod = busybox_pod(
        "user",
        f"{script}; echo done",
        claims={"c": "card"},
        nodeSelector={"kubernetes.io/hostname": NODE},
    )
    cluster.apply(_claim(), pod, namespace=namespace)
    cluster.wait_pod(namespace, "user", "Succeeded")
    assert cluster.kubectl("logs", "-n", namespace, "user").split() == ["done"]
    cluster.client.request("DELETE", f"{CORE}/namespaces/{namespace}/pods/user")
    claims = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
    cluster.client.request("DELETE", f"{claims}/card")
    cluster.wait_gone(claims, "card")
