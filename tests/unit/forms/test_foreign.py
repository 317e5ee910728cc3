# SPDX-License-Identifier: Apache-2.0
"""MIG instances that somebody else made, and devices that claims hold against the policy."""

from dataclasses import replace

from gpudra.api.resource_v1 import Device
from gpudra.driver.core.allocatable import gpu_name
from gpudra.driver.core.cards import MigPlace
from gpudra.driver.core.forms import (
    EVERY_FORM,
    EVERYTHING,
    CardForms,
    DeviceKind,
    MigMode,
    PublishPolicy,
)
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.resourceslices import ServerFeatures
from tests.unit.forms.cards import causes, kinds, of_type, one, pool, sets, with_instances

STATIC = PublishPolicy(forms=CardForms(kinds=EVERY_FORM, mig=MigMode.STATIC))
WHOLE = PublishPolicy()
H100 = "dgx-h100-8x80"


def _by_name(devices: tuple[Device, ...], inventory: Inventory) -> dict[str, Device]:
    """Devices by their name after the card's."""
    prefix = gpu_name(inventory.gpus[0])
    return {device.name.removeprefix(prefix).lstrip("-") or "whole": device for device in devices}


def test_nothing_is_offered_over_an_instance_of_somebody_else() -> None:
    """3g at 4 exists: whole, share and all that meets it are tainted, the rest is free."""
    inventory = with_instances(one(H100), (9, 4))
    found = _by_name(pool(inventory).devices, inventory)
    tainted = {name for name, device in found.items() if causes(device) == ["foreign-mig"]}
    assert {"whole", "share", "mig-3g40gb-4", "mig-1g10gb-5", "mig-7g80gb-0"} <= tainted
    free = {name for name, device in found.items() if not device.taints}
    assert {"mig-3g40gb-0", "mig-4g40gb-0", "mig-1g10gb-3", "monitor"} <= free
    assert tainted | free == found.keys()


def test_what_an_instance_of_somebody_else_takes_is_not_there() -> None:
    """The counters lack its slices and engines, so no two free places exceed what is left."""
    before = sets(pool(one(H100)))[0].counters
    after = sets(pool(with_instances(one(H100), (9, 4))))[0].counters
    gone = {name: before[name].value - after[name].value for name in before}
    assert {name: amount.value for name, amount in gone.items() if amount.value} == {
        **{f"memory-slice-{number}": 1 for number in (4, 5, 6, 7)},
        "compute-slices": 3,
        "multiprocessors": 60,
        "copy-engines": 3,
        "decoders": 3,
        "jpeg-engines": 3,
    }


def test_places_that_want_the_same_engine_are_tainted_too() -> None:
    """There is one OFA: beside a foreign 1g+me no other +me is offered, wherever it lies."""
    inventory = with_instances(one(H100), (20, 6))
    found = _by_name(pool(inventory).devices, inventory)
    assert causes(found["mig-1g10gb-me-0"]) == ["foreign-mig"]
    assert causes(found["mig-1g10gb-0"]) == []


def test_our_own_instances_change_nothing() -> None:
    """What a claim of ours made is accounted for by the claim."""
    inventory = with_instances(one(H100), (9, 4))
    own = frozenset({MigPlace(card=inventory.gpus[0].key, start=4, size=4)})
    assert pool(inventory, own_mig=own) == pool(one(H100, enabled=True))


def test_where_taints_are_dropped_what_is_in_use_is_left_out() -> None:
    """A server without device taints sees only what is free."""
    inventory = with_instances(one(H100), (9, 4))
    features = ServerFeatures(counters=True, consumable_capacity=True)
    found = _by_name(pool(inventory, features=features).devices, inventory)
    assert "mig-3g40gb-0" in found
    assert not {"whole", "share", "mig-3g40gb-4"} & found.keys()


def test_static_offers_the_instances_that_exist() -> None:
    """As devices with their uuid and without counters; the card is offered in no other form."""
    inventory = with_instances(one(H100), (9, 4), (19, 0))
    found = pool(inventory, STATIC)
    names = _by_name(found.devices, inventory)
    assert list(names) == ["mig-1g10gb-0", "mig-3g40gb-4", "monitor"]
    assert names["mig-3g40gb-4"].attributes["uuid"] == "MIG-9-4"
    assert sets(found) == ()
    assert not any(device.consumes_counters or device.taints for device in found.devices)


def test_static_leaves_out_what_cannot_be_used() -> None:
    """An instance without compute instance is no device."""
    inventory = with_instances(one(H100), (9, 4), compute_instance_id=None)
    assert kinds(pool(inventory, STATIC)) == ["monitor"]


def test_static_cards_without_mig_mode_stay_whole() -> None:
    """Static says where parts come from, not that every card must have some."""
    assert kinds(pool(one(H100), STATIC)) == ["gpu", "share", "monitor"]


def test_static_needs_no_counters() -> None:
    """Instances exist side by side, so a server without counters gets them all."""
    inventory = with_instances(one(H100), (9, 4), (19, 0))
    found = pool(inventory, STATIC, features=ServerFeatures(device_taints=True))
    assert len(of_type(found, "mig")) == 2


# --- devices that claims hold -------------------------------------------------------------------


def test_a_held_device_stays_when_the_policy_drops_its_form() -> None:
    """It is listed and tainted, and the form that is offered instead is tied to it."""
    inventory = one(H100)
    before = _by_name(pool(inventory).devices, inventory)
    held = before["mig-3g40gb-4"]
    found = pool(inventory, WHOLE, kept={held.name: held})
    now = _by_name(found.devices, inventory)
    assert list(now) == ["whole", "mig-3g40gb-4"]
    assert causes(now["mig-3g40gb-4"]) == ["withdrawn"]
    assert causes(now["whole"]) == []
    assert now["mig-3g40gb-4"].consumes_counters == held.consumes_counters
    (everything,) = sets(found)
    assert now["whole"].consumes_counters[0].counters == everything.counters


def test_a_held_device_of_an_excluded_card_stays_alone() -> None:
    """Excluding a card takes nothing from who has it."""
    inventory = one(H100)
    held = of_type(pool(inventory), "gpu")[0]
    policy = replace(EVERYTHING, excluded=frozenset({inventory.gpus[0].key}))
    (left,) = pool(inventory, policy, kept={held.name: held}).devices
    assert (left.name, causes(left)) == (held.name, ["withdrawn"])
    assert pool(inventory, policy).devices == ()


def test_a_held_device_that_is_offered_anyway_is_not_marked() -> None:
    """Holding changes nothing where nothing was withdrawn."""
    inventory = one(H100)
    before = pool(inventory)
    assert pool(inventory, kept={device.name: device for device in before.devices}) == before


def test_a_held_device_whose_card_is_gone_stays_as_it_was_last() -> None:
    """Lost, without counters: nothing else of that card is there to be given out."""
    inventory = one(H100)
    held = of_type(pool(inventory), "mig")[0]
    found = pool(Inventory(), kept={held.name: held})
    (left,) = found.devices
    assert causes(left) == ["lost"]
    assert left.attributes == held.attributes
    assert left.consumes_counters == ()
    again = pool(Inventory(), kept={left.name: left})
    assert again == found


def test_without_counters_a_held_form_keeps_the_others_away() -> None:
    """Nothing would tie the share to the whole card that is still in use."""
    inventory = one(H100)
    features = ServerFeatures(consumable_capacity=True)
    held = of_type(pool(inventory), "gpu")[0]
    shares = PublishPolicy(forms=CardForms(kinds=frozenset({DeviceKind.SHARE})))
    found = pool(inventory, shares, features=features, kept={held.name: held})
    assert [device.name for device in found.devices] == [held.name]
    assert kinds(pool(inventory, shares, features=features)) == ["share"]
