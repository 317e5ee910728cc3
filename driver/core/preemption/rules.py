# SPDX-License-Identifier: Apache-2.0
"""Who may be taken from.

* **Preempted**: in the same queue a job of higher priority takes from one of lower priority that has
  run for the queue's ``preemptMinRuntime``.
* **Reclaimed**: a queue that stays within its quota takes from one that borrows, after that one's
  ``reclaimMinRuntime``, unless it is not reclaimable. Queues are compared where their paths part, so
  a department settles among its teams what is the department's. Within its guarantee a queue takes
  also from one that is above its own guarantee.

* **Moved**: a pod that somebody makes anew (it has an owner), is no gang and is no more important than
  the job, and for which there is room elsewhere: defragmentation, where it is wanted (`MoveRules`).

Who takes back stays within its quota and so does not borrow afterwards: nobody can take it back in
turn, and two queues at their share leave each other alone.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from gpudra.driver.core.preemption.runners import Runner
from gpudra.driver.core.queueing import NOTHING, Amounts, Book, Waiting
from gpudra.driver.core.queueing.book import Band
from gpudra.driver.core.queueing.tree import ROOT, Grant


class Cause(StrEnum):
    """Why a runner may be evicted; reason of conditions and events."""

    PREEMPTED = "Preempted"
    RECLAIMED = "Reclaimed"
    MOVED = "Moved"


@dataclass(slots=True)
class Rules:
    """The rules at one moment.

    Args:
        book: who uses what; of the caller's own, since victims are released in it.
        now: seconds since the epoch.
    """

    book: Book
    now: float
    _surplus: dict[str, float] = field(default_factory=dict)
    _bands: dict[tuple[str, Amounts, Amounts], Band] = field(default_factory=dict)

    def _band(self, queue: str, more: Amounts = NOTHING) -> Band:
        """The book's answer, which is the same while the queue uses the same."""
        key = queue, more, self.book.used(queue)
        found = self._bands.get(key)
        if found is None:
            found = self._bands[key] = self.book.band(queue, more)
        return found

    def without(self, runner: Runner) -> "Rules":
        """The rules once a runner is gone."""
        return Rules(self.book.less(runner.queue, runner.amounts), self.now)

    def taken(self, runner: Runner) -> None:
        """The runner is as good as gone."""
        self.book.release(runner.job)

    def cause(self, job: Waiting, runner: Runner) -> Cause | None:
        """Why the job may take from the runner; None when it may not."""
        if runner.fixed or runner.job == job.job:
            return None
        if runner.queue == job.queue:
            return self._in_one_queue(job, runner)
        return self._across(job, runner)

    def _in_one_queue(self, job: Waiting, runner: Runner) -> Cause | None:
        grant = self.book.tree.grants.get(job.queue)
        lower = runner.priority < job.priority
        if grant is None or not lower or not self._ran(runner, grant.preempt_min_runtime):
            return None
        return Cause.PREEMPTED

    def _across(self, job: Waiting, runner: Runner) -> Cause | None:
        taking, losing = self._parting(job.queue, runner.queue)
        if taking is None or losing is None or not losing.reclaimable:
            return None
        if not self._reclaimable(runner.queue, losing):
            return None
        want, have = self._band(taking.name, job.amounts), self._band(losing.name)
        if want is Band.BORROWING or have <= want:
            return None
        return Cause.RECLAIMED if self._ran(runner, losing.reclaim_min_runtime) else None

    def _reclaimable(self, queue: str, losing: Grant) -> bool:
        """Nothing from the queue up to the one that loses says that it may not be taken back."""
        grants = self.book.tree.grants
        path = grants[queue].path
        below = path[path.index(losing.name) :]
        return all(grants[name].reclaimable for name in below)

    def _parting(self, one: str, other: str) -> tuple[Grant | None, Grant | None]:
        """The two queues below their nearest common ancestor."""
        grants = self.book.tree.grants
        if one not in grants or other not in grants:
            return None, None
        for mine, theirs in zip(grants[one].path, grants[other].path, strict=False):
            if mine != theirs:
                return grants[mine], grants[theirs]
        return None, None

    def _ran(self, runner: Runner, seconds: int) -> bool:
        """Whether all of it has run so long; what has not started yet is in time to be asked."""
        return not seconds or (runner.since is not None and self.now - runner.since >= seconds)

    def reason(self, job: Waiting, runner: Runner, cause: Cause) -> str:
        """The cause as a sentence for people."""
        if cause is Cause.PREEMPTED:
            return f"priority {runner.priority} is below the {job.priority} of {job.job}"
        if cause is Cause.MOVED:
            return f"there is room for it elsewhere, and {job.job} fits only here"
        taking, losing = self._parting(job.queue, runner.queue)
        if taking is None or losing is None:
            return ""
        band = (
            "guarantee" if self.book.band(taking.name, job.amounts) is Band.GUARANTEED else "quota"
        )
        borrowed = ", ".join(
            f"{n} {name}" for name, n in self.book.borrowed(losing.name).texts().items()
        )
        what = f"borrows {borrowed}" if borrowed else "is above its guarantee"
        return f"queue {losing.name} {what}, and queue {taking.name} is within its {band}"

    def surplus(self, runner: Runner) -> float:
        """How much the queue of a runner had above its own when first asked: the largest gives first."""
        grant = self.book.tree.grants.get(runner.queue)
        top = grant.path[0] if grant else ROOT
        if top not in self._surplus:
            self._surplus[top] = self.book.share(top, surplus=True)
        return self._surplus[top]


class MoveRules(Rules):
    """Who may be moved to make room without anybody losing a place in the cluster."""

    def without(self, runner: Runner) -> "MoveRules":  # noqa: ARG002 - whoever it is
        """The same: whoever is moved comes back, and stays charged."""
        return self

    def taken(self, runner: Runner) -> None:
        """Stays charged."""

    def cause(self, job: Waiting, runner: Runner) -> Cause | None:
        """Moved, or None."""
        grant = self.book.tree.grants.get(runner.queue)
        if runner.fixed or runner.job == job.job or not runner.movable or grant is None:
            return None
        patience = max(grant.preempt_min_runtime, grant.reclaim_min_runtime)
        if runner.priority > job.priority or not self._ran(runner, patience):
            return None
        return Cause.MOVED
