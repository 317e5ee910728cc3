# SPDX-License-Identifier: Apache-2.0
"""Carries out what was planned: claims first, all of them, then the gates; or nothing.

The order is what makes a crash harmless. Killed before the last claim is written, some claims are
allocated and every gate is still there: the next leader goes on or takes them back. Killed between
the gates, every claim is there, and the next leader lifts the rest. Nothing here is remembered
that could not be read from the objects.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from gpudra.api.errors import (
    ApiError,
    ConflictError,
    GpudraError,
    NotFoundError,
    TooManyRequestsError,
)
from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.managed.claims import Refused, Step, next_step, undo_step
from gpudra.controller.managed.feed import Feed
from gpudra.controller.managed.pods import AVOID, GATE, PodRecord
from gpudra.controller.managed.writer import Writer
from gpudra.driver.core.managed import ClaimPlacement, JobPlacement, JobUndo, PodPlacement
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.resources import PODS, RESOURCE_CLAIMS, Obj
from gpudra.driver.observability.logging import get_logger

# Tries of one object before the job is given up and planned anew.
TRIES = 6

R = TypeVar("R")

log = get_logger(__name__)


class PlacementError(GpudraError):
    """A placement could not be carried out; it is taken back and the job planned anew."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a placement.

    Attributes:
        lifted: pods whose gate is off now (or was before).
        problem: why it was given up; empty when it was carried out.
    """

    lifted: tuple[PodPlacement, ...] = ()
    problem: str = ""


class Executor:
    """Writes claims and lifts gates.

    Args:
        writer: fenced.
        feed: knows the newest form of everything, and is told each answer.
        before_gate: writes what the pod shall say before it is given to the scheduler.
        clock: for pauses.
        rng: for jitter.
    """

    def __init__(
        self,
        writer: Writer,
        feed: Feed,
        *,
        before_gate: Callable[[PodRecord, PodPlacement], Awaitable[None]],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._writer = writer
        self._feed = feed
        self._before_gate = before_gate
        self._clock = clock
        self._rng = rng

    async def place(self, job: JobPlacement) -> Outcome:
        """Carries out one placement. When this returns a problem, nothing is left of it.

        Raises:
            LeadershipLostError: another may lead by now; what is left is the next leader's.
        """
        allocated: list[ClaimPlacement] = []
        try:
            if job.avoid:
                await _all(self._note_avoided(pod, job.avoid) for pod in job.pods)
            await _all(self._allocate(one, allocated) for one in job.claims)
        except PlacementError as error:
            log.info("placement taken back", job=job.job, reason=str(error))
            pods = {pod.uid for pod in job.pods}
            await _all(self._take_back(one.namespace, one.name, one.uid, pods) for one in allocated)
            await _all(self._refresh(one) for one in job.claims)
            return Outcome(problem=str(error))
        lifted = await _all(self._lift(one) for one in job.pods)
        done = tuple(pod for pod, ok in zip(job.pods, lifted, strict=True) if ok)
        return Outcome(lifted=done)

    async def undo(self, job: JobUndo) -> None:
        """Takes a job down that cannot go on as it is.

        Claims are taken back from pods at the gate. Pods past it are evicted; what they have is
        given back when they have ended (by kube-controller-manager), never before.

        Raises:
            LeadershipLostError: as `place`.
        """
        gated, others = set[str](), []
        for pod in job.pods:
            known = self._feed.pods.get(f"{pod.namespace}/{pod.name}", pod.uid)
            if known is not None and GATE in known.value.gates:
                gated.add(pod.uid)
            elif known is not None and not known.value.view.deleting:
                others.append(pod)
        await _all(self.evict(pod) for pod in others)
        for key in job.claims:
            claim = self._feed.claims.get(key)
            if claim is not None:
                namespace, _, name = key.partition("/")
                await self._take_back(namespace, name, claim.uid, gated)

    async def evict(self, pod: PodPlacement) -> bool:
        """Asks for a pod to go; False when that is refused now, by a disruption budget perhaps.

        Raises:
            LeadershipLostError: as `place`.
        """
        body: Obj = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._writer.post(PODS, pod.name, "eviction", body, pod.namespace)
        except NotFoundError:
            self._feed.pod_gone(f"{pod.namespace}/{pod.name}", pod.uid)
        except ApiError as error:
            # The next plan asks again.
            log.info("cannot evict a pod now", pod=f"{pod.namespace}/{pod.name}", error=str(error))
            return False
        return True

    async def _note_avoided(self, pod: PodPlacement, nodes: tuple[str, ...]) -> None:
        """Keeps with the pod where kube-scheduler could not bind it: a new leader has to know."""
        key = f"{pod.namespace}/{pod.name}"
        known = self._feed.pods.get(key, pod.uid)
        if known is None or set(nodes) <= set(known.value.view.avoid):
            return
        text = ",".join(sorted({*nodes, *known.value.view.avoid}))
        body = {"metadata": {"uid": pod.uid, "annotations": {AVOID: text}}}
        try:
            self._feed.answered_pod(
                await self._writer.patch(PODS, pod.name, body, namespace=pod.namespace)
            )
        except ApiError as error:
            raise PlacementError(str(error), obj=f"pod {key}") from error

    async def _allocate(self, wanted: ClaimPlacement, allocated: list[ClaimPlacement]) -> None:
        """One claim; puts it into ``allocated`` as soon as it may be so by our doing."""

        def decide() -> Step | None:
            claim = self._claim(wanted)
            if claim is None:
                raise PlacementError("is gone", obj=_label(wanted))
            step = next_step(claim, wanted)
            if isinstance(step, Refused):
                raise PlacementError(step.reason)
            if step is not None and step.allocates and wanted not in allocated:
                allocated.append(wanted)
            return step

        await self._steps(wanted.namespace, wanted.name, wanted.uid, decide)

    async def _take_back(self, namespace: str, name: str, uid: str, pods: set[str]) -> None:
        def decide() -> Step | None:
            known = self._feed.claims.get(f"{namespace}/{name}", uid)
            return None if known is None else undo_step(known.value, pods)

        try:
            await self._steps(namespace, name, uid, decide)
        except PlacementError as error:
            # The objects say so, too: the next plan sees a half-placed job and takes it from there.
            log.warning("cannot take an allocation back now", claim=name, error=str(error))

    async def _steps(
        self, namespace: str, name: str, uid: str, decide: Callable[[], Step | None]
    ) -> None:
        """Writes step after step until there is none left.

        Raises:
            PlacementError: refused, gone, or no success after several tries.
        """
        backoff = Backoff(base=0.05, cap=2.0, rng=self._rng)
        key = f"{namespace}/{name}"
        failure: ApiError | None = None
        while backoff.attempts < TRIES:
            try:
                if failure is not None:
                    await self._read(namespace, name, uid)
                step = decide()
                if step is None:
                    return
                answer = await self._writer.patch(
                    RESOURCE_CLAIMS,
                    name,
                    step.body,
                    namespace=namespace,
                    subresource="status" if step.status else None,
                )
            except NotFoundError:
                self._feed.claim_gone(key, uid)
                failure = None
                continue
            except ApiError as error:
                failure = error
                if not _again(error):
                    raise PlacementError(str(error), obj=f"claim {key}") from error
                await self._clock.sleep(backoff.next(_at_least(error)))
                continue
            failure = None
            self._feed.answered_claim(answer)
        raise PlacementError(f"no success after {TRIES} tries: {failure}", obj=f"claim {key}")

    async def _read(self, namespace: str, name: str, uid: str) -> None:
        """The claim as it is, after an answer that may hide a success."""
        raw = await self._writer.get(RESOURCE_CLAIMS, name, namespace)
        if raw["metadata"].get("uid") != uid:
            self._feed.claim_gone(f"{namespace}/{name}", uid)
        else:
            self._feed.answered_claim(raw)

    async def _refresh(self, wanted: ClaimPlacement) -> None:
        """Makes sure that the state knows the claim as it is before its devices count as free."""
        backoff = Backoff(base=0.1, cap=5.0, rng=self._rng)
        while True:
            try:
                return await self._read(wanted.namespace, wanted.name, wanted.uid)
            except NotFoundError:
                return self._feed.claim_gone(f"{wanted.namespace}/{wanted.name}", wanted.uid)
            except ApiError as error:
                await self._clock.sleep(backoff.next(_at_least(error)))

    async def _lift(self, pod: PodPlacement) -> bool:
        """Takes our gate off a pod; False when the pod is gone or would not have it."""
        backoff = Backoff(base=0.05, cap=2.0, rng=self._rng)
        key = f"{pod.namespace}/{pod.name}"
        said = False
        while backoff.attempts < TRIES:
            known = self._feed.pods.get(key, pod.uid)
            if known is None:
                return False
            record = known.value
            gated = GATE in record.gates
            if not gated and (said or _is_told(record, pod)):
                return True
            try:
                if not said:
                    said = True
                    await self._before_gate(record, pod)
                    continue
                answer = await self._writer.patch(
                    PODS, pod.name, ungated(record), namespace=pod.namespace
                )
                self._feed.answered_pod(answer)
            except NotFoundError:
                self._feed.pod_gone(key, pod.uid)
            except ApiError as error:
                log.info("cannot lift a gate yet", pod=key, error=str(error))
                await self._clock.sleep(backoff.next(_at_least(error)))
                await self._read_pod(pod)
        return False

    async def _read_pod(self, pod: PodPlacement) -> None:
        try:
            raw = await self._writer.get(PODS, pod.name, pod.namespace)
        except NotFoundError:
            self._feed.pod_gone(f"{pod.namespace}/{pod.name}", pod.uid)
        except ApiError as error:
            log.info("cannot read a pod", pod=f"{pod.namespace}/{pod.name}", error=str(error))
        else:
            self._feed.answered_pod(raw)

    def _claim(self, wanted: ClaimPlacement) -> ResourceClaim | None:
        known = self._feed.claims.get(f"{wanted.namespace}/{wanted.name}", wanted.uid)
        return None if known is None else known.value


def ungated(record: PodRecord) -> Obj:
    """The merge patch that takes our gate off the pod as it was seen; others' gates stay."""
    left = [{"name": name} for name in record.gates if name != GATE]
    return {
        "metadata": {"resourceVersion": record.version},
        "spec": {"schedulingGates": left or None},
    }


def _is_told(record: PodRecord, pod: PodPlacement) -> bool:
    """Whether an ungated pod says nothing wrong about its node."""
    return bool(record.view.node) or record.nominated in {"", pod.node}


def _label(wanted: ClaimPlacement) -> str:
    return f"claim {wanted.namespace}/{wanted.name}"


def _again(error: ApiError) -> bool:
    """Whether another try may succeed. What the server refuses by rule, it refuses again."""
    return isinstance(error, ConflictError) or error.retryable


def _at_least(error: ApiError) -> float:
    return error.retry_after if isinstance(error, TooManyRequestsError) else 0.0


async def _all(works: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Runs all side by side to their end, then raises the worst error, if there was one."""
    results = await asyncio.gather(*works, return_exceptions=True)
    errors = [one for one in results if isinstance(one, BaseException)]
    for error in sorted(errors, key=lambda one: isinstance(one, PlacementError)):
        raise error
    return [one for one in results if not isinstance(one, BaseException)]
