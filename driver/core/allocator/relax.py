# SPDX-License-Identifier: Apache-2.0
"""What little change would make claims fit: one clause, fewer devices, less memory, one toleration.

Every proposal was tried with the allocator before it is made, and is the smallest of its kind: the
most devices, the largest amount. Called by ``explain``.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpudra.api.quantity import NANO, Quantity
from gpudra.api.resource_v1 import (
    NO_EXECUTE,
    NO_SCHEDULE,
    CapacityRequirements,
    CELSelector,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from gpudra.driver.core.allocator.index import ClusterIndex
from gpudra.driver.core.allocator.taints import blocking_taint, rule_taints, rules_for_pool
from gpudra.driver.core.allocator.types import Deadline
from gpudra.driver.core.cel import CelCompileError
from gpudra.driver.core.cel.parser import parse

Asking = ExactDeviceRequest | DeviceSubRequest


class Change(StrEnum):
    """Kinds of relaxations, the least intrusive first."""

    NODE = "node"
    COUNT = "count"
    CAPACITY = "capacity"
    TOLERATION = "toleration"
    SELECTOR_CLAUSE = "selector-clause"
    CONSTRAINT = "constraint"


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One change after which the claims fit.

    Attributes:
        change: its kind.
        claim: ``namespace/name`` of the claim to change; empty for another node.
        field: path of the field; empty for another node.
        before, after: its value; None means that it is not there.
        text: the change as a sentence.
        claims: the claims with the change made, for trying it.
        node: where they fit.
    """

    change: Change
    claim: str
    field: str
    before: Any
    after: Any
    text: str
    claims: tuple[ResourceClaim, ...]
    node: str


def relaxations(
    index: ClusterIndex,
    claims: Sequence[ResourceClaim],
    node: str,
    *,
    deadline: Deadline | None = None,
) -> list[Relaxation]:
    """All single changes that make the claims fit, the least intrusive first.

    Args:
        index: the cluster; it is asked, not changed.
        claims: waiting, and not satisfiable on the node.
        node: where they should fit.
        deadline: when it is over, what was found so far is returned.
    """
    relaxer = _Relaxer(index, tuple(claims), node, deadline)
    found: list[Relaxation] = []
    for kind in (
        relaxer.other_nodes,
        relaxer.counts,
        relaxer.capacities,
        relaxer.tolerations,
        relaxer.clauses,
        relaxer.constraints,
    ):
        for one in kind():
            found.append(one)
            if deadline is not None and deadline():
                return found
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """One alternative of one claim."""

    claim: int
    path: str
    name: str
    asking: Asking
    put: Callable[[Asking], ResourceClaim]


class _Relaxer:
    """Tries changes."""

    def __init__(
        self,
        index: ClusterIndex,
        claims: tuple[ResourceClaim, ...],
        node: str,
        deadline: Deadline | None,
    ) -> None:
        self._index = index
        self._claims = claims
        self._node = node
        self._deadline = deadline

    def _fits(self, claims: Sequence[ResourceClaim]) -> bool:
        return self._index.allocate(claims, self._node, deadline=self._deadline).fits

    def _largest(
        self, low: int, high: int, made: Callable[[int], tuple[ResourceClaim, ...]]
    ) -> int | None:
        """The largest number that fits; whatever is smaller than one that fits, fits too."""
        if high < low or not self._fits(made(low)):
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(made(middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def _changed(self, at: int, claim: ResourceClaim) -> tuple[ResourceClaim, ...]:
        return (*self._claims[:at], claim, *self._claims[at + 1 :])

    def _places(self) -> Iterator[_Place]:
        for at, claim in enumerate(self._claims):
            for r, request in enumerate(claim.spec.devices.requests):
                path = f"spec.devices.requests[{r}]"
                if request.exactly is not None:
                    yield _Place(
                        at,
                        f"{path}.exactly",
                        request.name,
                        request.exactly,
                        _putter(claim, r, 0),
                    )
                for a, sub in enumerate(request.first_available):
                    yield _Place(
                        at,
                        f"{path}.firstAvailable[{a}]",
                        f"{request.name}/{sub.name}",
                        sub,
                        _putter(claim, r, a),
                    )

    def _made(
        self, place: _Place, change: Change, field: str, before: Any, after: Any, text: str,
        claims: tuple[ResourceClaim, ...],
    ) -> Relaxation:  # fmt: skip
        return Relaxation(
            change,
            self._claims[place.claim].key,
            f"{place.path}.{field}",
            before,
            after,
            f"claim {self._claims[place.claim].key}, request {place.name}: {text}",
            claims,
            self._node,
        )

    # --- the kinds --------------------------------------------------------------------------

    def other_nodes(self) -> Iterator[Relaxation]:
        """Nodes on which the claims fit as they are."""
        for name in self._index.state.node_names():
            if (
                name != self._node
                and self._index.allocate(self._claims, name, deadline=self._deadline).fits
            ):
                yield Relaxation(
                    Change.NODE, "", "", self._node, name, f"they fit on node {name}",
                    self._claims, name,
                )  # fmt: skip

    def tolerations(self) -> Iterator[Relaxation]:
        """One more toleration, of one taint found on devices of the node."""
        for place in self._places():
            for taint in self._taints(place.asking):
                toleration = DeviceToleration(
                    key=taint.key, operator="Equal", value=taint.value, effect=taint.effect
                )
                asking = dataclasses.replace(
                    place.asking, tolerations=(*place.asking.tolerations, toleration)
                )
                claims = self._changed(place.claim, place.put(asking))
                if self._fits(claims):
                    value = f"={taint.value}" if taint.value else ""
                    text = f"tolerate the taint {taint.key}{value}:{taint.effect}"
                    yield self._made(
                        place, Change.TOLERATION, "tolerations[+]", None, toleration.to_dict(),
                        text, claims,
                    )  # fmt: skip

    def _taints(self, asking: Asking) -> list[DeviceTaint]:
        """Each blocking taint once, by key, value and effect."""
        found: dict[tuple[str, str, str], DeviceTaint] = {}
        rules = list(self._index.state.rules.values())
        for record in self._index.state.view(self._node).records:
            own = rules_for_pool(rules, record.pool.key)
            for device in record.pool.devices:
                for taint in (*device.taints, *rule_taints(own, device.name)):
                    if taint.effect not in {NO_SCHEDULE, NO_EXECUTE}:
                        continue
                    if blocking_taint((taint,), asking.tolerations) is not None:
                        found.setdefault((taint.key, taint.value, taint.effect), taint)
        return [found[key] for key in sorted(found)]

    def counts(self) -> Iterator[Relaxation]:
        """As many devices as can be had, if that is fewer than asked."""
        for place in self._places():
            count = place.asking.count or 1
            if place.asking.allocation_mode == "All" or count < 2:
                continue

            made = functools.partial(self._with_count, place)
            fewer = self._largest(1, count - 1, made)
            if fewer is not None:
                text = f"ask for {fewer} instead of {count} devices"
                yield self._made(place, Change.COUNT, "count", count, fewer, text, made(fewer))

    def _with_count(self, place: _Place, count: int) -> tuple[ResourceClaim, ...]:
        asking = dataclasses.replace(place.asking, count=count)
        return self._changed(place.claim, place.put(asking))

    def capacities(self) -> Iterator[Relaxation]:
        """The largest amount of one capacity that can be had."""
        for place in self._places():
            capacity = place.asking.capacity
            for name, amount in (capacity.requests if capacity is not None else {}).items():
                unit = NANO if amount.nanos % NANO == 0 else NANO // 1000
                made = functools.partial(self._with_amount, place, name, unit)
                best = self._largest(1, (amount.nanos - 1) // unit, made)
                if best is not None:
                    after = str(Quantity(best * unit, amount.format))
                    yield self._made(
                        place, Change.CAPACITY, f"capacity.requests[{name}]", str(amount), after,
                        f"ask for {name} {after} instead of {amount}", made(best),
                    )  # fmt: skip

    def _with_amount(
        self, place: _Place, name: str, unit: int, amount: int
    ) -> tuple[ResourceClaim, ...]:
        asked = place.asking.capacity
        requests = dict(asked.requests) if asked is not None else {}
        requests[name] = Quantity(amount * unit, requests[name].format)
        capacity = CapacityRequirements(requests=requests)
        return self._changed(
            place.claim, place.put(dataclasses.replace(place.asking, capacity=capacity))
        )

    def clauses(self) -> Iterator[Relaxation]:
        """One clause less in one of the claim's own selectors."""
        for place in self._places():
            for at, selector in enumerate(place.asking.selectors):
                expression = selector.cel.expression if selector.cel is not None else ""
                for clause, rest in _without_one(expression):
                    selectors = list(place.asking.selectors)
                    if rest:
                        selectors[at] = DeviceSelector(cel=CELSelector(expression=rest))
                    else:
                        del selectors[at]
                    asking = dataclasses.replace(place.asking, selectors=tuple(selectors))
                    claims = self._changed(place.claim, place.put(asking))
                    if self._fits(claims):
                        yield self._made(
                            place, Change.SELECTOR_CLAUSE, f"selectors[{at}].cel.expression",
                            expression, rest or None, f"drop the clause {clause}", claims,
                        )  # fmt: skip

    def constraints(self) -> Iterator[Relaxation]:
        """One constraint less."""
        for at, claim in enumerate(self._claims):
            devices = claim.spec.devices
            for index, constraint in enumerate(devices.constraints):
                left = (*devices.constraints[:index], *devices.constraints[index + 1 :])
                name = constraint.match_attribute or constraint.distinct_attribute
                requests, more = devices.requests, ""
                if name not in {one.match_attribute or one.distinct_attribute for one in left}:
                    requests = tuple(_without_derived(one, name) for one in devices.requests)
                    more = " and its derivedAttributes" if requests != devices.requests else ""
                spec = dataclasses.replace(
                    claim.spec,
                    devices=dataclasses.replace(devices, constraints=left, requests=requests),
                )
                claims = self._changed(at, dataclasses.replace(claim, spec=spec))
                if not self._fits(claims):
                    continue
                kind = "matchAttribute" if constraint.match_attribute else "distinctAttribute"
                yield Relaxation(
                    Change.CONSTRAINT,
                    claim.key,
                    f"spec.devices.constraints[{index}]",
                    constraint.to_dict(),
                    None,
                    f"claim {claim.key}: drop the constraint {kind} {name}{more}",
                    claims,
                    self._node,
                )


def _putter(
    claim: ResourceClaim, request: int, alternative: int
) -> Callable[[Asking], ResourceClaim]:
    """A function that puts another asking into its place in a copy of the claim."""

    def put(asking: Asking) -> ResourceClaim:
        devices = claim.spec.devices
        old = devices.requests[request]
        if isinstance(asking, ExactDeviceRequest):
            new = dataclasses.replace(old, exactly=asking)
        else:
            listed = list(old.first_available)
            listed[alternative] = asking
            new = dataclasses.replace(old, first_available=tuple(listed))
        requests = (*devices.requests[:request], new, *devices.requests[request + 1 :])
        spec = dataclasses.replace(
            claim.spec, devices=dataclasses.replace(devices, requests=requests)
        )
        return dataclasses.replace(claim, spec=spec)

    return put


def _without_derived(request: DeviceRequest, name: str | None) -> DeviceRequest:
    """A request without derived attributes that no constraint compares: the API refuses them."""

    def less(asking: Any) -> Any:
        kept = tuple(one for one in asking.derived_attributes if one.name != name)
        return dataclasses.replace(asking, derived_attributes=kept)

    exactly = None if request.exactly is None else less(request.exactly)
    listed = tuple(less(sub) for sub in request.first_available)
    return dataclasses.replace(request, exactly=exactly, first_available=listed)


def _without_one(expression: str) -> Iterator[tuple[str, str]]:
    """Each clause of the outermost ``&&``, and the expression without it."""
    try:
        clauses = [clause.text for clause in parse(expression).clauses]
    except CelCompileError:
        return
    for index, clause in enumerate(clauses):
        rest = [f"({text})" if "||" in text or "?" in text else text for text in clauses]
        del rest[index]
        yield clause, " && ".join(rest)
