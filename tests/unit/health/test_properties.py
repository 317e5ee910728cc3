# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to cards: nothing is downgraded, and everything clears."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.health import (
    HealthEvent,
    HealthKind,
    HealthPolicy,
    HealthState,
    after_event,
    after_reading,
    driver_gone,
)
from gpudra.driver.core.healthview import device_taints
from gpudra.driver.core.inventory import Gpu, HealthReadings, Inventory, RecoveryAction
from gpudra.driver.core.taints import SEVERITY

KEYS = ("GPU-a", "GPU-b")
XIDS = (13, 31, 48, 79, 94, 95)
WELL = Inventory(
    gpus=tuple(
        Gpu(
            uuid=key,
            health=HealthReadings(recovery_action=RecoveryAction.NONE, uncorrected_ecc=0),
        )
        for key in KEYS
    )
)
TROUBLE = tuple(
    kind for kind in HealthKind if kind not in (HealthKind.RECOVERED, HealthKind.MONITORED)
)


def events(kinds: tuple[HealthKind, ...]) -> st.SearchStrategy[HealthEvent]:
    """Events of either card, or of none."""
    return st.builds(
        HealthEvent,
        gpu=st.sampled_from([*KEYS, None]),
        kind=st.sampled_from(kinds),
        xid=st.sampled_from(XIDS),
        gpu_instance_id=st.sampled_from([None, 1, 2]),
    )


CARDS = st.builds(
    Gpu,
    uuid=st.sampled_from(KEYS),
    lost=st.booleans(),
    health=st.builds(
        HealthReadings,
        recovery_action=st.sampled_from([None, *RecoveryAction]),
        uncorrected_ecc=st.sampled_from([None, 0, 3]),
    ),
)
READINGS = st.builds(
    Inventory, gpus=st.lists(CARDS, max_size=2, unique_by=lambda gpu: gpu.key).map(tuple)
)
POLICIES = st.builds(
    HealthPolicy.of_xids, st.dictionaries(st.sampled_from(XIDS), st.sampled_from(sorted(SEVERITY)))
)
STEPS = st.lists(
    st.one_of(events(tuple(HealthKind)), READINGS, st.just("driver gone")), max_size=12
)
DEVICES = tuple(
    AllocatableDevice(name=key.lower(), kind=DeviceKind.WHOLE, gpu=gpu)
    for key, gpu in zip(KEYS, WELL.gpus, strict=True)
)


def after(steps: list[object], policy: HealthPolicy) -> HealthState:
    """The state after all of it, one second a step."""
    state = after_reading(HealthState(), WELL, policy, 0)
    for now, step in enumerate(steps, start=1):
        if isinstance(step, HealthEvent):
            state = after_event(state, step, now)
        elif isinstance(step, Inventory):
            state = after_reading(state, step, policy, now)
        else:
            state = driver_gone(state, str(step))
    return state


def severities(state: HealthState, policy: HealthPolicy) -> dict[tuple[str, str], int]:
    """Severity by device and taint."""
    found = device_taints(state, DEVICES, policy, "gpu.gpudra.io")
    return {
        (name, mark.key): SEVERITY[mark.effect] for name, marks in found.items() for mark in marks
    }


@given(STEPS, POLICIES, events(TROUBLE))
def test_trouble_never_makes_a_card_look_better(
    steps: list[object], policy: HealthPolicy, event: HealthEvent
) -> None:
    """No event but a recovery takes a taint away or makes it weaker."""
    before = after(steps, policy)
    later = severities(after_event(before, event, 99), policy)
    assert all(
        later.get(key, -1) >= severity for key, severity in severities(before, policy).items()
    )


@given(STEPS, POLICIES)
def test_recovery_and_good_readings_clear_exactly_everything(
    steps: list[object], policy: HealthPolicy
) -> None:
    """After each card recovered, can be listened to and reads well, no taint is left."""
    state = after(steps, policy)
    for kind in (HealthKind.RECOVERED, HealthKind.MONITORED):
        state = after_event(state, HealthEvent(gpu=None, kind=kind), 99)
    assert severities(after_reading(state, WELL, policy, 99), policy) == {}


@given(STEPS, POLICIES, st.sampled_from(XIDS))
def test_a_named_recovery_clears_that_xid_and_nothing_else(
    steps: list[object], policy: HealthPolicy, number: int
) -> None:
    """All other taints of all cards stay as they are."""
    state = after(steps, policy)
    event = HealthEvent(gpu="GPU-a", kind=HealthKind.RECOVERED, xid=number)
    expected = {
        key: severity
        for key, severity in severities(state, policy).items()
        if key != ("gpu-a", f"gpu.gpudra.io/xid-{number}")
    }
    assert severities(after_event(state, event, 99), policy) == expected


@given(STEPS, POLICIES, READINGS)
def test_the_same_reading_twice_changes_nothing_more(
    steps: list[object], policy: HealthPolicy, inventory: Inventory
) -> None:
    """So a poll that finds nothing new writes nothing."""
    once = after_reading(after(steps, policy), inventory, policy, 99)
    assert after_reading(once, inventory, policy, 99) == once


@given(STEPS, POLICIES)
def test_one_card_never_speaks_for_another(steps: list[object], policy: HealthPolicy) -> None:
    """What happened to the first card alone leaves the second as it was."""
    mine = [
        step if not isinstance(step, HealthEvent) else replace(step, gpu="GPU-a")
        for step in steps
        if isinstance(step, HealthEvent)
    ]
    found = severities(after(list(mine), policy), policy)
    assert not any(name == "gpu-b" for name, _ in found)
