# SPDX-License-Identifier: Apache-2.0
"""How often all claims are listed while devices leave the slices, and for which devices."""

import random

import pytest

from gpudra.api.errors import UnavailableError
from gpudra.api.resource_v1 import Device, DeviceTaint
from gpudra.driver.kube.clock import VirtualClock
from gpudra.kubelet_plugin.withdrawal import ASK_SECONDS, GRACE_SECONDS, SPREAD_SECONDS, Withdrawals

DRIVER = "gpu.example.com"
MARK = DeviceTaint(key=f"{DRIVER}/withdrawn", effect="NoSchedule")
RIPE = GRACE_SECONDS + SPREAD_SECONDS


class Holders:
    """Claims of the cluster, as a test says."""

    def __init__(self) -> None:
        self.taken: frozenset[str] = frozenset()
        self.lists = 0
        self.error: UnavailableError | None = None

    def prepared(self) -> frozenset[str]:
        """See HolderSource."""
        return frozenset()

    async def allocated(self) -> frozenset[str]:
        """See HolderSource."""
        self.lists += 1
        if self.error:
            raise self.error
        return self.taken


class Scene:
    """Devices that should vanish, and the clock."""

    def __init__(self, seed: int) -> None:
        self.holders = Holders()
        self.clock = VirtualClock()
        self.rules = Withdrawals(
            self.holders, driver=DRIVER, clock=self.clock, rng=random.Random(seed)
        )

    async def kept(self, *names: str, after: float = 0.0) -> set[str]:
        """What stays some seconds later."""
        await self.clock.advance(after)
        marked = {name: Device(name=name, taints=(MARK,)) for name in names}
        return set(await self.rules.kept(marked, taints_kept=True))


@pytest.mark.parametrize("seed", range(8))
async def test_a_held_device_does_not_delay_its_free_neighbours(seed: int) -> None:
    """Whatever chance says about pauses, and though their taints are seen one after the other."""
    scene = Scene(seed)
    scene.holders.taken = frozenset({"held"})
    assert await scene.kept("held") == {"held"}
    assert await scene.kept("held", "free", after=RIPE) == {"held", "free"}
    assert await scene.kept("held", "free", after=RIPE) == {"held"}
    assert scene.holders.lists == 2


async def test_devices_marked_at_once_are_asked_about_at_once() -> None:
    """Claims are listed one time for all the parts of a card."""
    scene = Scene(1)
    names = [f"gpu-{number}" for number in range(30)]
    await scene.kept(*names)
    for _ in range(int(RIPE) + 1):
        await scene.kept(*names, after=1)
    assert scene.holders.lists == 1


async def test_a_held_device_is_asked_about_each_minute() -> None:
    """Not at every look: the list is of the whole cluster."""
    scene = Scene(1)
    scene.holders.taken = frozenset({"held"})
    await scene.kept("held")
    await scene.kept("held", after=RIPE)
    for _ in range(5):
        await scene.kept("held", after=ASK_SECONDS / 10)
    assert scene.holders.lists == 1
    scene.holders.taken = frozenset()
    assert await scene.kept("held", after=ASK_SECONDS) == set()
    assert scene.holders.lists == 2


async def test_without_an_answer_everything_stays_and_is_asked_again_soon() -> None:
    """An API server in trouble is not asked at every look either."""
    scene = Scene(1)
    scene.holders.error = UnavailableError("no answer")
    await scene.kept("a", "b")
    assert await scene.kept("a", "b", after=RIPE) == {"a", "b"}
    assert await scene.kept("a", "b", after=1) == {"a", "b"}
    assert scene.holders.lists == 1
    scene.holders.error = None
    assert await scene.kept("a", "b", after=10) == set()
