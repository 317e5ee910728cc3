# SPDX-License-Identifier: Apache-2.0
"""What claims cost their queue: exactly once they are allocated, at most before that.

The price of a device is gpudra.driver.core.queueing.charges; here it is looked up for claims.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from gpudra.api.queue import CLASS_PREFIX, GPUS, MILLI
from gpudra.api.resource_v1 import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.allocator.facts import Sample, judge
from gpudra.driver.core.allocator.requests import Alternative, Plan
from gpudra.driver.core.gangs.cards import Layout
from gpudra.driver.core.gangs.ground import Ground
from gpudra.driver.core.placement.types import FULL_CARD, Request
from gpudra.driver.core.queueing import NOTHING, Amounts, capacity_of

_MIB = 2**20
_MOST = 4096


def class_names(claim: ResourceClaim) -> dict[str, str]:
    """The DeviceClass of each request, by its name in results."""
    found: dict[str, str] = {}
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            found[request.name] = request.exactly.device_class_name
        for sub in request.first_available:
            found[f"{request.name}/{sub.name}"] = sub.device_class_name
    return found


class Tariff:
    """Looks prices up for one cluster."""

    def __init__(self, ground: Ground, driver: str) -> None:
        self._ground, self._driver = ground, driver
        self._version = -1
        self._layouts: tuple[Layout, ...] = ()
        self._capacity: dict[int, Amounts] = {}
        self._estimates: dict[Any, Amounts] = {}
        self._requests: dict[Any, Request] = {}
        self._charges: dict[Any, Amounts] = {}

    def allocated(self, claim: ResourceClaim, allocation: AllocationResult) -> Amounts:
        """What a claim costs with the devices that it has, or would have."""
        names = class_names(claim)
        results = allocation.devices.results
        if len(results) == 1:
            return self._one(results[0], names)
        return Amounts.total(self._one(result, names) for result in results)

    def _one(self, result: DeviceRequestAllocationResult, names: dict[str, str]) -> Amounts:
        name = names.get(result.request, "")
        if result.admin_access:
            return NOTHING
        if result.driver != self._driver:
            return Amounts({f"{CLASS_PREFIX}{name}": 1} if name else {})
        record = self._ground.record((result.driver, result.pool))
        layout = self._ground.layouts.of(record.pool) if record is not None else None
        index = record.pool.index_of.get(result.device) if record is not None else None
        if layout is None or index is None:
            # A device that is not published any more: a whole card, so that nothing becomes free.
            return Amounts({GPUS: MILLI, **({f"{CLASS_PREFIX}{name}": 1} if name else {})})
        consumed = result.consumed_capacity
        key = (layout.number, index, name, tuple((k, v.nanos) for k, v in consumed.items()))
        found = self._charges.get(key)
        if found is None:
            if len(self._charges) > _MOST:
                self._charges.clear()
            found = self._charges[key] = layout.costs[index].charge(name, consumed or None)
        return found

    # --- before there is an allocation --------------------------------------------------------

    def refresh(self) -> None:
        """Takes note of nodes and pools that came or went."""
        ground = self._ground
        if self._version == ground.structure:
            return
        self._version = ground.structure
        found: dict[int, Layout] = {}
        for name in ground.names:
            cell = ground.cell(name)
            for record in cell.view.records if cell is not None and cell.view is not None else ():
                layout = ground.layouts.of(record.pool)
                if layout is not None:
                    found[layout.number] = layout
        layouts = tuple(found.values())
        if set(map(id, layouts)) != set(map(id, self._layouts)):
            self._layouts = layouts
            self._estimates.clear()
            self._requests.clear()

    def capacity(self, label: str) -> Amounts:
        """All cards of the nodes under managed mode."""
        counts: dict[int, int] = {}
        layouts: dict[int, tuple[Layout, Any]] = {}
        ground = self._ground
        for name in ground.names:
            cell = ground.cell(name)
            if cell is None or cell.view is None:
                continue
            if label and cell.facts.node.labels.get(label) != "true":
                continue
            for record in cell.view.records:
                layout = ground.layouts.of(record.pool)
                if layout is not None:
                    counts[layout.number] = counts.get(layout.number, 0) + 1
                    layouts[layout.number] = layout, record.pool
        total: dict[str, int] = {}
        for number, count in sorted(counts.items()):
            for name, amount in self._of_layout(*layouts[number]).items():
                total[name] = total.get(name, 0) + count * amount
        return Amounts(total)

    def _of_layout(self, layout: Layout, pool: Any) -> Amounts:
        found = self._capacity.get(layout.number)
        if found is None:
            costs = {d.name: c for d, c in zip(pool.devices, layout.costs, strict=True)}
            found = self._capacity[layout.number] = capacity_of(costs, pool.devices)
        return found

    def estimate(self, plan: Plan) -> Amounts:
        """The dearest that claims can become: of several alternatives and devices the dearest."""
        key = (plan.signature, _class_key(plan))
        found = self._estimates.get(key)
        if found is None:
            if len(self._estimates) > _MOST:
                self._estimates.clear()
            found = NOTHING
            for claim in plan.claims:
                for request in claim.requests:
                    dearest = NOTHING
                    for one in request.alternatives:
                        dearest = dearest.widest(self._alternative(one))
                    found = found + dearest
            self._estimates[key] = found
        return found

    def least(self, claims: Sequence[ResourceClaim]) -> tuple[int, bool]:
        """Thousandths of cards that claims take at least, and whether they take whole cards only."""
        milli, whole = 0, True
        for claim in claims:
            for request in self._ground.plan([claim]).claims[0].requests:
                costs = [self._cheapest(one) for one in request.alternatives]
                milli += min((cost for cost, _ in costs), default=0)
                whole = whole and all(own for _, own in costs)
        return milli, whole

    def _cheapest(self, one: Alternative) -> tuple[int, bool]:
        if one.admin:
            return 0, True
        found = [
            (amounts.of(GPUS), bool(device.allow_multiple_allocations))
            for layout in self._layouts
            for amounts, (device, _) in self._matching(layout, one)
        ]
        if not found:
            return 0, True
        whole = all(milli == MILLI and not shared for milli, shared in found)
        return min(milli for milli, _ in found) * (1 if one.take_all else one.count), whole

    def _alternative(self, one: Alternative) -> Amounts:
        if one.admin:
            return NOTHING
        dearest, most = NOTHING, 0
        for layout in self._layouts:
            matching = list(self._matching(layout, one))
            most = max(most, len(matching))
            for amounts, _ in matching:
                dearest = dearest.widest(amounts)
        if not dearest:
            dearest = Amounts({GPUS: MILLI, f"{CLASS_PREFIX}{one.class_name}": 1})
        count = max(1, most) if one.take_all else one.count
        return Amounts((name, amount * count) for name, amount in dearest.items())

    def _matching(
        self, layout: Layout, one: Alternative
    ) -> Iterable[tuple[Amounts, tuple[Any, Any]]]:
        for index, device in layout.samples:
            fit = judge(one, Sample(self._driver, device, ())).fit
            if fit is not None:
                shared = device.allow_multiple_allocations
                cost = layout.costs[index].charge(one.class_name, fit.shown if shared else None)
                yield cost, (device, fit)

    # --- for the demand mix -------------------------------------------------------------------

    def demand(self, plan: Plan, cpu_milli: int, memory_bytes: int) -> Request:
        """The claims of one pod as the placement policy sees requests: by their largest part."""
        key = (plan.signature, cpu_milli, memory_bytes)
        found = self._requests.get(key)
        if found is None:
            if len(self._requests) > _MOST:
                self._requests.clear()
            found = self._requests[key] = self._request(plan, cpu_milli, memory_bytes // _MIB)
        return found

    def _request(self, plan: Plan, cpu_milli: int, memory_mib: int) -> Request:
        largest: tuple[int, Request] | None = None
        for claim in plan.claims:
            for request in claim.requests:
                one = request.alternatives[0]
                milli, asked = self._asked(one, cpu_milli, memory_mib)
                if not one.admin and (largest is None or milli > largest[0]):
                    largest = milli, asked
        return largest[1] if largest else Request(cpu_milli, memory_mib)

    def _asked(self, one: Alternative, cpu_milli: int, memory_mib: int) -> tuple[int, Request]:
        best: tuple[int, Any, Any] | None = None
        for layout in self._layouts:
            for amounts, (device, fit) in self._matching(layout, one):
                if best is None or amounts.of(GPUS) > best[0]:
                    best = amounts.of(GPUS), device, fit
        count = one.count or 1
        if best is None:
            return 0, Request(cpu_milli, memory_mib, count, FULL_CARD, FULL_CARD)
        milli, device, fit = best
        if device.attributes.get("type") == DeviceKind.MIG:
            profile = str(device.attributes.get("profile", ""))
            return milli, Request(cpu_milli, memory_mib, 1, mig_profile=profile)
        if device.allow_multiple_allocations and count == 1:
            compute, memory = _share(device, fit)
            return milli, Request(cpu_milli, memory_mib, 1, compute, memory)
        return milli * count, Request(cpu_milli, memory_mib, count, FULL_CARD, FULL_CARD)


def _share(device: Any, fit: Any) -> tuple[int, int]:
    """Compute and memory of a share in thousandths of the card."""
    shown = fit.shown
    whole = device.capacity["memory"].value.nanos if "memory" in device.capacity else 0
    memory = shown["memory"].nanos if "memory" in shown else 0
    compute = shown["compute"].value if "compute" in shown else 0
    part = min(FULL_CARD, -(-memory * FULL_CARD // whole)) if whole else 0
    return min(FULL_CARD, compute * 10), part


def _class_key(plan: Plan) -> tuple[str, ...]:
    return tuple(
        one.class_name
        for claim in plan.claims
        for request in claim.requests
        for one in request.alternatives
    )


def total(parts: Sequence[Amounts]) -> Amounts:
    """The sum, without making anything for one part."""
    return parts[0] if len(parts) == 1 else Amounts.total(parts)
