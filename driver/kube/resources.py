# SPDX-License-Identifier: Apache-2.0
"""Which kinds of the Kubernetes API we speak about, and their URLs.

Objects stay raw dictionaries here (`Obj`); whoever reads them decodes them once, into the types of
``gpudra.api``. Used by the client, the reflector, the fake server and all their callers.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

Obj: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as the API serves it.

    Attributes:
        group: API group; empty for the core group.
        version: for example ``v1``.
        plural: name in URLs, lower case.
        kind: name in objects.
        namespaced: False for cluster-scoped kinds.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def base_path(self) -> str:
        """Path of the group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(
        self,
        name: str | None = None,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """URL path of the collection, of one object, or of its subresource.

        Args:
            name: the object; None for the collection.
            namespace: None means all namespaces, or a cluster-scoped kind.
            subresource: for example ``status``; needs ``name``.
        """
        parts = [self.base_path]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
            if subresource:
                parts.append(subresource)
        return "/".join(parts)


_DRA = ("resource.k8s.io", "v1")

RESOURCE_SLICES = Resource(*_DRA, "resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS = Resource(*_DRA, "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES = Resource(
    *_DRA, "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
DEVICE_CLASSES = Resource(*_DRA, "deviceclasses", "DeviceClass", namespaced=False)
DEVICE_TAINT_RULES = Resource(*_DRA, "devicetaintrules", "DeviceTaintRule", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
JOBS = Resource("batch", "v1", "jobs", "Job", namespaced=True)
POD_DISRUPTION_BUDGETS = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True
)
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
NODE_POLICIES = Resource("gpudra.io", "v1alpha1", "nodepolicies", "NodePolicy", namespaced=False)
QUEUES = Resource("gpudra.io", "v1alpha1", "queues", "Queue", namespaced=False)
POD_GROUPS = Resource("gpudra.io", "v1alpha1", "podgroups", "PodGroup", namespaced=True)


def object_key(obj: Obj) -> str:
    """``namespace/name``, or ``name`` for a cluster-scoped object."""
    meta = obj["metadata"]
    namespace = meta.get("namespace")
    return f"{namespace}/{meta['name']}" if namespace else str(meta["name"])


def describe(resource: Resource, name: str | None = None, namespace: str | None = None) -> str:
    """The object as a person would name it: ``resourceclaim default/a``."""
    kind = resource.kind.lower()
    if not name:
        return f"{resource.plural} in {namespace}" if namespace else resource.plural
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
