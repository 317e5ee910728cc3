# SPDX-License-Identifier: Apache-2.0
"""Keeps the health of the node's cards: events and readings in, taints and stream out.

One thread waits for events of the device library; readings come from Hardware every two seconds.
What the hardware tells only once (XIDs) is kept in ``health.json`` until the node boots again, so
that a restart of the agent forgets nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpudra.api.errors import HardwareError
from gpudra.api.resource_v1 import DeviceTaint
from gpudra.driver.core.allocatable import AllocatableDevice
from gpudra.driver.core.health import (
    Cause,
    HealthPolicy,
    HealthState,
    after_event,
    after_reading,
    driver_gone,
)
from gpudra.driver.core.healthview import (
    DeviceHealth,
    HealthReport,
    device_health,
    device_taints,
    sick_cards,
)
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.devicelib.protocol import HealthLib
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.health_store import HealthStore

# How long one wait for events takes at most; also how often the thread proves that it lives.
_WAIT_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# One failed look may be a hiccup; two in a row are some three seconds without the driver.
_MISSES = 2
# After so long without a reading or a sign of the event thread nothing is known any more. The
# kubelet's own default is the same.
TIMEOUT_SECONDS = 30.0

Devices = Callable[[], Mapping[str, AllocatableDevice]]
OnTaints = Callable[[Mapping[str, tuple[DeviceTaint, ...]]], None]
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Health of all devices by name, and when it was known for certain (Unix seconds)."""

    devices: Mapping[str, HealthReport]
    at: float


class HealthMonitor:
    """The state of health, and whoever wants to know of it.

    Args:
        lib: events of the device library; None where it has none.
        store: keeps what must outlive this process.
        devices: the node's devices by name, as published, the same object while they do not change;
            raises HardwareError before they are known.
        driver: name of the driver, the domain of taint keys.
        clock: for pauses and times.
        on_taints: told all taints by device whenever they change.
        on_cause: told each cause that begins: key of the card, the cause.
        wake: asks for a look at the cards, after an event.
    """

    def __init__(
        self,
        lib: HealthLib | None,
        store: HealthStore,
        *,
        devices: Devices,
        driver: str,
        clock: Clock,
        on_taints: OnTaints,
        on_cause: Callable[[str, Cause], None],
        wake: Callable[[], None],
    ) -> None:
        self._lib = lib
        self._store = store
        self._devices = devices
        self._driver = driver
        self._clock = clock
        self._on_taints = on_taints
        self._on_cause = on_cause
        self._wake = wake
        self._policy = HealthPolicy()
        self._state = HealthState(cards=store.load(clock.monotonic()))
        self._taints: Mapping[str, tuple[DeviceTaint, ...]] = {}
        self._reports: Mapping[str, HealthReport] = {}
        self._seen: dict[str, AllocatableDevice] = {}
        self._settled: tuple[HealthState, HealthPolicy, Mapping[str, AllocatableDevice]] | None = (
            None
        )
        self._misses = 0
        self._read_at = clock.monotonic()
        self._heard_at = clock.monotonic()
        self._watchers: set[asyncio.Event] = set()

    @property
    def state(self) -> HealthState:
        """Causes by card, for `gather` and tests."""
        return self._state

    @property
    def taints(self) -> Mapping[str, tuple[DeviceTaint, ...]]:
        """Taints by name of the device."""
        return self._taints

    def sick_cards(self) -> dict[str, str]:
        """Why, by key, for cards that no new claim should get."""
        return sick_cards(self._state, self._policy)

    def set_policy(self, policy: HealthPolicy) -> None:
        """How bad each cause is from now on."""
        if policy != self._policy:
            self._policy = policy
            self._settle(self._state)

    def read(self, inventory: Inventory) -> None:
        """The cards were read; also when nothing changed."""
        self._misses = 0
        self._read_at = self._clock.monotonic()
        self._settle(after_reading(self._state, inventory, self._policy, self._read_at))

    def trouble(self, why: str) -> int:
        """The library was asked in vain; how often in a row."""
        self._misses += 1
        if self._misses >= _MISSES:
            self._settle(driver_gone(self._state, why))
        return self._misses

    async def run(self) -> None:
        """Listens until cancelled."""
        if self._lib is None:
            await asyncio.Event().wait()
            return
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="health")
        try:
            while True:
                await self._listen(loop, executor, self._lib)
        finally:
            # The thread ends with its wait, two seconds later at most, or when the library closes.
            executor.shutdown(wait=False, cancel_futures=True)

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, executor: ThreadPoolExecutor, lib: HealthLib
    ) -> None:
        try:
            events = await loop.run_in_executor(executor, lib.wait, _WAIT_SECONDS)
        except HardwareError as error:
            log.warning("cannot listen for health events, will try again", error=str(error))
            await self._clock.sleep(_RETRY_SECONDS)
            return
        now = self._heard_at = self._clock.monotonic()
        state = self._state
        for event in events:
            log.warning(
                "a GPU reports trouble" if event.kind != "recovered" else "a GPU recovered",
                device=event.gpu or "unknown",
                kind=str(event.kind),
                xid=event.xid,
                gpu_instance=event.gpu_instance_id,
                message=event.message,
            )
            state = after_event(state, event, now)
        if events:
            self._settle(state)
            self._wake()

    # --- what comes out -------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Health now. What is older than the time-out is not known."""
        now = self._clock.monotonic()
        heard = self._read_at if self._lib is None else min(self._read_at, self._heard_at)
        reports = self._reports
        if now - heard > TIMEOUT_SECONDS:
            silent = f"the cards have not been looked at for {now - heard:.0f} s"
            unknown = HealthReport(DeviceHealth.UNKNOWN, silent)
            reports = dict.fromkeys(reports, unknown)
        return Snapshot(reports, self._clock.now().timestamp() - (now - heard))

    @contextlib.contextmanager
    def watching(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever the health of a device changes."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            yield changed
        finally:
            self._watchers.discard(changed)

    def _settle(self, state: HealthState) -> None:
        before, self._state = self._state, state
        if state.cards != before.cards:
            self._tell(before, state)
            self._store.save(state.cards)
        try:
            known = self._devices()
        except HardwareError:
            return
        if self._is_settled(known):
            return
        self._settled = (state, self._policy, known)
        devices = tuple(known.values())
        self._seen |= known
        # Devices of a card that is gone may be in use still: the kubelet is to hear that they are lost.
        gone = [
            device
            for name, device in self._seen.items()
            if name not in known and state.causes(device.gpu.key)
        ]
        self._seen = {device.name: device for device in (*devices, *gone)}
        reports = device_health(state, self._seen.values(), self._policy)
        if reports != self._reports:
            self._reports = reports
            for changed in self._watchers:
                changed.set()
        taints = device_taints(state, devices, self._policy, self._driver)
        if taints != self._taints:
            self._taints = taints
            self._on_taints(taints)

    def _is_settled(self, devices: Mapping[str, AllocatableDevice]) -> bool:
        """Every look ends here: most of the time nothing has changed, and that has to be cheap."""
        if self._settled is None:
            return False
        state, policy, known = self._settled
        return known is devices and policy == self._policy and state == self._state

    def _tell(self, before: HealthState, after: HealthState) -> None:
        for gpu, causes in after.cards.items():
            old = {(cause.key, cause.gpu_instance_id) for cause in before.cards.get(gpu, ())}
            new = {(cause.key, cause.gpu_instance_id) for cause in causes}
            for cause in causes:
                if (cause.key, cause.gpu_instance_id) not in old:
                    log.warning("a GPU is not well", device=gpu, cause=cause.key, why=cause.message)
                    self._on_cause(gpu, cause)
            for key, instance in sorted(old - new, key=str):
                log.info("a GPU is well again", device=gpu, cause=key, gpu_instance=instance)
