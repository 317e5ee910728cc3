# SPDX-License-Identifier: Apache-2.0
"""Kinds of pods, and what a node is to each: the equivalence classes of planning.

Pods that ask for the same are of one `Kind`; nodes whose devices are in the same state give one
answer to an `Ask`. What was found is kept by these classes, so that the four-thousandth equal pod
costs a look-up, and kept rows are renewed only where nodes changed.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.resource_v1 import (
    AllocationResult,
    ResourceClaim,
)
from gpudra.driver.core.allocator import Deadline, Outcome, Refusal, Solution
from gpudra.driver.core.allocator.question import Known, Question
from gpudra.driver.core.allocator.records import PoolRecord
from gpudra.driver.core.allocator.requests import Plan as ClaimsPlan
from gpudra.driver.core.allocator.template import Template
from gpudra.driver.core.allocator.view import NodeView, state_key
from gpudra.driver.core.gangs.cards import Layout
from gpudra.driver.core.gangs.ground import Cell, Ground
from gpudra.driver.core.gangs.noderoom import NodeFacts, refusal
from gpudra.driver.core.gangs.potential import EMPTY, Potential, Worth
from gpudra.driver.core.gangs.types import PodView

NO_DEVICES = "devices"
TIMED_OUT = "time was up"
_PREFERRED = 1000.0  # one step down in a firstAvailable list outweighs any fragmentation
_MOST_ANSWERS = 160  # answers of one node that are compared
_MOST_KINDS = 256
_DIGITS = 9

Filter = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """The best devices for an ask in one state of a node.

    Attributes:
        template, solution: which, in positions.
        change: growth of the potential of the cards.
        before, after: what the cards are worth.
    """

    template: Template | None
    solution: Solution | None
    change: float
    before: Worth
    after: Worth


@dataclass(frozen=True, slots=True)
class Entry:
    """A node that can take a pod.

    Attributes:
        cost: the lower, the better.
        cell: of which this is true.
        choice: the devices.
    """

    cost: float
    cell: Cell
    choice: Choice


class Ask:
    """Claims of one kind, asked together of one node."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._choices: dict[Any, Choice | str] = {}
        self._marks: dict[Any, tuple[int, ...]] = {}

    def forget(self) -> None:
        """The potential has changed: another choice may be better."""
        self._choices.clear()

    def choice(
        self, view: NodeView, facts: "Board", deadline: Deadline | None = None
    ) -> Choice | str:
        """The best devices on a node, or why there are none."""
        template = self.question.template(view)
        layouts = facts.layouts_of(view)
        key = (id(template), state_key(view), tuple([one.number if one else -1 for one in layouts]))
        found = self._choices.get(key)
        if found is None:
            found, keep = self._look(view, template, layouts, facts, deadline)
            if keep:
                self._choices[key] = found
        return found

    def _look(
        self,
        view: NodeView,
        template: Template,
        layouts: Sequence[Layout | None],
        board: "Board",
        deadline: Deadline | None,
    ) -> tuple[Choice | str, bool]:
        rating = _Rating(view, template, layouts, board, self.question)
        known = self.question.choose(
            view,
            rating.of,
            marks=self._marks_of(template, layouts),
            limit=_MOST_ANSWERS,
            deadline=deadline,
        )
        if isinstance(known.found, Refusal):
            late = known.found.outcome is Outcome.TIMEOUT
            return (TIMED_OUT if late else f"devices ({known.found.message})"), False
        if known.found is None or known.template is None:
            return NO_DEVICES, not view.troubles
        return rating.choice(known.template, known.found), True

    def _marks_of(self, template: Template, layouts: Sequence[Layout | None]) -> tuple[int, ...]:
        key = (id(template), tuple([id(one) for one in layouts]))
        found = self._marks.get(key)
        if found is None:
            found = self._marks[key] = tuple(
                layout.marks[index] if (layout := layouts[part]) else 0
                for part, index in zip(template.part_of, template.index_of, strict=True)
            )
        return found


class _Rating:
    """What an answer of one node does to the potential of its cards."""

    def __init__(
        self,
        view: NodeView,
        template: Template,
        layouts: Sequence[Layout | None],
        board: "Board",
        question: Question,
    ) -> None:
        self._template, self._layouts, self._board = template, layouts, board
        self._question = question
        self._states = [
            board.cards(layout, record) if layout else ()
            for layout, record in zip(layouts, view.records, strict=True)
        ]
        self._before = board.worth_of(view)

    def of(self, solution: Solution) -> float:
        """For the search: higher is better."""
        choice = self.choice(self._template, solution)
        return self._question.preference(solution) * _PREFERRED - choice.change

    def choice(self, template: Template, solution: Solution) -> Choice:
        """The answer with its price."""
        changed: dict[int, list[Any]] = {}
        grouped: dict[tuple[int, int], list[int]] = {}
        for pick in solution.picks:
            part, index = template.part_of[pick.position], template.index_of[pick.position]
            layout = self._layouts[part]
            if layout is None:
                continue
            cards = changed.setdefault(part, list(self._states[part]))
            layout.given(cards, index, self._question.amounts(template, pick))
            if not layout.forms[index].mask and not layout.forms[index].share:
                grouped.setdefault((part, pick.claim), []).append(layout.forms[index].card)
        after = EMPTY
        for part, layout in enumerate(self._layouts):
            if layout is not None:
                state = tuple(changed.get(part, self._states[part]))
                after = plus(after, self._board.worth(layout, state))
        apart = sum(
            self._board.potential.apart(layout, cards)
            for (part, _), cards in grouped.items()
            if (layout := self._layouts[part]) is not None
        )
        change = after.cards - self._before.cards + apart
        return Choice(template, solution, change, self._before, after)


def plus(one: Worth, other: Worth) -> Worth:
    """Two pools of one node."""
    if one is EMPTY:
        return other
    return Worth(
        one.cards + other.cards,
        one.cpu + other.cpu,
        (one.cpu_spread**2 + other.cpu_spread**2) ** 0.5,
        one.memory + other.memory,
        (one.memory_spread**2 + other.memory_spread**2) ** 0.5,
    )


class Board:
    """What all kinds share: the ground, the potential, and what nodes are worth.

    Args:
        ground: the cluster.
        potential: of the demand at present.
        label: see noderoom.refusal.
    """

    def __init__(self, ground: Ground, potential: Potential, label: str) -> None:
        self.ground, self.potential, self.label = ground, potential, label
        self._kinds: OrderedDict[Any, Kind] = OrderedDict()
        self._asks: OrderedDict[Any, Ask] = OrderedDict()
        self._worths: dict[Any, Worth] = {}
        self._layouts: dict[int, tuple[NodeView, tuple[Layout | None, ...]]] = {}

    def set_potential(self, potential: Potential) -> None:
        """Another demand: what was chosen by the old one is forgotten."""
        if potential is self.potential:
            return
        self.potential = potential
        self._worths.clear()
        for ask in self._asks.values():
            ask.forget()
        for kind in self._kinds.values():
            kind.row.clear()

    def layouts_of(self, view: NodeView) -> tuple[Layout | None, ...]:
        """The layout of each pool of a node."""
        of = self.ground.layouts.of
        return tuple([of(record.pool) for record in view.records])

    def cards(self, layout: Layout, record: PoolRecord) -> tuple[Any, ...]:
        """What is free of each card of a pool."""
        key = record.state.key
        found = layout.used.get(key)
        if found is None:
            if len(layout.used) > 50_000:
                layout.used.clear()
            found = layout.used[key] = layout.state(record.state.held)
        return found

    def worth(self, layout: Layout, cards: tuple[Any, ...]) -> Worth:
        """Of the cards of one pool."""
        key = (layout.number, cards)
        found = self._worths.get(key)
        if found is None:
            if len(self._worths) > 100_000:
                self._worths.clear()
            found = self._worths[key] = self.potential.worth(layout, cards)
        return found

    def worth_of(self, view: NodeView) -> Worth:
        """Of all cards of a node."""
        total = EMPTY
        for record in view.records:
            layout = self.ground.layouts.of(record.pool)
            if layout is not None:
                total = plus(total, self.worth(layout, self.cards(layout, record)))
        return total

    def ask(self, claims: Sequence[ResourceClaim]) -> tuple[Ask, ClaimsPlan]:
        """The ask for these claims together.

        Raises:
            Refusal: the claims cannot be served anywhere as they are.
        """
        plan = self.ground.plan(claims)
        question = self.ground.index.question(plan)
        found = self._asks.get(plan.signature)
        if found is None or found.question is not question:
            found = self._asks[plan.signature] = Ask(question)
            if len(self._asks) > _MOST_KINDS:
                self._asks.popitem(last=False)
        self._asks.move_to_end(plan.signature)
        return found, plan

    def kind(self, pod: PodView, claims: Sequence[ResourceClaim]) -> "Kind":
        """The kind of a pod that still needs these claims.

        Raises:
            Refusal: see ask.
        """
        ask, plan = self.ask(claims) if claims else (None, None)
        key = (
            plan.signature if plan else None,
            pod.rules.text,
            pod.cpu_milli,
            pod.memory_bytes,
            pod.others,
        )
        found = self._kinds.get(key)
        if found is None or found.ask is not ask:
            found = self._kinds[key] = Kind(self, pod, ask, key)
            if len(self._kinds) > _MOST_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        return found

    def allocations(
        self, claims: Sequence[ResourceClaim], view: NodeView, choice: Choice
    ) -> tuple[AllocationResult, ...]:
        """What is written into the claims of one pod."""
        if not claims:
            return ()
        ask, plan = self.ask(claims)
        return ask.question.answer(plan, Known(view, choice.template, choice.solution)).allocations


class Kind:
    """Pods that are the same to a plan."""

    def __init__(self, board: Board, pod: PodView, ask: Ask | None, key: Any) -> None:
        self.board, self.pod, self.ask, self.key = board, pod, ask, key
        self.row = Row(self)
        self._refusals: dict[str, tuple[NodeFacts, str]] = {}

    def entry(self, cell: Cell, deadline: Deadline | None = None) -> Entry | str:
        """What a node is to the pod: an entry, or why it is none."""
        facts = cell.facts
        known = self._refusals.get(facts.name)
        if known is None or known[0] is not facts:
            known = facts, refusal(facts, self.pod.rules, self.board.label)
            self._refusals[facts.name] = known
        if known[1]:
            return known[1]
        lack = cell.room.lacks(facts, self.pod)
        if lack:
            return lack
        choice = self._choice(cell, deadline)
        return choice if isinstance(choice, str) else self._priced(cell, choice)

    def _choice(self, cell: Cell, deadline: Deadline | None) -> Choice | str:
        view = cell.view
        if self.ask is None:
            worth = self.board.worth_of(view) if view is not None else EMPTY
            return Choice(None, None, 0.0, worth, worth)
        if view is None:
            return NO_DEVICES
        return self.ask.choice(view, self.board, deadline)

    def _priced(self, cell: Cell, choice: Choice) -> Entry:
        potential, facts, room, pod = self.board.potential, cell.facts, cell.room, self.pod
        cpu, memory = facts.cpu_milli - room.cpu_milli, facts.memory_bytes - room.memory_bytes
        before = potential.shortage(choice.before, cpu, memory)
        after = potential.shortage(choice.after, cpu - pod.cpu_milli, memory - pod.memory_bytes)
        cost = choice.change + after - before
        if choice.solution is not None and self.ask is not None:
            cost -= _PREFERRED * self.ask.question.preference(choice.solution)
        return Entry(round(cost, _DIGITS), cell, choice)


class Row:
    """What every node of the ground is to a kind; renewed where something changed."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.entries: dict[str, Entry | str] = {}
        self._seen: int | None = None

    def clear(self) -> None:
        """Everything has to be looked at again."""
        self._seen = None

    def sync(self, deadline: Deadline | None = None) -> None:
        """Brings the row up to date with the ground."""
        ground = self._kind.board.ground
        changed = None if self._seen is None else ground.changes_since(self._seen)
        self._seen = ground.now
        if changed is None:
            self.entries.clear()
        entries, entry = self.entries, self._kind.entry
        for name in ground.names if changed is None else changed:
            cell = ground.cell(name)
            if cell is None:
                entries.pop(name, None)
                continue
            found = entries[name] = entry(cell, deadline)
            if found == TIMED_OUT:
                self._seen = None
