# SPDX-License-Identifier: Apache-2.0
"""The least harm that makes a waiting job fit, tried out to the end before anybody is evicted.

For one pod the nodes of the least important runners are emptied, cheapest runner first, until the
pod fits; then runners are let off again as far as it still fits. For a gang as many nodes are
emptied as are needed, the cheapest first, and then everything beside the placement is let off.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

Check = Callable[[Floor, Sequence[Runner], tuple[Placed, ...]], bool]
"""A further condition on a way to make room: the floor without the victims, and the placement."""

Solver = Callable[[Floor, Sequence[Need], Filter | None], tuple[Placed, ...] | Failed]
_Key = tuple[int, float, int, float, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A way to make room.

    Attributes:
        placed: where the job goes then.
        victims: who has to end, with the reason; the least harm first.
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
        rules: at this moment; their book is the hunt's own.
        runners: everything that runs and is managed.
        allowed: disruptions that each PodDisruptionBudget still allows.
    """

    def __init__(
        self, rules: Rules, runners: Iterable[Runner], allowed: Mapping[str, int] | None = None
    ) -> None:
        self.rules = rules
        self._allowed = dict(allowed or {})
        ranked = sorted((one for one in runners if not one.fixed), key=self._key)
        self._runners = {one.job: one for one in ranked}
        self._on_node: dict[str, list[str]] = {}
        for one in self._runners.values():
            for name in dict.fromkeys(node for _, node in one.seats):
                self._on_node.setdefault(name, []).append(one.job)

    def _key(self, one: Runner) -> _Key:
        since = one.since if one.since is not None else self.rules.now
        return one.priority, -self.rules.surplus(one), len(one.seats), -since, one.job

    def take(self, found: Found) -> None:
        """The victims are as good as gone: for the queues, and for the next hunt."""
        for runner, _ in found.victims:
            del self._runners[runner.job]
            self.rules.taken(runner)
            for budget in runner.budgets:
                self._allowed[budget] -= 1

    def find(
        self,
        floor: Floor,
        needs: Sequence[Need],
        job: Waiting,
        *,
        solver: Solver = solve,
        allowed: Filter | None = None,
        check: Check | None = None,
    ) -> Found | None:
        """The least harm; None when nothing that may be evicted makes room.

        Args:
            floor: the cluster with what was placed in this round; is not changed.
            needs: pods of the waiting job.
            job: whose turn it is.
            solver: places the pods on a floor.
            allowed: nodes that may be used.
            check: see Check.
        """
        trial = _Trial(self, floor, needs, job, solver, allowed, check)
        try:
            return self._for_one(trial) if len(needs) == 1 else self._for_gang(trial)
        except Refusal:
            return None

    def _for_one(self, trial: "_Trial") -> Found | None:
        best: Found | None = None
        tried: set[str] = set()
        for one in self._eligible(trial):
            least = harm_of((one,), self.rules.now)
            if best is not None and best.harm[:3] <= least[:3]:
                break  # those that follow do no less harm, even one alone
            for _, name in one.seats:
                if name in tried or not trial.open(name) or len(tried) == _MOST_NODES:
                    continue
                tried.add(name)
                found = trial.on_node(name, self._of_node(trial, name))
                if found is not None and (best is None or found.harm < best.harm):
                    best = found
        return best

    def _for_gang(self, trial: "_Trial") -> Found | None:
        """Doubles the number of nodes that are emptied until the gang fits."""
        runners = list(self._eligible(trial))
        nodes = list(dict.fromkeys(name for one in runners for _, name in one.seats))
        nodes = [name for name in nodes if trial.open(name)]
        count = 1
        while nodes:
            chosen = set(nodes[:count])
            gone = [one for one in runners if any(name in chosen for _, name in one.seats)]
            found = trial.without(gone)
            if found is not None or count >= len(nodes):
                return found
            count = min(2 * count, len(nodes))
        return None

    def _eligible(self, trial: "_Trial") -> Iterator[Runner]:
        """Whoever may be taken from at present, the least harm first."""
        return (one for one in self._runners.values() if trial.cause(one) is not None)

    def _of_node(self, trial: "_Trial", name: str) -> list[Runner]:
        jobs = [job for job in self._on_node[name] if job in self._runners]
        return [self._runners[job] for job in jobs if trial.cause(self._runners[job]) is not None]

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
        solver: Solver,
        allowed: Filter | None,
        check: Check | None,
    ) -> None:
        self._hunt, self._floor, self._needs = hunt, floor, needs
        self._job, self._solver, self._allowed, self._check = job, solver, allowed, check

    def open(self, name: str) -> bool:
        """Whether the job may use a node."""
        inside = self._floor.names is None or name in self._floor.names
        return inside and (self._allowed is None or self._allowed(name))

    def cause(self, one: Runner) -> Cause | None:
        """Why the job may take from a runner while everybody is still there."""
        return self._hunt.rules.cause(self._job, one)

    def on_node(self, name: str, runners: Sequence[Runner]) -> Found | None:
        """Fewest victims for one pod on one node."""
        gone: list[Runner] = []
        for one in runners:
            if not self._hunt.affordable([*gone, one]):
                continue
            gone.append(one)
            placed = self._solve(gone, (name,))
            if placed is not None:
                return self._let_off(gone, placed, (name,))
        return None

    def without(self, runners: Sequence[Runner]) -> Found | None:
        """A gang, where everybody on some nodes might go."""
        gone: list[Runner] = []
        rules = self._hunt.rules
        for one in runners:
            if self._hunt.affordable([*gone, one]) and rules.cause(self._job, one) is not None:
                gone.append(one)
                rules = rules.without(one)
        placed = self._solve(gone, None)
        return None if placed is None else self._let_off_beside(gone, placed)

    def _solve(
        self, gone: Sequence[Runner], names: Iterable[str] | None
    ) -> tuple[Placed, ...] | None:
        if not self._lawful(gone):
            return None
        floor = self._floor.fork(names)
        _remove(floor.sketch, gone)
        found = self._solver(floor, self._needs, self._allowed)
        if isinstance(found, Failed) or (self._check and not self._check(floor, gone, found)):
            return None
        return found

    def _lawful(self, gone: Sequence[Runner]) -> bool:
        """Whether each may still be taken once those before it are gone, and the queue may then run.

        Two that borrow together need not both borrow once one is gone.
        """
        rules = self._hunt.rules
        for one in gone:
            if rules.cause(self._job, one) is None:
                return False
            rules = rules.without(one)
        return rules.book.verdict(self._job.queue, self._job.amounts).ok

    def _let_off(
        self, gone: list[Runner], placed: tuple[Placed, ...], names: Iterable[str]
    ) -> Found | None:
        """Lets the most important off first, as long as the pod fits without them going."""
        for one in reversed(gone[:-1]):
            fewer = [other for other in gone if other is not one]
            found = self._solve(fewer, names)
            if found is not None:
                gone, placed = fewer, found
        return self._found(gone, placed)

    def _let_off_beside(self, gone: list[Runner], placed: tuple[Placed, ...]) -> Found | None:
        """Lets off whoever fits beside the placement as it is."""
        sketch = self._floor.sketch.fork()
        _remove(sketch, gone)
        claims = {one.key: one for need in self._needs for one in (*need.own, *need.shared)}
        for each in placed:
            sketch.add_pod(each.pod, each.node)
            for key, allocation in each.allocations.items():
                sketch.add_claim(claims[key], allocation)
        needed = [one for one in reversed(gone) if not _fits_again(sketch, one)][::-1]
        if self._check and (len(needed) < len(gone)) and self._solve(needed, None) is None:
            return None
        return self._found(needed, placed)

    def _found(self, gone: Sequence[Runner], placed: tuple[Placed, ...]) -> Found | None:
        if not gone or not self._lawful(gone):
            return None
        victims = tuple((one, cause) for one in gone if (cause := self.cause(one)) is not None)
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
    held = [(claim, claim.status.allocation) for claim in one.claims]
    if not all(sketch.has_room_for(claim) for claim, _ in held):
        return False
    for pod, node in one.seats:
        sketch.add_pod(pod, node)
    for claim, allocation in held:
        if allocation is not None:
            sketch.add_claim(claim, allocation)
    return True
