# SPDX-License-Identifier: Apache-2.0
"""Exports who has what of the cluster's cards, what is left of them, and why claims wait.

Run by the leader of the cluster side. Slices, claims and classes are watched; a pool is counted
anew when one of its slices or of the claims on it has changed, so what it costs depends on what
happens, not on how large the cluster is. It changes nothing. The metrics are described in
docs/metrics.md.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from gpudra.api.resource_v1 import DeviceClass, ResourceClaim
from gpudra.driver.core.accounting.facts import ClaimFact, Hold, Shapes, SliceFact, claim_fact
from gpudra.driver.core.accounting.pending import Judge, Reason
from gpudra.driver.core.accounting.pools import Account, GpuState, MemoryState, count_pool
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.reflector import Event, ListWatcher, Reflector, ReflectorError
from gpudra.driver.kube.resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.metrics import Metrics

# Scrapes come every 15 to 60 s; nobody is served better by figures for each change.
SETTLE_SECONDS = 2.0
# While everything changes all the time, counting takes no more than this part of the time.
COUNT_SHARE = 0.05
# Labels stay few whatever admins name; classes and models beyond this many are "other".
MOST_NAMES = 100
OTHER = "other"


class Accountant:
    """Keeps the metrics of what is allocated.

    Args:
        client: lists and watches.
        driver: whose devices.
        metrics: of the process.
        clock: for delays and the time.
        rng: for the jitter of the reflectors.
    """

    def __init__(
        self,
        client: ListWatcher,
        *,
        driver: str,
        metrics: Metrics,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.counted = 0
        self._driver = driver
        self._metrics = metrics
        self._clock = clock
        self._changed = asyncio.Event()
        self._slices: dict[str, dict[str, SliceFact]] = defaultdict(dict)
        self._holds: dict[str, dict[str, tuple[Hold, ...]]] = defaultdict(dict)
        self._dirty: set[str] = set()
        self._accounts: dict[str, Account] = {}
        shapes = Shapes(driver)

        def reflector(resource: Resource, decode: Any, on_event: Any, selector: str = "") -> Any:
            return Reflector(
                client,
                resource,
                decode,
                field_selector=selector,
                on_event=on_event,
                on_error=lambda error: self._on_error(resource, error),
                clock=clock,
                rng=rng,
            )

        self._slice_reflector: Reflector[SliceFact] = reflector(
            RESOURCE_SLICES,
            shapes.raw_slice_fact,
            self._slice_changed,
            f"spec.driver={driver}",
        )
        self._claim_reflector: Reflector[ClaimFact] = reflector(
            RESOURCE_CLAIMS,
            lambda raw: claim_fact(ResourceClaim.from_dict(raw), driver),
            self._claim_changed,
        )
        self._class_reflector: Reflector[tuple[str, ...]] = reflector(
            DEVICE_CLASSES, _selectors, lambda _: self._changed.set()
        )

    async def run(self) -> None:
        """Until cancelled."""
        reflectors = (self._slice_reflector, self._claim_reflector, self._class_reflector)
        async with asyncio.TaskGroup() as tasks:
            for one in reflectors:
                tasks.create_task(one.run(), name=f"reflector {one.resource.plural}")
            tasks.create_task(self._count_for_ever(), name="accounting")

    async def _count_for_ever(self) -> None:
        for one in (self._slice_reflector, self._claim_reflector, self._class_reflector):
            await one.wait_synced()
        while True:
            self._changed.clear()
            started = self._clock.monotonic()
            self.count()
            took = self._clock.monotonic() - started
            await self._changed.wait()
            await self._clock.sleep(max(SETTLE_SECONDS, took / COUNT_SHARE))

    def count(self) -> None:
        """Counts the pools that changed, sums up, and sets the metrics."""
        for pool in self._dirty:
            slices = self._slices.get(pool)
            if slices:
                holds = (one for each in self._holds.get(pool, {}).values() for one in each)
                self._accounts[pool] = count_pool(slices.values(), holds)
            else:
                self._accounts.pop(pool, None)
        self._dirty.clear()
        total = Account()
        for account in self._accounts.values():
            total.add(account)
        self._show_cards(total)
        self._show_uses(total)
        self._show_pending(total)
        for resource, store in (
            (RESOURCE_CLAIMS, self._claim_reflector.store),
            (DEVICE_CLASSES, self._class_reflector.store),
        ):
            self._metrics.set(m.REFLECTOR_OBJECTS, len(store), resource=resource.plural)
        self.counted += 1

    def _show_cards(self, total: Account) -> None:
        metrics, known = self._metrics, _Names(sorted({model for model, _ in total.gpus}))
        for metric in (m.GPUS, m.GPU_MEMORY, m.LARGEST_GPUS, m.LARGEST_MEMORY):
            metrics.clear(metric)
        for model in sorted({model for model, _ in total.gpus}):
            name = known.of(model)
            for state in GpuState:
                metrics.inc(m.GPUS, total.gpus[model, state], model=name, state=state)
            for part in MemoryState:
                metrics.inc(m.GPU_MEMORY, total.memory[model, part], model=name, state=part)
        for model in known.shown:
            metrics.set(m.LARGEST_GPUS, total.free_gpus.get(model, 0), model=model)
        for shape in total.published:
            if shape.model in known.shown:
                size = total.largest.get((shape.model, shape.form), 0)
                metrics.set(m.LARGEST_MEMORY, size, model=shape.model, form=shape.form)
        for whole, word in ((True, "complete"), (False, "incomplete")):
            metrics.set(m.POOLS, total.pools[whole], state=word)

    def _show_uses(self, total: Account) -> None:
        metrics = self._metrics
        for metric in (m.ALLOCATED_DEVICES, m.ALLOCATED_MEMORY, m.ALLOCATED_COMPUTE):
            metrics.clear(metric)
        classes = _Names(sorted({name for name, _, _ in total.uses}))
        models = _Names(sorted({model for _, model, _ in total.uses}))
        for (name, model, form), use in sorted(total.uses.items()):
            labels = {"class": classes.of(name), "model": models.of(model), "form": form}
            metrics.inc(m.ALLOCATED_DEVICES, use.devices, **labels)
            metrics.inc(m.ALLOCATED_MEMORY, use.memory, **labels)
            metrics.inc(m.ALLOCATED_COMPUTE, use.compute, **labels)

    def _show_pending(self, total: Account) -> None:
        entries = self._class_reflector.store.entries()
        judge = Judge(self._driver, {one.name: one.value for one in entries}, total)
        counts: Counter[Reason] = Counter()
        oldest: dict[Reason, float] = {}
        for claim in self._claim_reflector.store.values():
            reason = judge.reason(claim)
            if reason is not None:
                counts[reason] += 1
                oldest[reason] = min(claim.created, oldest.get(reason, claim.created))
        self._metrics.clear(m.PENDING_OLDEST)
        for reason in Reason:
            self._metrics.set(m.PENDING_CLAIMS, counts[reason], reason=reason)
        for reason, created in oldest.items():
            self._metrics.set(m.PENDING_OLDEST, created, reason=reason)

    def _slice_changed(self, event: Event[SliceFact]) -> None:
        if event.old is not None:
            left = self._slices[event.old.pool]
            left.pop(event.old.name, None)
            if not left:
                del self._slices[event.old.pool]
            self._dirty.add(event.old.pool)
        if event.new is not None:
            self._slices[event.new.pool][event.new.name] = event.new
            self._dirty.add(event.new.pool)
        self._changed.set()

    def _claim_changed(self, event: Event[ClaimFact]) -> None:
        if event.old is not None:
            self._forget(event.old)
        if event.new is not None:
            for pool, holds in _by_pool(event.new.holds).items():
                self._holds[pool][event.new.key] = holds
                self._dirty.add(pool)
        if event.old is not None and event.new is not None and event.old.waits:
            self._observe(event.new)
        self._changed.set()

    def _forget(self, claim: ClaimFact) -> None:
        for pool in _by_pool(claim.holds):
            left = self._holds[pool]
            left.pop(claim.key, None)
            if not left:
                del self._holds[pool]
            self._dirty.add(pool)

    def _observe(self, claim: ClaimFact) -> None:
        """A claim that waited has its devices: how long did it take."""
        if claim.holds and claim.created:
            then = claim.allocated or self._clock.now().timestamp()
            self._metrics.observe(m.ALLOCATION_SECONDS, max(0.0, then - claim.created))

    def _on_error(self, resource: Resource, error: ReflectorError) -> None:
        self._metrics.inc(m.REFLECTOR_ERRORS, resource=resource.plural, reason=error.kind)


class _Names:
    """The names that are shown; the rest has one."""

    def __init__(self, names: list[str]) -> None:
        self.shown = frozenset(names[:MOST_NAMES])

    def of(self, name: str) -> str:
        """The name as a label."""
        return name if name in self.shown else OTHER


def _by_pool(holds: Iterable[Hold]) -> dict[str, tuple[Hold, ...]]:
    found: dict[str, list[Hold]] = {}
    for one in holds:
        found.setdefault(one.pool, []).append(one)
    return {pool: tuple(each) for pool, each in found.items()}


def _selectors(raw: dict[str, Any]) -> tuple[str, ...]:
    found = DeviceClass.from_dict(raw).spec.selectors
    return tuple(one.cel.expression for one in found if one.cel)
