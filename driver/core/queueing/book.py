# SPDX-License-Identifier: Apache-2.0
"""Who uses how much, and what may be added: limits, guarantees, and shares of the cluster.

Rules, from the top of the tree down to the queue of a job:

* ``limit`` is never exceeded, by the queue or anything below it.
* ``guarantee`` is never lent: what is free must cover all unused guarantees of others.
* ``quota`` may be exceeded while others leave theirs idle; what is above it is *borrowed*.

The dominant share of a queue is the largest of its parts of the cluster's gpus, memory and compute
(Dominant Resource Fairness, NSDI'11), here divided by its weight.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gpudra.api.queue import COMPUTE, GPUS, MEMORY
from gpudra.driver.core.queueing.amounts import NOTHING, Amounts, amount_text
from gpudra.driver.core.queueing.tree import ROOT, Grant, Problem, QueueTree

_DOMINANT = (GPUS, MEMORY, COMPUTE)


class Band(IntEnum):
    """Which queues are served first."""

    GUARANTEED = 0  # within its guarantee
    OWN = 1  # within its quota
    BORROWING = 2  # above its quota


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a queue may use so much more.

    Attributes:
        reason: one word for conditions and metrics; empty when it may.
        queue: the queue whose rule says no: the job's own, or one above it.
        resource: the amount that is in the way.
        message: a sentence for people.
        borrowed: whether some of it would be above the queue's own quota.
    """

    ok: bool
    reason: str = ""
    queue: str = ""
    resource: str = ""
    message: str = ""
    borrowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A queue as people see it: in the status of the object and in ``gpudra queues``.

    Attributes:
        depth: 0 for the topmost queues.
        share: weighted dominant share, 1.0 being the whole cluster at weight 1.
        jobs: number of jobs that are charged to it or to queues below it.
        problem: why it admits nothing.
    """

    name: str
    parent: str
    depth: int
    grant: Grant | None
    used: Amounts
    borrowed: Amounts
    share: float
    history: float
    jobs: int
    problem: Problem | None


class Book:
    """What every job is charged, and what follows for every queue. Incremental.

    Args:
        tree: the queues.
        capacity: of all managed devices together.
        history: past use by queue (see gpudra.driver.core.queueing.history), in the unit of the
            share; added to the present share where the order is decided.
    """

    def __init__(
        self,
        tree: QueueTree | None = None,
        capacity: Amounts = NOTHING,
        history: Mapping[str, float] | None = None,
    ) -> None:
        self.capacity = capacity
        self.history: Mapping[str, float] = history or {}
        self._jobs: dict[str, tuple[str, Amounts]] = {}
        self.set_tree(tree or QueueTree())

    def set_tree(self, tree: QueueTree) -> None:
        """Another tree; all charges stay, those of queues that are gone count for the cluster."""
        self.tree = tree
        self._used: dict[str, Amounts] = {ROOT: NOTHING}
        self._counts: dict[str, int] = {}
        self._guarded = any(grant.guarantee for grant in tree.grants.values())
        jobs, self._jobs = self._jobs, {}
        for job, (queue, amounts) in jobs.items():
            self.charge(job, queue, amounts)

    def copy(self) -> "Book":
        """A book to try things in."""
        twin = Book.__new__(Book)
        own = {"_jobs": dict(self._jobs), "_used": dict(self._used), "_counts": dict(self._counts)}
        twin.__dict__.update({**self.__dict__, **own})
        return twin

    def less(self, queue: str, amounts: Amounts) -> "Book":
        """The book as if a queue used so much less. For reading: charges are shared with this one."""
        twin = Book.__new__(Book)
        used = dict(self._used)
        for name in (ROOT, *self._path(queue)):
            used[name] = used.get(name, NOTHING) - amounts
        twin.__dict__.update({**self.__dict__, "_used": used})
        return twin

    # --- charges --------------------------------------------------------------------------

    def charge(self, job: str, queue: str, amounts: Amounts) -> None:
        """Charges a job, in place of an earlier charge of the same job."""
        self.release(job)
        self._jobs[job] = (queue, amounts)
        self._add(queue, amounts, 1)

    def release(self, job: str) -> None:
        """The job holds nothing any more. Without a charge, nothing happens."""
        queue, amounts = self._jobs.pop(job, ("", NOTHING))
        if queue:
            self._add(queue, NOTHING - amounts, -1)

    def charged(self, job: str) -> Amounts | None:
        """What a job is charged; None when it is not."""
        found = self._jobs.get(job)
        return found[1] if found else None

    def jobs_of(self, queue: str) -> Iterator[tuple[str, Amounts]]:
        """The charged jobs of one queue."""
        return ((job, amounts) for job, (name, amounts) in self._jobs.items() if name == queue)

    def _add(self, queue: str, amounts: Amounts, count: int) -> None:
        for name in (ROOT, *self._path(queue)):
            self._used[name] = self._used.get(name, NOTHING) + amounts
            self._counts[name] = self._counts.get(name, 0) + count

    def _path(self, queue: str) -> tuple[str, ...]:
        grant = self.tree.grants.get(queue)
        return grant.path if grant else (queue,)

    def used(self, queue: str = ROOT) -> Amounts:
        """What a queue and everything below it uses; of the cluster without a name."""
        return self._used.get(queue, NOTHING)

    # --- rules ----------------------------------------------------------------------------

    def verdict(self, queue: str, more: Amounts) -> Verdict:
        """Whether a queue may use so much more, and if not, why."""
        problem = self.tree.refusal(queue)
        if problem:
            return Verdict(False, problem.reason, queue, message=problem.message)
        for name in self._path(queue):
            found = self._over_limit(self.tree.grants[name], more)
            if found:
                return found
        if self._guarded and (found := self._guaranteed_to_others(queue, more)):
            return found
        return Verdict(True, queue=queue, borrowed=self.band(queue, more) is Band.BORROWING)

    def never(self, queue: str, amounts: Amounts) -> Verdict | None:
        """Why a job of this size could not run even if nothing else did; None when it could."""
        for name in self._path(queue):
            grant = self.tree.grants.get(name)
            if grant is None or grant.limit is None:
                continue
            for resource in sorted(grant.limited):
                top, asked = grant.limit.of(resource), amounts.of(resource)
                if asked > top:
                    text = (
                        f"asks for {amount_text(resource, asked)} {resource}, and the limit of "
                        f"queue {name} is {amount_text(resource, top)}"
                    )
                    return Verdict(False, "AboveLimit", name, resource, text)
        return None

    def _over_limit(self, grant: Grant, more: Amounts) -> Verdict | None:
        if grant.limit is None:
            return None
        used = self.used(grant.name)
        for resource in sorted(grant.limited):
            asked, top = more.of(resource), grant.limit.of(resource)
            if asked and used.of(resource) + asked > top:
                texts = [amount_text(resource, n) for n in (asked, used.of(resource), top)]
                message = (
                    f"asks for {texts[0]} {resource}, and queue {grant.name} uses {texts[1]} "
                    f"of its limit of {texts[2]}"
                )
                return Verdict(False, "OverLimit", grant.name, resource, message)
        return None

    def _guaranteed_to_others(self, queue: str, more: Amounts) -> Verdict | None:
        before, after = (
            self._unmet(ROOT, {}),
            self._unmet(ROOT, dict.fromkeys(self._path(queue), more)),
        )
        used = self.used()
        for resource in sorted(after):
            if resource not in self.capacity or not more.of(resource):
                continue
            free = self.capacity.of(resource) - used.of(resource)
            missing = after.of(resource) - (free - more.of(resource))
            if missing > max(0, before.of(resource) - free):
                texts = [
                    amount_text(resource, n)
                    for n in (more.of(resource), max(0, free), after.of(resource))
                ]
                message = (
                    f"asks for {texts[0]} {resource}; {texts[1]} are free, of which {texts[2]} "
                    "are guaranteed to other queues"
                )
                return Verdict(False, "GuaranteeOfOthers", queue, resource, message)
        return None

    def _unmet(self, name: str, more: Mapping[str, Amounts]) -> Amounts:
        """What must stay free for the guarantees of a queue and of those below it."""
        below = Amounts.total(
            self._unmet(child, more) for child in self.tree.children.get(name, ())
        )
        grant = self.tree.grants.get(name)
        if grant is None or not grant.guarantee:
            return below
        used = self.used(name) + more.get(name, NOTHING)
        return below.widest(grant.guarantee.above(used))

    # --- fairness -------------------------------------------------------------------------

    def band(self, queue: str, more: Amounts = NOTHING) -> Band:
        """Whether a queue, given so much more, is within its guarantee, its quota, or borrows."""
        grant = self.tree.grants.get(queue)
        if grant is None:
            return Band.BORROWING
        then = self.used(queue) + more
        if grant.guarantee and _within(then, grant.guarantee):
            return Band.GUARANTEED
        if grant.quota and _within(then, grant.quota):
            return Band.OWN
        return Band.BORROWING

    def borrowed(self, queue: str) -> Amounts:
        """What a queue uses above its quota, in the resources that the quota names.

        A queue without any quota borrows everything that it uses.
        """
        grant = self.tree.grants.get(queue)
        if grant is None:
            return NOTHING
        over = self.used(queue).above(grant.quota)
        return Amounts(
            (name, n) for name, n in over.items() if name in grant.quota or not grant.quota
        )

    def share(self, queue: str, *, surplus: bool = False) -> float:
        """The weighted dominant share of a queue, or of what it uses above its quota."""
        grant = self.tree.grants.get(queue)
        used = self.used(queue)
        if surplus and grant is not None:
            used = used.above(grant.quota)
        part = max(
            used.of(name) / self.capacity.of(name)
            if self.capacity.of(name)
            else float(used.of(name) > 0)
            for name in _DOMINANT
        )
        return part / (grant.weight if grant else 1.0)

    def views(self) -> tuple[QueueView, ...]:
        """All queues, each after its parent; those with a problem last."""
        good = [self._view(name, None) for name in self._walk(ROOT)]
        bad = [self._view(name, problem) for name, problem in sorted(self.tree.problems.items())]
        return (*good, *bad)

    def _walk(self, name: str) -> Iterator[str]:
        for child in self.tree.children.get(name, ()):
            yield child
            yield from self._walk(child)

    def _view(self, name: str, problem: Problem | None) -> QueueView:
        grant = self.tree.grants.get(name)
        return QueueView(
            name=name,
            parent=grant.parent if grant else "",
            depth=len(grant.path) - 1 if grant else 0,
            grant=grant,
            used=self.used(name),
            borrowed=self.borrowed(name),
            share=self.share(name),
            history=self.history.get(name, 0.0),
            jobs=self._counts.get(name, 0),
            problem=problem,
        )


def _within(used: Amounts, top: Amounts) -> bool:
    """Whether nothing that ``top`` names is exceeded."""
    return all(used.of(name) <= amount for name, amount in top.items())
