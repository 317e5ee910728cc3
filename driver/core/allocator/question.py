# SPDX-License-Identifier: Apache-2.0
"""A question of one kind, asked of many nodes.

Questions with the same requests and constraints are of one kind, whoever asks. What is found out
for one node is kept in positions (third device, not gpu-7), so that every node of equal content and
equal use takes the answer over by a look-up.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.resource_v1 import AllocationResult
from gpudra.driver.core.allocator.answer import Given, allocation
from gpudra.driver.core.allocator.counters import IslandState, island_states
from gpudra.driver.core.allocator.derivedvalues import DerivedValues
from gpudra.driver.core.allocator.facts import FactSpace, Verdict, judge
from gpudra.driver.core.allocator.models import Model, Models
from gpudra.driver.core.allocator.pools import SKIP_FEATURE
from gpudra.driver.core.allocator.records import PoolRecord
from gpudra.driver.core.allocator.requests import Alternative, Plan
from gpudra.driver.core.allocator.search import Scorer, Search
from gpudra.driver.core.allocator.template import (
    Part,
    Template,
    TemplateBuilder,
    pattern,
)
from gpudra.driver.core.allocator.tries import Pick, Solution
from gpudra.driver.core.allocator.types import (
    Answer,
    Deadline,
    DeviceId,
    Node,
    Outcome,
    Refusal,
    node_refusal,
)
from gpudra.driver.core.allocator.view import ClusterState, NodeView, state_key

_MAX_FACTS = 300_000  # kinds of devices after which a question starts afresh
_MAX_TEMPLATES = 20_000
_MAX_ANSWERS = 50_000  # states of one template that are remembered
_PREFERENCE = 8  # FirstAvailableDeviceRequestMaxSize: what kube-scheduler's score counts from


@dataclass(slots=True)
class Known:
    """What was found for one node: a solution, that there is none, or why it was not looked for."""

    view: NodeView
    template: Template | None
    found: Solution | Refusal | None

    def template_for(self, view: NodeView) -> Template | None:
        """The template, if only the use of devices has changed since."""
        old, new = self.view.records, view.records
        if self.view.node is not view.node or len(old) != len(new):
            return None
        for index, one in enumerate(old):
            other = new[index]
            if one.pool is not other.pool or one.taints is not other.taints:
                return None
        return self.template

    @property
    def timed_out(self) -> bool:
        """Whether asking again may tell more."""
        found = self.found
        return found is not None and isinstance(found, Refusal) and found.outcome is Outcome.TIMEOUT


Entry = Known | tuple[Node, PoolRecord, Model, Solution | None]
"""What was found for a node in the general way, or by its model."""


def _spelt_out(node: Node, record: PoolRecord, model: Model, found: Solution | None) -> Known:
    return Known(NodeView(node, (record,), ()), model.template, found)


class Question:
    """All there is to know about one kind of claims.

    Attributes:
        space: the kinds of devices that matter here.
        derived: attributes that the claims derive, by kind of device.
        said: what explanations say about kinds of devices that are not selected.
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
        self.derived = DerivedValues(self.space.samples)
        self._builder = TemplateBuilder(plan, self.verdict, self.derived)
        self._models = Models(plan.reads, [name for name, _ in self._builder.sources])
        self._templates: dict[Any, Template] = {}
        self._nodes: dict[str, Entry] = {}
        self.said: dict[tuple[object, ...], tuple[str, str]] = {}
        self._asked_at: int | None = None
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
        name = view.node.name
        if scorer is not None:
            return self.answer(plan, self._find(view, deadline, scorer))
        before = self._nodes.get(name)
        known = before if isinstance(before, Known) else None
        if known is None or known.view is not view:
            known = self._find(view, deadline, None, known)
            if not known.timed_out:
                self._nodes[name] = known
        return self.answer(plan, known)

    def ask_all(
        self, plan: Plan, state: ClusterState, *, deadline: Deadline | None = None
    ) -> "NodeAnswers":
        """The answers of all nodes; after the first time only changed nodes are looked at."""
        seen = None if self._asked_at is None else state.changes_since(self._asked_at)
        changed: Iterable[str] = state.node_names() if seen is None else seen
        if seen is None:
            self._nodes.clear()
        self._asked_at = state.now
        late: dict[str, Entry] = {}
        nodes = self._nodes
        for name in self._ask_models(changed, state, deadline):
            view = state.find_view(name)
            known = nodes.get(name)
            if view is None:
                nodes.pop(name, None)
            elif not isinstance(known, Known) or known.view is not view:
                before = known if isinstance(known, Known) else None
                known = self._find(view, deadline, None, before)
                (late if known.timed_out else nodes)[name] = known
        if late:
            self._asked_at = None  # they are not known yet, so next time everybody is asked
        return NodeAnswers(self, plan, self._nodes | late if late else dict(self._nodes))

    def _ask_models(
        self, names: Iterable[str], state: ClusterState, deadline: Deadline | None
    ) -> Iterable[str]:
        """Answers for the nodes that are like others; returns the rest."""
        local = state.only_local()
        if local is None or not self._models.usable:
            return names
        rest: list[str] = []
        found, nodes, models, key_of = (
            state.nodes,
            self._nodes,
            self._models.known,
            self._models.key,
        )
        for name in names:
            record = local.get(name)
            node = found.get(name)
            if node is None or not isinstance(record, PoolRecord):
                rest.append(name)
                continue
            key = key_of(record)
            if key is None:
                rest.append(name)
                continue
            model = models.get(key)
            if model is None:
                model = self._new_model(key, record, node)
            used = record.used() if record.holds.devices else 0
            if model is None or used is None:
                rest.append(name)
                continue
            try:
                solution = model.answers[used]
            except KeyError:
                if not self._search(model, used, deadline):
                    rest.append(name)
                    continue
                solution = model.answers[used]
            nodes[name] = (node, record, model, solution)
        return rest

    def _new_model(self, key: Hashable, record: PoolRecord, node: Node) -> Model | None:
        if key in self._models.unready or not record.pool.ready:
            self._models.unready.add(key)
            return None
        view = NodeView(node, (record,), ())
        model = Model(self.template(view), self.parts(view)[0])
        self._models.put(key, model)
        return model

    def _search(self, model: Model, used: int, deadline: Deadline | None) -> bool:
        """Finds a model's answer; False if the node has to be asked in the general way."""

        def search(islands: tuple[IslandState, ...]) -> Search:
            return Search(self._plan, model.template, islands, deadline=deadline)

        try:
            model.find(used, search)
        except Refusal:
            return False
        return True

    def choose(
        self,
        view: NodeView,
        scorer: Scorer,
        *,
        marks: Sequence[int] = (),
        limit: int = 10_000,
        deadline: Deadline | None = None,
    ) -> Known:
        """The answer on a node that a scorer likes best; nothing of it is kept.

        Args:
            view: the node, also one as it would be after changes that nobody has made yet.
            scorer: see Search.best.
            limit: see Search.best.
            marks: see Symmetry.
            deadline: for the search.
        """
        if self._asks_all and view.troubles:
            return self._find(view, deadline, scorer)
        template = self.template(view)
        search = Search(
            self._plan,
            template,
            self.islands(view, template),
            deadline=deadline,
            name=_namer(view, template),
            marks=marks,
        )
        try:
            return Known(view, template, search.best(scorer, limit))
        except Refusal as refusal:
            return Known(view, template, refusal)

    def preference(self, found: Solution) -> int:
        """How high the chosen alternatives stand in their lists; see Answer."""
        return _preference(self._plan, found)

    def amounts(self, template: Template, pick: Pick) -> Mapping[str, int] | None:
        """Nanos that a pick takes of each capacity, by published name; None: all of the device."""
        if not template.multiple[pick.position]:
            return None
        alternative = (
            self._plan.claims[pick.claim].requests[pick.request].alternatives[pick.alternative]
        )
        if alternative.admin:
            return {}
        found = template.candidates[pick.claim, pick.request, pick.alternative]
        shown = found.fits[pick.position].shown
        return {name: amount.nanos for name, amount in shown.items()}

    def _find(
        self,
        view: NodeView,
        deadline: Deadline | None,
        scorer: Scorer | None,
        before: Known | None = None,
    ) -> Known:
        if self._asks_all and view.troubles:
            # "All" would be a guess while some of the devices cannot be seen.
            what = "; ".join(text for _, text in view.troubles)
            return Known(view, None, node_refusal(f"all devices are asked for, but {what}"))
        template = before.template_for(view) if before is not None else None
        if template is None:
            template = self.template(view)
        key = state_key(view)
        found = template.answers.get(key) if scorer is None else None
        if found is not None:
            return Known(view, template, found[0])
        search = Search(
            self._plan,
            template,
            self.islands(view, template),
            deadline=deadline,
            name=_namer(view, template),
        )
        try:
            solution = search.first() if scorer is None else search.best(scorer)
        except Refusal as refusal:
            # It names a device of this node, so other nodes must not take it over.
            return Known(view, template, refusal)
        if scorer is None:
            if len(template.answers) >= _MAX_ANSWERS:
                template.answers.clear()
                template.bounds.clear()
            template.answers[key] = (solution,)
        return Known(view, template, solution)

    def template(self, view: NodeView) -> Template:
        """The template of a node; equal nodes get the same object."""
        key: list[Any] = [record.shape(self.space) for record in view.records]
        for at, record in enumerate(view.records):
            pool = record.pool
            if not pool.node_name:
                key.append((at, tuple(pool.on_node(view.node))))
            if pool.skips:
                key.append(SKIP_FEATURE in view.node.declared_features)
        if self._builder.sources:
            key.append(pattern(self._builder.table(self.parts(view)), self._builder.sources))
        found = self._templates.get(tuple(key))
        if found is None:
            found = self._builder.build(self.parts(view), view.node.declared_features)
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

    def answer(self, plan: Plan, entry: Entry) -> Answer:
        """What was found, for the claims of one plan."""
        known = entry if isinstance(entry, Known) else _spelt_out(*entry)
        view, template, found = known.view, known.template, known.found
        name = view.node.name
        if isinstance(found, Refusal):
            return Answer(found.outcome, name, message=_named(plan, found.message))
        if found is None or template is None:
            wrong = any(wrong for wrong, _ in view.troubles)
            outcome = Outcome.NODE_ERROR if wrong else Outcome.UNSATISFIABLE
            return Answer(outcome, name, filling=lambda: ((), _refusal_text(plan, view)))
        return Answer(
            Outcome.ALLOCATED,
            name,
            preference=_preference(plan, found),
            filling=lambda: (_allocations(plan, view, template, found), ""),
        )


class NodeAnswers(Mapping[str, Answer]):
    """The answers of many nodes, as they were when asked; each is put into words when looked at."""

    def __init__(self, question: Question, plan: Plan, known: dict[str, Entry]) -> None:
        self._question = question
        self._plan = plan
        self._known = known

    def __getitem__(self, name: str) -> Answer:
        return self._question.answer(self._plan, self._known[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def fitting(self) -> list[str]:
        """The nodes on which the claims can be allocated."""
        return [
            name
            for name, known in self._known.items()
            if (known.found if isinstance(known, Known) else known[3]).__class__ is Solution
        ]


def _preference(plan: Plan, found: Solution) -> int:
    if not any(request.prioritized for claim in plan.claims for request in claim.requests):
        return 0
    chosen = {(pick.claim, pick.request): pick.alternative for pick in found.picks}
    return sum(
        _PREFERENCE - alternative
        for (c, r), alternative in chosen.items()
        if plan.claims[c].requests[r].prioritized
    )


def _refusal_text(plan: Plan, view: NodeView) -> str:
    names = ", ".join(claim.claim.key for claim in plan.claims)
    message = f"no devices for {names} on {view.node.name}"
    details = [text for wrong, text in view.troubles if wrong]
    if not details:
        details = [text for _, text in view.troubles] + [
            f"pool {record.pool.label}: {', '.join(record.state.lost)} allocated but not listed, "
            "so its counters are not known"
            for record in view.records
            if record.state.lost and record.pool.slots
        ]
    return f"{message}: {'; '.join(details)}" if details else message


def _allocations(
    plan: Plan, view: NodeView, template: Template, found: Solution
) -> tuple[AllocationResult, ...]:
    given: list[list[Given]] = [[] for _ in plan.claims]
    for pick in found.picks:
        given[pick.claim].append(_given(plan, view, template, pick))
    return tuple(
        allocation(claim, own, view.node.name)
        for claim, own in zip(plan.claims, given, strict=True)
    )


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
