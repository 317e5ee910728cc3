# SPDX-License-Identifier: Apache-2.0
"""What has to be done for one claim, worked out before anything is done.

Pure. ``plan`` turns an allocation and the node's devices into a PreparePlan: the devices to
answer with, what each of them takes from its card (holds), and the list of steps. A step says,
before the first one is made, everything that is needed to undo it, so that a process which was
killed anywhere leaves a record from which the next one can clean up. gpudra.kubelet_plugin
carries plans out and keeps their parts in its checkpoint, therefore the shapes are JSON shapes
which keep fields that they do not know.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpudra.api.codec import ApiObject, Json, api_type, mapping_field
from gpudra.api.errors import ClaimError
from gpudra.api.resource_v1 import (
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from gpudra.driver.core import cdi
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.claimconfig import deciding_config
from gpudra.driver.core.edits import ContainerEdits, merge
from gpudra.driver.core.inventory import NVIDIA

if TYPE_CHECKING:  # see claimconfig
    from gpudra.api.config.v1alpha1 import Config

CDI_FILE = "cdi-file"
METADATA = "metadata"
MIG_MODE = "mig-mode"
MIG_INSTANCE = "mig-instance"
# The forms that `plan` can make ready; the agent publishes no others, whatever the policy says.
PREPARABLE = frozenset(DeviceKind)
# On a claim that was made from a template: the name that the pod gives it (resource.k8s.io/v1).
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
PLANNED = "planned"
DONE = "done"


@api_type
class Hold(ApiObject):
    """What a prepared device takes from its card.

    ``card`` is the card's key, empty if only the device's name is known; ``kind`` is a DeviceKind,
    or ``unknown``. A MIG device takes ``size`` memory slices
    from ``start``; whole cards and shares leave both at 0.
    """

    card: str
    kind: str
    device: str = ""
    start: int = 0
    size: int = 0


@api_type
class Step(ApiObject):
    """One thing to do that can be undone.

    ``args`` are fixed before anything is done and suffice to undo; ``outcome`` is what doing it
    told (the uuid of an instance). ``state``: ``planned`` = perhaps done, ``done`` = done.
    """

    kind: str
    args: Mapping[str, Json] = mapping_field()
    state: str = PLANNED
    outcome: Mapping[str, Json] = mapping_field()


@api_type
class PreparedDevice(ApiObject):
    """One device of the answer to the kubelet."""

    requests: tuple[str, ...] = ()
    pool: str
    device: str
    share_id: str | None = None
    cdi_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation:
    """The part of a claim that concerns this driver.

    Attributes:
        uid: of the claim.
        namespace: of the claim.
        name: of the claim.
        results: allocated devices of this driver, in the claim's order.
        configs: opaque parameters for this driver, classes before claims.
        pods: names of the pods for which it is reserved, as far as known.
        pod_claim: the name that pods give the claim, if it was made from a template.
    """

    uid: str
    namespace: str
    name: str
    results: tuple[DeviceRequestAllocationResult, ...]
    configs: tuple[DeviceAllocationConfiguration, ...] = ()
    pods: tuple[str, ...] = ()
    pod_claim: str = ""

    @property
    def label(self) -> str:
        """How messages name the claim."""
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """Everything about one claim, before it is acted on.

    Attributes:
        claim: what it was made from.
        devices: the answer to the kubelet.
        holds: what it takes; nothing for admin access.
        steps: in the order of doing; undone in reverse.
        parts: allocated device by CDI device name, for ``document``.
        chosen: by CDI device name, the configuration that decides, where there is one.
    """

    claim: ClaimAllocation
    devices: tuple[PreparedDevice, ...]
    holds: tuple[Hold, ...]
    steps: tuple[Step, ...]
    parts: Mapping[str, AllocatableDevice] = field(default_factory=dict)
    chosen: "Mapping[str, Config]" = field(default_factory=dict)

    @property
    def cards(self) -> tuple[str, ...]:
        """Keys of the cards that are touched, ascending: the order in which locks are taken."""
        return tuple(sorted({part.gpu.key for part in self.parts.values()}))


def allocation_of(claim: ResourceClaim, driver: str) -> ClaimAllocation:
    """The results and configuration of one driver; those of others are not looked at.

    Raises:
        ClaimError: the claim is not allocated.
    """
    if claim.status.allocation is None:
        raise ClaimError(
            "is not allocated",
            obj=f"claim {claim.key}",
            hint="the scheduler has to allocate it first",
        )
    devices = claim.status.allocation.devices
    return ClaimAllocation(
        uid=claim.metadata.uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        results=tuple(result for result in devices.results if result.driver == driver),
        configs=tuple(
            config for config in devices.config if config.opaque and config.opaque.driver == driver
        ),
        pods=tuple(one.name for one in claim.status.reserved_for if one.resource == "pods"),
        pod_claim=claim.metadata.annotations.get(POD_CLAIM_ANNOTATION, ""),
    )


def plan(
    claim: ClaimAllocation,
    devices: Mapping[str, AllocatableDevice],
    *,
    driver: str,
    pool: str,
    stored: bool = False,
) -> PreparePlan:
    """Works out what to do for a claim.

    Args:
        claim: what was allocated.
        devices: the node's devices by name, as the hardware is now.
        driver: this driver's name.
        pool: the pool that this node serves.
        stored: the claim was accepted before, so its configuration is read leniently.

    Raises:
        ClaimError: a device of another pool, one that does not exist (any more), a form that this
            node cannot prepare, or configuration that does not fit.
    """
    parts: dict[str, AllocatableDevice] = {}
    holds: list[Hold] = []
    answers: dict[str, PreparedDevice] = {}
    chosen: dict[str, Config] = {}
    held: dict[str, AllocatableDevice] = {}
    for result in claim.results:
        device = _device_of(claim, result, devices, pool)
        _check_access(claim, result, device)
        config = deciding_config(claim.label, claim.configs, result, device, stored=stored)
        name = cdi.device_name(claim.uid, device.name, result.share_id)
        parts[name] = device
        if config is not None:
            chosen[name] = config
        hold = hold_of(device)
        if not result.admin_access and hold not in holds:
            holds.append(hold)
            held[device.name] = device
        answers[name] = _answer(driver, name, result, answers.get(name))
    return PreparePlan(
        claim=claim,
        devices=tuple(answers.values()),
        holds=tuple(holds),
        steps=(*_mig_steps(claim.uid, held.values()), *file_steps(claim, driver))
        if answers
        else (),
        parts=parts,
        chosen=chosen,
    )


def file_steps(claim: ClaimAllocation, driver: str) -> tuple[Step, ...]:
    """The files of a claim; the CDI file comes last, as it mounts the others."""
    folder: dict[str, Json] = {"folder": cdi.metadata_folder(driver, claim.uid)}
    if claim.pod_claim:
        folder["podClaim"] = claim.pod_claim
    return (
        Step(kind=METADATA, args=folder),
        Step(kind=CDI_FILE, args={"file": cdi.file_name(driver, claim.uid)}),
    )


def _mig_steps(claim_uid: str, held: Iterable[AllocatableDevice]) -> tuple[Step, ...]:
    """Modes first, then one instance for each dynamic MIG device.

    ``mig-mode`` has ``on``; ``back`` (put the other mode back in the end) and ``before`` of
    ``mig-instance`` (what lies on the card already) are filled in by whoever looks at the card.
    """
    modes: dict[str, Step] = {}
    instances = []
    for device in held:
        mig, card = device.gpu.mig, device.gpu.key
        dynamic = device.kind is DeviceKind.MIG and device.instance is None
        parted = bool(mig and mig.enabled)
        if dynamic or (parted and device.kind in (DeviceKind.WHOLE, DeviceKind.SHARE)):
            modes[card] = Step(
                kind=MIG_MODE,
                args={"claim": claim_uid, "card": card, "on": dynamic, "back": False},
            )
        if dynamic and device.profile is not None and device.placement is not None:
            args: dict[str, Json] = {
                "claim": claim_uid,
                "card": card,
                "device": device.name,
                "profile": device.profile.id,
                "start": device.placement.start,
                "size": device.placement.size,
                "before": [],
            }
            instances.append(Step(kind=MIG_INSTANCE, args=args))
    return (*modes.values(), *instances)


def _device_of(
    claim: ClaimAllocation,
    result: DeviceRequestAllocationResult,
    devices: Mapping[str, AllocatableDevice],
    pool: str,
) -> AllocatableDevice:
    if result.pool != pool:
        raise ClaimError(
            f"request {result.request} has device {result.device} of pool {result.pool}, "
            f"this node serves pool {pool}",
            obj=claim.label,
        )
    found = devices.get(result.device)
    if found is None:
        raise ClaimError(
            f"request {result.request} has device {result.device}, which this node does not have",
            obj=claim.label,
            hint="it may have been unplugged or excluded; delete the pod so that the claim is "
            "allocated anew",
        )
    if found.gpu.lost:
        raise ClaimError(
            f"device {result.device} ({found.gpu.key}) does not answer any more",
            obj=claim.label,
            hint="delete the pod so that the claim is allocated anew",
        )
    return found


def _check_access(
    claim: ClaimAllocation, result: DeviceRequestAllocationResult, device: AllocatableDevice
) -> None:
    """A monitor is for admins, and what is made for its user alone is not for them.

    Raises:
        ClaimError: the form and the kind of access do not go together.
    """
    admin = bool(result.admin_access)
    if device.kind is DeviceKind.MONITOR and not admin:
        raise ClaimError(
            f"request {result.request} has monitor {result.device} without admin access",
            obj=claim.label,
            hint="set adminAccess, in a namespace labelled resource.kubernetes.io/admin-access",
        )
    made = device.kind is DeviceKind.MIG and device.instance is None
    if admin and (made or device.kind is DeviceKind.SHARE):
        raise ClaimError(
            f"request {result.request} has admin access to {result.device}, which exists only for "
            "the claim that it is made for",
            obj=claim.label,
            hint="select devices of type monitor",
        )


def _answer(
    driver: str, name: str, result: DeviceRequestAllocationResult, before: PreparedDevice | None
) -> PreparedDevice:
    """Two requests may hold one device (one of them by admin access): one entry names both."""
    requests = before.requests if before else ()
    return PreparedDevice(
        requests=tuple(dict.fromkeys((*requests, result.base_request))),
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        cdi_ids=(cdi.device_id(driver, name),),
    )


# --- who holds what -----------------------------------------------------------------------------


def hold_of(device: AllocatableDevice) -> Hold:
    """What a device takes from its card while a claim has it."""
    place = device.placement
    return Hold(
        card=device.gpu.key,
        kind=device.kind.value,
        device=device.name,
        start=place.start if place else 0,
        size=place.size if place else 0,
    )


def overlap(left: Hold, right: Hold) -> bool:
    """Whether two holds cannot be had at once.

    Different cards never clash. On one card, MIG devices clash if their memory slices meet and
    shares stand side by side; every other pair excludes each other, and so does a kind that this
    version does not know. A hold whose card is not known clashes by the name of its device.
    """
    if not (left.card and right.card):
        return left.device == right.device
    if left.card != right.card:
        return False
    if left.kind == right.kind == DeviceKind.MIG:
        return left.start < right.start + right.size and right.start < left.start + left.size
    return not left.kind == right.kind == DeviceKind.SHARE


def holders(
    wanted: Sequence[Hold], held: Iterable[tuple[str, Sequence[Hold]]]
) -> tuple[tuple[str, Hold], ...]:
    """The claims that stand in the way: uid and the hold, in the order given.

    The one place that answers who holds a device.
    """
    cards = {"", *(hold.card for hold in wanted)}
    return tuple(
        (uid, theirs)
        for uid, holds in held
        for theirs in holds
        if theirs.card in cards and any(overlap(mine, theirs) for mine in wanted)
    )


# --- the CDI document ---------------------------------------------------------------------------


def variable_of(device: str) -> str:
    """``GPUDRA_DEVICE_<NAME>``: one variable per device, since the runtime keeps one per name."""
    return "GPUDRA_DEVICE_" + device.upper().replace("-", "_")


def document(
    parts: Mapping[str, AllocatableDevice],
    driver: str,
    edits: Mapping[str, ContainerEdits],
    common: ContainerEdits,
    uuids: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The CDI document of a claim.

    Args:
        parts: allocated device by CDI device name, as in the plan.
        driver: this driver's name.
        edits: what each device needs, by its CDI device name.
        common: what every device of the node needs; written once per document.
        uuids: by CDI device name, what the device is called by its driver, where that is not the
            card's key (a MIG instance).

    Raises:
        InputError: the document would be refused by runtimes.
    """
    vendors = {part.gpu.vendor for part in parts.values()}
    # Keeps NVIDIA's runtime, where it is installed, from adding every card by itself because an
    # image says NVIDIA_VISIBLE_DEVICES=all. The same value for every device, so merging is safe.
    void = ContainerEdits(env=(("NVIDIA_VISIBLE_DEVICES", "void"),) if NVIDIA in vendors else ())
    known = uuids or {}
    found = cdi.CdiDocument(
        vendor=cdi.vendor_of(driver),
        class_=cdi.CLASS,
        devices=tuple(
            cdi.CdiDevice(
                name=name,
                edits=merge(
                    (
                        edits.get(name, ContainerEdits()),
                        ContainerEdits(
                            env=((variable_of(part.name), known.get(name, part.gpu.key)),)
                        ),
                    )
                ),
            )
            for name, part in parts.items()
        ),
        common=merge((common, void)),
    )
    return cdi.to_json(found)
