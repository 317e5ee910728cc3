# SPDX-License-Identifier: Apache-2.0
"""Why claims are not allocated: per request and device the first reason, counted and summed up.

Works on what the allocator worked with, so an explanation never contradicts an answer. Called by
``gpudra allocate`` and ``gpudra explain``, and by the controller for conditions of claims.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpudra.api.quantity import Format, Quantity
from gpudra.api.resource_v1 import Device, ResourceClaim
from gpudra.driver.core.allocator.bounds import Bounds
from gpudra.driver.core.allocator.constraints import ConstraintPlan, elements
from gpudra.driver.core.allocator.counters import IslandState, join_groups, take
from gpudra.driver.core.allocator.derived import Source
from gpudra.driver.core.allocator.facts import Verdict
from gpudra.driver.core.allocator.holdings import Hold
from gpudra.driver.core.allocator.index import ClusterIndex
from gpudra.driver.core.allocator.question import Question
from gpudra.driver.core.allocator.records import PoolRecord
from gpudra.driver.core.allocator.relax import Relaxation, relaxations
from gpudra.driver.core.allocator.requests import Alternative, ClaimPlan, Plan
from gpudra.driver.core.allocator.types import (
    Answer,
    Deadline,
    DeviceId,
    Outcome,
    Reason,
    Refusal,
)
from gpudra.driver.core.allocator.view import NodeView
from gpudra.driver.core.cel import CelDevice, CelEvaluationError
from gpudra.driver.core.cel import Explanation as Clause


class Kind(StrEnum):
    """The kinds of reasons, in the order in which they are looked for."""

    POOL_INCOMPLETE = "pool-incomplete"
    POOL_INVALID = "pool-invalid"
    CLASS_SELECTOR = "class-selector"
    SELECTOR = "selector"
    SELECTOR_ERROR = "selector-error"
    CAPACITY = "capacity"
    TAINT = "taint"
    NODE_OPERATIONS = "node-operations"
    IN_USE = "in-use"
    COUNTERS_UNKNOWN = "counters-unknown"
    COUNTERS = "counters"
    COMPATIBILITY = "compatibility-groups"
    CAPACITY_IN_USE = "capacity-in-use"
    CONSTRAINT = "constraint"
    FITS = "fits"  # nothing is wrong with this device alone


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """One request, or one alternative of a prioritised list.

    Attributes:
        claim: ``namespace/name``.
        request: ``request`` or ``request/alternative``.
        wanted: devices asked for; 0 means all.
        devices: devices that the node has.
        counts: reason kind and number of devices, the most frequent first.
        at_once: at most so many of the fitting devices can be given out together.
        alternative: one of several, so that its failing need not be the claim's.
    """

    claim: str
    request: str
    wanted: int
    devices: int
    counts: tuple[tuple[Kind, int], ...]
    at_once: int
    alternative: bool

    @property
    def fitting(self) -> int:
        """Devices that serve the request when nothing else is asked for."""
        return dict(self.counts).get(Kind.FITS, 0)

    @property
    def fails_alone(self) -> bool:
        """Whether not even this request can be served, all others left aside."""
        return self.at_once < max(self.wanted, 1)

    def sentence(self) -> str:
        """``request gpu wants 4 devices; 2 of 8 devices fit; 6 of 8 devices: in-use``."""
        wanted = f"{self.wanted} devices" if self.wanted > 1 else "1 device"
        parts = [f"request {self.request} wants {wanted if self.wanted else 'all devices'}"]
        parts.append(f"{self.fitting} of {self.devices} devices fit")
        if self.at_once < self.fitting:
            parts.append(f"at most {self.at_once} of them at once, for they share counters")
        parts += [
            f"{count} of {self.devices} devices: {kind.value}"
            for kind, count in self.counts
            if kind is not Kind.FITS
        ]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one question on one node.

    Attributes:
        answer: the answer that is explained.
        requests: per request and alternative.
        binding: what keeps the claims as a whole from being allocated, in one sentence.
        reasons: per device and request.
        relaxations: single changes that would help; empty unless asked for.
    """

    answer: Answer
    requests: tuple[RequestExplanation, ...]
    binding: str
    reasons: tuple[Reason, ...]
    relaxations: tuple[Relaxation, ...] = ()


def explain_claims(
    index: ClusterIndex,
    claims: Sequence[ResourceClaim],
    node: str,
    *,
    answer: Answer | None = None,
    relax: bool = False,
    deadline: Deadline | None = None,
) -> Explanation:
    """Explains why claims are, or are not, allocated on a node.

    Args:
        index: the cluster; it is asked, not changed.
        claims: those of the question; claims that are allocated already are left out.
        node: its name.
        answer: of the allocator, if it was asked before.
        relax: also look for single changes that would help.
        deadline: for the questions that this takes.

    Raises:
        KeyError: nobody knows such a node.
    """
    waiting = [claim for claim in claims if claim.status.allocation is None]
    if answer is None:
        answer = index.allocate(claims, node, deadline=deadline)
    view = index.state.view(node)
    try:
        plan = index.plan(waiting)
    except Refusal as refusal:
        return Explanation(answer, (), refusal.message, ())
    requests, reasons = _Explainer(index.question(plan), plan, view).everything()
    helping: tuple[Relaxation, ...] = ()
    if relax and answer.outcome is Outcome.UNSATISFIABLE:
        helping = tuple(relaxations(index, waiting, node, deadline=deadline))
    binding = "" if answer.fits else _binding(answer, requests, reasons)
    return Explanation(answer, requests, binding, reasons, helping)


class _Explainer:
    """Looks at every device of a node through one plan."""

    def __init__(self, question: Question, plan: Plan, view: NodeView) -> None:
        self._question = question
        self._plan = plan
        self._view = view
        self._template = question.template(view)
        self._islands = question.islands(view, self._template)
        self._kinds = [
            kind
            for part in question.parts(view)
            for kind in (part.kinds[index] for index in part.indices)
        ]

    def everything(self) -> tuple[tuple[RequestExplanation, ...], tuple[Reason, ...]]:
        """All requests, all devices, then the pools that fail as a whole."""
        requests, reasons = [], []
        for c, claim in enumerate(self._plan.claims):
            for r, request in enumerate(claim.requests):
                for a, alternative in enumerate(request.alternatives):
                    own = self._request(c, r, a, claim, alternative)
                    reasons.extend(own)
                    counts = Counter(Kind(reason.reason) for reason in own)
                    requests.append(
                        RequestExplanation(
                            claim.claim.key,
                            alternative.full,
                            alternative.count,
                            self._template.size,
                            tuple(counts.most_common()),
                            min(
                                self._at_once(c, r, a, alternative),
                                counts[Kind.FITS] + counts[Kind.CONSTRAINT],
                            ),
                            request.prioritized,
                        )
                    )
        for wrong, text in self._view.troubles:
            kind = Kind.POOL_INVALID if wrong else Kind.POOL_INCOMPLETE
            pool, _, detail = text.removeprefix("pool ").partition(": ")
            reasons.append(Reason(pool, "", kind.value, detail))
        return tuple(requests), tuple(reasons)

    def _at_once(self, c: int, r: int, a: int, alternative: Alternative) -> int:
        found = self._template.candidates[c, r, a]
        if alternative.take_all and len(found.positions) < len(found.selected):
            return 0
        return Bounds(self._template).devices(found, self._islands, admin=alternative.admin)

    def _request(
        self, c: int, r: int, a: int, claim: ClaimPlan, alternative: Alternative
    ) -> list[Reason]:
        found = []
        for position in range(self._template.size):
            record, device = self._device(position)
            identity = DeviceId(*record.pool.key, device.name)
            kind, detail = self._reason(c, r, a, alternative, position)
            if kind is Kind.FITS:
                kind, detail = self._constraint(claim, alternative, position)
            found.append(Reason(str(identity), alternative.full, kind.value, detail))
        return found

    def _device(self, position: int) -> tuple[PoolRecord, Device]:
        record = self._view.records[self._template.part_of[position]]
        return record, record.pool.devices[self._template.index_of[position]]

    def _reason(
        self, c: int, r: int, a: int, alternative: Alternative, position: int
    ) -> tuple[Kind, str]:
        record, device = self._device(position)
        verdict = self._question.verdict(alternative, self._kinds[position])
        if verdict.fit is None:
            # What a selector saw is the same for all devices of a kind, on every node.
            key = (alternative.full, alternative.match_key, self._kinds[position])
            known = self._question.said.get(key)
            if known is None:
                known = _unselected(verdict, record.pool.key[0], device)
                self._question.said[key] = known
            return Kind(known[0]), known[1]
        if verdict.taint is not None:
            taint = verdict.taint
            value = f"={taint.value}" if taint.value else ""
            return Kind.TAINT, f"{taint.key}{value}:{taint.effect}"
        found = self._template.candidates[c, r, a]
        if position not in set(found.positions):
            return Kind.NODE_OPERATIONS, "the node does not know skipNodeOperations"
        state = self._islands[self._template.island_of[position]]
        if take(self._template, position, verdict.fit, state, admin=alternative.admin):
            return Kind.FITS, ""
        return self._unavailable(record, device, position, verdict, state)

    def _unavailable(
        self,
        record: PoolRecord,
        device: Device,
        position: int,
        verdict: Verdict,
        state: IslandState,
    ) -> tuple[Kind, str]:
        template = self._template
        holds = record.state.held.get(template.index_of[position], ())
        if state[1] >> template.local_of[position] & 1:
            return Kind.IN_USE, f"in use by {_holders(holds)}"
        live = dict(state[3])
        local = template.local_of[position]
        if local not in live:
            short = self._counters(record, position, state)
            if short is not None:
                return short
            island = template.islands[template.island_of[position]]
            if island.groups and join_groups(state[4], island.groups[local]) is None:
                return Kind.COMPATIBILITY, "does not get along with devices in use on the card"
        consumed = live.get(local)
        assert verdict.fit is not None
        for at, (name, capacity) in enumerate(device.capacity.items()):
            left = capacity.value.nanos - (consumed[at] if consumed else 0)
            wanted = verdict.fit.amounts[at]
            if wanted > left:
                fmt = capacity.value.format
                return Kind.CAPACITY_IN_USE, (
                    f"{name}: {_shown(wanted, fmt)} wanted, {_shown(left, fmt)} left, "
                    f"short by {_shown(wanted - left, fmt)}; in use by {_holders(holds)}"
                )
        return Kind.IN_USE, f"in use by {_holders(holds)}"

    def _counters(
        self, record: PoolRecord, position: int, state: IslandState
    ) -> tuple[Kind, str] | None:
        island = self._template.islands[self._template.island_of[position]]
        amounts = island.amounts[self._template.local_of[position]]
        if amounts and record.state.lost:
            return Kind.COUNTERS_UNKNOWN, (
                f"{', '.join(record.state.lost)} allocated but no longer listed, so nobody knows "
                "what is left"
            )
        for slot, amount in amounts:
            left = state[0][slot]
            if amount > left:
                name = "/".join(record.pool.slots[island.slots[slot][1]])
                free = max(left, 0)
                return Kind.COUNTERS, (
                    f"counter {name}: {_shown(amount)} wanted, {_shown(free)} left, "
                    f"short by {_shown(amount - free)}; {self._users(record, island.slots[slot][1])}"
                )
        return None

    @staticmethod
    def _users(record: PoolRecord, slot: int) -> str:
        names = []
        for index, holds in sorted(record.state.held.items()):
            if any(own == slot for own, _ in record.pool.amounts[index]):
                names.append(f"{record.pool.devices[index].name} ({_holders(holds)})")
        return f"taken by {', '.join(names)}" if names else "the set never had more"

    def _constraint(
        self, claim: ClaimPlan, alternative: Alternative, position: int
    ) -> tuple[Kind, str]:
        """What a constraint says about a device with which nothing else is wrong."""
        record, device = self._device(position)
        for constraint in claim.constraints:
            source = alternative.source(constraint)
            if source is None:
                continue
            seen = self._question.derived.of_device(
                source, self._kinds[position], record.pool.key[0], device
            )
            if seen.error:
                return Kind.SELECTOR_ERROR, seen.error
            if not elements(seen.value):
                return Kind.CONSTRAINT, (
                    f"{constraint.kind} {constraint.attribute}: the device does not have it"
                )
            if not constraint.distinct:
                detail = self._lonely(constraint, source, alternative, position)
                if detail:
                    return Kind.CONSTRAINT, detail
        return Kind.FITS, ""

    def _lonely(
        self, constraint: ConstraintPlan, source: Source, alternative: Alternative, position: int
    ) -> str:
        """Whether too few available devices share the value that the constraint compares."""
        template = self._template
        if alternative.take_all:
            return ""
        row = template.sources.index(source)
        own = template.bits[row][position]
        sharing = 0
        for other in self._available(alternative):
            sharing += bool(template.bits[row][other] & own)
        if sharing >= alternative.count:
            return ""
        record, device = self._device(position)
        value = self._question.derived.of_device(
            source, self._kinds[position], record.pool.key[0], device
        ).value
        return (
            f"matchAttribute {constraint.attribute}: {sharing} available devices have {value}, "
            f"{alternative.count} are wanted"
        )

    def _available(self, alternative: Alternative) -> Iterable[int]:
        template = self._template
        for position in range(template.size):
            fit = self._question.verdict(alternative, self._kinds[position]).fit
            state = self._islands[template.island_of[position]]
            if fit is not None and take(template, position, fit, state, admin=alternative.admin):
                yield position


def _unselected(verdict: Verdict, driver: str, device: Device) -> tuple[Kind, str]:
    if verdict.error:
        return Kind.SELECTOR_ERROR, verdict.error
    if verdict.misfit is not None:
        return Kind.CAPACITY, verdict.misfit.detail
    assert verdict.failed is not None
    kind = Kind.CLASS_SELECTOR if verdict.failed.of_class else Kind.SELECTOR
    clauses = verdict.failed.compiled.selector.explain(CelDevice.from_device(driver, device))
    where = verdict.failed.origin.partition(": ")
    place = verdict.failed.origin if verdict.failed.of_class else where[2]
    return kind, f"{place}: {_said(clauses)}"


def _said(clauses: Sequence[Clause]) -> str:
    """The first clause that is not true, with the values that it saw."""
    for clause in clauses:
        if clause.result is True:
            continue
        seen = ", ".join(f"{text} is {_value(value)}" for text, value in clause.operands)
        return f"{clause.clause} is {_value(clause.result)}" + (f" ({seen})" if seen else "")
    return "not true"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, CelEvaluationError):
        return f"an error: {value.what}"
    return json.dumps(value) if isinstance(value, str) else str(value)


def _holders(holds: Sequence[Hold]) -> str:
    names = sorted({f"claim {hold.claim}" for hold in holds})
    return ", ".join(names) or "another claim"


def _shown(nanos: int, fmt: Format = Format.DECIMAL_SI) -> str:
    return str(Quantity(nanos, fmt))


def _binding(
    answer: Answer, requests: Sequence[RequestExplanation], reasons: Sequence[Reason]
) -> str:
    """The one thing to look at first."""
    if answer.outcome is not Outcome.UNSATISFIABLE:
        return answer.message
    alone = [one for one in requests if one.fails_alone and not one.alternative]
    if alone:
        pools = [f"; pool {one.device}: {one.detail}" for one in reasons if not one.request]
        return alone[0].sentence() + "".join(pools)
    groups: dict[str, list[RequestExplanation]] = {}
    for one in requests:
        groups.setdefault(one.request.partition("/")[0], []).append(one)
    for listed in groups.values():
        if all(one.fails_alone for one in listed):
            return "no alternative can be served: " + "; ".join(one.sentence() for one in listed)
    constrained = [one for one in reasons if one.reason == Kind.CONSTRAINT.value]
    if constrained:
        return f"a constraint cannot be met: {constrained[0].detail}"
    return "each request can be served alone, but not all of them together"
