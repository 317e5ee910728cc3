# SPDX-License-Identifier: Apache-2.0
"""The local cluster as e2e tests see it: kubectl, API requests, and waiting by watching.

Nothing here sleeps to wait: every wait follows a watch until its deadline, and says what it saw
last when the deadline passes.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpudra.api.errors import ExpiredError, NotFoundError
from gpudra.controller.ctl.local.apiclient import ApiClient
from gpudra.controller.ctl.local.components import control_plane
from gpudra.controller.ctl.local.images import BUSYBOX_IMAGE
from gpudra.controller.ctl.local.layout import Layout
from gpudra.controller.ctl.local.process import ProcessTable
from gpudra.controller.ctl.local.state import ClusterState, NodeState, load

T = TypeVar("T")
Object = dict[str, Any]

CORE = "/api/v1"
RESOURCE = "/apis/resource.k8s.io/v1"


def gpudra_local(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``gpudra local`` as a person would; the caller looks at the exit code."""
    command = [sys.executable, "-m", "gpudra.controller.ctl.local", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        layout: its files.
        state: ports, and the nodes with their paths.
        client: API requests as administrator.
    """

    layout: Layout
    state: ClusterState
    client: ApiClient

    @classmethod
    def of(cls, layout: Layout) -> "Cluster":
        """The cluster that was started with this layout."""
        state = load(layout)
        assert state is not None, f"no cluster in {layout.base}"
        return cls(layout, state, control_plane(layout, state).client)

    def node(self, name: str) -> NodeState:
        """A real node by its name."""
        return next(node for node in self.state.nodes if node.name == name)

    def pids(self) -> dict[str, int]:
        """The pid of every component that runs."""
        table = ProcessTable(self.layout.pid_dir, self.layout.log_dir)
        records = {name: table.running(name) for name in table.names()}
        return {name: record.pid for name, record in records.items() if record is not None}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of kubectl; a failure shows what kubectl said."""
        command = [
            str(self.layout.binary("kubectl")),
            f"--kubeconfig={self.layout.admin_kubeconfig}",
            *arguments,
        ]
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=120
        )
        assert result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr.strip()}"
        return result.stdout

    def apply(self, *objects: Object, namespace: str = "default") -> None:
        """``kubectl apply`` of objects."""
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(objects))

    def apply_file(self, file: Path, namespace: str = "default") -> None:
        """``kubectl apply`` of a file."""
        self.kubectl("apply", "-n", namespace, "-f", str(file))

    def get(self, collection: str, name: str) -> Object:
        """One object now."""
        return self.client.request("GET", f"{collection}/{name}")

    def wait_list(
        self,
        collection: str,
        wanted: Callable[[dict[str, Object]], T | None],
        *,
        what: str,
        timeout: float = 60,
        query: str = "",
    ) -> T:
        """Follow a collection until ``wanted`` gives an answer other than None or False.

        Args:
            collection: API path of a list.
            wanted: is given all objects by name, at the start and after every event.
            what: completes the sentence "waited for ...".
            timeout: seconds until the test fails.
            query: ``labelSelector=...`` or ``fieldSelector=...``.
        """
        deadline = time.monotonic() + timeout
        path = f"{collection}?{query}" if query else collection
        items: dict[str, Object] = {}
        while time.monotonic() < deadline:
            answer = self.client.request("GET", path)
            items = {item["metadata"]["name"]: item for item in answer["items"]}
            if found := wanted(items):
                return found
            version = answer["metadata"]["resourceVersion"]
            try:
                for event in self.client.watch(
                    path, resource_version=version, timeout=deadline - time.monotonic()
                ):
                    if not _apply_event(items, event):
                        break
                    if found := wanted(items):
                        return found
            except ExpiredError:
                continue
        statuses = {name: item.get("status", item.get("spec")) for name, item in items.items()}
        raise AssertionError(
            f"waited {timeout:.0f} s for {what}; last seen: {json.dumps(statuses)[:3000]}"
        )

    def wait_for(
        self,
        collection: str,
        name: str,
        wanted: Callable[[Object], T | None],
        *,
        what: str,
        timeout: float = 60,
    ) -> T:
        """Follow one object until ``wanted`` gives an answer; it need not exist yet."""
        return self.wait_list(
            collection,
            lambda items: wanted(items[name]) if name in items else None,
            what=f"{name}: {what}",
            timeout=timeout,
            query=f"fieldSelector=metadata.name%3D{name}",
        )

    def wait_gone(self, collection: str, name: str, timeout: float = 90) -> None:
        """Follow an object until it does not exist any more."""
        self.wait_list(
            collection,
            lambda items: name not in items,
            what=f"{name} to be gone",
            timeout=timeout,
            query=f"fieldSelector=metadata.name%3D{name}",
        )

    def wait_pod(
        self, namespace: str, name: str, phase: str = "Running", timeout: float = 60
    ) -> Object:
        """The pod once it is in ``phase``; ready too when that is Running. Failing fast otherwise."""

        def reached(pod: Object) -> Object | None:
            status = pod.get("status", {})
            assert status.get("phase") != "Failed" or phase == "Failed", (
                f"pod {name} failed: {json.dumps(status)}"
            )
            ready = any(
                c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())
            )
            return pod if status.get("phase") == phase and (ready or phase != "Running") else None

        try:
            return self.wait_for(
                f"{CORE}/namespaces/{namespace}/pods", name, reached, what=phase, timeout=timeout
            )
        except AssertionError as error:
            events = self.kubectl("get", "events", "-n", namespace, "--sort-by=.lastTimestamp")
            raise AssertionError(f"{error}\n{events[-3000:]}") from error

    def delete_namespace(self, name: str) -> None:
        """Delete pods and claims, wait until they hold no device any more, and give up the namespace.

        Deleting the namespace alone would do, after the five seconds that its controller waits.
        """
        pods, claims = (
            f"{CORE}/namespaces/{name}/pods",
            f"{RESOURCE}/namespaces/{name}/resourceclaims",
        )
        for collection in (pods, claims):
            self.client.request("DELETE", f"{collection}")
        for collection in (pods, claims):
            self.wait_list(
                collection, lambda items: not items, what=f"{collection} to be empty", timeout=90
            )
        with contextlib.suppress(NotFoundError):  # the test has done it
            self.client.request("DELETE", f"{CORE}/namespaces/{name}")


def _apply_event(items: dict[str, Object], event: Object) -> bool:
    """Bring ``items`` up to an event; False when the watch has to begin anew."""
    name = event["object"].get("metadata", {}).get("name", "")
    if event["type"] == "DELETED":
        items.pop(name, None)
    elif event["type"] in {"ADDED", "MODIFIED"}:
        items[name] = event["object"]
    return bool(event["type"] != "ERROR")


def busybox_pod(
    name: str, script: str, *, node: str = "", claims: Mapping[str, str] | None = None, **spec: Any
) -> Object:
    """A pod that runs a shell script, ends quickly, and needs no registry.

    Args:
        name: of the pod; its container is called ``c``.
        script: for ``sh -c``.
        node: bypass the scheduler.
        claims: name inside the pod -> ResourceClaim in the same namespace, all given to the container.
        spec: more fields of the pod's spec.
    """
    container: Object = {
        "name": "c",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    }
    body: Object = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        **spec,
    }
    if node:
        body["nodeName"] = node
    if claims:
        container["resources"] = {"claims": [{"name": inside} for inside in claims]}
        body["resourceClaims"] = [
            {"name": inside, "resourceClaimName": claim} for inside, claim in claims.items()
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}
