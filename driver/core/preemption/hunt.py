# SPDX-License-Identifier: Apache-2.0
"""The least harm that makes a waiting job fit, tried out to the end before anybody is evicted.

For one pod every promising node is emptied runner by runner, cheapest first, until the pod fits;
then runners are let off again as far as it still fits. For a gang as many nodes are emptied as are
needed, the cheapest first, and then everything that the placement does not need is let off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudra.driver.core.allocator import Refusal
from gpudra.driver.core.gangs.ground import Sketch
from gpudra.driver.core.gangs.kinds import Filter
from gpudra.driver.core.gangs.solver import Failed, Floor, Need, solve
from gpudra.driver.core.gangs.types import Placed
from gpudra.driver.core.preemption.rules import Cause, Rules
from gpudra.driver.core.preemption.runners import Harm, Runner, harm_of
from gpudra.driver.core.queueing import Amounts, Waiting

_MOST_NODES = 64  # nodes that are emptied for trial for one pod
_Key = tuple[int, float, int, float, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A way to make room.

    Attributes:
        placed: where the job goes then.
        victims: who has to end, with the reason; the order is that of the harm.
        harm: of all of them.
    """

    placed: tuple[Placed, ...]
    victims: tuple[tuple[Runner, Cause], ...]
    harm: Harm

    @property
    def freed(self) -> Amounts:
        """What the victims give back."""
        return Amounts.total(runner.amounts for runner, _ in self.victims)


class Hunt:
    """All hunts of one round: who was taken once is not there to be taken again.

    Args:
        rules: at this moment.
        runners: everything that runs and is managed.
        allowed: disruptions that each PodDisruptionBudget still allows.
    """

    def __init__(
        self, rules: Rules, runners: Iterable[Runner], allowed: Mapping[str, int] | None = None
    ) -> None:
        self.rules = rules
        self._runners = {one.job: one for one in runners if not one.fixed}
        self._allowed = dict(allowed or {})
        self._on_node: dict[str, list[str]] = {}
        for one in self._runners.values():
            for name in dict.fromkeys(node for _, node in one.seats):
                self._on_node.setdefault(name, []).append(one.job)

    def take(self, found: Found) -> None:
        """The victims are as good as gone: for the queues, and for the next hunt."""
        for runner, _ in found.victims:
            del self._runners[runner.job]
            self.rules.book.release(runner.job)
            for budget in runner.budgets:
                self._allowed[budget] -= 1

    def find(
        self, floor: Floor, needs: Sequence[Need], job: Waiting, allowed: Filter | None = None
    ) -> Found | None:
        """The least harm; None when nothing that may be evicted makes room.

        Args:
            floor: the cluster with what was placed in this round; is not changed.
            needs: pods of the waiting job.
            job: whose turn it is.
            allowed: nodes that may be used.
        """
        names = [name for name in self._on_node if allowed is None or allowed(name)]
        if floor.names is not None:
            names = [name for name in names if name in floor.names]
        causes = {
            one.job: cause
            for one in self._candidates(names)
            if (cause := self.rules.cause(job, one))
        }
        if not causes:
            return None
        ranked = sorted((self._key(self._runners[name]), name) for name in causes)
        order = {name: place for place, (_, name) in enumerate(ranked)}
        by_node = {name: self._sorted(name, order) for name in names}
        trial = _Trial(self, floor, needs, job, allowed, causes)
        nodes = sorted(
            (name for name in names if by_node[name]), key=lambda name: order[by_node[name][0].job]
        )
        try:
            if len(needs) == 1:
                return self._for_one(trial, nodes, by_node)
            return self._for_gang(trial, nodes, by_node, order)
        except Refusal:
            return None

    def _candidates(self, names: Iterable[str]) -> Iterable[Runner]:
        seen = dict.fromkeys(job for name in names for job in self._on_node[name])
        return (self._runners[job] for job in seen if job in self._runners)

    def _sorted(self, node: str, order: Mapping[str, int]) -> list[Runner]:
        """What may be evicted on a node, the least harm first."""
        jobs = sorted((job for job in self._on_node[node] if job in order), key=order.__getitem__)
        return [self._runners[job] for job in jobs]

    def _key(self, one: Runner) -> _Key:
        since = one.since if one.since is not None else self.rules.now
        return one.priority, -self.rules.surplus(one), len(one.seats), -since, one.job

    def _for_one(
        self, trial: "_Trial", nodes: Sequence[str], by_node: Mapping[str, list[Runner]]
    ) -> Found | None:
        best: Found | None = None
        for name in nodes[:_MOST_NODES]:
            first = harm_of(by_node[name][:1], self.rules.now)
            if best is not None and best.harm[:3] <= first[:3]:
                continue  # even one victim here is no less harm
            found = trial.on_node(name, by_node[name])
            if found is not None and (best is None or found.harm < best.harm):
                best = found
        return best

    def _for_gang(
        self,
        trial: "_Trial",
        nodes: Sequence[str],
        by_node: Mapping[str, list[Runner]],
        order: Mapping[str, int],
    ) -> Found | None:
        """Doubles the number of nodes that are emptied until the gang fits."""
        count = 1
        while True:
            jobs = dict.fromkeys(one.job for name in nodes[:count] for one in by_node[name])
            found = trial.without(
                [self._runners[job] for job in sorted(jobs, key=order.__getitem__)]
            )
            if found is not None or count >= len(nodes):
                return found
            count = min(2 * count, len(nodes))

    # --- for trials -----------------------------------------------------------------------

    def affordable(self, victims: Sequence[Runner]) -> bool:
        """Whether every disruption budget allows to evict all of these."""
        need: dict[str, int] = {}
        for one in victims:
            for budget in one.budgets:
                need[budget] = need.get(budget, 0) + 1
        return all(number <= self._allowed.get(budget, 0) for budget, number in need.items())


class _Trial:
    """One job, tried with less and less beside it."""

    def __init__(
        self,
        hunt: Hunt,
        floor: Floor,
        needs: Sequence[Need],
        job: Waiting,
        allowed: Filter | None,
        causes: Mapping[str, Cause],
    ) -> None:
        self._hunt, self._floor, self._needs = hunt, floor, needs
        self._job, self._allowed, self._causes = job, allowed, causes

    def on_node(self, name: str, runners: Sequence[Runner]) -> Found | None:
        """Fewest victims for one pod on one node."""
        gone: list[Runner] = []
        placed = None
        for one in runners:
            if not self._hunt.affordable([*gone, one]):
                continue
            gone.append(one)
            placed = self._solve(gone, (name,))
            if placed is not None:
                break
        return None if placed is None else self._let_off(gone, placed, (name,))

    def without(self, runners: Sequence[Runner]) -> Found | None:
        """A gang, where everybody on some nodes might go."""
        gone: list[Runner] = []
        for one in runners:
            if self._hunt.affordable([*gone, one]):
                gone.append(one)
        placed = self._solve(gone, None)
        return None if placed is None else self._let_off_beside(gone, placed)

    def _solve(
        self, gone: Sequence[Runner], names: Iterable[str] | None
    ) -> tuple[Placed, ...] | None:
        if not self._lawful(gone):
            return None
        floor = self._floor.fork(names)
        _remove(floor.sketch, gone)
        found = solve(floor, self._needs, self._allowed)
        return None if isinstance(found, Failed) else found

    def _lawful(self, gone: Sequence[Runner]) -> bool:
        """Whether each may still be taken once those before it are gone.

        Two that borrow together need not both borrow once one is gone.
        """
        book = self._hunt.rules.book.copy()
        rules = Rules(book, self._hunt.rules.now)
        for one in gone:
            if rules.cause(self._job, one) is None:
                return False
            book.release(one.job)
        return book.verdict(self._job.queue, self._job.amounts).ok

    def _let_off(
        self, gone: list[Runner], placed: tuple[Placed, ...], names: Iterable[str]
    ) -> Found | None:
        """Lets the most important off first, as long as the pod fits without them going."""
        for one in reversed(list(gone)):
            fewer = [other for other in gone if other is not one]
            found = self._solve(fewer, names) if fewer else None
            if found is not None:
                gone, placed = fewer, found
        return self._found(gone, placed)

    def _let_off_beside(self, gone: list[Runner], placed: tuple[Placed, ...]) -> Found | None:
        """Lets off whoever fits beside the placement as it is."""
        sketch = self._floor.sketch.fork()
        _remove(sketch, gone)
        claims = {one.key: one for need in self._needs for one in (*need.own, *need.shared)}
        for one in placed:
            sketch.add_pod(one.pod, one.node)
            for key, allocation in one.allocations.items():
                sketch.add_claim(claims[key], allocation)
        needed = [one for one in reversed(gone) if not _fits_again(sketch, one)]
        return self._found(needed[::-1], placed)

    def _found(self, gone: Sequence[Runner], placed: tuple[Placed, ...]) -> Found | None:
        if not gone or not self._lawful(gone):
            return None
        victims = tuple((one, self._causes[one.job]) for one in gone)
        return Found(placed, victims, harm_of(gone, self._hunt.rules.now))


def _remove(sketch: Sketch, gone: Iterable[Runner]) -> None:
    for one in gone:
        for pod, node in one.seats:
            sketch.remove_pod(pod, node)
        for claim in one.claims:
            sketch.remove_claim(claim)


def _fits_again(sketch: Sketch, one: Runner) -> bool:
    """Puts a runner back where it was, if that is free; else nothing is changed."""
    for pod, node in one.seats:
        cell = sketch.cell(node)
        if cell is None or cell.room.lacks(cell.facts, pod):
            return False
    if not all(sketch.has_room_for(claim) for claim in one.claims):
        return False
    for pod, node in one.seats:
        sketch.add_pod(pod, node)
    for claim in one.claims:
        sketch.add_claim(claim, claim.status.allocation)
    return True
