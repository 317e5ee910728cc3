# SPDX-License-Identifier: Apache-2.0
"""One leader among several processes, by a Lease. Used by the cluster side.

The clocks of machines are never compared: a lease has expired when *we* have seen it unchanged for
its whole duration, measured on our own monotonic clock. The leader stops itself before that
(``renew_deadline`` < ``lease_duration``), and gives the lease back when it ends, so that the next
one need not wait.

Each change of holder raises ``leaseTransitions``: the fencing number in `LeadershipToken`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from gpudra.api.errors import ApiError, ConflictError, GpudraError, InputError, NotFoundError
from gpudra.driver.kube.clock import Clock, SystemClock, rfc3339_micro, within
from gpudra.driver.kube.resources import LEASES, Obj
from gpudra.driver.kube.verbs import KubeApi

log = structlog.get_logger(__name__)

# Waiting candidates spread out by up to a fifth, so that they do not all ask at once.
_JITTER = 0.2
# Giving the lease back is a courtesy; a server that does not answer must not hold up the end.
_RELEASE_SECONDS = 5.0


class LeadershipLostError(GpudraError):
    """We do not lead (any more): another holds the lease, or it could not be renewed in time."""

    retryable = True


@dataclass(frozen=True, slots=True)
class LeadershipToken:
    """Proof of one term.

    Attributes:
        identity: who leads.
        transitions: grows with every change of holder; a write that carries a smaller number than
            one seen before comes from a leader of the past.
    """

    identity: str
    transitions: int


class LeaderElector:
    """Takes part in an election.

    Args:
        client: reads and writes the Lease.
        name: of the Lease.
        namespace: of the Lease.
        identity: of this process, usually the pod's name. A process that finds its own name in the
            Lease without having taken it (a restart) waits like for anybody else's.
        lease_duration: seconds after which others may take an unchanged lease.
        renew_deadline: seconds without a renewal after which the leader stops.
        retry_period: seconds between tries.
        clock: for all of these.
        rng: for jitter.
        on_change: told the identity of each new holder.

    Raises:
        InputError: the three times do not fit together.
    """

    def __init__(
        self,
        client: KubeApi,
        *,
        name: str,
        namespace: str,
        identity: str,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        if not lease_duration > renew_deadline > retry_period * (1 + _JITTER) > 0:
            raise InputError(
                "lease_duration must be above renew_deadline, and that above retry_period",
                field="leaderElection",
            )
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy
        self._on_change = on_change
        self._token: LeadershipToken | None = None
        # A term asked for whose answer has not come: the server may have granted it all the same.
        self._asked: LeadershipToken | None = None
        self._renewed_at = 0.0
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self.holder = ""

    @property
    def is_leader(self) -> bool:
        """Whether we lead and the lease was renewed in time."""
        in_time = self._clock.monotonic() < self._renewed_at + self._renew_deadline
        return self._token is not None and in_time

    def check(self) -> LeadershipToken:
        """The token of the present term. To be called right before each write.

        Raises:
            LeadershipLostError: we do not lead.
        """
        if self._token is None or not self.is_leader:
            raise LeadershipLostError(
                f"not the leader, {self.holder or 'nobody'} is",
                obj=f"lease {self._namespace}/{self._name}",
            )
        return self._token

    async def run(self, lead: Callable[[LeadershipToken], Awaitable[None]]) -> None:
        """Wait for the lease, then run ``lead`` for as long as it is held.

        Returns when ``lead`` does; its exceptions go through. The lease is given back in any case
        unless it is lost. Cancelling this cancels ``lead`` and waits for it.

        Raises:
            LeadershipLostError: the lease was lost; ``lead`` was cancelled and has ended.
        """
        lost = False
        try:
            await self._acquire()
            leading = asyncio.ensure_future(lead(self.check()))
            renewing = asyncio.ensure_future(self._renew())
            try:
                await asyncio.wait({leading, renewing}, return_when=asyncio.FIRST_COMPLETED)
                lost = not leading.done()
            finally:
                await _end(leading, renewing)
        finally:
            if not lost:
                await self._release()
            self._token = self._asked = None
        if lost:
            renewing.result()  # an error of ours, not of the server, is not hidden
            raise LeadershipLostError(
                "the lease was lost", obj=f"lease {self._namespace}/{self._name}"
            )
        leading.result()

    async def _acquire(self) -> None:
        while not await self._try():
            spread = 1 + _JITTER * self._rng.random()
            await self._clock.sleep(self._retry_period * spread)
        log.info("leading", lease=self._name, identity=self._identity)

    async def _renew(self) -> None:
        """Returns when the lease is lost."""
        while True:
            await self._clock.sleep(self._retry_period)
            held = await self._try()
            if not held and (self.holder != self._identity or not self.is_leader):
                log.warning("leadership_lost", lease=self._name, holder=self.holder)
                return

    async def _try(self) -> bool:
        """One try to take or renew the lease; what goes wrong is only logged."""
        limit = self._renew_deadline
        if self._token is not None:
            left = self._renewed_at + self._renew_deadline - self._clock.monotonic()
            limit = max(0.0, left)
        try:
            return await within(self._clock, limit, self._take_or_renew())
        except (ApiError, TimeoutError) as error:
            log.info("lease_try_failed", lease=self._name, error=str(error))
            return False

    async def _take_or_renew(self) -> bool:
        # Counted from before the request: others may see the renewal as early as that.
        started = self._clock.monotonic()
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except NotFoundError:
            lease = None
        if lease is None:
            fresh: Obj = {
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec(0, None),
            }
            self._asked = LeadershipToken(self._identity, 0)
            written = await self._client.create(LEASES, fresh, self._namespace)
        else:
            spec = lease.get("spec") or {}
            self._observe(lease)
            if not self._may_take(spec):
                return False
            transitions = int(spec.get("leaseTransitions") or 0)
            taking = not self._is_ours(spec)
            lease["spec"] = {
                **spec,
                **self._spec(transitions + taking, None if taking else spec.get("acquireTime")),
            }
            self._asked = LeadershipToken(self._identity, transitions + taking)
            try:
                written = await self._client.update(LEASES, lease)
            except ConflictError:
                self._asked = None
                return False
        self._observe(written)
        self._token = LeadershipToken(
            self._identity, int(written["spec"].get("leaseTransitions") or 0)
        )
        self._asked = None
        self._renewed_at = started
        return True

    def _is_ours(self, spec: Obj) -> bool:
        term = self._token
        return term is not None and _is_term(spec, term)

    def _may_take(self, spec: Obj) -> bool:
        if not spec.get("holderIdentity") or self._is_ours(spec):
            return True
        duration = float(spec.get("leaseDurationSeconds") or self._lease_duration)
        return self._clock.monotonic() >= self._seen_at + duration

    def _observe(self, lease: Obj) -> None:
        spec, meta = lease.get("spec") or {}, lease["metadata"]
        fields = ("holderIdentity", "renewTime", "leaseTransitions")
        seen = (meta.get("uid"), *(spec.get(field) for field in fields))
        if seen != self._seen:
            self._seen = seen
            self._seen_at = self._clock.monotonic()
        holder = str(spec.get("holderIdentity") or "")
        if holder != self.holder:
            self.holder = holder
            if self._on_change is not None:
                self._on_change(holder)

    def _spec(self, transitions: int, acquired: str | None) -> Obj:
        now = rfc3339_micro(self._clock.now())
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._lease_duration)),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    async def _release(self) -> None:
        terms = [term for term in (self._token, self._asked) if term is not None]
        if not terms:
            return
        try:
            await within(self._clock, _RELEASE_SECONDS, self._give_back(terms))
        except (ApiError, TimeoutError) as error:
            log.info("lease_not_released", lease=self._name, error=str(error))

    async def _give_back(self, terms: list[LeadershipToken]) -> None:
        lease = await self._client.get(LEASES, self._name, self._namespace)
        spec = lease.get("spec") or {}
        if not any(_is_term(spec, term) for term in terms):
            return
        now = rfc3339_micro(self._clock.now())
        lease["spec"] = {
            **spec,
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": now,
        }
        await self._client.update(LEASES, lease)


def _is_term(spec: Obj, term: LeadershipToken) -> bool:
    same_holder = spec.get("holderIdentity") == term.identity
    return same_holder and int(spec.get("leaseTransitions") or 0) == term.transitions


async def _end(*tasks: "asyncio.Future[None]") -> None:
    """Cancel what still runs and wait for it; results and errors stay in the tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
