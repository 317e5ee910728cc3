# SPDX-License-Identifier: Apache-2.0
"""Limits, names and references of slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.errors import InputError
from gpudra.api.names import check_dns_subdomain
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import (
    CapacityRequestPolicy,
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceTaint,
)
from gpudra.driver.core.resourceslices import DesiredPool, cut_pool, slice_base_name
from gpudra.driver.core.slicelimits import check_device, has_details

DRIVER = "gpu.gpudra.io"


def _cut(*groups: list[Device], sets: tuple[CounterSet, ...] = ()) -> DesiredPool:
    return cut_pool(driver=DRIVER, pool="n", node_name="n", groups=groups, counter_sets=sets)


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=200), max_size=5),
)
def test_slices_keep_order_groups_and_limits(shapes: list[list[bool]]) -> None:
    """Any devices, tainted or not: nothing lost, nothing reordered, no slice too large or mixed."""
    taint = (DeviceTaint(key="a.io/b", effect="None"),)
    groups = [
        [
            Device(name=f"g{card}-{number}", taints=taint if tainted else ())
            for number, tainted in enumerate(shape)
        ]
        for card, shape in enumerate(shapes)
    ]
    cut = _cut(*groups)
    assert [one.name for one in cut.devices] == [one.name for group in groups for one in group]
    assert [one.name for one in cut.slices] == sorted(one.name for one in cut.slices)
    for one in cut.slices:
        assert len({device.name.partition("-")[0] for device in one.devices}) <= 1
        limit = 64 if any(has_details(device) for device in one.devices) else 128
        assert len(one.devices) <= limit


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (Device(name="Gpu_0"), "name: 'Gpu_0' is not a DNS label"),
        (
            Device(name="d", attributes={f"a{n}": n for n in range(33)}),
            "attributes: has 33 attributes and capacity, at most 32",
        ),
        (
            Device(name="d", attributes={"list": tuple(range(49))}),
            "attributes: has 49 attribute values, at most 48",
        ),
        (Device(name="d", attributes={"text": "ä" * 33}), r"attributes\[text\]: has 66 bytes"),
        (Device(name="d", attributes={"no-name": 1}), r"attributes\[no-name\]"),
        (
            Device(
                name="d",
                capacity={
                    "memory": DeviceCapacity(
                        value=Quantity.of(1),
                        request_policy=CapacityRequestPolicy(default=Quantity.of(1)),
                    )
                },
            ),
            r"capacity\[memory\].requestPolicy",
        ),
        (
            Device(name="d", taints=(DeviceTaint(key="a.io/b", effect="Never"),)),
            r"taints\[0\].effect: 'Never' is no effect",
        ),
        (
            Device(
                name="d", taints=tuple(DeviceTaint(key=f"a/b{n}", effect="None") for n in range(17))
            ),
            "taints: has 17 taints",
        ),
        (
            Device(name="d", consumes_counters=(CounterConsumption(counter_set="s"),)),
            r"consumesCounters\[0\].counters: has no counters",
        ),
    ],
)
def test_every_limit_names_its_field(device: Device, message: str) -> None:
    """A broken limit is an error with field before anything is sent."""
    with pytest.raises(InputError, match=message):
        check_device(device)


def test_a_name_that_comes_twice_is_refused() -> None:
    """Two devices of one name make the pool invalid for its readers."""
    with pytest.raises(InputError, match="device a: name: comes twice"):
        _cut([Device(name="a")], [Device(name="a")])


def test_an_empty_counter_set_is_refused() -> None:
    """The API server would refuse the whole pool for it."""
    with pytest.raises(InputError, match="counter set s: counters: has no counters"):
        _cut(sets=(CounterSet(name="s"),))
    one = CounterSet(name="s", counters={"c": Counter(value=Quantity.of(1))})
    with pytest.raises(InputError, match="counter set s: name: comes twice"):
        _cut(sets=(one, one))


def test_consumption_must_name_what_is_there() -> None:
    """A device that consumes from a missing set or counter would never be allocatable."""
    one = CounterSet(name="s", counters={"c": Counter(value=Quantity.of(1))})
    for name, counter, message in (
        ("other", "c", r"consumesCounters\[0\].counterSet: counter set 'other' is not"),
        ("s", "d", r"counters\[d\]: counter set 's' has no counter 'd'"),
    ):
        taken = {counter: Counter(value=Quantity.of(1))}
        device = Device(
            name="a", consumes_counters=(CounterConsumption(counter_set=name, counters=taken),)
        )
        with pytest.raises(InputError, match=message):
            _cut([device], sets=(one,))


def test_slices_are_named_after_pool_driver_and_place() -> None:
    """Counter slices sort before device slices, and numbers sort as text."""
    one = CounterSet(name="s", counters={"c": Counter(value=Quantity.of(1))})
    cut = _cut([Device(name="a")], [Device(name="b")], sets=(one,))
    assert [one.name for one in cut.slices] == [
        "n-gpu.gpudra.io-counters-00000",
        "n-gpu.gpudra.io-devices-00000",
        "n-gpu.gpudra.io-devices-00001",
    ]


@given(st.integers(1, 63), st.integers(0, 2))
def test_long_and_nested_pool_names_stay_legal_and_distinct(length: int, slashes: int) -> None:
    """A name of 253 characters fits, and cutting it does not make two pools one."""
    label = "a" * length
    first = "/".join([".".join([label] * 3)] * (slashes + 1))
    names = {slice_base_name(f"{first}{end}"[:253], DRIVER) for end in ("b", "c")}
    for name in names:
        check_dns_subdomain(f"{name}-counters-00000", "name")
    assert len(names) == (2 if len(first) < 253 else 1)
