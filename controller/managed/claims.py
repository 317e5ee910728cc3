# SPDX-License-Identifier: Apache-2.0
"""Which write a claim needs next, on the way to an allocation or back. Pure; used by the executor.

A step is decided anew from the claim's newest form each time, so it does not matter who made the
one before it, or whether its answer got lost: an executor that was killed goes on where it was.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gpudra.api.resource_v1 import FINALIZER, AllocationResult, ResourceClaim
from gpudra.driver.core.managed import ClaimPlacement
from gpudra.driver.kube.resources import Obj


@dataclass(frozen=True, slots=True)
class Step:
    """One write.

    Attributes:
        body: a merge patch that names the form which it was decided upon.
        status: whether it goes to the status.
        allocates: whether the claim has its devices from it.
    """

    body: Obj
    status: bool
    allocates: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the claim cannot get what was planned."""

    reason: str


def next_step(claim: ResourceClaim, wanted: ClaimPlacement) -> Step | Refused | None:
    """The next write towards an allocation; None when everything is there.

    The finalizer comes first: a claim that is deleted while it is allocated must stay until its
    devices are given back (KEP-4381, "Implementing a plugin for node resources").
    """
    meta = claim.metadata
    if meta.deletion_timestamp:
        return Refused(f"claim {claim.key} is being deleted")
    version = {"resourceVersion": meta.resource_version}
    have = claim.status.allocation
    if have is not None and not same_devices(have, wanted.allocation):
        return Refused(f"claim {claim.key} is allocated otherwise")
    if FINALIZER not in meta.finalizers:
        return Step({"metadata": {**version, "finalizers": [*meta.finalizers, FINALIZER]}}, False)
    reserved = [one.to_dict() for one in claim.status.reserved_for]
    known = {one.uid for one in claim.status.reserved_for}
    more = [
        {"resource": "pods", "name": pod.name, "uid": pod.uid}
        for pod in wanted.reserved_for
        if pod.uid not in known
    ]
    if have is not None and not more:
        return None
    status: Obj = {"reservedFor": [*reserved, *more]}
    if have is None:
        status["allocation"] = wanted.allocation.to_dict()
    return Step({"metadata": version, "status": status}, True, have is None)


def undo_step(claim: ResourceClaim, pods: Collection[str]) -> Step | None:
    """The write that takes the allocation back from these pods; None when there is nothing to take.

    Others that use the claim keep it. The finalizer may stay: without an allocation it holds up
    nothing (kube-controller-manager takes it away with the claim).

    Args:
        claim: in its newest form.
        pods: uids.
    """
    if claim.status.allocation is None:
        return None
    left = [one.to_dict() for one in claim.status.reserved_for if one.uid not in pods]
    if left and len(left) == len(claim.status.reserved_for):
        return None
    status: Obj = {"reservedFor": left} if left else {"reservedFor": None, "allocation": None}
    return Step(
        {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}, True
    )


def same_devices(one: AllocationResult, other: AllocationResult) -> bool:
    """Whether both are the same devices, in the same amounts, for the same requests."""
    return _devices(one) == _devices(other)


def _devices(allocation: AllocationResult) -> list[tuple[object, ...]]:
    return sorted(
        (
            one.request,
            one.driver,
            one.pool,
            one.device,
            one.share_id or "",
            tuple(sorted((name, str(amount)) for name, amount in one.consumed_capacity.items())),
        )
        for one in allocation.devices.results
    )
