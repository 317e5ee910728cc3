# SPDX-License-Identifier: Apache-2.0
"""Properties of the plan: it leads to what is wanted, in the fewest safe writes."""

import dataclasses
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.meta import ObjectMeta, OwnerReference
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import (
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceTaint,
    ResourceSlice,
)
from gpudra.driver.core.resourceslices import DesiredPool, cut_pool
from gpudra.driver.core.slicediff import SlicePlan, dropped_fields, plan_slices

DRIVER = "gpu.gpudra.io"
OWNER = OwnerReference(api_version="v1", kind="Node", name="n", uid="u1", controller=True)


def _device(name: str, index: int, tainted: bool, counted: bool) -> Device:
    counters = {"slices": Counter(value=Quantity.of(index + 1))}
    return Device(
        name=name,
        attributes={"index": index},
        taints=(DeviceTaint(key=f"{DRIVER}/lost", effect="NoSchedule"),) if tainted else (),
        consumes_counters=(
            (CounterConsumption(counter_set="set", counters=counters),) if counted else ()
        ),
    )


@st.composite
def pools(draw: st.DrawFn) -> DesiredPool:
    """Pools of up to six cards with up to two devices each, in any order."""
    cards = draw(st.lists(st.integers(0, 5), unique=True, max_size=6))
    groups = [
        [
            _device(f"gpu-{card}-{part}", draw(st.integers(0, 1)), draw(st.booleans()), counted)
            for part in range(draw(st.integers(1, 2)))
        ]
        for card in cards
        for counted in [draw(st.booleans())]
    ]
    amount = draw(st.integers(8, 9))
    sets = [CounterSet(name="set", counters={"slices": Counter(value=Quantity.of(amount))})]
    return cut_pool(driver=DRIVER, pool="n", node_name="n", groups=groups, counter_sets=sets)


def _apply(actual: Sequence[ResourceSlice], plan: SlicePlan, writes: int) -> list[ResourceSlice]:
    """The API after the first ``writes`` writes of a plan."""
    found = {one.metadata.name: one for one in actual}
    steps = [
        *((one, True) for one in (*plan.updates, *plan.creates)),
        *((one, False) for one in plan.deletes),
    ]
    for number, (one, keep) in enumerate(steps[:writes]):
        if keep:
            metadata = dataclasses.replace(one.metadata, uid=one.metadata.uid or f"uid-{number}")
            found[one.metadata.name] = dataclasses.replace(one, metadata=metadata)
        else:
            del found[one.metadata.name]
    return list(found.values())


def _all(actual: Sequence[ResourceSlice], plan: SlicePlan) -> list[ResourceSlice]:
    return _apply(actual, plan, len(plan.updates) + len(plan.creates) + len(plan.deletes))


def _readers_see(actual: Sequence[ResourceSlice]) -> list[ResourceSlice] | None:
    """What the scheduler goes by: the newest generation if it is complete."""
    newest = max((one.spec.pool.generation for one in actual), default=0)
    current = sorted(
        (one for one in actual if one.spec.pool.generation == newest),
        key=lambda one: one.metadata.name,
    )
    counts = {one.spec.pool.resource_slice_count for one in current}
    return current if counts == {len(current)} else None


def _content(slices: Sequence[ResourceSlice]) -> list[tuple[object, ...]]:
    """What must fit together: devices, order, counters and their consumption."""
    return [
        (
            one.metadata.name,
            one.spec.shared_counters,
            [(device.name, device.consumes_counters) for device in one.spec.devices],
        )
        for one in slices
    ]


@given(st.lists(pools(), min_size=1, max_size=4))
def test_plans_lead_to_the_desired_pool_and_then_to_nothing(history: list[DesiredPool]) -> None:
    """After any history, carrying a plan out makes the API equal to the wish; a second is empty."""
    actual: list[ResourceSlice] = []
    generation = 0
    for desired in history:
        plan = plan_slices(desired, actual, owner=OWNER)
        actual = _all(actual, plan)
        assert plan_slices(desired, actual, owner=OWNER).empty
        assert plan.generation >= generation
        generation = plan.generation
        ordered = sorted(actual, key=lambda one: one.metadata.name)
        listed = [device for one in ordered for device in one.spec.devices]
        assert [device.name for device in listed] == [one.name for one in desired.devices]
        assert {one.spec.pool.generation for one in actual} == {generation}


@given(pools(), pools(), st.data())
def test_readers_never_see_a_mixture(
    before: DesiredPool, after: DesiredPool, data: st.DataObject
) -> None:
    """After any number of a plan's writes readers see the old pool, the new one, or wait."""
    actual = _all([], plan_slices(before, [], owner=OWNER))
    plan = plan_slices(after, actual, owner=OWNER)
    total = len(plan.updates) + len(plan.creates) + len(plan.deletes)
    part = _apply(actual, plan, data.draw(st.integers(0, total)))
    seen = _readers_see(part)
    wanted = _content(_readers_see(_all(actual, plan)) or [])
    if seen is not None:
        assert _content(seen) in (_content(_readers_see(actual) or []), wanted)


@given(pools(), pools(), pools(), st.data())
def test_a_crash_between_two_writes_is_healed(
    before: DesiredPool, after: DesiredPool, later: DesiredPool, data: st.DataObject
) -> None:
    """Whatever part of a plan was written, the next plan leads to what is wanted then."""
    actual = _all([], plan_slices(before, [], owner=OWNER))
    plan = plan_slices(after, actual, owner=OWNER)
    total = len(plan.updates) + len(plan.creates) + len(plan.deletes)
    part = _apply(actual, plan, data.draw(st.integers(0, total)))
    healed = _all(part, plan_slices(later, part, owner=OWNER))
    assert plan_slices(later, healed, owner=OWNER).empty
    assert _readers_see(healed) is not None


@given(pools(), st.data())
def test_missing_slices_come_back_as_they_were(desired: DesiredPool, data: st.DataObject) -> None:
    """Slices deleted by hand are created again, and no other is written."""
    actual = _all([], plan_slices(desired, [], owner=OWNER))
    gone = data.draw(st.sets(st.sampled_from([one.metadata.name for one in actual])))
    left = [one for one in actual if one.metadata.name not in gone]
    plan = plan_slices(desired, left, owner=OWNER, floor=1)
    assert not plan.updates
    assert not plan.deletes
    assert {one.metadata.name for one in plan.creates} == gone
    assert plan.generation == 1


@given(pools())
def test_the_plan_does_not_depend_on_the_order_of_the_slices(desired: DesiredPool) -> None:
    """Same input, same plan."""
    actual = _all([], plan_slices(desired, [], owner=OWNER))[1:]
    assert plan_slices(desired, actual, owner=OWNER) == plan_slices(
        desired, actual[::-1], owner=OWNER
    )


def _pool(*devices: Device) -> DesiredPool:
    return cut_pool(driver=DRIVER, pool="n", node_name="n", groups=[[one] for one in devices])


def test_two_structural_changes_need_a_generation_and_one_does_not() -> None:
    """A device that moves from slice to slice must not be seen twice."""
    first, second, third = (_device(name, 0, False, False) for name in ("a", "b", "c"))
    actual = _all([], plan_slices(_pool(first, second), []))
    one = plan_slices(_pool(first, third), actual)
    assert (len(one.updates), one.generation) == (1, 1)
    two = plan_slices(_pool(second, first), actual)
    assert (len(two.updates), two.generation) == (2, 2)


def test_attributes_of_several_cards_change_in_place() -> None:
    """A new driver version on all cards is no reason to make readers wait."""
    actual = _all([], plan_slices(_pool(*(_device(n, 0, False, False) for n in "abc")), []))
    plan = plan_slices(_pool(*(_device(n, 7, False, False) for n in "abc")), actual)
    assert (len(plan.updates), plan.generation) == (3, 1)


def test_an_update_keeps_what_others_put_into_the_metadata() -> None:
    """Labels and resourceVersion of the found object go with the update."""
    (slice_,) = _all([], plan_slices(_pool(_device("a", 0, False, False)), []))
    metadata = ObjectMeta(
        name=slice_.metadata.name, uid="u", resource_version="7", labels={"a": "b"}
    )
    found = dataclasses.replace(slice_, metadata=metadata)
    plan = plan_slices(_pool(_device("a", 1, False, False)), [found], owner=OWNER)
    assert plan.updates[0].metadata == dataclasses.replace(metadata, owner_references=(OWNER,))


def test_unknown_fields_of_a_newer_server_are_no_difference() -> None:
    """Fields that only the server knows do not cause endless rewrites."""
    desired = _pool(_device("a", 0, False, False))
    (slice_,) = _all([], plan_slices(desired, []))
    raw = slice_.to_dict()
    raw["spec"]["newField"] = "default"
    raw["spec"]["devices"][0]["other"] = 1
    assert plan_slices(desired, [ResourceSlice.from_dict(raw)]).empty


def test_dropped_fields_are_named_by_their_outermost_path() -> None:
    """One path per field, with stars for indexes, and nothing for fields inside it."""
    desired = _pool(_device("a", 0, True, False), _device("b", 0, False, False))
    sent = plan_slices(desired, []).creates[0]
    device = dataclasses.replace(sent.spec.devices[0], taints=())
    kept = dataclasses.replace(sent, spec=dataclasses.replace(sent.spec, devices=(device,)))
    assert dropped_fields(sent, kept) == {"spec.devices[*].taints"}
    assert dropped_fields(sent, sent) == frozenset()
    assert plan_slices(desired, [kept], dropped={"spec.devices[*].taints"}).updates == ()
