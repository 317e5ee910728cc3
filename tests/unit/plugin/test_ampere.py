# SPDX-License-Identifier: Apache-2.0
"""MIG mode of cards that switch it with a reset only: an idle card is switched, a used one is named."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudra.driver.core.forms import EVERY_FORM, CardForms, MigMode, PublishPolicy
from tests.fakenvml.machine import FakeMachine
from tests.support.formsnode import FormsNode, hardware

SWITCHING = PublishPolicy(forms=CardForms(kinds=EVERY_FORM, mig=MigMode.DYNAMIC_RESET))
PID = 4711


class Ampere(FormsNode):
    """Eight A100 of a node whose policy lets the driver reset them."""

    def __init__(self, folder: Path, lib: object, machine: FakeMachine) -> None:
        super().__init__(folder, lib)
        self.machine = machine
        self.policy = SWITCHING
        self.look()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Ampere]:
    """On the fake NVML."""
    with hardware("nvml", tmp_path, "dgx-a100-8x40") as found:
        assert found.machine is not None
        made = Ampere(tmp_path / "node", found.lib, found.machine)
        yield made
        made.end()


def test_only_a_policy_offers_what_takes_a_reset(node: Ampere) -> None:
    """Without it a card is offered as it is; with it in every form, in either mode."""
    part, whole = node.device(0, "1g5gb-0"), node.device(0)
    assert {part, whole} <= set(node.devices)
    node.policy = PublishPolicy(forms=CardForms(kinds=EVERY_FORM))
    node.look()
    assert part not in node.devices
    node.partitions.set_mig_mode(node.cards[0], enabled=True)
    node.look()
    assert part in node.devices
    assert whole not in node.devices
    node.policy = SWITCHING
    node.look()
    assert {part, whole, f"{whole}-share"} <= set(node.devices)


async def test_an_idle_card_is_parted_and_put_together_again(node: Ampere) -> None:
    """The first instance switches the mode on, the end of the last one off."""
    plugin = await node.start()
    before = node.picture()
    refs = [node.claim(1, node.device(0, "1g5gb-0")), node.claim(2, node.device(0, "3g20gb-4"))]
    for answer in await plugin.prepare(*refs):
        assert answer.ok, answer.error
    assert len(node.instances()[0]) == 2
    await plugin.unprepare(refs[0])
    assert node.partitions.mig_mode(node.cards[0])
    await plugin.unprepare(refs[1])
    assert node.picture() == before


async def test_a_whole_claim_gets_a_card_out_of_the_mode(node: Ampere) -> None:
    """Somebody left it on; it is on again in the end."""
    card = node.device(0)
    node.partitions.set_mig_mode(node.cards[0], enabled=True)
    node.look()
    plugin = await node.start()
    ref = node.claim(1, card)
    (answer,) = await plugin.prepare(ref)
    assert answer.ok, answer.error
    assert not node.partitions.mig_mode(node.cards[0])
    await plugin.unprepare(ref)
    assert node.partitions.mig_mode(node.cards[0])


async def test_a_card_in_use_is_refused_with_who_uses_it(node: Ampere) -> None:
    """Nothing stays pending: the next reset must not switch it behind everybody's back."""
    node.machine.ctl("process", node.cards[0], PID, 2**20)
    plugin = await node.start()
    before = node.picture()
    ref = node.claim(1, node.device(0, "1g5gb-0"))
    (answer,) = await plugin.prepare(ref)
    assert "switches on with a reset of the card" in answer.error
    assert f"process {PID}" in answer.error
    assert node.picture() == before
    assert node.lib.discover().gpus[0].mig.pending is False
    node.machine.ctl("process", node.cards[0], PID, 0)
    (answer,) = await plugin.prepare(ref)
    assert answer.ok, answer.error


async def test_the_end_of_a_claim_does_not_wait_for_others(node: Ampere) -> None:
    """A process that watches the card keeps the mode on, not the claim from ending."""
    plugin = await node.start()
    ref = node.claim(1, node.device(0, "1g5gb-0"))
    assert (await plugin.prepare(ref))[0].ok
    node.machine.ctl("process", node.cards[0], PID, 2**20)
    assert (await plugin.unprepare(ref))[0].ok
    assert dict(plugin.state.records) == {}
    assert node.partitions.mig_mode(node.cards[0])
    assert node.lib.discover().gpus[0].mig.pending is True


async def test_a_card_that_another_claim_holds_is_refused_by_its_name(node: Ampere) -> None:
    """Whole and in parts at once cannot be, with or without a reset."""
    plugin = await node.start()
    holder = node.claim(1, node.device(0))
    assert (await plugin.prepare(holder))[0].ok
    (answer,) = await plugin.prepare(node.claim(2, node.device(0, "1g5gb-0")))
    assert f"in use by claim {holder.uid}" in answer.error
