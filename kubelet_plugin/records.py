# SPDX-License-Identifier: Apache-2.0
"""What the checkpoint keeps of one claim, and what the kubelet says to name one."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpudra.api.codec import ApiObject, Json, api_type
from gpudra.api.resource_v1 import DeviceAllocationConfiguration, DeviceRequestAllocationResult
from gpudra.driver.core.prepare import ClaimAllocation, Hold, PreparedDevice, PreparePlan, Step

STARTED = "started"
COMPLETED = "completed"
UNDOING = "undoing"


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it; only the uid identifies."""

    uid: str
    namespace: str
    name: str

    @property
    def label(self) -> str:
        """How messages name the claim."""
        return f"claim {self.namespace}/{self.name}"

    def as_object(self) -> dict[str, str]:
        """A reference that an Event can regard."""
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }


@api_type
class ClaimRecord(ApiObject):
    """One claim in the checkpoint.

    ``state``: ``started`` from before the first step until after the last, ``completed`` once the
    answer may be given, ``undoing`` while it is taken back. ``results`` and ``configs`` are what
    the plan was made from, so that files can be written anew after a reboot; ``holds`` and
    ``steps`` suffice to refuse others and to undo, without any hardware answering. A claim whose
    name is unknown (rebuilt from files alone) has an empty ``name``.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    state: str = STARTED
    results: tuple[DeviceRequestAllocationResult, ...] = ()
    configs: tuple[DeviceAllocationConfiguration, ...] = ()
    devices: tuple[PreparedDevice, ...] = ()
    holds: tuple[Hold, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def ref(self) -> ClaimRef:
        """The claim as the kubelet would name it."""
        return ClaimRef(self.uid, self.namespace, self.name)

    @property
    def title(self) -> str:
        """``claim <uid> (namespace/name)``: how others are told who holds a device."""
        return f"claim {self.uid}" + (f" ({self.namespace}/{self.name})" if self.name else "")

    @property
    def cards(self) -> frozenset[str]:
        """Keys of the cards that it holds something of."""
        return frozenset(hold.card for hold in self.holds)

    @property
    def allocation(self) -> ClaimAllocation:
        """What it was planned from."""
        return ClaimAllocation(
            uid=self.uid,
            namespace=self.namespace,
            name=self.name,
            results=self.results,
            configs=self.configs,
        )

    def serves(self, allocation: ClaimAllocation) -> bool:
        """Whether it was prepared for exactly this allocation."""
        return self.results == allocation.results and self.configs == allocation.configs


def record_of(plan: PreparePlan) -> ClaimRecord:
    """The reservation that is stored before the first step."""
    return ClaimRecord(
        uid=plan.claim.uid,
        namespace=plan.claim.namespace,
        name=plan.claim.name,
        results=plan.claim.results,
        configs=plan.claim.configs,
        devices=plan.devices,
        holds=plan.holds,
        steps=plan.steps,
    )


Records = Mapping[str, ClaimRecord]
Changes = Mapping[str, ClaimRecord | None]
Document = Mapping[str, Json]
