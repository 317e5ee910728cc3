# SPDX-License-Identifier: Apache-2.0
"""Device metadata for containers (KEP-5304): what is in the files, and where containers find them.

Pure; gpudra.kubelet_plugin.metadata_files writes them. The protocol is that of Kubernetes
(``k8s.io/dynamic-resource-allocation/api/metadata``): one file per request of a claim, read-only in
the container at a path that is known from the pod alone, with one JSON object per API version,
newest first. ``metadata.generation`` grows with every change. No feature gate is involved.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpudra.api.attributes import AttributeValue, encode_attributes
from gpudra.api.names import check_dns_label
from gpudra.driver.core import cdi
from gpudra.driver.core.allocatable import AllocatableDevice
from gpudra.driver.core.edits import ContainerEdits, Mount
from gpudra.driver.core.prepare import METADATA, MIG_INSTANCE, ClaimAllocation, PreparePlan, Step

GROUP = "metadata.resource.k8s.io"
# Newest first. Both have the same fields.
VERSIONS = ("v1beta1", "v1alpha1")
KIND = "DeviceMetadata"
CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
_OPTIONS = ("ro", "nosuid", "nodev", "noexec", "bind")

Attributes = Callable[[AllocatableDevice], Mapping[str, AttributeValue]]


def metadata_step(steps: Iterable[Step]) -> Step | None:
    """The step that writes a claim's files; a claim of an older version has none."""
    return next((step for step in steps if step.kind == METADATA), None)


def folder_of(step: Step) -> str:
    """The name of the claim's folder on the host."""
    return str(step.args["folder"])


def file_name(request: str) -> str:
    """The name of a request's file in the claim's folder.

    Raises:
        InputError: the request has a name that the API would not take.
    """
    return f"{check_dns_label(request, 'request')}.json"


def container_path(claim: ClaimAllocation, step: Step, driver: str, request: str) -> str:
    """Where a container finds the file of a request.

    A claim that was made from a template goes by the name that the pod gives it, since its own is
    not known to whoever writes the pod.
    """
    pod_claim = str(step.args.get("podClaim", ""))
    place = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim.name}"
    return f"{CONTAINER_FOLDER}/{place}/{request}/{driver}-metadata.json"


def mounts(plan: PreparePlan, step: Step, driver: str, folder: str) -> dict[str, ContainerEdits]:
    """By CDI device name, the mounts of the files of all requests that have the device.

    Args:
        plan: of the claim.
        step: its metadata step.
        driver: this driver's name.
        folder: the claim's folder on the host.
    """
    found: dict[str, dict[str, Mount]] = {}
    for result in plan.claim.results:
        request = result.base_request
        name = cdi.device_name(plan.claim.uid, result.device, result.share_id)
        found.setdefault(name, {})[request] = Mount(
            host_path=f"{folder}/{file_name(request)}",
            container_path=container_path(plan.claim, step, driver, request),
            options=_OPTIONS,
        )
    return {
        name: ContainerEdits(mounts=tuple(by_request.values()))
        for name, by_request in found.items()
    }


def documents(plan: PreparePlan, driver: str, attributes: Attributes) -> dict[str, dict[str, Any]]:
    """By request, what its file says, without version and generation.

    The request's name inside is the whole one (``request/subrequest``), as in the allocation.
    Attributes are those of the slice; a MIG device that was made for the claim has its uuid, too.
    """
    step = metadata_step(plan.steps)
    pod_claim = str(step.args.get("podClaim", "")) if step else ""
    devices: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for result in plan.claim.results:
        part = plan.parts[cdi.device_name(plan.claim.uid, result.device, result.share_id)]
        entry = {
            "driver": driver,
            "pool": result.pool,
            "name": result.device,
            "attributes": encode_attributes({**attributes(part), **_made(part, plan.steps)}),
        }
        listed = devices.setdefault(result.base_request, {}).setdefault(result.request, [])
        if entry not in listed:  # shares of one device look alike
            listed.append(entry)
    return {
        base: {
            "metadata": {
                "name": plan.claim.name,
                "namespace": plan.claim.namespace,
                "uid": plan.claim.uid,
            },
            **({"podClaimName": pod_claim} if pod_claim else {}),
            "requests": [{"name": name, "devices": found} for name, found in requests.items()],
        }
        for base, requests in devices.items()
    }


def versions(document: Mapping[str, Any], generation: int) -> list[dict[str, Any]]:
    """The objects of a file, in its order."""
    metadata = {**document["metadata"], "generation": generation}
    return [
        {"kind": KIND, "apiVersion": f"{GROUP}/{version}", **document, "metadata": metadata}
        for version in VERSIONS
    ]


def _made(part: AllocatableDevice, steps: Iterable[Step]) -> dict[str, AttributeValue]:
    """What is known of a device since it was made for the claim."""
    for step in steps:
        if step.kind == MIG_INSTANCE and step.args.get("device") == part.name:
            uuid = str(step.outcome.get("uuid", ""))
            return {"uuid": uuid} if uuid else {}
    return {}
