# SPDX-License-Identifier: Apache-2.0
"""Works out how the devices of one claim are shared, before anything is done.

Pure. The agent merges the result into its plan: the steps go before the CDI file, the edits into
the claim's CDI devices. What the variables of a container cannot say is refused here by name:
variables belong to a CDI device, and a container gets those of every device that it sees.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpudra.api.errors import ClaimError, DeviceInUseError
from gpudra.api.resource_v1 import DeviceRequestAllocationResult
from gpudra.driver.core import cdi
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.edits import ContainerEdits
from gpudra.driver.core.inventory import Gpu
from gpudra.driver.core.prepare import ClaimAllocation, Step
from gpudra.driver.core.sharing import consumers as who
from gpudra.driver.core.sharing.choice import choose
from gpudra.driver.core.sharing.consumers import Consumer
from gpudra.driver.core.sharing.edits import hami_edits, mps_edits
from gpudra.driver.core.sharing.limits import limits_of, together
from gpudra.driver.core.sharing.reports import exclusive_report, sharing_report
from gpudra.driver.core.sharing.types import (
    ASKED_ONLY,
    Ask,
    Backend,
    IsolationReport,
    NodeSharing,
    Places,
    Sharing,
    sharings,
)

NOTHING = Ask()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPlan:
    """How one claim's devices are shared.

    Attributes:
        shares: one per device that is shared.
        edits: by CDI device name, to be merged into the device's own.
        reports: by CDI device name, for the condition ``Isolated``.
    """

    shares: tuple[Sharing, ...] = ()
    edits: Mapping[str, ContainerEdits] = field(default_factory=dict)
    reports: Mapping[str, IsolationReport] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[Step, ...]:
        """In the order of doing; they go before the CDI file and after MIG instances."""
        return tuple(one.step() for one in self.shares)


@dataclass(frozen=True, slots=True)
class _Use:
    """One device of the claim, as one result names it."""

    name: str
    device: AllocatableDevice
    result: DeviceRequestAllocationResult


def plan_sharing(
    claim: ClaimAllocation,
    parts: Mapping[str, AllocatableDevice],
    *,
    node: NodeSharing,
    asks: Mapping[str, Ask] | None = None,
    consumers: Sequence[Consumer] = (),
    gpu_claims: frozenset[str] = frozenset(),
    held: Iterable[tuple[str, Sequence[Step]]] = (),
) -> SharingPlan:
    """Chooses backends and works out limits.

    Args:
        claim: what was allocated.
        parts: allocated device by CDI device name (PreparePlan.parts).
        node: what the node can do and allows.
        asks: by CDI device name, what the deciding configuration says.
        consumers: containers that use the claim, as far as known.
        gpu_claims: names of claims in the claim's namespace that hold devices of this driver.
        held: title and steps of every other prepared claim.

    Raises:
        ClaimError: a backend that cannot be had, an amount that cannot be, or a use of the claim
            that variables cannot express.
        DeviceInUseError: another claim shares one of the cards by another backend.
    """
    uses = _uses(claim, parts)
    view = _view(claim, uses, consumers)
    asks = asks or {}
    _check_uuids(claim, uses, asks)
    others = [(title, one) for title, steps in held for one in sharings(steps)]
    shares: dict[str, Sharing] = {}
    for use in uses:
        ask = asks.get(use.name, NOTHING)
        unfit = _unfit(claim, uses, view, consumers, gpu_claims)
        backend = choose(ask, node, use.device, unfit=unfit, obj=claim.label)
        if backend is None:
            continue
        one = _sharing(claim, use, backend, ask, view)
        _check_holders(claim, one, others)
        before = shares.get(use.device.name)
        if before is None or not before.requests:
            shares[use.device.name] = one
        elif one.requests:
            shares[use.device.name] = together(claim.label, before, one, use.device)
    _check_view(claim, uses, view, shares)
    return _plan(uses, tuple(shares.values()), node.places)


def replan(
    claim: ClaimAllocation,
    parts: Mapping[str, AllocatableDevice],
    steps: Iterable[Step],
    places: Places,
) -> SharingPlan:
    """The plan of a claim that was accepted before, from its steps; nothing is chosen anew.

    Raises:
        StateError: a step that this version does not understand.
    """
    return _plan(_uses(claim, parts), sharings(steps), places)


def broken_by(
    claim: ClaimAllocation,
    steps: Iterable[Step],
    consumers: Sequence[Consumer],
    gpu_claims: frozenset[str],
) -> str:
    """What a consumer that came after Prepare breaks; nothing while the limits hold.

    The condition ``Isolated`` turns False with this message.
    """
    for one in sharings(steps):
        requests = tuple(result.base_request for result in claim.results)
        if one.backend in ASKED_ONLY or not one.requests:
            continue
        found = who.two_claims(claim.name, consumers, gpu_claims) or who.different_views(
            claim.name, requests, one.requests, consumers
        )
        if not found and one.backend is Backend.HAMI_CORE:
            found = who.separate_pids(claim.name, consumers)
        if found:
            return found
    return ""


def _uses(claim: ClaimAllocation, parts: Mapping[str, AllocatableDevice]) -> list[_Use]:
    found = []
    for result in claim.results:
        name = cdi.device_name(claim.uid, result.device, result.share_id)
        if name in parts and not result.admin_access:
            found.append(_Use(name, parts[name], result))
    return found


def _view(
    claim: ClaimAllocation, uses: Sequence[_Use], consumers: Sequence[Consumer]
) -> tuple[str, ...]:
    return who.view_of(claim.name, [use.result.base_request for use in uses], consumers)


def _unfit(
    claim: ClaimAllocation,
    uses: Sequence[_Use],
    view: tuple[str, ...],
    consumers: Sequence[Consumer],
    gpu_claims: frozenset[str],
) -> Mapping[Backend, str]:
    """What speaks against a backend for this claim, whatever the node has."""
    requests = [use.result.base_request for use in uses]
    # Variables come with a CDI device, so all containers that see it get the same ones.
    either = who.two_claims(claim.name, consumers, gpu_claims) or who.different_views(
        claim.name, requests, view, consumers
    )
    return {
        Backend.MPS: either or _several_devices(uses, view),
        Backend.HAMI_CORE: either
        or who.separate_pids(claim.name, consumers)
        or _with_partition(uses, view),
    }


def _several_devices(uses: Sequence[_Use], view: tuple[str, ...]) -> str:
    devices = {use.device.name for use in uses if use.result.base_request in view}
    if len(devices) < 2:
        return ""
    return (
        f"a container sees {len(devices)} devices ({', '.join(sorted(devices))}), each has a "
        "daemon of its own, and a process talks to one"
    )


def _with_partition(uses: Sequence[_Use], view: tuple[str, ...]) -> str:
    for use in uses:
        if use.device.kind is DeviceKind.MIG and use.result.base_request in view:
            return (
                f"a container sees MIG device {use.device.name} beside the share, "
                "and CUDA numbers only one of them"
            )
    return ""


def _sharing(
    claim: ClaimAllocation, use: _Use, backend: Backend, ask: Ask, view: tuple[str, ...]
) -> Sharing:
    device = use.device
    target = _target(device)
    memory, compute = limits_of(claim.label, use.result, device)
    if device.kind is not DeviceKind.SHARE:
        memory = ask.memory_by_uuid.get(target, ask.memory_mib)
        compute = ask.compute
    return Sharing(
        backend=backend,
        device=device.name,
        card=device.gpu.key,
        target=target,
        claim_uid=claim.uid,
        memory_mib=memory,
        compute=compute,
        time_slice=ask.time_slice or "default",
        requests=view if use.result.base_request in view else (),
        partition=device.kind is DeviceKind.MIG,
    )


def _target(device: AllocatableDevice) -> str:
    """The uuid of what is shared; empty for a MIG instance that is made at prepare."""
    if device.kind is DeviceKind.MIG:
        return (device.instance.uuid or "") if device.instance else ""
    return device.gpu.uuid or ""


def _check_uuids(claim: ClaimAllocation, uses: Sequence[_Use], asks: Mapping[str, Ask]) -> None:
    """A limit for a device that the claim did not get would limit nothing."""
    known = {_target(use.device) for use in uses}
    for ask in asks.values():
        for uuid in ask.memory_by_uuid:
            if uuid not in known:
                raise ClaimError(
                    f"sharing.mps.pinnedMemoryLimits names {uuid}, which is none of the claim's "
                    "devices",
                    obj=claim.label,
                    hint="use pinnedMemoryLimit for whatever device the claim gets",
                )


def _check_holders(
    claim: ClaimAllocation, one: Sharing, others: Sequence[tuple[str, Sharing]]
) -> None:
    """Two backends on one card would undo each other's settings."""
    for title, other in others:
        if other.card != one.card or other.claim_uid == one.claim_uid:
            continue
        if other.partition or one.partition:
            continue
        if other.backend is not one.backend:
            raise DeviceInUseError(
                f"device {one.device} is shared by isolation {other.backend} for {title}, and one "
                f"card has one backend; {one.backend} is wanted here",
                obj=claim.label,
                hint=f"ask for {other.backend}, or wait until that claim's pods have ended",
            )
        if one.backend is Backend.TIME_SLICE and other.time_slice != one.time_slice:
            raise DeviceInUseError(
                f"device {one.device} has time slices of length {other.time_slice} for {title}, "
                f"{one.time_slice} is wanted here",
                obj=claim.label,
                hint=f"ask for {other.time_slice}, or wait until that claim's pods have ended",
            )


def _check_view(
    claim: ClaimAllocation,
    uses: Sequence[_Use],
    view: tuple[str, ...],
    shares: Mapping[str, Sharing],
) -> None:
    """One container cannot be under HAMi-core and under something else that sets its variables."""
    seen = [use.device.name for use in uses if use.result.base_request in view]
    backends = {shares[name].backend for name in seen if name in shares}
    if Backend.HAMI_CORE in backends and Backend.MPS in backends:
        raise ClaimError(
            "one container would see devices under hami-core and mps",
            obj=claim.label,
            hint="give all requests of the claim one isolation",
        )


def _plan(uses: Sequence[_Use], shares: tuple[Sharing, ...], places: Places) -> SharingPlan:
    by_device = {one.device: one for one in shares}
    edits: dict[str, ContainerEdits] = {}
    reports: dict[str, IsolationReport] = {}
    hami = _hami(uses, by_device, places)
    for use in uses:
        one = by_device.get(use.device.name)
        if one is None:
            reports[use.name] = exclusive_report(use.device.kind)
        else:
            reports[use.name] = sharing_report(one)
        if one is not None and one.backend is Backend.MPS:
            edits[use.name] = mps_edits(one, places)
        elif hami is not None and use.result.base_request in hami[0]:
            edits[use.name] = hami[1]
    return SharingPlan(shares=shares, edits=edits, reports=reports)


def _hami(
    uses: Sequence[_Use], by_device: Mapping[str, Sharing], places: Places
) -> tuple[tuple[str, ...], ContainerEdits] | None:
    """The view and its edits, if one of its devices is under HAMi-core."""
    limited = [one for one in by_device.values() if one.backend is Backend.HAMI_CORE]
    if not limited:
        return None
    view = max(one.requests for one in limited)
    cards: dict[str, Gpu] = {
        use.device.gpu.key: use.device.gpu for use in uses if use.result.base_request in view
    }
    seen = [one for one in limited if one.requests and one.card in cards]
    return (view, hami_edits(seen, cards, places)) if seen else None
