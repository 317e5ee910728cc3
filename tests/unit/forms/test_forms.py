# SPDX-License-Identifier: Apache-2.0
"""In which forms a card is published, and what ties them together."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.driver.core.allocatable import allocatable_devices, gpu_name, profile_words
from gpudra.driver.core.forms import (
    EVERY_FORM,
    EVERYTHING,
    CardForms,
    DeviceKind,
    MigMode,
    ModelForms,
    PublishPolicy,
    form_words,
    parse_forms,
)
from gpudra.driver.core.inventory import Gpu, Inventory, MigInfo, MigProfile, Placement
from gpudra.driver.core.resourceslices import ServerFeatures, resource_slices
from gpudra.driver.core.slicediff import plan_slices
from gpudra.driver.core.slicelimits import check_counter_sets, check_devices
from gpudra.driver.devicelib.simulated import profile_names
from tests.unit.forms.cards import NODE, kinds, node, of_type, one, pool, sets

ALL = ["gpu", "mig", "share", "monitor"]


def _only(*wanted: DeviceKind, **forms: object) -> PublishPolicy:
    return PublishPolicy(forms=CardForms(kinds=frozenset(wanted), **forms))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("profile", "mig_on", "wanted"),
    [
        ("dgx-h100-8x80", False, ALL),
        ("dgx-h100-8x80", True, ALL),
        ("dgx-a100-8x40", False, ["gpu", "share", "monitor"]),
        ("dgx-a100-8x40", True, ["mig", "monitor"]),
        ("a30-2x", True, ["mig", "monitor"]),
        ("l4-4x", False, ["gpu", "share", "monitor"]),
    ],
)
def test_a_card_is_offered_as_what_it_can_be_now(
    profile: str, mig_on: bool, wanted: list[str]
) -> None:
    """Ampere cards need a reset to change, so their MIG mode decides; later ones change on use."""
    assert kinds(pool(one(profile, enabled=mig_on))) == wanted


@pytest.mark.parametrize("mig_on", [False, True])
def test_later_cards_are_published_alike_in_both_modes(mig_on: bool) -> None:
    """Switching MIG on for the first instance is not a change of hardware: zero writes."""
    before = pool(one("dgx-h100-8x80", enabled=False))
    assert pool(one("dgx-h100-8x80", enabled=mig_on, pending=mig_on)) == before


def test_forms_of_one_card_share_one_counter_set() -> None:
    """Whole and share take all of it, the monitor nothing, a part what it is made of."""
    found = pool(one("dgx-h100-8x80"))
    (everything,) = sets(found)
    for device in found.devices:
        taken = [entry.counter_set for entry in device.consumes_counters]
        assert taken == ([] if device.attributes["type"] == "monitor" else [everything.name])
    (whole,), (share,) = of_type(found, "gpu"), of_type(found, "share")
    assert whole.consumes_counters[0].counters == everything.counters
    assert share.consumes_counters[0].counters == everything.counters


def test_cards_without_mig_have_a_counter_set_only_for_shares() -> None:
    """A set that ties nothing is not published; neither is one without counters."""
    cards = node("l4-4x")
    assert len(sets(pool(cards))) == 4
    for alone in DeviceKind:
        assert sets(pool(cards, _only(alone))) == ()
    assert sets(pool(cards, _only(DeviceKind.WHOLE, DeviceKind.MONITOR))) == ()


@pytest.mark.parametrize("mig", [None, MigInfo(enabled=False, profiles=())])
def test_parts_of_a_card_that_has_none_are_no_counter_set(mig: MigInfo | None) -> None:
    """Case 29, rows consumer-card and mig-wanted-not-possible: one whole GPU, nothing else."""
    gpu = Gpu(uuid="GPU-3", memory_bytes=24152899584, mig=mig)
    found = pool(Inventory(gpus=(gpu,)), _only(DeviceKind.WHOLE, DeviceKind.MIG))
    assert kinds(found) == ["gpu"]
    assert sets(found) == ()


def test_whole_cards_alone_need_no_counters() -> None:
    """A MIG-capable card that is only given out whole has nothing to tie."""
    found = pool(node("dgx-h100-8x80"), _only(DeviceKind.WHOLE))
    assert sets(found) == ()
    assert not any(device.consumes_counters for device in found.devices)


def test_a_server_without_counters_gets_one_form_per_card() -> None:
    """Two forms that nothing ties together would be given out at once."""
    features = ServerFeatures(consumable_capacity=True, device_taints=True)
    found = pool(node("dgx-h100-8x80"), features=features)
    assert [device.attributes["type"] for device in found.devices] == ["gpu"] * 8
    shared = pool(node("dgx-h100-8x80"), _only(DeviceKind.MIG, DeviceKind.SHARE), features=features)
    assert [device.attributes["type"] for device in shared.devices] == ["share"] * 8
    parts = pool(one("dgx-h100-8x80"), _only(DeviceKind.MIG), features=features)
    assert parts.devices == ()
    assert "need counters" in parts.problems[0]


def test_a_server_without_consumable_capacity_gets_no_shares() -> None:
    """A share without the flag would be an exclusive device."""
    features = ServerFeatures(counters=True, device_taints=True)
    assert kinds(pool(one("dgx-h100-8x80"), features=features)) == ["gpu", "mig"]


def test_a_share_has_memory_in_mib_and_compute_in_percent() -> None:
    """Whole MiB are reserved, everything by default; compute is not reserved by default."""
    gpu = Gpu(uuid="GPU-1", memory_bytes=10 * 2**30 + 1234)
    (share,) = of_type(pool(Inventory(gpus=(gpu,))), "share")
    assert share.allow_multiple_allocations
    memory, compute = share.capacity["memory"], share.capacity["compute"]
    assert memory.value == Quantity.parse("10240Mi")
    assert memory.to_dict()["requestPolicy"] == {
        "default": "10Gi",
        "validRange": {"min": "1Mi", "step": "1Mi"},
    }
    assert compute.to_dict() == {
        "value": "100",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
    }
    assert "memoryOversubscription" not in share.attributes


def test_oversubscription_is_visible_and_never_gives_one_claim_more_than_the_card() -> None:
    """All shares together may reserve more than there is, one alone may not."""
    gpu = Gpu(uuid="GPU-1", memory_bytes=10 * 2**30)
    policy = _only(DeviceKind.SHARE, memory_oversubscription=Decimal("1.50"))
    (share,) = pool(Inventory(gpus=(gpu,)), policy).devices
    assert share.attributes["memoryOversubscription"] == "1.5"
    memory = share.capacity["memory"]
    assert memory.value == Quantity.parse("15Gi")
    assert memory.to_dict()["requestPolicy"] == {
        "default": "10Gi",
        "validRange": {"min": "1Mi", "max": "10Gi", "step": "1Mi"},
    }


def test_a_share_of_unified_memory_has_no_memory_to_reserve() -> None:
    """What the card does not tell is left out."""
    gpu = Gpu(uuid="GPU-1", unified_memory=True)
    (share,) = of_type(pool(Inventory(gpus=(gpu,))), "share")
    assert set(share.capacity) == {"compute"}


def test_a_monitor_takes_nothing_and_has_nothing() -> None:
    """Any number of users, no counters, no capacity."""
    (monitor,) = of_type(pool(one("dgx-h100-8x80")), "monitor")
    assert monitor.allow_multiple_allocations
    assert monitor.capacity == {}
    assert monitor.consumes_counters == ()


def test_a_part_is_described_by_its_profile() -> None:
    """Memory and engines are the part's, the uuid its parent's; no NVLink reaches a part."""
    inventory = one("dgx-h100-8x80")
    name = gpu_name(inventory.gpus[0]) + "-mig-1g10gb-me-3"
    (part,) = (device for device in pool(inventory).devices if device.name == name)
    values = part.attributes
    assert values["parentUUID"] == inventory.gpus[0].uuid
    assert (values["profile"], values["profileId"], values["isolation"]) == (
        "1g.10gb+me",
        20,
        "mig",
    )
    assert not {"uuid", "nvlinkDomain", "nvlinkIsland"} & values.keys()
    assert {name: str(one.value) for name, one in part.capacity.items()} == {
        "memory": "9984Mi",
        "multiprocessors": "16",
        "copyEngines": "1",
        "decoders": "1",
        "encoders": "0",
        "jpegEngines": "1",
        "ofaEngines": "1",
    }


def test_eight_cards_make_216_devices_and_their_monitors_within_the_limits() -> None:
    """27 exclusive devices a card, one slice a card, eight counter sets in one slice."""
    found = pool(node("dgx-h100-8x80"), EVERYTHING.within(EVERY_FORM - {DeviceKind.MONITOR}))
    assert len(found.devices) == 8 * 27
    assert [len(part.devices) for part in found.slices] == [0, *[27] * 8]
    check_devices(found.devices)
    check_counter_sets(sets(found))


def test_sixteen_cards_fit_too() -> None:
    """Counter sets go into two slices, and each card keeps its own."""
    cards = node("dgx-h100-8x80").gpus
    more = tuple(replace(gpu, uuid=f"{gpu.uuid}x") for gpu in cards)
    found = pool(Inventory(gpus=cards + more))
    assert [len(part.shared_counters) for part in found.slices] == [8, 8, *[0] * 16]
    assert {len(part.devices) for part in found.slices} == {0, 28}
    slices = resource_slices(found)
    assert {part.spec.pool.resource_slice_count for part in slices} == {18}


def test_a_taint_on_one_card_rewrites_one_slice() -> None:
    """With all forms too: 224 devices, one write, the same generation."""
    inventory = node("dgx-h100-8x80")
    healthy = pool(inventory)
    actual = plan_slices(healthy, []).creates
    gpus = list(inventory.gpus)
    gpus[4] = replace(gpus[4], lost=True)
    plan = plan_slices(pool(Inventory(gpus=tuple(gpus))), actual)
    assert len(plan.updates) == 1
    assert all(device.taints for device in plan.updates[0].spec.devices)
    assert (plan.creates, plan.deletes, plan.generation) == ((), (), 1)


def test_places_that_block_least_come_first() -> None:
    """The first-fit scheduler begins where larger instances lose least."""
    found = of_type(pool(one("dgx-h100-8x80")), "mig")
    starts = [device.name.rpartition("-")[2] for device in found]
    by_profile: dict[str, list[str]] = {}
    for device, start in zip(found, starts, strict=True):
        by_profile.setdefault(str(device.attributes["profile"]), []).append(start)
    assert by_profile["1g.10gb"] == ["6", "4", "5", "0", "1", "2", "3"]
    assert by_profile["3g.40gb"] == ["4", "0"]
    assert next(iter(by_profile)) == "1g.10gb"
    assert list(by_profile)[-1] == "7g.80gb"


def test_two_profiles_of_one_name_make_two_names() -> None:
    """Told apart by id: the lowest has the plain word."""
    (gpu,) = one("dgx-h100-8x80").gpus
    assert gpu.mig is not None
    place = (Placement(start=0, size=8),)
    twins = tuple(
        MigProfile(id=number, name=name, compute_slices=1, max_instances=1, placements=place)
        for number, name in ((7, "1g.10gb+me"), (3, "1g.10gb+me"), (9, "1g.10gb-me"))
    )
    assert profile_words(replace(gpu.mig, profiles=twins)) == {
        3: "1g10gb-me",
        7: "1g10gb-me-p7",
        9: "1g10gb-me-p9",
    }
    card = replace(gpu, mig=replace(gpu.mig, profiles=twins))
    names = [device.name for device in pool(Inventory(gpus=(card,))).devices]
    assert len(set(names)) == len(names) == 6


def test_a_declared_name_that_is_too_long_costs_only_its_forms() -> None:
    """63 characters are enough for the card and too many for its share."""
    gpu = Gpu(declared_name="n" * 60)
    found = pool(Inventory(gpus=(gpu,)))
    assert kinds(found) == ["gpu"]
    assert len(found.problems) == 2
    assert "n" * 60 in found.problems[0]


def test_the_first_entry_that_fits_a_model_decides() -> None:
    """Names are patterns, upper and lower case alike; other models get the policy's own forms."""
    policy = PublishPolicy(
        forms=CardForms(kinds=frozenset({DeviceKind.WHOLE})),
        models=(
            ModelForms(names=("nvidia h100*",), forms=CardForms(kinds=frozenset({DeviceKind.MIG}))),
            ModelForms(names=("*",), forms=CardForms(kinds=frozenset({DeviceKind.SHARE}))),
        ),
    )
    assert kinds(pool(one("dgx-h100-8x80"), policy)) == ["mig"]
    assert kinds(pool(one("l4-4x"), policy)) == ["share"]
    assert kinds(pool(one("l4-4x"), replace(policy, models=policy.models[:1]))) == ["gpu"]


def test_a_managed_node_taints_every_device() -> None:
    """The stock scheduler keeps off; a server that drops taints gets no device at all."""
    policy = replace(EVERYTHING, managed=True)
    found = pool(one("dgx-h100-8x80"), policy)
    for device in found.devices:
        assert [(t.key, t.effect) for t in device.taints] == [
            ("gpu.gpudra.io/managed", "NoSchedule")
        ]
    refused = pool(
        one("dgx-h100-8x80"),
        policy,
        features=ServerFeatures(counters=True, consumable_capacity=True),
    )
    assert refused.devices == ()
    assert any("managed mode needs device taints" in problem for problem in refused.problems)


@pytest.mark.parametrize(
    ("profile", "mig_on", "forms", "why"),
    [
        ("l4-4x", False, CardForms(kinds=frozenset({DeviceKind.MIG})), "it has no MIG"),
        ("dgx-a100-8x40", False, CardForms(kinds=frozenset({DeviceKind.MIG})), "mode is off"),
        ("dgx-a100-8x40", True, CardForms(), "mode is on"),
        ("dgx-h100-8x80", True, CardForms(kinds=EVERY_FORM, mig=MigMode.STATIC), "no MIG instance"),
    ],
)
def test_a_card_that_fits_no_wanted_form_is_told(
    profile: str, mig_on: bool, forms: CardForms, why: str
) -> None:
    """Whoever looks for the missing card finds the reason in the log."""
    found = pool(one(profile, enabled=mig_on), PublishPolicy(forms=forms))
    (problem,) = found.problems
    assert why in problem
    assert problem.startswith("GPU GPU-")


def test_words_of_forms() -> None:
    """People write whole, not gpu; a wrong word is named."""
    assert parse_forms("mig, whole,,share,monitor") == EVERY_FORM
    assert form_words(EVERY_FORM) == "whole,mig,share,monitor"
    with pytest.raises(InputError, match=r"--forms: 'gpu' is no form of a card; use some of whole"):
        parse_forms("gpu", "--forms")


_KINDS = st.frozensets(st.sampled_from(list(DeviceKind)))
_FORMS = st.builds(
    CardForms,
    kinds=_KINDS,
    mig=st.sampled_from(MigMode),
    memory_oversubscription=st.decimals(1, 16, places=2),
)


@settings(max_examples=60, deadline=None)
@given(
    profile=st.sampled_from(profile_names()),
    forms=_FORMS,
    features=st.builds(ServerFeatures, *[st.booleans()] * 0, counters=st.booleans(),
                       consumable_capacity=st.booleans(), device_taints=st.booleans()),
    mig_on=st.booleans(),
)  # fmt: skip
def test_whatever_is_published_is_legal_and_tied(
    profile: str, forms: CardForms, features: ServerFeatures, mig_on: bool
) -> None:
    """Any policy on any server: limits hold, and two exclusive forms of a card share a counter."""
    inventory = node(profile, enabled=mig_on)
    policy = PublishPolicy(forms=forms)
    found = pool(inventory, policy, features=features)
    check_devices(found.devices)
    check_counter_sets(sets(found))
    cards: dict[object, list[tuple[str, bool]]] = {}
    offered = {device.name: device for device in allocatable_devices(inventory, policy)}
    for device in found.devices:
        source = offered[device.name]
        if source.kind is not DeviceKind.MONITOR:
            entry = (source.kind.value, bool(device.consumes_counters))
            cards.setdefault(source.gpu.key, []).append(entry)
        assert source.kind in forms.kinds
    for entries in cards.values():
        if len(entries) > 1:
            assert all(tied for _, tied in entries)
    assert pool(inventory, policy, features=features) == found
    assert {one.spec.node_name for one in resource_slices(found)} == {NODE}
