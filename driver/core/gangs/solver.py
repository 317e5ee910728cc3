# SPDX-License-Identifier: Apache-2.0
"""All or nothing: nodes and devices for the pods of one job, together.

The first pass takes for each pod the cheapest node, and gives devices of one node out anew where
they were given out badly. Where that fails although pods differ, a search goes back over the nodes
too. Both end at the deadline. Nothing is changed: an answer is a list of `Placed`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.meta import NodeSelector
from gpudra.api.resource_v1 import AllocationResult, ResourceClaim
from gpudra.driver.core.allocator import Deadline, Outcome, Refusal, matches
from gpudra.driver.core.gangs.candidates import Candidates, Rows
from gpudra.driver.core.gangs.ground import Sketch
from gpudra.driver.core.gangs.kinds import Board, Entry, Filter, Kind
from gpudra.driver.core.gangs.types import Placed, PodView

_WIDEST_SEARCH = 128  # pods of a gang up to which the search goes back over nodes
_MOST_STEPS = 20_000
_JOINT_NODES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """One pod to be placed.

    Attributes:
        pod: the pod.
        own: claims that it alone uses and that are not allocated.
        shared: claims without allocation that other pods of the job use too.
        pins: where claims that are allocated already may be used.
        accept: further condition on nodes, such as pod anti-affinity, as the sketch is.
        seated: to be told where a pod was put, for ``accept``.
    """

    pod: PodView
    own: tuple[ResourceClaim, ...] = ()
    shared: tuple[ResourceClaim, ...] = ()
    pins: tuple[NodeSelector, ...] = ()

    @property
    def particular(self) -> bool:
        """Whether some nodes are more equal than others for this pod."""
        return bool(self.pins or self.pod.avoid or self.shared or self.pod.rules.apart)


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer.

    Attributes:
        need: the pod that found no node.
        placed: pods that had found one before it.
        late: the time was up; nothing is known.
    """

    need: Need
    placed: int
    late: bool = False


Apart = Callable[[PodView, str, Sequence[Placed]], bool]
"""Whether a pod may go to a node beside others of its job, as far as pod affinity tells."""


class Floor:
    """A sketch with its candidates: where one job after the other is put.

    Args:
        board: kinds and potential.
        sketch: what is placed already.
        names: only these nodes; None: all.
        deadline: for all searches on it.
        apart: see Apart; None: nothing forbids.
        rows: see Candidates.
    """

    def __init__(
        self,
        board: Board,
        sketch: Sketch,
        names: Iterable[str] | None = None,
        deadline: Deadline | None = None,
        apart: Apart | None = None,
        rows: Rows | None = None,
    ) -> None:
        self.board, self.sketch, self.deadline, self.apart = board, sketch, deadline, apart
        self.rows = rows
        self.names = None if names is None else frozenset(names)
        self._candidates: dict[int, tuple[Kind, Candidates]] = {}

    def fork(self, names: Iterable[str] | None = None) -> "Floor":
        """A floor that goes its own way, narrowed to some nodes if told so."""
        narrowed = self.names if names is None else frozenset(names)
        sketch = self.sketch.fork()
        return Floor(self.board, sketch, narrowed, self.deadline, self.apart, self.rows)

    def candidates(self, kind: Kind) -> Candidates:
        """The nodes for a kind, up to date."""
        found = self._candidates.get(id(kind))
        if found is None:
            fresh = Candidates(kind, self.sketch, self.names, self.deadline, self.rows)
            found = self._candidates[id(kind)] = kind, fresh
        found[1].sync()
        return found[1]

    def commit(self, placed: Placed, claims: Mapping[str, ResourceClaim]) -> None:
        """Takes room and devices."""
        self.sketch.add_pod(placed.pod, placed.node)
        for key, allocation in placed.allocations.items():
            self.sketch.add_claim(claims[key], allocation)


@dataclass(slots=True)
class _Attempt:
    """One job on one floor, so far."""

    floor: Floor
    claims: dict[str, ResourceClaim]
    placed: list[Placed] = field(default_factory=list)
    given: dict[str, AllocationResult] = field(default_factory=dict)

    def fork(self) -> "_Attempt":
        return _Attempt(self.floor.fork(), self.claims, list(self.placed), dict(self.given))

    def asked(self, need: Need) -> tuple[ResourceClaim, ...]:
        """Claims that still have to be allocated for the pod."""
        if not need.shared:
            return need.own
        return (*need.own, *(one for one in need.shared if one.key not in self.given))

    def kind(self, need: Need) -> Kind:
        return self.floor.board.kind(need.pod, self.asked(need))

    def accept(self, need: Need, allowed: Filter | None) -> Filter | None:
        """The conditions that are not the same for all pods of a kind."""
        pins = list(need.pins)
        for one in need.shared:
            allocation = self.given.get(one.key)
            if allocation is not None and allocation.node_selector is not None:
                pins.append(allocation.node_selector)
        apart, pod = self.floor.apart, need.pod
        if not pins and not pod.avoid and apart is None:
            return allowed
        facts = self.floor.board.ground.facts

        def accepts(name: str) -> bool:
            if name in pod.avoid or (allowed is not None and not allowed(name)):
                return False
            if any(not matches(pin, facts[name].node) for pin in pins):
                return False
            return apart is None or apart(pod, name, self.placed)

        return accepts

    def put(self, need: Need, name: str, entry: Entry) -> None:
        """Takes a node for a pod."""
        asked = self.asked(need)
        allocations: dict[str, AllocationResult] = {}
        if asked and entry.cell.view is not None:
            board = self.floor.board
            found = board.allocations(asked, entry.cell.view, entry.choice)
            allocations = {c.key: one for c, one in zip(asked, found, strict=True)}
        self.add(Placed(need.pod, name, allocations))

    def add(self, placed: Placed) -> None:
        self.floor.commit(placed, self.claims)
        self.placed.append(placed)
        self.given.update(placed.allocations)


def solve(
    floor: Floor, needs: Sequence[Need], allowed: Filter | None = None
) -> tuple[Placed, ...] | Failed:
    """Places all of the pods, or none.

    Args:
        floor: is not changed.
        needs: the pods.
        allowed: nodes that may be used, beside the floor's own limit.

    Raises:
        Refusal: a claim cannot be served anywhere as it is.
    """
    claims = {one.key: one for need in needs for one in (*need.own, *need.shared)}
    if len(needs) == 1:
        return _single(_Attempt(floor, claims), needs[0], allowed)
    ordered = _ordered(floor, needs)
    attempt = _Attempt(floor.fork(), claims)
    failed = _greedy(floor, attempt, ordered, allowed)
    if failed is None:
        return tuple(attempt.placed)
    kinds = {id(attempt.kind(need)) for need in ordered}
    alike = len(kinds) == 1 and not any(need.particular for need in ordered)
    if failed.late or alike or len(ordered) > _WIDEST_SEARCH:
        return failed
    found = _Backtracking(floor, ordered, allowed).run(_Attempt(floor.fork(), claims))
    if found is None:
        return failed
    return found if isinstance(found, Failed) else tuple(found.placed)


def _single(attempt: _Attempt, need: Need, allowed: Filter | None) -> tuple[Placed, ...] | Failed:
    kind = attempt.kind(need)
    best = attempt.floor.candidates(kind).best(attempt.accept(need, allowed))
    if best is None:
        return Failed(need, 0, late=_is_late(attempt.floor))
    name, entry = best
    asked = attempt.asked(need)
    allocations: dict[str, AllocationResult] = {}
    if asked and entry.cell.view is not None:
        found = attempt.floor.board.allocations(asked, entry.cell.view, entry.choice)
        allocations = {c.key: one for c, one in zip(asked, found, strict=True)}
    return (Placed(need.pod, name, allocations),)


def _ordered(floor: Floor, needs: Sequence[Need]) -> list[Need]:
    """Pods with the fewest nodes first, equal pods side by side."""
    attempt = _Attempt(floor, {})
    counts: dict[int, tuple[int, float, int]] = {}
    keyed = []
    for place, need in enumerate(needs):
        kind = attempt.kind(need)
        known = counts.get(id(kind))
        if known is None:
            nodes = floor.candidates(kind).all()
            cost = nodes[0][0] if nodes else 0.0
            known = counts[id(kind)] = (len(nodes), -cost, len(counts))
        keyed.append((not need.shared, known, place, need))
    keyed.sort(key=lambda one: one[:3])
    return [one[3] for one in keyed]


def _is_late(floor: Floor) -> bool:
    return floor.deadline is not None and floor.deadline()


def _greedy(
    base: Floor, attempt: _Attempt, needs: Sequence[Need], allowed: Filter | None
) -> Failed | None:
    for need in needs:
        if _is_late(attempt.floor):
            return Failed(need, len(attempt.placed), late=True)
        accept = attempt.accept(need, allowed)
        best = attempt.floor.candidates(attempt.kind(need)).best(accept)
        if best is not None:
            attempt.put(need, *best)
            continue
        if not _rearranged(base, attempt, need, accept):
            return Failed(need, len(attempt.placed))
    return None


# --- devices of one node, given out anew ------------------------------------------------------


def _rearranged(base: Floor, attempt: _Attempt, need: Need, accept: Filter | None) -> bool:
    """Finds room for a pod on a node of the job by giving its devices out together."""
    tried = 0
    kind = attempt.kind(need)
    for name in dict.fromkeys(one.node for one in attempt.placed):
        if accept is not None and not accept(name):
            continue
        if not isinstance(attempt.floor.candidates(kind).entry(name), str):
            continue
        if tried == _JOINT_NODES:
            break
        tried += 1
        if together(base, attempt, need, name):
            return True
    return False


def together(base: Floor, attempt: _Attempt, need: Need, name: str) -> bool:
    """Gives the devices of one node out to all pods of the job there, the new one included.

    On success the attempt has the pod, and its neighbours may have other devices.
    """
    cell, start = attempt.floor.sketch.cell(name), base.sketch.cell(name)
    if cell is None or start is None or start.view is None:
        return False
    if cell.room.lacks(cell.facts, need.pod):
        return False
    beside = [one for one in attempt.placed if one.node == name and one.allocations]
    asked = attempt.asked(need)
    claims = [attempt.claims[key] for one in beside for key in one.allocations] + list(asked)
    if not beside or not asked:
        return False
    try:
        ask, plan = base.board.ask(claims)
        answer = ask.question.ask(plan, start.view, deadline=base.deadline)
    except Refusal:
        return False
    if not answer.fits:
        return False
    fresh = {c.key: one for c, one in zip(claims, answer.allocations, strict=True)}
    placed = [
        Placed(one.pod, one.node, {key: fresh.get(key, a) for key, a in one.allocations.items()})
        if one.node == name
        else one
        for one in attempt.placed
    ]
    placed.append(Placed(need.pod, name, {one.key: fresh[one.key] for one in asked}))
    attempt.floor = base.fork()
    attempt.placed, attempt.given = [], {}
    for one in placed:
        attempt.add(one)
    return True


# --- going back over nodes --------------------------------------------------------------------


class _Backtracking:
    """Depth first over nodes; of nodes in the same state one is tried."""

    def __init__(self, base: Floor, needs: Sequence[Need], allowed: Filter | None) -> None:
        self._base, self._needs, self._allowed = base, needs, allowed
        self._plain = not any(need.particular for need in needs) and base.apart is None
        self._steps = 0

    def run(self, start: _Attempt) -> _Attempt | Failed | None:
        """The complete attempt; None when there is none, Failed when the time was up."""
        stack = [(start, self._options(start, 0, 0))]
        order: list[int] = []
        while stack:
            _, options = stack[-1]
            step = next(options, None)
            if step is None:
                stack.pop()
                if order:
                    order.pop()
                continue
            self._steps += 1
            if _is_late(self._base) or self._steps > _MOST_STEPS:
                return Failed(self._needs[len(stack) - 1], len(stack) - 1, late=True)
            following, place = step
            if len(following.placed) == len(self._needs):
                return following
            order.append(place)
            stack.append((following, self._options(following, len(stack), place)))
        return None

    def _options(self, attempt: _Attempt, index: int, least: int) -> Iterator[tuple[_Attempt, int]]:
        """What can follow: the attempt with one pod more, and the place of its node in the order.

        Equal pods go to nodes in one order, so that no two ways differ by their exchange only.
        """
        need = self._needs[index]
        kind = attempt.kind(need)
        candidates = attempt.floor.candidates(kind)
        accept = attempt.accept(need, self._allowed)
        again = index > 0 and self._plain and attempt.kind(self._needs[index - 1]) is kind
        names = self._base.board.ground.names
        place_of = {name: place for place, name in enumerate(names)} if again else {}
        seen: set[Any] = set()
        for _, name in candidates.all():
            if accept is not None and not accept(name):
                continue
            if again and place_of[name] < least:
                continue
            if self._plain:
                likeness = self._likeness(attempt, name)
                if likeness in seen:
                    continue
                seen.add(likeness)
            entry = candidates.entry(name)
            if isinstance(entry, Entry):
                following = attempt.fork()
                following.put(need, name, entry)
                yield following, place_of.get(name, 0)
        for name in dict.fromkeys(one.node for one in attempt.placed):
            if isinstance(candidates.entry(name), str) and (accept is None or accept(name)):
                following = attempt.fork()
                if together(self._base, following, need, name):
                    yield following, least

    def _likeness(self, attempt: _Attempt, name: str) -> Any:
        """Equal for nodes that are the same to every pod of the job."""
        cell = attempt.floor.sketch.cell(name)
        assert cell is not None
        known: list[Any] = []
        for need in self._needs:
            entry = attempt.floor.candidates(attempt.kind(need)).entry(name)
            known.append(id(entry.choice) if isinstance(entry, Entry) else entry)
        facts, room = cell.facts, cell.room
        others = dict(room.others)
        return (
            facts.cpu_milli - room.cpu_milli,
            facts.memory_bytes - room.memory_bytes,
            facts.pods - room.pods,
            tuple(sorted((k, n - others.get(k, 0)) for k, n in facts.others.items())),
            tuple(dict.fromkeys(known)),
            tuple(known),
        )


def timed_out(refusal: Refusal) -> bool:
    """Whether a refusal only says that the time was up."""
    return refusal.outcome is Outcome.TIMEOUT
