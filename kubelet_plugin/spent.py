# SPDX-License-Identifier: Apache-2.0
"""Where the time of one claim's Prepare or Unprepare goes, and in which form its devices are.

The gRPC service opens an account for each claim, whoever works for the claim books onto it, and
the metrics are made from it. It follows the work into tasks and worker threads by itself, so
nothing has to be handed down. Work outside of a call (sweeps, recovery) is booked nowhere.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.prepare import PreparePlan
from gpudra.kubelet_plugin.records import ClaimRecord

# Forms of a claim, beside those of devices.
MIXED, NOTHING, UNKNOWN = "mixed", "none", "unknown"


class Phase(StrEnum):
    """Parts of an operation; they never overlap within one claim."""

    LOCK = "lock"  # waiting for another claim of the same card, or another instance
    HARDWARE = "hardware"  # NVML, or what other libraries do in its place; isolation backends
    CDI = "cdi"  # files for the container runtime
    CHECKPOINT = "checkpoint"
    API = "api"


class Account:
    """What one claim's operation spent. ``form`` is that of its devices, once it is known."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.form = UNKNOWN
        self.seconds: dict[Phase, float] = {}
        self._monotonic = monotonic

    @contextlib.contextmanager
    def spending(self, phase: Phase) -> Iterator[None]:
        """Books the time of the block, also if it fails."""
        began = self._monotonic()
        try:
            yield
        finally:
            spent = self._monotonic() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent


_current: contextvars.ContextVar[Account | None] = contextvars.ContextVar("account", default=None)


@contextlib.contextmanager
def opened(account: Account) -> Iterator[None]:
    """Everything inside is booked onto this account."""
    token = _current.set(account)
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def spending(phase: Phase) -> Iterator[None]:
    """Books the time of the block onto the open account, if there is one."""
    account = _current.get()
    if account is None:
        yield
        return
    with account.spending(phase):
        yield


def note_form(form: str) -> None:
    """Tells the open account the form of the claim's devices."""
    account = _current.get()
    if account is not None:
        account.form = form


def form_of_plan(plan: PreparePlan) -> str:
    """``gpu``, ``mig``, ``share`` or ``monitor``; ``mixed``; ``none`` without devices."""
    return _form(part.kind.value for part in plan.parts.values())


def form_of_record(record: ClaimRecord) -> str:
    """The same for a claim that was prepared before. Admin access holds nothing: a monitor."""
    kinds = [hold.kind for hold in record.holds]
    if any(one.admin_access for one in record.results):
        kinds.append(DeviceKind.MONITOR.value)
    return _form(kinds)


def _form(kinds: Iterable[str]) -> str:
    found = set(kinds)
    if len(found) > 1:
        return MIXED
    # Labels are a closed set, whatever a newer version has written.
    return next((one if one in set(DeviceKind) else UNKNOWN for one in found), NOTHING)
