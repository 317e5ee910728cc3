# SPDX-License-Identifier: Apache-2.0
"""Nodes that are only objects: enough for the scheduler, no kubelet behind; used by ``up``.

They are created with their status, as a kubelet does it. The controller manager is told to wait
for heartbeats practically for ever while there are any (see ``components``). Pods on them never
run, and end only when deleted with grace period 0.
"""

from collections.abc import Callable
from typing import Any

from gpudra.api.errors import NotFoundError
from gpudra.controller.ctl.local.apiclient import ApiClient

LABEL = "gpudra.io/fake"
_NODES = "/api/v1/nodes"
_RESOURCES = {"cpu": "192", "memory": "2Ti", "ephemeral-storage": "1Ti", "pods": "250"}


def fake_node(name: str) -> dict[str, Any]:
    """A Ready node the size of a GPU server."""
    conditions = [
        {
            "type": "Ready",
            "status": "True",
            "reason": "FakeNode",
            "message": "an object without a kubelet",
        },
        *(
            {
                "type": kind,
                "status": "False",
                "reason": "FakeNode",
                "message": "an object without a kubelet",
            }
            for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
        ),
    ]
    labels = {
        LABEL: "true",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": dict(_RESOURCES),
            "allocatable": dict(_RESOURCES),
            "conditions": conditions,
        },
    }


def node_names(count: int) -> list[str]:
    """``fake-0001`` and so on."""
    return [f"fake-{number:04d}" for number in range(1, count + 1)]


def existing(client: ApiClient) -> set[str]:
    """Names of the fake nodes that are there."""
    answer = client.request("GET", f"{_NODES}?labelSelector={LABEL}%3Dtrue")
    return {item["metadata"]["name"] for item in answer["items"]}


def ensure(client: ApiClient, count: int, report: Callable[[str], None]) -> None:
    """Have exactly ``count`` fake nodes; ``report`` hears how far it is."""
    wanted, have = node_names(count), existing(client)
    missing = [fake_node(name) for name in wanted if name not in have]
    for done, _ in enumerate(client.create_all(_NODES, missing), start=1):
        report(f"{done} of {len(missing)} created")
    for name in sorted(have - set(wanted)):
        try:
            client.request("DELETE", f"{_NODES}/{name}")
        except NotFoundError:
            continue
