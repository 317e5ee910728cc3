# SPDX-License-Identifier: Apache-2.0
"""Health of cards as a state machine: events and readings in, causes out. Pure.

Run by the node agent's health monitor; what comes out becomes device taints (one key per cause)
and the kubelet's health stream (gpudra.driver.core.healthview).

A cause begins with an event or a reading and ends when the hardware says so, never since another,
smaller one came along:

=============== ============================== ===================================================
cause           begins                         ends
=============== ============================== ===================================================
xid-<n>         event                          RECOVERED; the recovery action that followed it is
                                               done (none again); the lost card is back; its MIG
                                               instance is gone; harmless ones after ten minutes
ecc             event, or uncorrected errors   RECOVERED, or the counter is zero again
lost            event, or a reading            the card answers again
recovery        the driver asks for an action  the driver asks for none
missing-file    a device file is not there     it is
unmonitored     no events can be had           events can be had
driver-missing  the driver does not answer     it does
=============== ============================== ===================================================
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from gpudra.api.resource_v1 import EFFECT_NONE, NO_SCHEDULE
from gpudra.driver.core.inventory import Gpu, Inventory, RecoveryAction

LOST = "lost"
ECC = "ecc"
UNMONITORED = "unmonitored"
RECOVERY = "recovery"
MISSING_FILE = "missing-file"
DRIVER_MISSING = "driver-missing"
_XID = "xid-"
# The value of a taint is that of a label.
_NOT_VALUE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_VALUE = 63

# Faults of the application, not of the card (NVIDIA's XID catalogue): graphics exception, page
# fault, channel stopped by an earlier error or its time-out, a preemptive clean-up, a video decoder
# exception, a context switch that took too long.
HARMLESS_XIDS = frozenset({13, 31, 43, 45, 68, 109})
# How long a harmless XID shows; nothing else ends it, since it leaves nothing behind.
HARMLESS_SECONDS = 600.0

_NO_EFFECTS: Mapping[str, str] = MappingProxyType({})


class HealthKind(StrEnum):
    """What a health event tells."""

    XID = "xid"
    ECC_UNCORRECTED = "eccUncorrected"
    LOST = "lost"
    RECOVERED = "recovered"
    UNMONITORED = "unmonitored"
    MONITORED = "monitored"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """Something happened to a card, or to one MIG instance of it.

    Attributes:
        gpu: key of the card; None means that the event could not be tied to one (all of them).
        kind: what it is. RECOVERED ends the cause ``xid`` names, or every cause without one.
        xid: number, for XID and RECOVERED.
        gpu_instance_id: for MIG.
        message: for people.
    """

    gpu: str | None
    kind: HealthKind
    xid: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """How bad each cause is.

    Attributes:
        effects: taint effect by cause (``xid-79``, ``ecc``, …): what differs from the defaults,
            which are None for HARMLESS_XIDS and ``unmonitored`` and NoSchedule for the rest.
    """

    effects: Mapping[str, str] = field(default_factory=lambda: _NO_EFFECTS)

    @classmethod
    def of_xids(cls, xids: Mapping[int, str]) -> "HealthPolicy":
        """Overrides by XID number."""
        return cls(effects={xid_cause(number): effect for number, effect in xids.items()})

    def effect(self, cause: str) -> str:
        """The taint effect of a cause."""
        found = self.effects.get(cause)
        if found is not None:
            return found
        number = xid_of(cause)
        harmless = cause == UNMONITORED or number in HARMLESS_XIDS
        return EFFECT_NONE if harmless else NO_SCHEDULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a card, or one instance of it, is not as it should be.

    Attributes:
        key: ``xid-79``; unique for a card together with the instance.
        message: for people.
        value: of the taint: what the key leaves open, in at most 63 characters.
        gpu_instance_id: the MIG instance that alone is meant; None: the whole card.
        since: seconds on the caller's clock, of the last time it happened.
        confirmed: a reading has shown it too (or that instance), so that a reading may end it.
    """

    key: str
    message: str = ""
    value: str = ""
    gpu_instance_id: int | None = None
    since: float = 0.0
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class HealthState:
    """Causes by key of the card; every card that was ever seen has an entry.

    Attributes:
        cards: what is wrong with each card, ascending by key and instance.
        driver: why the driver as a whole does not answer; empty when it does.
    """

    cards: Mapping[str, tuple[Cause, ...]] = field(default_factory=dict)
    driver: str = ""

    def causes(self, gpu: str) -> tuple[Cause, ...]:
        """What is wrong with a card, the driver included."""
        found = self.cards.get(gpu, ())
        if self.driver:
            return (*found, Cause(key=DRIVER_MISSING, message=self.driver))
        return found


def xid_cause(number: int) -> str:
    """Key of an XID's cause."""
    return f"{_XID}{number}"


def xid_of(cause: str) -> int | None:
    """The number of an XID's cause; None for any other."""
    number = cause.removeprefix(_XID)
    return int(number) if cause.startswith(_XID) and number.isdigit() else None


def after_event(state: HealthState, event: HealthEvent, now: float) -> HealthState:
    """The state after something happened.

    Args:
        state: before.
        event: what happened.
        now: seconds on the caller's clock.
    """
    targets = list(state.cards) if event.gpu is None else [event.gpu]
    cards = dict(state.cards)
    for gpu in targets:
        cards[gpu] = _happened(cards.get(gpu, ()), event, now)
    return replace(state, cards=cards)


def _happened(causes: tuple[Cause, ...], event: HealthEvent, now: float) -> tuple[Cause, ...]:
    if event.kind is HealthKind.RECOVERED:
        return _without(causes, lambda cause: _is_recovered(cause, event))
    if event.kind is HealthKind.MONITORED:
        return _without(causes, lambda cause: cause.key == UNMONITORED)
    keys = {
        HealthKind.ECC_UNCORRECTED: ECC,
        HealthKind.LOST: LOST,
        HealthKind.UNMONITORED: UNMONITORED,
    }
    key = keys.get(event.kind) or xid_cause(event.xid or 0)
    # A lost or deaf card is so with all of its instances.
    instance = event.gpu_instance_id if event.kind is not HealthKind.LOST else None
    return _with(
        causes,
        Cause(key=key, message=event.message, gpu_instance_id=instance, since=now),
    )


def _is_recovered(cause: Cause, event: HealthEvent) -> bool:
    if event.gpu_instance_id not in (None, cause.gpu_instance_id):
        return False
    # Whether events can be had is not the card's own trouble, and the driver's wish is a reading.
    own = cause.key not in (UNMONITORED, RECOVERY)
    return own if event.xid is None else cause.key == xid_cause(event.xid)


def after_reading(
    state: HealthState, inventory: Inventory, policy: HealthPolicy, now: float
) -> HealthState:
    """The state after all cards were read. The same reading twice changes nothing more.

    A card that was known and is not there any more is lost.
    """
    cards = dict(state.cards)
    present = {gpu.key: gpu for gpu in inventory.gpus}
    for key in [*present, *(known for known in cards if known not in present)]:
        found = present.get(key)
        causes = cards.get(key, ())
        if found is None:
            gone = Cause(key=LOST, message="the card is not there any more", since=now)
            cards[key] = _with(causes, replace(gone, confirmed=True))
            continue
        causes = _after_presence(causes, found, now)
        causes = _after_readings(causes, found, now)
        causes = _after_instances(causes, found)
        cards[key] = _without(causes, lambda cause: _is_over(cause, policy, now))
    return replace(state, cards=cards, driver="")


def driver_gone(state: HealthState, why: str) -> HealthState:
    """The state while the driver as a whole does not answer; the next reading ends it."""
    return replace(state, driver=why)


def _after_presence(causes: tuple[Cause, ...], gpu: Gpu, now: float) -> tuple[Cause, ...]:
    if gpu.lost:
        lost = Cause(key=LOST, message="the card does not answer", since=now, confirmed=True)
        return _with(causes, lost)
    if any(cause.key == LOST and cause.confirmed for cause in causes):
        # It came back through a reset, which ends what was wrong before, the XIDs included.
        return _without(causes, lambda cause: cause.key == LOST or xid_of(cause.key) is not None)
    return causes


def _after_readings(causes: tuple[Cause, ...], gpu: Gpu, now: float) -> tuple[Cause, ...]:
    if gpu.lost:
        return causes  # the last readings of a card that does not answer say nothing about today
    action, errors = gpu.health.recovery_action, gpu.health.uncorrected_ecc
    if action is RecoveryAction.NONE:
        causes = _without(
            causes,
            lambda cause: cause.key == RECOVERY or (_is_card_xid(cause) and cause.confirmed),
        )
    elif action is not None:
        causes = tuple(
            replace(cause, confirmed=True) if _is_card_xid(cause) else cause for cause in causes
        )
        wish = Cause(
            key=RECOVERY, message=f"the driver asks for {action}", value=str(action), since=now
        )
        causes = _with(causes, replace(wish, confirmed=True))
    causes = _after_files(causes, gpu.health.missing_files, now)
    if errors:
        text = f"{errors} uncorrectable memory errors"
        causes = _with(causes, Cause(key=ECC, message=text, since=now, confirmed=True))
    elif errors == 0:
        causes = _without(
            causes, lambda cause: cause.key == ECC and cause.confirmed and not _of_instance(cause)
        )
    return causes


def _after_files(
    causes: tuple[Cause, ...], missing: tuple[str, ...], now: float
) -> tuple[Cause, ...]:
    causes = _without(causes, lambda cause: cause.key == MISSING_FILE and not missing)
    if not missing:
        return causes
    text = f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not exist"
    value = _NOT_VALUE.sub("-", missing[0].rpartition("/")[2])[:_MAX_VALUE].strip("-._")
    return _with(
        causes, Cause(key=MISSING_FILE, message=text, value=value, since=now, confirmed=True)
    )


def _after_instances(causes: tuple[Cause, ...], gpu: Gpu) -> tuple[Cause, ...]:
    """A cause of an instance ends with it: the next one of that number is another."""
    if gpu.mig is None or gpu.mig.instances is None:
        return causes
    there = {one.gpu_instance_id for one in gpu.mig.instances}
    causes = _without(
        causes,
        lambda cause: (
            _of_instance(cause) and cause.confirmed and cause.gpu_instance_id not in there
        ),
    )
    # An event may be quicker than the reading that shows its instance for the first time.
    return tuple(
        replace(cause, confirmed=True) if cause.gpu_instance_id in there else cause
        for cause in causes
    )


def _is_over(cause: Cause, policy: HealthPolicy, now: float) -> bool:
    harmless = xid_of(cause.key) is not None and policy.effect(cause.key) == EFFECT_NONE
    return harmless and now - cause.since >= HARMLESS_SECONDS


def _of_instance(cause: Cause) -> bool:
    return cause.gpu_instance_id is not None


def _is_card_xid(cause: Cause) -> bool:
    return xid_of(cause.key) is not None and not _of_instance(cause)


def _place(cause: Cause) -> tuple[str, int]:
    return (cause.key, -1 if cause.gpu_instance_id is None else cause.gpu_instance_id)


def _with(causes: Iterable[Cause], new: Cause) -> tuple[Cause, ...]:
    """With one more; one that is there already keeps what readings have confirmed of it."""
    found = {_place(cause): cause for cause in causes}
    before = found.get(_place(new))
    if before is not None:
        if new.confirmed and before.confirmed and before.message == new.message:
            new = before  # the same reading again
        new = replace(new, confirmed=new.confirmed or before.confirmed)
    found[_place(new)] = new
    return tuple(found[place] for place in sorted(found))


def _without(causes: Iterable[Cause], ended: Callable[[Cause], bool]) -> tuple[Cause, ...]:
    return tuple(cause for cause in causes if not ended(cause))
