# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kube-scheduler and the claim controller, around gpudra's own allocator.

Makes claims from templates, allocates them on the one node there is and writes what the real ones
would write: finalizer, ``status.allocation``, ``status.reservedFor``, and back again at the end.
"""

from gpudra.api.errors import ClaimError
from gpudra.api.resource_v1 import FINALIZER, DeviceClass, ResourceClaim, ResourceSlice
from gpudra.driver.core.allocator import ClusterIndex, Node
from gpudra.driver.kube.client import KubeClient
from gpudra.driver.kube.resources import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tools.demo.world import NAMESPACE, Object


class SchedulerStandIn:
    """One node, one pod at a time."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node

    async def claim_for(self, pod: Object) -> Object:
        """The claim that the pod's template stands for, made now."""
        (entry,) = pod["spec"]["resourceClaims"]
        name = entry["resourceClaimTemplateName"]
        template = await self._client.get(RESOURCE_CLAIM_TEMPLATES, name, NAMESPACE)
        claim = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {
                "generateName": f"{pod['metadata']['name']}-{entry['name']}-",
                "namespace": NAMESPACE,
            },
            "spec": template["spec"]["spec"],
        }
        return await self._client.create(RESOURCE_CLAIMS, claim, NAMESPACE)

    async def schedule(self, pod: Object, claim: Object) -> Object:
        """Allocates the claim, reserves it for the pod and binds the pod; the claim as written.

        Raises:
            ClaimError: no devices fit.
        """
        index = await self._index()
        answer = index.allocate([ResourceClaim.from_dict(claim)], self._node)
        if not answer.fits:
            raise ClaimError(answer.message, obj=f"claim {claim['metadata']['name']}")
        name = claim["metadata"]["name"]
        finalizer = {"metadata": {"finalizers": [FINALIZER]}}
        await self._client.patch(RESOURCE_CLAIMS, name, finalizer, namespace=NAMESPACE)
        meta = pod["metadata"]
        user = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        status = {"allocation": answer.allocations[0].to_dict(), "reservedFor": [user]}
        written = await self._patch_status(name, status)
        bound = {"spec": {"nodeName": self._node}}
        await self._client.patch(PODS, meta["name"], bound, namespace=NAMESPACE)
        return written

    async def release(self, claim: Object) -> None:
        """The pod is gone: nobody reserves the claim, so it is deallocated and deleted."""
        name = claim["metadata"]["name"]
        await self._patch_status(name, {"reservedFor": None, "allocation": None})
        none = {"metadata": {"finalizers": None}}
        await self._client.patch(RESOURCE_CLAIMS, name, none, namespace=NAMESPACE)
        await self._client.delete(RESOURCE_CLAIMS, name, NAMESPACE)

    async def _patch_status(self, name: str, status: Object) -> Object:
        return await self._client.patch(
            RESOURCE_CLAIMS, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )

    async def _index(self) -> ClusterIndex:
        classes = (await self._client.list(DEVICE_CLASSES)).items
        slices = (await self._client.list(RESOURCE_SLICES)).items
        claims = (await self._client.list(RESOURCE_CLAIMS)).items
        return ClusterIndex.of(
            nodes=[Node(self._node)],
            classes=[DeviceClass.from_dict(raw) for raw in classes],
            slices=[ResourceSlice.from_dict(raw) for raw in slices],
            claims=[ResourceClaim.from_dict(raw) for raw in claims],
        )
