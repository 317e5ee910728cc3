# SPDX-License-Identifier: Apache-2.0
"""The admission policies of managed mode on a cluster: the chart's own, installed and removed."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from gpudra.api.errors import ApiError
from tests.support.cluster import CORE, RESOURCE, Cluster, Object
from tests.support.helm import Helm

POLICIES = "templates/managed-gate.yaml"
_PATIENCE = 60.0


@contextmanager
def gate_installed(cluster: Cluster) -> Iterator[None]:
    """The policies in force inside the block, and gone after it."""
    options = ("--set", "managed.enabled=true", "--show-only", POLICIES)
    objects = [one for one in Helm.built().template(*options) if one["kind"] != "Job"]
    text = yaml.safe_dump_all(objects)
    space = f"gate-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", space)
    cluster.kubectl("apply", "-f", "-", stdin=text)
    try:
        until_settled(cluster, space, gated=True)
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=text)
        until_settled(cluster, space, gated=False)
        cluster.kubectl("delete", "namespace", space, "--wait=false")


def until_settled(cluster: Cluster, space: str, *, gated: bool) -> None:
    """Waits until the policies are in force, or until none is any more.

    The API server reads its policies anew once a second; each request here takes a while, too.
    """
    cluster.wait_for(
        f"{CORE}/namespaces/{space}/serviceaccounts", "default", lambda _: True, what="to exist"
    )
    deadline = time.monotonic() + _PATIENCE
    while _is_in_force(cluster, space) is not gated:
        assert time.monotonic() < deadline, f"the policies did not become {gated}"


def _is_in_force(cluster: Cluster, space: str) -> bool | None:
    """Whether the policies look at a pod and at a claim, made for trial only; None: at one of them.

    The claim is looked at by the last of them, which come into force in their order.
    """
    pods, claims = (
        f"{base}/namespaces/{space}/{kind}?dryRun=All"
        for base, kind in ((CORE, "pods"), (RESOURCE, "resourceclaims"))
    )
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": {"gpudra.io/pod-group": "probe"}},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    }
    request = {"deviceClassName": "none", "tolerations": [{"operator": "Exists"}]}
    claim: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "probe"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}},
    }
    gates = cluster.client.request("POST", pods, pod)["spec"].get("schedulingGates", [])
    gated = {"name": "gpudra.io/admission"} in gates
    try:
        cluster.client.request("POST", claims, claim)
    except ApiError:
        return True if gated else None
    return None if gated else False
