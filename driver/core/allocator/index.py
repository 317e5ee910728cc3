# SPDX-License-Identifier: Apache-2.0
"""ClusterIndex: the allocator's front door.

Holds slices, classes, nodes, taint rules and allocated claims, follows their changes one object at
a time, and answers questions::

    index = ClusterIndex.of(nodes=nodes, slices=slices, classes=classes, claims=claims)
    answer = index.allocate([claim], "node-a")
    if answer.fits:
        print(answer.allocations[0].devices.results)

Nodes that are equal in everything a question can see share one answer, and an answer is worked out
again only where something changed. Nothing here reads a clock or does I/O; a deadline is a function
given by the caller.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from gpudra.api.resource_v1 import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from gpudra.driver.core.allocator.holdings import claim_identity
from gpudra.driver.core.allocator.nodeselector import matches
from gpudra.driver.core.allocator.question import NodeAnswers, Question
from gpudra.driver.core.allocator.requests import Plan, make_plan
from gpudra.driver.core.allocator.search import Scorer
from gpudra.driver.core.allocator.selectors import SELECTORS
from gpudra.driver.core.allocator.types import Answer, Deadline, Node, Outcome, Refusal
from gpudra.driver.core.allocator.view import ClusterState

_QUESTIONS = 64  # kinds of claims whose intermediate results are kept, unless told otherwise


class ClusterIndex:
    """Everything that decides about devices, kept up to date.

    Args:
        questions: kinds of claims whose intermediate results are kept.
    """

    def __init__(self, *, questions: int = _QUESTIONS) -> None:
        self.state = ClusterState()
        self._most = questions
        self._classes: dict[str, DeviceClass] = {}
        self._selectors = SELECTORS
        self._questions: OrderedDict[tuple[object, ...], Question] = OrderedDict()

    @classmethod
    def of(
        cls,
        *,
        nodes: Iterable[Node] = (),
        slices: Iterable[ResourceSlice] = (),
        classes: Iterable[DeviceClass] = (),
        claims: Iterable[ResourceClaim] = (),
        rules: Iterable[DeviceTaintRule] = (),
    ) -> "ClusterIndex":
        """An index of these objects; claims count as far as they are allocated."""
        index = cls()
        index.state.load(nodes, list(slices), claims, rules)
        for device_class in classes:
            index.put_class(device_class)
        return index

    # --- changes: each touches only the pools and nodes that it names -------------------------

    def put_node(self, node: Node) -> None:
        """Adds or replaces a node."""
        self.state.put_node(node)

    def remove_node(self, name: str) -> None:
        """Forgets a node."""
        self.state.remove_node(name)

    def put_slice(self, one: ResourceSlice) -> None:
        """Adds or replaces a slice."""
        self.state.put_slice(one)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        self.state.remove_slice(name)

    def put_class(self, device_class: DeviceClass) -> None:
        """Adds or replaces a DeviceClass; questions notice by themselves."""
        self._classes[device_class.metadata.name] = device_class

    def remove_class(self, name: str) -> None:
        """Forgets a DeviceClass."""
        self._classes.pop(name, None)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Takes note of what a claim holds: as stored, or as about to be written."""
        self.state.holds_changed(self.state.holdings.put(claim))

    def remove_claim(self, claim: ResourceClaim) -> None:
        """A claim is gone, or holds nothing any more."""
        self.state.holds_changed(self.state.holdings.remove(claim_identity(claim)))

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Adds or replaces a DeviceTaintRule."""
        self.state.put_rule(rule)

    def remove_rule(self, name: str) -> None:
        """Forgets a DeviceTaintRule."""
        self.state.remove_rule(name)

    # --- questions ------------------------------------------------------------------------

    def plan(self, claims: Sequence[ResourceClaim]) -> Plan:
        """Compiles claims that are to be allocated together.

        Raises:
            Refusal: outcome claim-error.
        """
        return make_plan(claims, self._classes.get, self._selectors)

    def question(self, plan: Plan) -> Question:
        """The question that a plan asks, with what earlier ones of its kind have found."""
        found = self._questions.get(plan.signature)
        if found is not None and not found.overgrown:
            self._questions.move_to_end(plan.signature)
            return found
        if found is not None:
            self._drop(plan.signature)
        found = self._questions[plan.signature] = Question(plan)
        if len(self._questions) > self._most:
            self._drop(next(iter(self._questions)))
        return found

    def _drop(self, signature: tuple[object, ...]) -> None:
        question = self._questions.pop(signature)
        for record in self.state.records():
            record.forget(question.space)

    def allocate(
        self,
        claims: Sequence[ResourceClaim],
        node: str,
        *,
        deadline: Deadline | None = None,
        scorer: Scorer | None = None,
    ) -> Answer:
        """Which devices the claims get together on a node. Changes nothing.

        A claim that is allocated already keeps what it has, if the node is one that may use it.

        Args:
            claims: of one pod, or of several that must run on the node together.
            node: its name.
            deadline: tells when the time is up; then the outcome is timeout.
            scorer: chooses among the valid answers; without one the first fit is taken, which is
                the answer of kube-scheduler.

        Raises:
            KeyError: nobody knows such a node.
        """
        view = self.state.view(node)
        waiting = [claim for claim in claims if claim.status.allocation is None]
        for claim in claims:
            allocation = claim.status.allocation
            if allocation is None or allocation.node_selector is None:
                continue
            if not matches(allocation.node_selector, view.node):
                message = f"claim {claim.key} is allocated already and cannot be used on {node}"
                return Answer(Outcome.UNSATISFIABLE, node, message=message)
        try:
            plan = self.plan(waiting)
            answer = self.question(plan).ask(plan, view, deadline=deadline, scorer=scorer)
        except Refusal as refusal:
            return Answer(refusal.outcome, node, message=refusal.message)
        return _with_present(claims, answer) if len(waiting) < len(claims) else answer

    def everywhere(
        self,
        claims: Sequence[ResourceClaim],
        *,
        deadline: Deadline | None = None,
    ) -> NodeAnswers:
        """The answers of all nodes, by name.

        Asking again after a change costs only the nodes that the change touched.

        Raises:
            Refusal: outcome claim-error: no node needs to be asked.
        """
        plan = self.plan(claims)
        return self.question(plan).ask_all(plan, self.state, deadline=deadline)


def _with_present(claims: Sequence[ResourceClaim], answer: Answer) -> Answer:
    """Puts the allocations that were there before into their places."""
    if not answer.fits:
        return answer
    fresh = iter(answer.allocations)
    return Answer(
        answer.outcome,
        answer.node,
        tuple(claim.status.allocation or next(fresh) for claim in claims),
        preference=answer.preference,
    )
