# SPDX-License-Identifier: Apache-2.0
"""Whatever happens in whatever order, the pool is right some time after it has become quiet."""

import asyncio
import random
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.errors import ConflictError, TooManyRequestsError, UnavailableError
from gpudra.driver.core.resourceslices import DesiredPool
from gpudra.driver.core.slicediff import plan_slices
from gpudra.driver.kube.resources import NODES, RESOURCE_SLICES, Obj
from tests.unit.resourceslices.harness import NODE, World, node_object, pool, world

# What happens, a number for it, and the seconds until the next thing.
Step = tuple[Callable[["_Script", int], None], int, float]


class _Script:
    """Carries steps out, each a method of its name; remembers what is wished."""

    def __init__(self, it: World, seed: int) -> None:
        self.it = it
        self.objects = it.objects
        self.client = it.client
        self.rng = random.Random(seed)
        self.wished: DesiredPool = pool(3)

    def any_slice(self) -> Obj | None:
        """Some slice that is there."""
        present = self.objects.list(RESOURCE_SLICES)
        return self.rng.choice(present) if present else None

    def wish(self, number: int) -> None:
        self.wished = pool(number, index=lambda one: one + number)

    def taint(self, number: int) -> None:
        self.wished = pool(max(1, number), tainted=[0])

    def delete(self, _: int) -> None:
        found = self.any_slice()
        if found:
            self.objects.delete(RESOURCE_SLICES, found["metadata"]["name"])

    def wipe(self, _: int) -> None:
        for one in self.objects.list(RESOURCE_SLICES):
            self.objects.delete(RESOURCE_SLICES, one["metadata"]["name"])

    def edit(self, number: int) -> None:
        found = self.any_slice()
        if found:
            found["spec"]["pool"]["generation"] += number
            self.objects.update(RESOURCE_SLICES, found)

    def double(self, _: int) -> None:
        found = self.any_slice()
        if found:
            found["metadata"] = {"name": f"double-{self.objects.revision}"}
            self.objects.create(RESOURCE_SLICES, found)

    def away(self, _: int) -> None:
        self.client.away = True

    def back(self, _: int) -> None:
        self.client.away = False

    def conflict(self, _: int) -> None:
        self.client.fail("update", ConflictError("conflict", status=409))

    def busy(self, number: int) -> None:
        self.client.fail("*", TooManyRequestsError("busy", retry_after=number))

    def silence(self, _: int) -> None:
        self.client.fail("create", UnavailableError("no answer"))

    def hold(self, _: int) -> None:
        self.client.hold_watch()

    def release(self, _: int) -> None:
        self.client.release_watch()

    def cut(self, _: int) -> None:
        self.client.cut_watches()

    def disconnect(self, _: int) -> None:
        self.it.connected = False

    def connect(self, _: int) -> None:
        self.it.connected = True

    def replace_node(self, _: int) -> None:
        self.objects.delete(NODES, NODE)
        self.objects.create(NODES, node_object())
        self.objects.collect_garbage()

    def expire(self, _: int) -> None:
        self.objects.expire()


KINDS = [
    _Script.wish,
    _Script.taint,
    _Script.delete,
    _Script.wipe,
    _Script.edit,
    _Script.double,
    _Script.away,
    _Script.back,
    _Script.conflict,
    _Script.busy,
    _Script.silence,
    _Script.hold,
    _Script.release,
    _Script.cut,
    _Script.disconnect,
    _Script.connect,
    _Script.replace_node,
    _Script.expire,
]
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.sampled_from([0.0, 0.3, 1.0, 5.0]))


async def _play(steps: Sequence[Step], seed: int) -> None:
    it = world()
    script = _Script(it, seed)
    async with it.running(script.wished) as controller:
        for kind, number, pause in steps:
            kind(script, number)
            controller.set_desired(script.wished)
            await it.rest(pause)
        # Quiet: nothing fails any more, and everybody may speak.
        it.client.away, it.connected = False, True
        it.client.release_watch()
        it.client.failures.clear()
        await it.rest(120)
        assert controller.synced
        uid = it.objects.get(NODES, NODE)["metadata"]["uid"]
        slices = it.slices()
        owner = slices[0].metadata.owner_references[0]
        assert plan_slices(script.wished, slices, owner=owner).empty
        assert {one.metadata.owner_references[0].uid for one in slices} == {uid}
        assert it.device_names() == [device.name for device in script.wished.devices]
        it.client.forget()
        await it.rest(3600)
        assert it.client.writes == []


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=12), st.integers(0, 3))
def test_the_pool_is_right_in_the_end(steps: list[Step], seed: int) -> None:
    """Two quiet minutes after any trouble the API holds the wish, and an hour later still."""
    asyncio.run(_play(steps, seed))
