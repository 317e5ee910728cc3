# SPDX-License-Identifier: Apache-2.0
"""The state machine of health: causes begin with events and readings, and end with what ends them."""

from dataclasses import replace

import pytest

from gpudra.api.names import MAX_TAINTS_PER_DEVICE
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.health import (
    HARMLESS_SECONDS,
    HealthEvent,
    HealthKind,
    HealthPolicy,
    HealthState,
    after_event,
    after_reading,
    driver_gone,
)
from gpudra.driver.core.healthview import DeviceHealth, device_health, device_taints
from gpudra.driver.core.inventory import (
    Gpu,
    HealthReadings,
    Inventory,
    MigInfo,
    MigInstance,
    MigProfile,
    Placement,
    RecoveryAction,
)

DRIVER = "gpu.gpudra.io"
POLICY = HealthPolicy()
CARD = Gpu(uuid="GPU-a")
OTHER = Gpu(uuid="GPU-b")


def xid(number: int, gpu: str | None = "GPU-a", instance: int | None = None) -> HealthEvent:
    """An XID event."""
    return HealthEvent(
        gpu=gpu, kind=HealthKind.XID, xid=number, gpu_instance_id=instance, message=f"XID {number}"
    )


def event(kind: HealthKind, number: int | None = None) -> HealthEvent:
    """An event of the card."""
    return HealthEvent(gpu="GPU-a", kind=kind, xid=number)


def read(state: HealthState, *gpus: Gpu, now: float = 1.0) -> HealthState:
    """After a reading of these cards."""
    return after_reading(state, Inventory(gpus=gpus), POLICY, now)


def wanting(action: RecoveryAction | None, gpu: Gpu = CARD) -> Gpu:
    """A card of which the driver wants something done."""
    return replace(gpu, health=HealthReadings(recovery_action=action))


def keys(state: HealthState, gpu: str = "GPU-a") -> list[str]:
    """Causes of a card."""
    return [cause.key for cause in state.causes(gpu)]


def whole(gpu: Gpu) -> AllocatableDevice:
    """The whole card."""
    return AllocatableDevice(name=f"dev-{gpu.uuid}", kind=DeviceKind.WHOLE, gpu=gpu)


def effects(
    state: HealthState, device: AllocatableDevice, policy: HealthPolicy = POLICY
) -> dict[str, str]:
    """Taints of a device: cause to effect."""
    marks = device_taints(state, [device], policy, DRIVER).get(device.name, ())
    return {mark.key.removeprefix(f"{DRIVER}/"): mark.effect for mark in marks}


KNOWN = read(HealthState(), CARD, OTHER)


def test_each_xid_is_a_cause_of_its_own() -> None:
    """A harmless XID after a fatal one takes nothing away."""
    state = after_event(KNOWN, xid(79), 2)
    state = after_event(state, xid(31), 3)
    assert effects(state, whole(CARD)) == {"xid-79": "NoSchedule", "xid-31": "None"}
    assert keys(state, "GPU-b") == []


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_faults_of_the_application_keep_no_claim_off(number: int) -> None:
    """They are shown with effect None, and the device stays healthy."""
    state = after_event(KNOWN, xid(number), 2)
    assert effects(state, whole(CARD)) == {f"xid-{number}": "None"}
    assert device_health(state, [whole(CARD)], POLICY)["dev-GPU-a"].health is DeviceHealth.HEALTHY


def test_a_policy_decides_how_bad_an_xid_is() -> None:
    """Overrides go both ways and count for what has happened already."""
    state = after_event(after_event(KNOWN, xid(79), 2), xid(13), 2)
    policy = HealthPolicy.of_xids({79: "NoExecute", 13: "NoSchedule"})
    assert effects(state, whole(CARD), policy) == {"xid-79": "NoExecute", "xid-13": "NoSchedule"}


def test_an_event_of_no_card_counts_for_all() -> None:
    """What cannot be tied to a card is held against each."""
    state = after_event(KNOWN, xid(79, gpu=None), 2)
    assert keys(state, "GPU-a") == keys(state, "GPU-b") == ["xid-79"]


def test_a_cause_ends_when_the_driver_wants_nothing_done_any_more() -> None:
    """The recovery action that follows an XID, and its end, are the cause's end."""
    state = after_event(KNOWN, xid(95), 2)
    state = read(state, wanting(RecoveryAction.GPU_RESET))
    assert keys(state) == ["recovery", "xid-95"]
    assert keys(read(state, wanting(RecoveryAction.NONE))) == []


def test_a_driver_that_never_wanted_anything_does_not_end_an_xid() -> None:
    """An answer of none before the driver has decided is not none again."""
    state = after_event(KNOWN, xid(79), 2)
    state = read(state, wanting(RecoveryAction.NONE))
    assert keys(state) == ["xid-79"]
    assert keys(after_event(state, event(HealthKind.RECOVERED), 3)) == []


def test_a_recovery_may_name_one_xid() -> None:
    """Others stay."""
    state = after_event(after_event(KNOWN, xid(79), 2), xid(48), 2)
    assert keys(after_event(state, event(HealthKind.RECOVERED, 79), 3)) == ["xid-48"]


def test_a_lost_card_that_is_back_has_been_reset() -> None:
    """Its XIDs are over with it; so for a card that was unplugged."""
    state = after_event(KNOWN, xid(79), 2)
    for gone in (read(state, replace(CARD, lost=True), OTHER), read(state, OTHER)):
        assert keys(gone) == ["lost", "xid-79"]
        assert keys(read(gone, CARD, OTHER)) == []


def test_a_loss_that_only_an_event_told_stays_until_a_reading_could_know() -> None:
    """A reading that began before the loss does not end it."""
    state = after_event(KNOWN, event(HealthKind.LOST), 2)
    assert keys(read(state, CARD)) == ["lost"]
    assert keys(after_event(state, event(HealthKind.RECOVERED), 3)) == []


def test_uncorrectable_errors_end_with_the_counter() -> None:
    """A reading of zero ends what a reading has shown."""
    bad = replace(CARD, health=HealthReadings(uncorrected_ecc=2))
    state = read(after_event(KNOWN, event(HealthKind.ECC_UNCORRECTED), 2), bad)
    assert effects(state, whole(CARD)) == {"ecc": "NoSchedule"}
    assert keys(read(state, replace(CARD, health=HealthReadings(uncorrected_ecc=0)))) == []


def test_a_card_without_events_is_not_judged() -> None:
    """Unmonitored: no claim is kept off, and the kubelet hears Unknown."""
    state = after_event(KNOWN, event(HealthKind.UNMONITORED), 2)
    assert effects(state, whole(CARD)) == {"unmonitored": "None"}
    assert device_health(state, [whole(CARD)], POLICY)["dev-GPU-a"].health is DeviceHealth.UNKNOWN
    assert keys(after_event(state, event(HealthKind.MONITORED), 3)) == []


def test_harmless_xids_fade() -> None:
    """After ten minutes without another one; a fatal one stays for ever."""
    state = after_event(after_event(KNOWN, xid(31), 100), xid(79), 100)
    assert keys(read(state, CARD, now=100 + HARMLESS_SECONDS - 1)) == ["xid-31", "xid-79"]
    assert keys(read(state, CARD, now=100 + HARMLESS_SECONDS)) == ["xid-79"]


def test_without_the_driver_nothing_is_given_out() -> None:
    """All devices are tainted until the next reading."""
    state = driver_gone(KNOWN, "no library")
    assert effects(state, whole(CARD)) == {"driver-missing": "NoSchedule"}
    assert device_health(state, [whole(CARD)], POLICY)["dev-GPU-a"].health is DeviceHealth.UNKNOWN
    assert keys(read(state, CARD)) == []


def test_more_causes_than_the_api_takes_leave_the_worst() -> None:
    """The card is not left out of the slice for it."""
    state = KNOWN
    for number in (13, *range(200, 230), 31):
        state = after_event(state, xid(number), 2)
    found = effects(state, whole(CARD))
    assert len(found) < MAX_TAINTS_PER_DEVICE
    assert set(found.values()) == {"NoSchedule"}


def test_a_monitor_may_look_at_a_sick_card_but_not_at_a_lost_one() -> None:
    """It is what admins look at sick cards with."""
    monitor = AllocatableDevice(name="m", kind=DeviceKind.MONITOR, gpu=CARD)
    assert effects(after_event(KNOWN, xid(79), 2), monitor) == {"xid-79": "None"}
    assert effects(read(KNOWN, OTHER), monitor) == {"lost": "NoSchedule"}


# --- MIG -----------------------------------------------------------------------------------------

PROFILE = MigProfile(
    id=19,
    name="1g.10gb",
    compute_slices=1,
    max_instances=7,
    placements=tuple(Placement(start=start, size=1) for start in range(7)),
)


def card_with(*instances: tuple[int, int]) -> Gpu:
    """A card with instances: id and start."""
    made = tuple(
        MigInstance(
            uuid=f"MIG-{number}",
            profile_id=19,
            gpu_instance_id=number,
            compute_instance_id=0,
            placement=Placement(start=start, size=1),
        )
        for number, start in instances
    )
    mig = MigInfo(enabled=True, profiles=(PROFILE,), instances=made)
    return replace(CARD, mig=mig)


def placed(gpu: Gpu, start: int) -> AllocatableDevice:
    """The dynamic device at a place."""
    return AllocatableDevice(
        name=f"mig-{start}",
        kind=DeviceKind.MIG,
        gpu=gpu,
        profile=PROFILE,
        placement=Placement(start=start, size=1),
    )


def test_an_event_of_an_instance_taints_its_device_only() -> None:
    """Found by profile and place, whether the device is static or dynamic."""
    gpu = card_with((3, 0), (4, 5))
    state = read(after_event(read(HealthState(), gpu), xid(95, instance=4), 2), gpu)
    assert effects(state, placed(gpu, 5)) == {"xid-95": "NoSchedule"}
    assert effects(state, placed(gpu, 0)) == {}
    assert effects(state, whole(gpu)) == {}
    static = AllocatableDevice(
        name="s",
        kind=DeviceKind.MIG,
        gpu=gpu,
        instance=gpu.mig.instances[1] if gpu.mig and gpu.mig.instances else None,
    )
    assert effects(state, static) == {"xid-95": "NoSchedule"}


def test_an_event_of_the_card_taints_every_instance() -> None:
    """An XID without an instance matches all."""
    gpu = card_with((3, 0))
    state = after_event(read(HealthState(), gpu), xid(79), 2)
    assert (
        effects(state, placed(gpu, 0)) == effects(state, placed(gpu, 6)) == {"xid-79": "NoSchedule"}
    )


def test_an_instance_that_no_reading_shows_yet_is_one_of_the_cards() -> None:
    """The event is quicker than the reading: all MIG devices until it is known which."""
    gpu = card_with()
    state = read(after_event(read(HealthState(), gpu), xid(95, instance=4), 2), gpu)
    assert (
        effects(state, placed(gpu, 5)) == effects(state, placed(gpu, 0)) == {"xid-95": "NoSchedule"}
    )
    shown = card_with((4, 5))
    state = read(state, shown)
    assert effects(state, placed(shown, 0)) == {}
    assert effects(state, placed(shown, 5)) == {"xid-95": "NoSchedule"}


def test_a_cause_ends_with_its_instance() -> None:
    """The next instance of that number is another one."""
    gpu = card_with((4, 5))
    state = read(after_event(read(HealthState(), gpu), xid(95, instance=4), 2), gpu)
    state = read(state, card_with())
    assert keys(read(state, card_with((4, 0)))) == []
