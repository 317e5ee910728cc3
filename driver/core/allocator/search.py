# SPDX-License-Identifier: Apache-2.0
"""The search for devices: first fit in upstream's order, without upstream's exponential cost.

Requests are served in order and devices are tried in the order of the node, so the first answer
found is the one that kube-scheduler's allocator would give. What makes it fast:

* bounds (see bounds) end a hopeless request before its first device;
* of devices that can stand for each other, one is tried;
* a state that failed once, up to exchanging equal islands, is known to fail;
* a try is an immutable value: going back means forgetting it.

The search is a loop over a stack of iterators, so its depth is not limited by Python's.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpudra.api.names import MAX_RESULTS
from gpudra.driver.core.allocator.bounds import (
    Bounds,
    Wanted,
    distinct_elements,
    short_of_supply,
)
from gpudra.driver.core.allocator.constraints import ConstraintPlan
from gpudra.driver.core.allocator.counters import IslandState, take
from gpudra.driver.core.allocator.requests import Alternative, ClaimPlan, Plan
from gpudra.driver.core.allocator.symmetry import Symmetry
from gpudra.driver.core.allocator.template import Candidates, Template
from gpudra.driver.core.allocator.tries import Pick, Solution, Try
from gpudra.driver.core.allocator.types import Deadline, Outcome, Refusal, claim_refusal

_CLOCK_INTERVAL = 64  # tries between two looks at the clock

Scorer = Callable[["Solution"], float]
"""Rates a complete answer; the highest wins, the first of equals."""


class Search:
    """One question on one node.

    Args:
        plan: what is asked.
        template: the node.
        islands: states left by claims that are allocated already.
        deadline: true once the time is up; None for no limit.
        name: tells a position's device, for messages only.
        marks: see Symmetry.
    """

    def __init__(
        self,
        plan: Plan,
        template: Template,
        islands: tuple[IslandState, ...],
        *,
        deadline: Deadline | None = None,
        name: Callable[[int], str] = str,
        marks: Sequence[int] = (),
    ) -> None:
        self._plan = plan
        self._template = template
        self._islands = islands
        self._deadline = deadline
        self._name = name
        self._bounds = Bounds(template)
        self._failed: set[Any] = set()
        self._rows = [
            [template.row_of_attribute(one.attribute) for one in claim.constraints]
            for claim in plan.claims
        ]
        self._sources = _source_rows(plan, template)
        self._faulty = any(template.faults)
        self._symmetry = Symmetry(template, self._rows, marks)
        self.tries = 0

    def first(self) -> Solution | None:
        """The first answer in upstream's order, or None if there is none.

        Raises:
            Refusal: claim-error (a selector fails to run on a device that would have to be looked
                at) or timeout.
        """
        for solution in self.solutions():
            return solution
        return None

    def best(self, score: Scorer, limit: int = 10_000) -> Solution | None:
        """The answer that a scorer likes best among all that differ in more than equal devices.

        Looks at no more than ``limit`` answers, in first-fit order; when the time is up the best
        so far is taken.

        Raises:
            Refusal: as first(), if nothing was found before.
        """
        best: tuple[float, Solution] | None = None
        try:
            for count, solution in enumerate(self.solutions()):
                rating = score(solution)
                if best is None or rating > best[0]:
                    best = (rating, solution)
                if count + 1 >= limit:
                    break
        except Refusal as refusal:
            if best is None or refusal.outcome is not Outcome.TIMEOUT:
                raise
        return None if best is None else best[1]

    def solutions(self) -> Iterator[Solution]:
        """All answers, of equal ones only the first, in upstream's order."""
        self._check_all_requests()
        if not self._plan.claims:
            yield Solution((), self._islands)
            return
        if short_of_supply(self._plan, self._template, self._islands):
            self._raise_errors_anywhere()
            return
        start = self._enter_claim(0, self._islands, None)
        if start is None:
            self._raise_errors_anywhere()
            return
        found = False
        for done in self._run(start):
            found = True
            yield Solution(_in_order(done.picks), done.islands)
        if not found:
            self._raise_errors_anywhere()

    # --- the loop -------------------------------------------------------------------------

    def _run(self, start: Try) -> Iterator[Try]:
        stack: list[tuple[Try, Iterator[Try]]] = [(start, self._expand(start))]
        fruitful = [False]
        while stack:
            current, successors = stack[-1]
            following = next(successors, None)
            if following is None:
                stack.pop()
                if fruitful.pop():
                    if fruitful:
                        fruitful[-1] = True
                else:
                    self._failed.add(self._symmetry.key(current))
                continue
            self._tick()
            if following.claim == len(self._plan.claims):
                fruitful[-1] = True
                yield following
                continue
            if self._failed and self._symmetry.key(following) in self._failed:
                continue
            stack.append((following, self._expand(following)))
            fruitful.append(False)

    def _tick(self) -> None:
        self.tries += 1
        if self._deadline is not None and self.tries % _CLOCK_INTERVAL == 0 and self._deadline():
            raise Refusal(Outcome.TIMEOUT, f"no answer in the time given, after {self.tries} steps")

    def _expand(self, current: Try) -> Iterator[Try]:
        """What can follow, in order of preference."""
        claim = self._plan.claims[current.claim]
        if current.request == len(claim.requests):
            following = self._enter_claim(current.claim + 1, current.islands, current.picks)
            return iter(()) if following is None else iter((following,))
        if current.alternative < 0:
            return self._choose(current, claim)
        request = claim.requests[current.request]
        alternative = request.alternatives[current.alternative]
        if alternative.take_all:
            return self._take_all(current, claim, alternative)
        return self._next_device(current, claim, alternative)

    def _enter_claim(
        self, index: int, islands: tuple[IslandState, ...], picks: Pick | None
    ) -> Try | None:
        """The start of a claim, with its constraints narrowed to what can still be met."""
        if index == len(self._plan.claims):
            return Try(index, 0, -1, 0, 0, 0, islands, (), picks)
        fresh = tuple((one[0], one[1], 0, one[3], one[4]) if one[2] else one for one in islands)
        constraints = self._narrow(index, fresh)
        if constraints is None:
            return None
        return Try(index, 0, -1, 0, 0, 0, fresh, constraints, picks)

    def _choose(self, current: Try, claim: ClaimPlan) -> Iterator[Try]:
        """One successor per alternative that may succeed."""
        request = claim.requests[current.request]
        room = MAX_RESULTS - current.total - claim.least_after[current.request]
        for index, alternative in enumerate(request.alternatives):
            found = self._template.candidates[current.claim, current.request, index]
            wanted = len(found.selected) if alternative.take_all else alternative.count
            if wanted == 0 or wanted > room:
                continue
            if not alternative.take_all:
                bound = self._bounds.devices(found, current.islands, admin=alternative.admin)
                if bound < wanted:
                    self._raise_errors(alternative, found, current.islands)
                    continue
            yield Try(
                current.claim,
                current.request,
                index,
                0,
                0,
                current.total,
                current.islands,
                current.constraints,
                current.picks,
            )

    def _take_all(self, current: Try, claim: ClaimPlan, alternative: Alternative) -> Iterator[Try]:
        """Every selected device, or nothing."""
        found = self._found(current)
        if len(found.selected) != len(found.positions):
            return  # a selected device is kept off by a taint, so not all can be had
        for position in found.selected:
            following = self._give(current, claim, alternative, position, 0)
            if following is None:
                return
            current = following
        yield self._finish(current)

    def _next_device(
        self, current: Try, claim: ClaimPlan, alternative: Alternative
    ) -> Iterator[Try]:
        """One successor per device that differs from those tried before."""
        found = self._found(current)
        positions = found.positions
        last = len(positions) - (alternative.count - current.slot)
        tried: set[Any] = set()
        errors = found.errors
        for index in range(current.start, last + 1):
            position = positions[index]
            if errors and self._error_before(position, alternative, found, current):
                break
            likeness = self._symmetry.likeness(position, current)
            if likeness in tried:
                continue
            tried.add(likeness)
            following = self._give(current, claim, alternative, position, index + 1)
            if following is None:
                continue
            yield self._finish(following) if following.slot == alternative.count else following
        if errors:
            self._raise_errors(alternative, found, current.islands)

    def _found(self, current: Try) -> Candidates:
        return self._template.candidates[current.claim, current.request, current.alternative]

    def _finish(self, current: Try) -> Try:
        return Try(
            current.claim,
            current.request + 1,
            -1,
            0,
            0,
            current.total,
            current.islands,
            current.constraints,
            current.picks,
        )

    def _give(
        self,
        current: Try,
        claim: ClaimPlan,
        alternative: Alternative,
        position: int,
        start: int,
    ) -> Try | None:
        """The try with one more device, or None if counters, capacity or constraints forbid it."""
        template = self._template
        island = template.island_of[position]
        fit = self._found(current).fits[position]
        state = take(template, position, fit, current.islands[island], admin=alternative.admin)
        if state is None:
            return None
        constraints = current.constraints
        if constraints:
            narrowed = self._constrain(current, claim, position)
            if narrowed is None:
                return None
            constraints = narrowed
        islands = current.islands
        if state is not islands[island]:
            islands = (*islands[:island], state, *islands[island + 1 :])
        pick = Pick(current.claim, current.request, current.alternative, position, current.picks)
        return Try(
            current.claim,
            current.request,
            current.alternative,
            current.slot + 1,
            start,
            current.total + 1,
            islands,
            constraints,
            pick,
        )

    # --- constraints ----------------------------------------------------------------------

    def _constrain(self, current: Try, claim: ClaimPlan, position: int) -> tuple[int, ...] | None:
        states = list(current.constraints)
        rows = self._sources[current.claim, current.request, current.alternative]
        for index, constraint in enumerate(claim.constraints):
            row = rows[index]
            if row is None:
                continue
            if self._faulty and position in self._template.faults[row]:
                raise self._error(position, self._template.faults[row][position])
            state = constraint.add(states[index], self._template.bits[row][position])
            if state is None:
                return None
            states[index] = state
        return tuple(states)

    def _narrow(self, index: int, islands: tuple[IslandState, ...]) -> tuple[int, ...] | None:
        """The states before the first device; None if a constraint cannot be met at all."""
        claim = self._plan.claims[index]
        states = []
        for at, constraint in enumerate(claim.constraints):
            wanted = self._wanted(index, claim, constraint, at)
            # Where an expression fails on a device, upstream's order decides whether that counts.
            if not wanted or self._faulty:
                states.append(constraint.start)
                continue
            if constraint.distinct:
                if self._too_few_elements(wanted):
                    return None
                states.append(constraint.start)
                continue
            common = self._bounds.common_elements(wanted, islands)
            if not common:
                return None
            states.append(common)
        return tuple(states)

    def _wanted(
        self, index: int, claim: ClaimPlan, constraint: ConstraintPlan, at: int
    ) -> list[list[Wanted]]:
        """The requests that a constraint covers whatever alternative serves them."""
        wanted = []
        for r, request in enumerate(claim.requests):
            names = [one.full for one in request.alternatives]
            if not all(constraint.covers(request.name, name) for name in names):
                continue
            wanted.append(
                [
                    Wanted(
                        self._template.candidates[index, r, a],
                        1 if one.take_all else one.count,
                        one.admin,
                        self._sources[index, r, a][at] or 0,
                    )
                    for a, one in enumerate(request.alternatives)
                ]
            )
        return wanted

    def _too_few_elements(self, wanted: list[list[Wanted]]) -> bool:
        least = sum(min(one.count for one in alternatives) for alternatives in wanted)
        every = [one for alternatives in wanted for one in alternatives]
        return distinct_elements(self._template, every) < least

    # --- expressions that fail to run -----------------------------------------------------

    def _check_all_requests(self) -> None:
        """An All request looks at every device, in use or not, before anything is tried."""
        for c, claim in enumerate(self._plan.claims):
            for r, request in enumerate(claim.requests):
                for a, alternative in enumerate(request.alternatives):
                    errors = self._template.candidates[c, r, a].errors
                    if alternative.take_all and errors:
                        raise self._error(*errors[0])

    def _error(self, position: int, message: str) -> Refusal:
        return claim_refusal(f"device {self._name(position)}: {message}")

    def _looked_at(
        self, alternative: Alternative, position: int, islands: tuple[IslandState, ...]
    ) -> bool:
        """Devices in use are passed over before their selectors run."""
        _, used, claimed, _, _ = islands[self._template.island_of[position]]
        return not (claimed if alternative.admin else used) >> self._template.local_of[position] & 1

    def _error_before(
        self, position: int, alternative: Alternative, found: Candidates, current: Try
    ) -> bool:
        """Whether the scan meets a device whose selector fails to run before this candidate."""
        previous = found.positions[current.start - 1] if current.start else -1
        return any(
            previous < at < position and self._looked_at(alternative, at, current.islands)
            for at, _ in found.errors
        )

    def _raise_errors(
        self, alternative: Alternative, found: Candidates, islands: tuple[IslandState, ...]
    ) -> None:
        for position, message in found.errors:
            if self._looked_at(alternative, position, islands):
                raise self._error(position, message)

    def _raise_errors_anywhere(self) -> None:
        """Without an answer, what fails to run decides: nobody can say "no" for it."""
        for c, claim in enumerate(self._plan.claims):
            for r, request in enumerate(claim.requests):
                for a, alternative in enumerate(request.alternatives):
                    found = self._template.candidates[c, r, a]
                    self._raise_errors(alternative, found, self._islands)
                    if self._faulty:
                        self._raise_faults(c, r, a, alternative, found)

    def _raise_faults(
        self, c: int, r: int, a: int, alternative: Alternative, found: Candidates
    ) -> None:
        for row in self._sources[c, r, a]:
            faults = {} if row is None else self._template.faults[row]
            for position in found.positions:
                if position in faults and self._looked_at(alternative, position, self._islands):
                    raise self._error(position, faults[position])


def _source_rows(
    plan: Plan, template: Template
) -> dict[tuple[int, int, int], tuple[int | None, ...]]:
    """Per alternative and constraint, the row of what it compares; None if it is not covered."""
    number = {source: row for row, source in enumerate(template.sources)}
    return {
        (c, r, a): tuple(
            None if source is None else number[source]
            for source in (one.source(constraint) for constraint in claim.constraints)
        )
        for c, claim in enumerate(plan.claims)
        for r, request in enumerate(claim.requests)
        for a, one in enumerate(request.alternatives)
    }


def _in_order(picks: Pick | None) -> tuple[Pick, ...]:
    found = []
    while picks is not None:
        found.append(picks)
        picks = picks.before
    return tuple(reversed(found))
