# SPDX-License-Identifier: Apache-2.0
"""Memory and utilisation of every prepared claim, as metrics; `gpudra top` reads them.

A look every few seconds, apart from what the kubelet asks: it has threads of its own, takes no lock
of a card, and a card that hangs is left out until it answers. Series end with their claim.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from gpudra.api.errors import ApiError, GpudraError
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.prepare import MIG_INSTANCE
from gpudra.driver.core.sharing import Backend, Sharing, sharings
from gpudra.driver.core.usage import (
    CardReading,
    DeviceUsage,
    HeldDevice,
    Process,
    by_device,
    usage_of,
)
from gpudra.driver.devicelib.protocol import UsageLib
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.resources import RESOURCE_CLAIMS, Obj, Resource
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.logging import get_logger
from gpudra.driver.observability.metrics import Metrics
from gpudra.kubelet_plugin.records import COMPLETED, ClaimRecord, Records
from gpudra.kubelet_plugin.sharing import ClaimUsage

# A card that does not answer is left out of the round; its thread stays with it.
CARD_SECONDS = 5.0
# Who uses a claim changes when pods come; another process of the pod needs no question.
PODS_SECONDS = 60.0
# More devices of claims than any node has: a bound on what Prometheus is given.
MAX_DEVICES = 1024
_THREADS = 16
_MIB = 2**20
# As the kubelet names cgroups of pods, with either of its drivers.
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
log = get_logger(__name__)

Key = tuple[str, str]  # uid of the claim, name of the device


class GetApi(Protocol):
    """What is asked of the API client."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """One object."""
        ...


class PodsOfClaims:
    """The pods that use a claim, asked for now and then.

    Args:
        api: GETs claims.
        clock: for how old an answer is.
    """

    def __init__(self, api: GetApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, tuple[float, frozenset[str]]] = {}

    async def of(self, held: HeldDevice) -> frozenset[str]:
        """Uids of the pods. An old answer is better than none.

        Raises:
            ApiError: it is not known, and the API does not tell.
        """
        now = self._clock.monotonic()
        at, pods = self._known.get(held.claim_uid, (float("-inf"), None))
        if pods is not None and now - at < PODS_SECONDS:
            return pods
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, held.claim, held.namespace)
        except ApiError:
            if pods is None:
                raise
            return pods
        users = (raw.get("status") or {}).get("reservedFor") or ()
        found = frozenset(str(one["uid"]) for one in users if one.get("uid"))
        self._known[held.claim_uid] = (now, found)
        return found

    def forget_others(self, live: Iterable[str]) -> None:
        """Keeps nothing about claims that are gone."""
        kept = set(live)
        self._known = {uid: known for uid, known in self._known.items() if uid in kept}


class UsageCollector:
    """Looks at everything, and publishes.

    Args:
        lib: of the node's cards; None where it tells nothing, then only HAMi-core is asked.
        hami: what HAMi-core's processes of a claim say; None if there are none yet.
        api: GETs claims.
        records: every claim that holds something now.
        devices: the node's devices by name.
        metrics: of this process.
        clock: for the period.
        proc: the host's ``/proc``.
        period: seconds between looks; 0: none at all.
    """

    def __init__(
        self,
        lib: UsageLib | None,
        *,
        hami: Callable[[str], ClaimUsage | None],
        api: GetApi,
        records: Callable[[], Records],
        devices: Callable[[], Mapping[str, AllocatableDevice]],
        metrics: Metrics,
        clock: Clock,
        proc: Path = Path("/proc"),
        period: float = 10.0,
        card_seconds: float = CARD_SECONDS,
    ) -> None:
        self._lib = lib
        self._hami = hami
        self._records = records
        self._devices = devices
        self._metrics = metrics
        self._clock = clock
        self._proc = proc
        self._period = period
        self._card_seconds = card_seconds
        self._pods = PodsOfClaims(api, clock)
        self._threads: ThreadPoolExecutor | None = None
        self._hanging: dict[str, asyncio.Future[Any]] = {}
        self._known: dict[Key, tuple[HeldDevice, DeviceUsage]] = {}
        self._told: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        if not self._period:
            return
        try:
            while True:
                await self.look()
                await self._clock.sleep(self._period)
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of the threads; one that hangs in a driver is left to it."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def look(self) -> None:
        """One round. Never raises for what one card or claim does."""
        held = self._held()
        cards = sorted({one.card for one in held if not _under_hami(one)})
        readings = dict(
            zip(cards, await asyncio.gather(*map(self._card, cards)), strict=True)
            if self._lib is not None
            else ()
        )
        found: dict[Key, tuple[HeldDevice, DeviceUsage]] = {}
        for one in held:
            card = readings.get(one.card)
            if card is not None and not _under_hami(one):
                pods = await self._pods_of(one)
                if pods is not None:
                    found[one.claim_uid, one.device] = (one, usage_of(one, card, pods))
        for uid in dict.fromkeys(one.claim_uid for one in held if _under_hami(one)):
            mine = [one for one in held if one.claim_uid == uid and _under_hami(one)]
            found |= await self._under_hami_core(uid, mine)
        self._pods.forget_others(one.claim_uid for one in held)
        self._known = found
        self.prune(always=True)

    def prune(self, *, always: bool = False) -> None:
        """Takes away the series of claims that hold nothing any more; called when one ended."""
        records = self._records()
        kept = {key: found for key, found in self._known.items() if key[0] in records}
        if always or len(kept) != len(self._known):
            self._known = kept
            self._publish()

    # --- who holds what -------------------------------------------------------------------------

    def _held(self) -> list[HeldDevice]:
        try:
            devices = self._devices()
        except GpudraError:
            devices = {}  # not read yet; memory of cards is not known then
        found = [
            one
            for record in self._records().values()
            if record.state == COMPLETED and record.name
            for one in _held_by(record, devices)
        ]
        if len(found) > MAX_DEVICES:
            self._tell("bound", f"usage is told for {MAX_DEVICES} of {len(found)} devices")
        return found[:MAX_DEVICES]

    # --- asking ---------------------------------------------------------------------------------

    async def _card(self, card: str) -> CardReading | None:
        """One card; None if it does not answer."""
        before = self._hanging.get(card)
        if before is not None and not before.done():
            return None
        over = asyncio.Event()
        work = self._hanging[card] = self._in_thread(self._read_card, card)
        work.add_done_callback(_looked_at)
        work.add_done_callback(lambda _: over.set())
        timer = self._clock.call_later(self._card_seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()
        if not work.done():
            self._failed("card", card, f"no answer in {self._card_seconds:g} s")
            return None
        del self._hanging[card]
        try:
            reading: CardReading = work.result()
        except GpudraError as error:
            self._failed("card", card, str(error))
            return None
        self._told.discard(card)
        return reading

    def _read_card(self, card: str) -> CardReading:
        assert self._lib is not None
        rates = self._lib.usage(card)
        return CardReading(
            compute_percent=rates.gpu_percent,
            processes=tuple(
                Process(
                    pid=one.pid,
                    pod_uid=pod_of(self._proc, one.pid),
                    memory_bytes=one.memory_bytes,
                    compute_percent=one.compute_percent,
                    gpu_instance_id=one.gpu_instance_id,
                )
                for one in self._lib.processes(card)
            ),
        )

    async def _pods_of(self, held: HeldDevice) -> frozenset[str] | None:
        if not held.by_pod:
            return frozenset()
        try:
            return await self._pods.of(held)
        except ApiError as error:
            self._failed("claim", f"{held.namespace}/{held.claim}", str(error))
            return None

    async def _under_hami_core(
        self, uid: str, held: list[HeldDevice]
    ) -> dict[Key, tuple[HeldDevice, DeviceUsage]]:
        try:
            told = await self._in_thread(self._hami, uid)
        except (GpudraError, OSError) as error:
            self._failed("claim", f"{held[0].namespace}/{held[0].claim}", str(error))
            return {}
        usage = told or ClaimUsage()
        order = self._order(uid)
        memory = by_device(held, usage.uuids, order, usage.memory_bytes())
        compute = by_device(held, usage.uuids, order, usage.sm_percent())
        return {
            (uid, one.device): (
                one,
                DeviceUsage(
                    memory_bytes=memory.get(one.device, 0),
                    compute_percent=compute.get(one.device, 0),
                    processes=len(usage.processes),
                ),
            )
            for one in held
        }

    def _order(self, uid: str) -> list[str]:
        """The claim's cards by bus address."""
        record = self._records().get(uid)
        try:
            devices = self._devices()
        except GpudraError:
            return []
        gpus = {
            devices[one.device].gpu.key: devices[one.device].gpu
            for one in (record.results if record else ())
            if one.device in devices
        }
        return sorted(gpus, key=lambda key: ((pci := gpus[key].pci) and pci.bus_id) or "")

    def _in_thread(self, function: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="usage")
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    # --- telling --------------------------------------------------------------------------------

    def _publish(self) -> None:
        for metric in (m.CLAIM_MEMORY, m.CLAIM_MEMORY_USED, m.CLAIM_COMPUTE, m.CLAIM_PROCESSES):
            self._metrics.clear(metric)
        for held, usage in self._known.values():
            labels = {
                "namespace": held.namespace,
                "claim": held.claim,
                "device": held.device,
                "form": held.form.value,
            }
            for metric, value in (
                (m.CLAIM_MEMORY, held.memory_bytes),
                (m.CLAIM_MEMORY_USED, usage.memory_bytes),
                (m.CLAIM_COMPUTE, usage.compute_percent),
                (m.CLAIM_PROCESSES, usage.processes),
            ):
                if value is not None:
                    self._metrics.set(metric, value, **labels)

    def _failed(self, source: str, name: str, why: str) -> None:
        self._metrics.inc(m.USAGE_ERRORS, source=source)
        self._tell(name, f"cannot tell usage of {source} {name}: {why}")

    def _tell(self, name: str, what: str) -> None:
        """Once, until it works again."""
        if name not in self._told:
            log.warning("usage", error=what)
        self._told.add(name)


def _looked_at(done: asyncio.Future[Any]) -> None:
    """Its error is told if somebody still waits, and is no news otherwise."""
    if not done.cancelled():
        done.exception()


def _under_hami(held: HeldDevice) -> bool:
    """Processes on a MIG instance are told by NVML in any case."""
    return held.backend is Backend.HAMI_CORE and held.form is not DeviceKind.MIG


def _held_by(record: ClaimRecord, devices: Mapping[str, AllocatableDevice]) -> Iterable[HeldDevice]:
    shares = {one.device: one for one in sharings(record.steps)}
    for hold in record.holds:
        if hold.kind not in set(DeviceKind) or not hold.card:
            continue
        share, known = shares.get(hold.device), devices.get(hold.device)
        yield HeldDevice(
            claim_uid=record.uid,
            namespace=record.namespace,
            claim=record.name,
            device=hold.device,
            form=DeviceKind(hold.kind),
            card=hold.card,
            gpu_instance_id=_instance(record, hold.device, known),
            memory_bytes=_memory(known, share),
            backend=share.backend if share else None,
        )


def _instance(record: ClaimRecord, device: str, known: AllocatableDevice | None) -> int | None:
    for step in record.steps:
        if step.kind == MIG_INSTANCE and step.args.get("device") == device:
            made = step.outcome.get("gpuInstance")
            return made if isinstance(made, int) else None
    return known.instance.gpu_instance_id if known and known.instance else None


def _memory(known: AllocatableDevice | None, share: Sharing | None) -> int | None:
    if share is not None and share.memory_mib is not None:
        return share.memory_mib * _MIB
    if known is None:
        return None
    return known.profile.memory_bytes if known.profile else known.gpu.memory_bytes


def pod_of(proc: Path, pid: int) -> str:
    """The uid of the pod that a process runs in; empty if in none, or if it has ended."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = _POD.search(text)
    return found[1].replace("_", "-") if found else ""
