# SPDX-License-Identifier: Apache-2.0
"""Whatever policies and claims do: what is held stays listed, and no card is given out twice."""

import asyncio
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.resource_v1 import CounterSet, Device
from gpudra.driver.core.forms import EVERY_FORM, EVERYTHING, CardForms, DeviceKind, PublishPolicy
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.taints import keeps_off
from gpudra.driver.kube.resources import RESOURCE_CLAIMS
from tests.unit.forms.cards import one
from tests.unit.nodepolicy.test_withdrawal import Agent, agent

HOPPER = one("dgx-h100-8x80")
POLICIES = (
    EVERYTHING,
    *(PublishPolicy(forms=CardForms(kinds=frozenset({kind}))) for kind in DeviceKind),
    PublishPolicy(excluded=frozenset({HOPPER.gpus[0].key}), forms=CardForms(kinds=EVERY_FORM)),
    PublishPolicy(
        forms=CardForms(kinds=EVERY_FORM, memory_oversubscription=Decimal(2)), managed=True
    ),
)
STEPS = st.one_of(
    st.tuples(st.just("policy"), st.integers(0, len(POLICIES) - 1)),
    st.tuples(st.just("allocate"), st.integers(0, 40)),
    st.tuples(st.just("prepare"), st.integers(0, 5)),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("time"), st.sampled_from([1, 4, 12, 90])),
    st.tuples(st.just("unplug"), st.booleans().map(int)),
)


class Scheduler:
    """First fit by the rules of the stock allocator, on what the API lists."""

    def __init__(self, it: Agent) -> None:
        self.it = it
        self.held: dict[str, str] = {}
        self._number = 0

    def sets(self) -> dict[str, CounterSet]:
        """Counter sets of the pool."""
        return {one.name: one for part in self.it.it.slices() for one in part.spec.shared_counters}

    def taken(self, *more: str) -> Counter[tuple[str, str]]:
        """Counters that held devices take; a shared device takes once."""
        listed = self.it.devices()
        found: Counter[tuple[str, str]] = Counter()
        for name in {*self.held.values(), *more}:
            for entry in listed[name].consumes_counters if name in listed else ():
                for counter, amount in entry.counters.items():
                    found[entry.counter_set, counter] += amount.value.value
        return found

    def fits(self, device: Device) -> bool:
        """Whether the allocator would give it out."""
        if any(keeps_off(taint) for taint in device.taints):
            return False
        if device.name in self.held.values() and not device.allow_multiple_allocations:
            return False
        return not self.overdrawn(device.name)

    def overdrawn(self, *more: str) -> list[tuple[str, str]]:
        """Counters of which more is taken than there is."""
        sets = self.sets()
        return [
            (set_, name)
            for (set_, name), amount in self.taken(*more).items()
            if amount > sets[set_].counters[name].value.value
        ]

    def allocate(self, choice: int) -> None:
        """A claim gets one of the devices that fit."""
        fitting = [name for name, device in self.it.devices().items() if self.fits(device)]
        if fitting:
            self._number += 1
            claim = f"c{self._number}"
            self.held[claim] = fitting[choice % len(fitting)]
            self.it.allocate(claim, self.held[claim])

    def prepare(self, choice: int) -> None:
        """The node gets a claim."""
        if self.held:
            self.it.prepare(self.held[sorted(self.held)[choice % len(self.held)]])

    def end(self, choice: int) -> None:
        """A claim ends, here and in the API."""
        if self.held:
            claim = sorted(self.held)[choice % len(self.held)]
            device = self.held.pop(claim)
            if device not in self.held.values():
                self.it.records.pop(device, None)
            self.it.it.objects.delete(RESOURCE_CLAIMS, claim, "default")


async def _live(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with agent(Path(folder), HOPPER) as it:
            scheduler = Scheduler(it)
            for word, value in steps:
                if word == "policy":
                    it.publisher.policy_changed(POLICIES[value])
                elif word == "time":
                    await it.it.rest(value)
                elif word == "unplug":
                    it.publisher.inventory_changed(Inventory() if value else HOPPER)
                else:
                    getattr(scheduler, word)(value)
                await it.it.rest(0)
                assert set(scheduler.held.values()) <= it.devices().keys()
                assert scheduler.overdrawn() == []
            it.publisher.inventory_changed(HOPPER)
            it.publisher.policy_changed(EVERYTHING)
            while scheduler.held:
                scheduler.end(0)
            for _ in range(8):
                await it.it.rest(20)
            fresh = it.devices()
        with tempfile.TemporaryDirectory() as other:
            async with agent(Path(other), HOPPER) as new:
                assert fresh == new.devices()


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_whatever_happens_nothing_held_is_pulled_or_given_away(
    steps: list[tuple[str, int]],
) -> None:
    """And when all is over the pool is that of a process that has just started."""
    asyncio.run(_live(steps))
