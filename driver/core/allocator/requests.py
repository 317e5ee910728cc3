# SPDX-License-Identifier: Apache-2.0
"""Claims made ready for allocation: classes looked up, expressions compiled, limits checked.

Everything that can be said about a claim without looking at a device is said here, and whatever
is wrong with it ends the attempt (outcome claim-error), whether or not any device exists.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpudra.api.names import MAX_RESULTS
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import (
    ALL,
    EXACT_COUNT,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from gpudra.driver.core.allocator.constraints import ConstraintPlan
from gpudra.driver.core.allocator.derived import (
    DerivedPlan,
    Source,
    check_costs,
    compile_derived,
    source_of,
)
from gpudra.driver.core.allocator.reads import Reads
from gpudra.driver.core.allocator.selectors import CompiledSelector, SelectorCache
from gpudra.driver.core.allocator.types import claim_refusal
from gpudra.driver.core.cel import CelCompileError

ClassLookup = Callable[[str], DeviceClass | None]


@dataclass(frozen=True, slots=True)
class SelectorPlan:
    """One CEL selector and where it stands.

    Attributes:
        origin: ``class NAME: selector #0`` or ``request NAME: selector #0``, for messages.
        of_class: it stands in the class.
        compiled: shared by all places with the same text.
    """

    origin: str
    of_class: bool
    compiled: CompiledSelector


@dataclass(frozen=True, slots=True)
class Alternative:
    """A request, or one entry of a ``firstAvailable`` list.

    Attributes:
        base: name of the request.
        full: ``request`` or ``request/alternative``: the name in results.
        class_name: its DeviceClass.
        selectors: those of the class, then its own.
        take_all: allocationMode All.
        count: devices wanted; 0 with ``take_all``.
        admin: administrative access.
        tolerations: as written.
        capacity: amounts asked of each device, by name as written.
        derived: attributes that constraints shall see instead of published ones, by name.
        match_key: equal for alternatives that accept the same devices, constraints left aside.
    """

    base: str
    full: str
    class_name: str
    selectors: tuple[SelectorPlan, ...]
    take_all: bool
    count: int
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, Quantity]
    derived: Mapping[str, DerivedPlan]
    match_key: tuple[object, ...]

    def source(self, constraint: ConstraintPlan) -> Source | None:
        """What a constraint compares for this alternative; None if it does not cover it."""
        if not constraint.covers(self.base, self.full):
            return None
        return source_of(constraint.attribute, self.derived)


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A request: one alternative, or several in order of preference."""

    name: str
    prioritized: bool
    alternatives: tuple[Alternative, ...]

    @property
    def least(self) -> int:
        """The fewest devices that can serve it (All needs at least one)."""
        return min(1 if one.take_all else one.count for one in self.alternatives)


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """A claim to be allocated.

    Attributes:
        claim: as it came.
        requests: in order.
        constraints: in order.
        least_after: for each request, the fewest devices that all later requests need.
        classes: the DeviceClasses by name, for their configuration.
    """

    claim: ResourceClaim
    requests: tuple[RequestPlan, ...]
    constraints: tuple[ConstraintPlan, ...]
    least_after: tuple[int, ...]
    classes: Mapping[str, DeviceClass]


@dataclass(frozen=True, slots=True)
class Plan:
    """All claims of one question.

    Attributes:
        claims: in the order asked.
        reads: every fact that decides which devices fit.
        signature: equal for questions that get equal answers: requests and constraints, without
            names of claims and without configuration.
    """

    claims: tuple[ClaimPlan, ...]
    reads: Reads
    signature: tuple[object, ...]


def make_plan(
    claims: Sequence[ResourceClaim], find_class: ClassLookup, selectors: SelectorCache
) -> Plan:
    """Compiles claims that are to be allocated together.

    Raises:
        Refusal: outcome claim-error; the message names claim, request and what is wrong.
    """
    plans = tuple(_Compiler(claim, find_class, selectors).compile() for claim in claims)
    reads = Reads()
    for plan in plans:
        for request in plan.requests:
            for one in request.alternatives:
                for selector in one.selectors:
                    reads |= selector.compiled.reads
                for derived in one.derived.values():
                    reads |= derived.reads
    return Plan(plans, reads, tuple(_signature(plan) for plan in plans))


def _signature(plan: ClaimPlan) -> tuple[object, ...]:
    requests = tuple(
        (
            request.name,
            tuple(
                (one.full, one.match_key, one.take_all, one.count, one.admin, _derivations(one))
                for one in request.alternatives
            ),
        )
        for request in plan.requests
    )
    return requests, plan.constraints


def _derivations(one: Alternative) -> tuple[Source, ...]:
    return tuple(sorted((name, plan.compiled.expression) for name, plan in one.derived.items()))


class _Compiler:
    """Compiles one claim."""

    def __init__(
        self, claim: ResourceClaim, find_class: ClassLookup, selectors: SelectorCache
    ) -> None:
        self._claim = claim
        self._find_class = find_class
        self._selectors = selectors
        self._classes: dict[str, DeviceClass] = {}

    def compile(self) -> ClaimPlan:
        devices = self._claim.spec.devices
        requests = tuple(self._request(request) for request in devices.requests)
        constraints = []
        for index, constraint in enumerate(devices.constraints):
            plan = ConstraintPlan.of(constraint)
            if plan is None:
                raise self._refuse(f"constraint #{index}: unknown kind of constraint")
            if "/" not in plan.attribute:
                raise self._refuse(
                    f"constraint #{index}: {plan.kind} {plan.attribute!r} lacks a domain"
                )
            constraints.append(plan)
        self._check_total(requests)
        check_costs(
            [
                plan
                for request in requests
                for one in request.alternatives
                for plan in one.derived.values()
            ],
            self._refuse,
        )
        after, total = [], 0
        for request in reversed(requests):
            after.append(total)
            total += request.least
        return ClaimPlan(
            self._claim, requests, tuple(constraints), tuple(reversed(after)), self._classes
        )

    def _refuse(self, what: str) -> Exception:
        return claim_refusal(f"claim {self._claim.key}: {what}")

    def _check_total(self, requests: Sequence[RequestPlan]) -> None:
        total = sum(request.least for request in requests)
        if total > MAX_RESULTS:
            raise self._refuse(
                f"{total} devices exceed the limit of {MAX_RESULTS} devices per claim"
            )

    def _request(self, request: DeviceRequest) -> RequestPlan:
        exactly, listed = request.exactly, request.first_available
        if (exactly is not None) == bool(listed):
            raise self._refuse(
                f"request {request.name}: needs exactly one of 'exactly' and 'firstAvailable'"
            )
        if exactly is not None:
            one = self._alternative(request.name, request.name, exactly)
            return RequestPlan(request.name, False, (one,))
        many = tuple(
            self._alternative(request.name, f"{request.name}/{sub.name}", sub) for sub in listed
        )
        return RequestPlan(request.name, True, many)

    def _alternative(
        self, base: str, full: str, source: ExactDeviceRequest | DeviceSubRequest
    ) -> Alternative:
        device_class = self._class(full, source.device_class_name)
        selectors = self._compile(
            device_class.spec.selectors, f"class {device_class.metadata.name}", of_class=True
        ) + self._compile(source.selectors, f"request {full}", of_class=False)
        capacity = source.capacity.requests if source.capacity is not None else {}
        for name, amount in capacity.items():
            if amount.nanos < 0:
                raise self._refuse(f"request {full}: capacity {name} is negative ({amount})")
        tolerations = source.tolerations
        key = (
            tuple(one.compiled.expression for one in selectors),
            tuple((t.key, t.operator, t.value, t.effect) for t in tolerations),
            tuple(sorted((name, amount.nanos) for name, amount in capacity.items())),
        )
        take_all = source.allocation_mode == ALL
        return Alternative(
            base=base,
            full=full,
            class_name=device_class.metadata.name,
            selectors=selectors,
            take_all=take_all,
            count=0 if take_all else self._count(full, source),
            admin=bool(getattr(source, "admin_access", None)),
            tolerations=tolerations,
            capacity=capacity,
            derived=compile_derived(source.derived_attributes, f"request {full}", self._refuse),
            match_key=key,
        )

    def _count(self, full: str, source: ExactDeviceRequest | DeviceSubRequest) -> int:
        if source.allocation_mode not in {EXACT_COUNT, ""}:
            raise self._refuse(f"request {full}: unknown allocationMode {source.allocation_mode!r}")
        # The API server fills in 1 for a count that is missing or 0.
        count = source.count or 1
        if count < 0:
            raise self._refuse(f"request {full}: count {count} is negative")
        return count

    def _class(self, full: str, name: str) -> DeviceClass:
        if not name:
            raise self._refuse(f"request {full}: has no deviceClassName")
        found = self._find_class(name)
        if found is None:
            raise self._refuse(f"request {full}: DeviceClass {name} does not exist")
        self._classes[name] = found
        return found

    def _compile(
        self, selectors: Sequence[DeviceSelector], where: str, *, of_class: bool
    ) -> tuple[SelectorPlan, ...]:
        plans = []
        for index, selector in enumerate(selectors):
            origin = f"{where}: selector #{index}"
            if selector.cel is None:
                raise self._refuse(f"{origin}: unknown kind of selector, only cel is known")
            try:
                compiled = self._selectors.get(selector.cel.expression)
            except CelCompileError as error:
                raise self._refuse(f"{origin}: CEL compile error: {error}") from error
            plans.append(SelectorPlan(origin, of_class, compiled))
        return tuple(plans)
