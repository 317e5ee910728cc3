# SPDX-License-Identifier: Apache-2.0
"""A policy changes while claims hold devices: real publisher and slice controller, virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpudra.api.errors import UnavailableError
from gpudra.api.resource_v1 import Device
from gpudra.driver.core.forms import EVERYTHING, CardForms, DeviceKind, PublishPolicy
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.prepare import Hold, PreparedDevice
from gpudra.driver.core.resourceslices import ALL_FEATURES, ServerFeatures
from gpudra.driver.kube.resources import RESOURCE_CLAIMS
from gpudra.kubelet_plugin.holders import Holders
from gpudra.kubelet_plugin.instance_lock import FileLock
from gpudra.kubelet_plugin.publisher import Publisher
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRecord
from tests.unit.forms.cards import causes, one, with_instances
from tests.unit.resourceslices.harness import DRIVER, NODE, World, world

WHOLE = PublishPolicy()
SHARES = PublishPolicy(forms=CardForms(kinds=frozenset({DeviceKind.SHARE})))
# Grace and spread of withdrawal.py, and the look after it.
LONG_ENOUGH = 10


class Agent:
    """A publisher over a world, and the claims of its node."""

    def __init__(self, it: World, folder: Path, inventory: Inventory, features: ServerFeatures):
        self.it = it
        self.records: dict[str, ClaimRecord] = {}
        self.holders = Holders(it.client, lambda: self.records, driver=DRIVER, pool=NODE)
        self.controller = it.controller()

        async def probe() -> ServerFeatures:
            return features

        self.publisher = Publisher(
            self.controller,
            probe,
            FileLock(folder / "publish.lock"),
            self.holders,
            driver=DRIVER,
            node_name=NODE,
            clock=it.clock,
            rng=random.Random(1),
        )
        self.publisher.inventory_changed(inventory)

    def devices(self) -> dict[str, Device]:
        """What the API lists, by name."""
        return {device.name: device for part in self.it.slices() for device in part.spec.devices}

    def lists(self) -> int:
        """How often claims were listed."""
        return sum(
            (verb, plural) == ("list", "resourceclaims") for verb, plural, _ in self.it.client.calls
        )

    async def change(self, policy: PublishPolicy, seconds: float = 1.0) -> None:
        """Another policy, and some time."""
        self.publisher.policy_changed(policy)
        await self.it.rest(seconds)

    def prepare(self, device: str, *holds: Hold) -> None:
        """A claim of this node gets a device."""
        self.records[device] = ClaimRecord(
            uid=device,
            state=COMPLETED,
            devices=(PreparedDevice(pool=NODE, device=device),),
            holds=holds,
        )

    def allocate(self, name: str, device: str) -> None:
        """The scheduler gives a claim a device."""
        results = [{"request": "r", "driver": DRIVER, "pool": NODE, "device": device}]
        claim: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        self.it.objects.seed(claim)


@asynccontextmanager
async def agent(
    folder: Path,
    inventory: Inventory,
    policy: PublishPolicy = EVERYTHING,
    features: ServerFeatures = ALL_FEATURES,
    it: World | None = None,
) -> AsyncIterator[Agent]:
    """A running agent that has published once."""
    found = Agent(it or world(), folder, inventory, features)
    task = asyncio.create_task(found.publisher.run())
    try:
        await found.change(policy)
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def name_of(found: dict[str, Device], type_: str) -> str:
    """The first device of a type."""
    return next(name for name, one in found.items() if one.attributes["type"] == type_)


async def test_what_nobody_holds_is_tainted_first_and_then_gone(tmp_path: Path) -> None:
    """The new form is there at once; claims are listed once; then all is at rest."""
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE) as it:
        (whole,) = it.devices()
        await it.change(SHARES)
        now = it.devices()
        assert causes(now[whole]) == ["withdrawn"]
        assert causes(now[name_of(now, "share")]) == []
        assert it.lists() == 0
        await it.it.rest(LONG_ENOUGH)
        assert list(it.devices()) == [name_of(now, "share")]
        assert it.lists() == 1
        it.it.client.forget()
        await it.it.rest(3600)
        assert it.it.client.writes == []
        assert it.lists() == 0


async def test_a_prepared_device_stays_until_its_claim_ends(tmp_path: Path) -> None:
    """The checkpoint says who holds it: no claim is listed while the claim lives."""
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE) as it:
        (whole,) = it.devices()
        it.prepare(whole)
        await it.change(SHARES)
        await it.it.rest(3600)
        now = it.devices()
        assert causes(now[whole]) == ["withdrawn"]
        assert now[whole].consumes_counters == now[name_of(now, "share")].consumes_counters
        assert it.lists() == 0
        it.records.clear()
        await it.it.rest(30)
        assert whole not in it.devices()


async def test_an_allocated_device_stays_until_its_claim_ends(tmp_path: Path) -> None:
    """Not prepared yet: the API says who holds it, asked once a minute."""
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE) as it:
        (whole,) = it.devices()
        await it.change(SHARES, 0)
        it.allocate("late", whole)  # the scheduler had not seen the taint yet
        await it.it.rest(LONG_ENOUGH)
        assert whole in it.devices()
        for _ in range(6):
            await it.it.rest(100)
        assert whole in it.devices()
        assert it.lists() <= 11
        it.it.objects.delete(RESOURCE_CLAIMS, "late", "default")
        await it.it.rest(70)
        await it.it.rest(1)
        assert whole not in it.devices()


async def test_devices_stay_while_claims_cannot_be_listed(tmp_path: Path) -> None:
    """Not knowing who holds it is no reason to pull it."""
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE) as it:
        (whole,) = it.devices()
        it.it.client.fail("list", *[UnavailableError("away")] * 3)
        await it.change(SHARES)
        await it.it.rest(25)
        assert whole in it.devices()
        for _ in range(6):
            await it.it.rest(10)
        assert whole not in it.devices()


async def test_a_policy_that_comes_back_takes_the_taint_away(tmp_path: Path) -> None:
    """Within the grace nothing was lost."""
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE) as it:
        before = it.devices()
        await it.change(SHARES)
        await it.change(WHOLE)
        await it.it.rest(LONG_ENOUGH)
        assert it.devices() == before


async def test_a_restart_with_another_policy_pulls_nothing(tmp_path: Path) -> None:
    """The process that starts knows from the API what was listed, and from its checkpoint who holds it."""
    cluster = world()
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE, it=cluster) as it:
        (whole,) = it.devices()
    folder = tmp_path / "other"
    folder.mkdir()
    found = Agent(cluster, folder, one("dgx-h100-8x80"), ALL_FEATURES)
    found.prepare(whole)
    task = asyncio.create_task(found.publisher.run())
    await found.change(SHARES, LONG_ENOUGH)
    assert causes(found.devices()[whole]) == ["withdrawn"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_card_that_is_gone_keeps_what_is_held(tmp_path: Path) -> None:
    """Pulled out while a claim has it: listed, lost, until the claim ends."""
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE) as it:
        (whole,) = it.devices()
        it.prepare(whole)
        it.publisher.inventory_changed(Inventory())
        await it.it.rest(3600)
        assert causes(it.devices()[whole]) == ["lost"]
        it.records.clear()
        await it.it.rest(30)
        assert it.devices() == {}


async def test_a_server_without_taints_loses_nothing_that_is_held(tmp_path: Path) -> None:
    """There is nothing to wait for; the one look at claims comes before the first write."""
    features = ServerFeatures(counters=True, consumable_capacity=True)
    async with agent(tmp_path, one("dgx-h100-8x80"), WHOLE, features) as it:
        (whole,) = it.devices()
        it.allocate("a", whole)
        await it.change(SHARES)
        assert whole in it.devices()
        assert it.lists() == 1


async def test_our_own_instances_are_not_somebody_elses(tmp_path: Path) -> None:
    """An instance of ours that the last reading still shows is ours when its claim has ended."""
    inventory = one("dgx-h100-8x80")
    async with agent(tmp_path, inventory) as it:
        before = it.devices()
        name = next(name for name in before if name.endswith("-mig-3g40gb-4"))
        it.prepare(name, Hold(card=inventory.gpus[0].key, kind="mig", device=name, start=4, size=4))
        it.publisher.inventory_changed(with_instances(inventory, (9, 4)))
        await it.it.rest(5)
        assert it.devices() == before
        it.records.clear()
        await it.change(EVERYTHING, 5)
        assert it.devices() == before
        it.publisher.inventory_changed(with_instances(inventory))
        await it.it.rest(5)
        it.publisher.inventory_changed(with_instances(inventory, (9, 4), uuid="MIG-foreign"))
        await it.it.rest(5)
        assert causes(it.devices()[name]) == ["foreign-mig"]
