# SPDX-License-Identifier: Apache-2.0
"""What of a pool is held, free, stranded and tainted: on the slices of a simulated node."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.resource_v1 import DeviceTaint, ResourceSlice
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.accounting.facts import MIG, SHARE, WHOLE, DeviceFact, Hold, Shapes
from gpudra.driver.core.accounting.pools import Account, count_pool
from gpudra.driver.core.forms import EVERYTHING

DRIVER = "gpu.gpudra.io"
NODE = "node-a"
H100 = "NVIDIA H100 80GB HBM3"
MIB = 2**20
CARD = 81559 * MIB
CARDS = 8
SLICES = slices_of_hardware("dgx-h100-8x80", driver=DRIVER, node_name=NODE, policy=EVERYTHING)
SHAPES = Shapes(DRIVER)
FACTS = [SHAPES.slice_fact(one) for one in SLICES]
DEVICES = [device for one in FACTS for device in one.devices]


def devices(form: str, card: int = 0) -> list[DeviceFact]:
    """Devices of a form on one card, cards in the order in which they are published."""
    cards = list(dict.fromkeys(device.card for device in DEVICES))
    return [one for one in DEVICES if one.shape.form == form and one.card == cards[card]]


def part(profile: str, start: int, card: int = 0) -> Hold:
    """A claim on a MIG device."""
    (found,) = [one for one in devices(MIG, card) if one.name.endswith(f"-mig-{profile}-{start}")]
    return hold(found)


def hold(device: DeviceFact, memory: int = 0, compute: int = 0, name: str = "c") -> Hold:
    """A claim on a device."""
    return Hold(NODE, device.name, name, memory, compute)


def count(*holds: Hold) -> Account:
    """The figures of the node."""
    return count_pool(FACTS, holds)


def memory(account: Account) -> dict[str, int]:
    """Bytes by state."""
    return {state: size for (_, state), size in account.memory.items() if size}


def test_an_idle_node_is_free_in_every_form() -> None:
    """All cards, all memory; the largest request is a whole card, and eight of them."""
    account = count()
    assert account.gpus == {(H100, "free"): CARDS}
    assert memory(account) == {"free": CARDS * CARD}
    assert account.free_gpus == {H100: CARDS}
    assert account.largest[H100, WHOLE] == account.largest[H100, SHARE] == CARD
    assert account.largest[H100, MIG] > CARD * 0.9
    assert account.pools == {True: 1}


def test_a_whole_card_that_is_held_offers_nothing() -> None:
    """Neither parts nor shares of it are left, and nothing is stranded."""
    account = count(hold(devices(WHOLE)[0]))
    assert account.gpus == {(H100, "free"): CARDS - 1, (H100, "whole"): 1}
    assert memory(account) == {"free": (CARDS - 1) * CARD, "held": CARD}
    assert account.free_gpus == {H100: CARDS - 1}
    use = account.uses["c", H100, WHOLE]
    assert (use.devices, use.memory, use.compute) == (1, CARD, 1.0)


def test_shares_take_what_they_asked_for() -> None:
    """Memory and compute add up; the rest of the card is free for more shares and for nothing else."""
    (share,) = devices(SHARE)
    account = count(hold(share, 20480 * MIB, 25), hold(share, 10240 * MIB, 50, "other"))
    assert account.gpus[H100, "shared"] == 1
    assert memory(account)["held"] == 30720 * MIB
    assert memory(account)["free"] == CARDS * CARD - 30720 * MIB
    assert account.uses["c", H100, SHARE].compute == pytest.approx(0.25)
    assert account.uses["other", H100, SHARE].memory == 10240 * MIB
    assert account.free_gpus == {H100: CARDS - 1}


def test_parts_leave_what_other_parts_can_reach() -> None:
    """Of 1g.10gb at 0 the rest is free; where 3g.40gb holds each half, nothing is left to give."""
    one = count(part("1g10gb", 0))
    assert one.gpus[H100, "partitioned"] == 1
    assert "stranded" not in memory(one)
    both = count(part("3g40gb", 0), part("3g40gb", 4))
    left = memory(both)
    assert left["held"] + left.get("stranded", 0) + (CARDS - 1) * CARD == CARDS * CARD
    assert both.uses["c", H100, MIG].compute == pytest.approx(2 * 60 / 132)


def test_a_part_in_a_bad_place_strands_memory() -> None:
    """Seven 1g.10gb leave the eighth memory slice to nobody: no compute is left for it."""
    account = count(*(part("1g10gb", start) for start in range(7)))
    assert memory(account)["stranded"] == CARD - 7 * devices(MIG)[0].shape.memory
    assert account.largest[H100, MIG] > 0
    alone = count_pool(
        [replace(one, devices=tuple(d for d in one.devices if d.card == devices(MIG)[0].card))
         for one in FACTS],
        [part("1g10gb", start) for start in range(7)],
    )  # fmt: skip
    assert alone.largest.get((H100, MIG), 0) == 0


def tainted(card: str) -> list[ResourceSlice]:
    """The node with one sick card."""
    sick = (DeviceTaint(key="x", effect="NoSchedule"),)
    return [
        replace(one, spec=replace(one.spec, devices=tuple(
            replace(device, taints=sick) if device.name.startswith(card) else device
            for device in one.spec.devices)))
        for one in SLICES
    ]  # fmt: skip


def test_a_tainted_card_is_no_room() -> None:
    """Its memory counts as tainted; of what is held on it, the rest only."""
    name = devices(WHOLE)[0].name
    facts = [SHAPES.slice_fact(one) for one in tainted(name)]
    idle = count_pool(facts, [])
    assert idle.gpus == {(H100, "free"): CARDS - 1, (H100, "tainted"): 1}
    assert memory(idle) == {"free": (CARDS - 1) * CARD, "tainted": CARD}
    assert idle.free_gpus == {H100: CARDS - 1}
    held = count_pool(facts, [hold(devices(SHARE)[0], 1024 * MIB)])
    assert memory(held)["tainted"] == CARD - 1024 * MIB


def test_a_pool_with_a_slice_missing_is_incomplete() -> None:
    """It is counted all the same, and an older generation is not."""
    older = [replace(one, generation=one.generation - 1, name=f"old-{one.name}") for one in FACTS]
    assert count_pool(FACTS[:-1], []).pools == {False: 1}
    assert count_pool([*FACTS, *older], []).pools == {True: 1}
    assert count_pool([], []).pools == {}


def test_facts_from_json_are_those_of_decoded_objects() -> None:
    """The quick way reads the same, kinds included, tainted devices too."""
    for one in (*SLICES, *tainted(devices(WHOLE)[0].name)):
        assert SHAPES.raw_slice_fact(one.to_dict()) == SHAPES.slice_fact(one)


def test_kinds_are_few() -> None:
    """Two hundred devices are some thirty kinds: what tells cards apart is not in them."""
    assert len({one.shape for one in DEVICES}) < 40 < len(DEVICES)


CHOICES = st.lists(st.integers(0, len(DEVICES) - 1), max_size=12, unique=True)


@settings(max_examples=60, deadline=None)
@given(CHOICES, CHOICES)
def test_memory_adds_up_whatever_is_held(first: list[int], second: list[int]) -> None:
    """Held, free, stranded and tainted make up the cards, also for holds that cannot be; sums add."""
    chosen = [hold(DEVICES[place], 1000 * MIB, 10) for place in first]
    one = count_pool(FACTS, chosen)
    assert sum(one.memory.values()) == CARDS * CARD
    assert sum(one.gpus.values()) == CARDS
    assert min(one.memory.values()) >= 0
    two = count_pool(FACTS, [hold(DEVICES[place]) for place in second])
    total = Account()
    total.add(one)
    total.add(two)
    assert sum(total.memory.values()) == 2 * CARDS * CARD
    assert total.free_gpus[H100] == max(one.free_gpus[H100], two.free_gpus[H100])
