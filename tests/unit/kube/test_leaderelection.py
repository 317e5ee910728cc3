# SPDX-License-Identifier: Apache-2.0
"""Leader election on virtual time."""

import asyncio
import random
from typing import Any

import pytest

from gpudra.api.errors import InputError
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.leaderelection import LeaderElector, LeadershipLostError, LeadershipToken
from gpudra.driver.kube.resources import LEASES
from tests.support.storeapi import StoreApi


class Candidate:
    """One process: an elector and the terms that it led."""

    def __init__(self, api: StoreApi, clock: VirtualClock, identity: str, seed: int = 0) -> None:
        self.clock = clock
        self.terms: list[tuple[float, float, int]] = []
        self.elector = LeaderElector(
            api,
            name="gpudra",
            namespace="kube-system",
            identity=identity,
            clock=clock,
            rng=random.Random(seed),
        )
        self.task = asyncio.create_task(self.elector.run(self.lead))

    async def lead(self, token: LeadershipToken) -> None:
        """Lead until cancelled."""
        started = self.clock.monotonic()
        try:
            await asyncio.Event().wait()
        finally:
            self.terms.append((started, self.clock.monotonic(), token.transitions))

    async def stop(self) -> None:
        """End in an orderly way."""
        self.task.cancel()
        await asyncio.wait({self.task})


def lease(api: StoreApi) -> dict[str, Any]:
    """The Lease's spec."""
    spec: dict[str, Any] = api.objects.get(LEASES, "gpudra", "kube-system")["spec"]
    return spec


async def test_the_first_leads_and_the_second_waits() -> None:
    """One leads, renews, and is seen by the other."""
    clock = VirtualClock()
    api = StoreApi(clock)
    first = Candidate(api, clock, "a")
    await clock.advance(1)
    second = Candidate(api, clock, "b")
    await clock.advance(300)
    assert first.elector.is_leader
    assert not second.elector.is_leader
    assert second.elector.holder == "a"
    assert first.elector.check().transitions == 0
    with pytest.raises(LeadershipLostError, match="not the leader, a is"):
        second.elector.check()
    await first.stop()
    await second.stop()


async def test_an_orderly_end_hands_over_at_once() -> None:
    """A leader that ends gives the lease back; the next one need not wait for it to expire."""
    clock = VirtualClock()
    api = StoreApi(clock)
    first = Candidate(api, clock, "a")
    await clock.advance(1)
    second = Candidate(api, clock, "b")
    await clock.advance(10)
    await first.stop()
    assert lease(api)["holderIdentity"] == ""
    await clock.advance(2.5)
    assert second.elector.check() == LeadershipToken("b", 1)
    await second.stop()


class LateAnswers(StoreApi):
    """Carries a change of a lease out at once, and answers only when it is let."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.let = asyncio.Event()

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        """The store's, late."""
        made = await super().create(*args, **kwargs)
        await self.let.wait()
        return made

    async def update(self, *args: Any, **kwargs: Any) -> Any:
        """The store's, late."""
        written = await super().update(*args, **kwargs)
        await self.let.wait()
        return written


@pytest.mark.parametrize("earlier", [False, True], ids=["created", "taken"])
async def test_a_lease_whose_answer_never_came_is_given_back(earlier: bool) -> None:
    """A process that ends between the server's write and its answer leaves the lease free."""
    clock = VirtualClock()
    api = LateAnswers(clock)
    api.let.set()
    if earlier:
        before = Candidate(api, clock, "before")
        await clock.advance(1)
        await before.stop()
    api.let.clear()
    candidate = Candidate(api, clock, "a")
    await clock.advance(1)
    assert lease(api)["holderIdentity"] == "a"
    assert not candidate.elector.is_leader
    candidate.task.cancel()
    api.let.set()
    await asyncio.wait({candidate.task})
    assert lease(api)["holderIdentity"] == ""


async def test_a_leader_that_vanishes_is_followed_after_the_lease() -> None:
    """The lease of a leader that stopped renewing is taken when it was seen unchanged for 15 s."""
    clock = VirtualClock()
    api = StoreApi(clock)
    api.objects.create(
        LEASES,
        {
            "metadata": {"name": "gpudra", "namespace": "kube-system"},
            "spec": {
                "holderIdentity": "gone",
                "leaseDurationSeconds": 15,
                # The other machine's clock is years ahead: it must not matter.
                "renewTime": "2031-01-01T00:00:00.000000Z",
                "leaseTransitions": 4,
            },
        },
    )
    follower = Candidate(api, clock, "b")
    await clock.advance(14.9)
    assert not follower.elector.is_leader
    await clock.advance(3)
    assert follower.elector.check().transitions == 5
    await follower.stop()


async def test_a_leader_without_server_stops_before_others_start() -> None:
    """Cut off from the server, a leader stops within the renew deadline; terms never overlap."""
    clock = VirtualClock()
    api, cut_off = StoreApi(clock), StoreApi(clock)
    cut_off.objects = api.objects
    first = Candidate(cut_off, clock, "a")
    await clock.advance(5)
    second = Candidate(api, clock, "b", seed=1)
    await clock.advance(5)
    cut_off.faults.unavailable()
    await clock.advance(60)
    with pytest.raises(LeadershipLostError):
        await first.task
    await second.stop()
    (_, ended, old), (started, _, new) = first.terms[0], second.terms[0]
    assert ended < started
    assert new > old


async def test_a_server_that_hangs_is_like_none() -> None:
    """A renewal that gets no answer ends the term at the deadline, not at the client's time-out."""
    clock = VirtualClock()
    api = StoreApi(clock)
    leader = Candidate(api, clock, "a")
    await clock.advance(5)
    api.faults.delay(1000, times=None)
    await clock.advance(12)
    with pytest.raises(LeadershipLostError):
        await leader.task
    assert leader.terms[0][1] <= 5 + 12


async def test_short_trouble_is_survived() -> None:
    """Failures shorter than the deadline end nothing."""
    clock = VirtualClock()
    api = StoreApi(clock)
    leader = Candidate(api, clock, "a")
    await clock.advance(5)
    api.faults.fail(resource="leases", status=500, times=3)
    await clock.advance(60)
    assert leader.elector.is_leader
    await leader.stop()


async def test_a_lease_taken_by_force_ends_the_term() -> None:
    """A leader that finds another's name in the lease stops at once."""
    clock = VirtualClock()
    api = StoreApi(clock)
    leader = Candidate(api, clock, "a")
    await clock.advance(1)
    stolen = {"spec": {"holderIdentity": "thief", "leaseTransitions": 9}}
    api.objects.patch(LEASES, "gpudra", stolen, namespace="kube-system")
    await clock.advance(2)
    with pytest.raises(LeadershipLostError):
        await leader.task
    assert lease(api)["holderIdentity"] == "thief"


async def test_a_restart_under_the_same_name_is_another_holder() -> None:
    """A process that finds its own name waits, and gets a higher number: the old one may still live."""
    clock = VirtualClock()
    api = StoreApi(clock)
    old = Candidate(api, clock, "a")
    await clock.advance(1)
    new = Candidate(api, clock, "a")
    await clock.advance(30)
    assert old.elector.is_leader
    assert not new.elector.is_leader
    api.faults.fail(verb="update", resource="leases", status=500, times=7)
    await clock.advance(60)
    led = [candidate for candidate in (old, new) if candidate.elector.is_leader]
    assert len(led) == 1
    await old.stop()
    await new.stop()


async def test_two_that_start_together_agree() -> None:
    """Of candidates that find no lease at the same moment exactly one leads."""
    clock = VirtualClock()
    api = StoreApi(clock)
    candidates = [Candidate(api, clock, name, seed) for seed, name in enumerate("abcde")]
    await clock.advance(30)
    assert sum(candidate.elector.is_leader for candidate in candidates) == 1
    for candidate in candidates:
        await candidate.stop()


async def test_the_end_and_the_errors_of_the_work_go_through() -> None:
    """`run` returns when the work does, raises what it raises, and releases in both cases."""
    clock = VirtualClock()
    api = StoreApi(clock)
    elector = Candidate(api, clock, "unused")
    await elector.stop()

    async def finish(_: LeadershipToken) -> None:
        return

    async def fail(_: LeadershipToken) -> None:
        raise ValueError("the work failed")

    await elector.elector.run(finish)
    assert lease(api)["holderIdentity"] == ""
    with pytest.raises(ValueError, match="the work failed"):
        await elector.elector.run(fail)
    assert lease(api)["holderIdentity"] == ""


async def test_changes_of_holder_are_told() -> None:
    """Each new holder is told once."""
    clock = VirtualClock()
    api = StoreApi(clock)
    told: list[str] = []
    first = Candidate(api, clock, "a")
    await clock.advance(1)
    watcher = LeaderElector(
        api,
        name="gpudra",
        namespace="kube-system",
        identity="w",
        clock=clock,
        on_change=told.append,
    )
    task = asyncio.create_task(watcher.run(first.lead))
    await clock.advance(20)
    await first.stop()
    await clock.advance(20)
    task.cancel()
    await asyncio.wait({task})
    assert told == ["a", "", "w"]


def test_times_that_do_not_fit_are_refused() -> None:
    """A leader must stop before others may start."""
    with pytest.raises(InputError, match="lease_duration must be above"):
        LeaderElector(
            StoreApi(VirtualClock()),
            name="x",
            namespace="y",
            identity="z",
            lease_duration=10,
            renew_deadline=10,
        )
