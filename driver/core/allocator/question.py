# SPDX-License-Identifier: Apache-2.0
"""A question of one kind, asked of many nodes.

Questions with the same requests and constraints are of one kind, whoever asks. What is found out
for one node is kept in positions (third device, not gpu-7), so that every node of equal content and
equal use takes the answer over by a look-up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.resource_v1 import AllocationResult
from gpudra.driver.core.allocator.answer import Given, allocation
from gpudra.driver.core.allocator.counters import IslandState, island_states
from gpudra.driver.core.allocator.facts import FactSpace, Verdict, judge
from gpudra.driver.core.allocator.pools import SKIP_FEATURE
from gpudra.driver.core.allocator.requests import Alternative, Plan
from gpudra.driver.core.allocator.search import Pick, Scorer, Search, Solution
from gpudra.driver.core.allocator.template import (
    Part,
    Template,
    TemplateBuilder,
    element_table,
    pattern,
)
from gpudra.driver.core.allocator.types import (
    Answer,
    Deadline,
    DeviceId,
    Outcome,
    Refusal,
    node_refusal,
)
from gpudra.driver.core.allocator.view import NodeView, state_key

_MAX_FACTS = 300_000  # kinds of devices after which a question starts afresh
_MAX_TEMPLATES = 20_000
_PREFERENCE = 8  # FirstAvailableDeviceRequestMaxSize: what kube-scheduler's score counts from


@dataclass(slots=True)
class _Known:
    """What was found for one node."""

    view: NodeView
    template: Template | None
    found: Any


class Question:
    """All there is to know about one kind of claims.

    Attributes:
        space: the kinds of devices that matter here.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        names = frozenset(
            name
            for claim in plan.claims
            for request in claim.requests
            for one in request.alternatives
            for name in one.capacity
        )
        self.space = FactSpace(plan.reads, names)
        self._verdicts: dict[tuple[object, ...], dict[int, Verdict]] = {}
        self._builder = TemplateBuilder(plan, self.verdict)
        self._templates: dict[Any, Template] = {}
        self._nodes: dict[str, _Known] = {}
        self._asks_all = any(
            one.take_all
            for claim in plan.claims
            for request in claim.requests
            for one in request.alternatives
        )

    @property
    def overgrown(self) -> bool:
        """Whether so much was learnt that starting afresh is cheaper than keeping it."""
        return len(self.space.samples) > _MAX_FACTS or len(self._templates) > _MAX_TEMPLATES

    def verdict(self, alternative: Alternative, kind: int) -> Verdict:
        """What a kind of device is to an alternative; each is judged once."""
        known = self._verdicts.setdefault(alternative.match_key, {})
        found = known.get(kind)
        if found is None:
            found = known[kind] = judge(alternative, self.space.samples[kind])
        return found

    # --- asking ---------------------------------------------------------------------------

    def ask(
        self,
        plan: Plan,
        view: NodeView,
        *,
        deadline: Deadline | None = None,
        scorer: Scorer | None = None,
    ) -> Answer:
        """The answer of one node; ``plan`` is of this question's kind."""
        try:
            template, found = self._positions(view, deadline, scorer)
        except Refusal as refusal:
            return Answer(refusal.outcome, view.node.name, message=_named(plan, refusal.message))
        if found is None:
            return self._refused(plan, view)
        return self._answer(plan, view, template, found)

    def _positions(
        self, view: NodeView, deadline: Deadline | None, scorer: Scorer | None
    ) -> tuple[Template, Solution | None]:
        name = view.node.name
        known = self._nodes.get(name)
        if known is None or known.view is not view or scorer is not None:
            known = self._find(view, deadline, scorer)
            if scorer is None:
                self._nodes[name] = known
        if isinstance(known.found, Refusal):
            raise known.found
        assert known.template is not None
        return known.template, known.found

    def _find(self, view: NodeView, deadline: Deadline | None, scorer: Scorer | None) -> _Known:
        if self._asks_all and view.troubles:
            # "All" would be a guess while some of the devices cannot be seen.
            what = "; ".join(text for _, text in view.troubles)
            return _Known(view, None, node_refusal(f"all devices are asked for, but {what}"))
        template = self.template(view)
        key = state_key(view)
        found = template.answers.get(key) if scorer is None else None
        if found is None:
            islands = self.islands(view, template)
            search = Search(
                self._plan, template, islands, deadline=deadline, name=_namer(view, template)
            )
            try:
                found = (search.first() if scorer is None else search.best(scorer),)
            except Refusal as refusal:
                if refusal.outcome is Outcome.TIMEOUT:
                    raise
                # Names a device of this node, so other nodes must not take it over.
                return _Known(view, template, refusal)
            if scorer is None:
                template.answers[key] = found
        return _Known(view, template, found[0])

    def template(self, view: NodeView) -> Template:
        """The template of a node; equal nodes get the same object."""
        parts = self.parts(view)
        key: list[Any] = []
        skipping = False
        for part in parts:
            pool = part.pool
            indices = None if len(part.indices) == len(pool.devices) else tuple(part.indices)
            key.append(
                (pool.key[0], part.kinds, pool.amounts, pool.groups, indices, _slot_sets(part))
            )
            skipping = skipping or any(home.skip_operations for home in pool.homes)
        if skipping:
            key.append(tuple(pool.home_of for pool in (part.pool for part in parts)))
            key.append(tuple(h.skip_operations for p in parts for h in p.pool.homes))
            key.append(SKIP_FEATURE in view.node.declared_features)
        if self._builder.attributes:
            key.append(pattern(element_table(parts, self._builder.attributes)))
        found = self._templates.get(tuple(key))
        if found is None:
            found = self._builder.build(parts, view.node.declared_features)
            self._templates[tuple(key)] = found
        return found

    def parts(self, view: NodeView) -> list[Part]:
        """The pools of a node with the kinds of their devices."""
        return [
            Part(record.pool, record.kinds(self.space), record.pool.on_node(view.node))
            for record in view.records
        ]

    def islands(self, view: NodeView, template: Template) -> tuple[IslandState, ...]:
        """The states of the node's islands."""
        return island_states(
            template,
            [record.pool for record in view.records],
            [record.state for record in view.records],
        )

    # --- answering ------------------------------------------------------------------------

    def _refused(self, plan: Plan, view: NodeView) -> Answer:
        invalid = [text for wrong, text in view.troubles if wrong]
        names = ", ".join(claim.claim.key for claim in plan.claims)
        message = f"no devices for {names} on {view.node.name}"
        lost = [
            f"pool {record.pool.label}: {', '.join(record.state.lost)} allocated but not listed, "
            "so its counters are not known"
            for record in view.records
            if record.state.lost and record.pool.slots
        ]
        if invalid:
            text = f"{message}: {'; '.join(invalid)}"
            return Answer(Outcome.NODE_ERROR, view.node.name, message=text)
        details = [text for _, text in view.troubles] + lost
        text = f"{message}: {'; '.join(details)}" if details else message
        return Answer(Outcome.UNSATISFIABLE, view.node.name, message=text)

    def _answer(self, plan: Plan, view: NodeView, template: Template, found: Solution) -> Answer:
        given: list[list[Given]] = [[] for _ in plan.claims]
        chosen: dict[tuple[int, int], int] = {}
        for pick in found.picks:
            given[pick.claim].append(_given(plan, view, template, pick))
            chosen[pick.claim, pick.request] = pick.alternative
        allocations: Sequence[AllocationResult] = [
            allocation(claim, own, view.node.name)
            for claim, own in zip(plan.claims, given, strict=True)
        ]
        preference = sum(
            _PREFERENCE - alternative
            for (c, r), alternative in chosen.items()
            if plan.claims[c].requests[r].prioritized
        )
        return Answer(Outcome.ALLOCATED, view.node.name, tuple(allocations), preference=preference)


def _slot_sets(part: Part) -> tuple[int, ...]:
    """Which counter slots belong to one set, by number and not by name."""
    number: dict[str, int] = {}
    return tuple(number.setdefault(name, len(number)) for name, _ in part.pool.slots)


def _given(plan: Plan, view: NodeView, template: Template, pick: Pick) -> Given:
    pool = view.records[template.part_of[pick.position]].pool
    index = template.index_of[pick.position]
    device = pool.devices[index]
    alternative = plan.claims[pick.claim].requests[pick.request].alternatives[pick.alternative]
    consumed = None
    if template.multiple[pick.position]:
        found = template.candidates[pick.claim, pick.request, pick.alternative]
        # Administrative access takes no capacity.
        consumed = {} if alternative.admin else found.fits[pick.position].shown
    return Given(
        pick.request,
        alternative,
        DeviceId(*pool.key, device.name),
        device,
        pool.homes[pool.home_of[index]],
        consumed,
    )


def _namer(view: NodeView, template: Template) -> Any:
    def name(position: int) -> str:
        pool = view.records[template.part_of[position]].pool
        return str(DeviceId(*pool.key, pool.devices[template.index_of[position]].name))

    return name


def _named(plan: Plan, message: str) -> str:
    """A message with the claims of whoever asks now; what was found before is shared."""
    return f"{', '.join(f'claim {claim.claim.key}' for claim in plan.claims)}: {message}"
