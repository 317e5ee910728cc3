# SPDX-License-Identifier: Apache-2.0
"""Health events through the real pynvml."""

import threading

from gpudra.driver.core.inventory import RecoveryAction
from gpudra.driver.devicelib.protocol import HealthEvent, HealthKind
from tests.unit.nvml.conftest import Start

PATIENCE = 10.0  # a bound, not a wait: events come within milliseconds


def kinds(events: tuple[HealthEvent, ...]) -> list[tuple[str | None, HealthKind, int | None]]:
    """What matters of the events."""
    return [(event.gpu, event.kind, event.xid) for event in events]


def test_an_xid_names_its_card_and_instance(start: Start) -> None:
    """An XID event carries card, number and MIG instance."""
    lib, machine = start("dgx-h100-8x80")
    gpu = lib.discover().gpus[5]
    assert lib.health.wait(0) == ()
    lib.health.wait(0.01)
    machine.ctl("xid", gpu.uuid, 79, 3, 0)
    (event,) = lib.health.wait(PATIENCE)
    assert (event.gpu, event.kind, event.xid, event.gpu_instance_id) == (
        gpu.key,
        HealthKind.XID,
        79,
        3,
    )


def test_a_card_that_is_lost_and_found_makes_one_event_each(start: Start) -> None:
    """Losing a card is told once, and so is its return."""
    lib, machine = start("l4-4x")
    gpu = lib.discover().gpus[1]
    lib.health.wait(0.01)
    machine.ctl("lost", gpu.uuid)
    assert kinds(lib.health.wait(PATIENCE)) == [(gpu.key, HealthKind.LOST, None)]
    machine.ctl("found", gpu.uuid)
    assert kinds(lib.health.wait(PATIENCE)) == [(gpu.key, HealthKind.RECOVERED, None)]


def test_a_card_without_events_is_unmonitored(start: Start) -> None:
    """A card that cannot be listened to is told as such, and the others are heard."""
    lib, machine = start("l4-4x")
    gpus = lib.discover().gpus
    machine.ctl("fail", "nvmlDeviceRegisterEvents", 3, gpus[0].uuid)
    assert kinds(lib.health.wait(PATIENCE)) == [(gpus[0].key, HealthKind.UNMONITORED, None)]
    machine.ctl("ecc", gpus[1].uuid, "double")
    assert kinds(lib.health.wait(PATIENCE)) == [(gpus[1].key, HealthKind.ECC_UNCORRECTED, None)]


def test_closing_ends_a_wait(start: Start) -> None:
    """A thread that waits for events returns when the library is closed."""
    lib, _ = start("l4-4x")
    lib.discover()
    waiting = threading.Thread(target=lib.health.wait, args=(3600.0,))
    waiting.start()
    lib.health.close()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_the_end_of_a_recovery_action_is_a_recovery(start: Start) -> None:
    """The driver asks for something: a reading tells. It asks for nothing any more: an event."""
    lib, machine = start("l4-4x")
    gpu = lib.discover().gpus[0]
    lib.health.wait(0.01)
    machine.ctl("recovery", gpu.uuid, 1)
    assert lib.health.wait(0.2) == ()
    assert lib.discover().gpus[0].health.recovery_action is RecoveryAction.GPU_RESET
    machine.ctl("recovery", gpu.uuid, 0)
    assert kinds(lib.health.wait(PATIENCE)) == [(gpu.key, HealthKind.RECOVERED, None)]


def test_a_card_that_can_be_listened_to_again_is_told(start: Start) -> None:
    """After the next change of cards, when all are registered anew."""
    lib, machine = start("l4-4x")
    gpus = lib.discover().gpus
    machine.ctl("fail", "nvmlDeviceRegisterEvents", 3, gpus[0].uuid)
    assert kinds(lib.health.wait(PATIENCE)) == [(gpus[0].key, HealthKind.UNMONITORED, None)]
    machine.ctl("heal")
    machine.ctl("remove", gpus[3].uuid)
    lib.discover()
    assert kinds(lib.health.wait(PATIENCE)) == [(gpus[0].key, HealthKind.MONITORED, None)]
    machine.ctl("xid", gpus[0].uuid, 31)
    assert kinds(lib.health.wait(PATIENCE)) == [(gpus[0].key, HealthKind.XID, 31)]


def test_a_card_that_left_does_not_answer_again(start: Start) -> None:
    """Once it is not listed any more, nothing is said about it."""
    lib, machine = start("l4-4x")
    gpu = lib.discover().gpus[1]
    lib.health.wait(0.01)
    machine.ctl("remove", gpu.uuid)
    assert kinds(lib.health.wait(PATIENCE)) == [(gpu.key, HealthKind.LOST, None)]
    assert len(lib.discover().gpus) == 3
    assert lib.health.wait(0.2) == ()
