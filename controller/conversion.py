# SPDX-License-Identifier: Apache-2.0
"""Makes the ResourceClaimTemplates of converted pods, and tells owners why a pod was not converted.

Run by the leader of the cluster side when conversion is on. The admission policy of the chart has
taken the foreign words out of a pod and named a template after its request; whatever the name says
is made here, once for all pods of a namespace that ask for the same. Until then the pod waits: the
resource claim controller tries again by itself. Nothing is made inside an admission call, and
nothing of anybody else's is changed.

Needs the rights of the ClusterRole beside the policy: to read namespaces, pods and slices, to read,
create and delete templates, and to write Events.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Protocol

from gpudra.api.errors import AlreadyExistsError, InputError, NotFoundError
from gpudra.controller.fabric import Events
from gpudra.driver.core.conversion.live import (
    MANAGED,
    OPT_IN,
    STOCK,
    cards_of,
    difference,
    is_converted,
    is_outdated,
    needs_of,
    sizes_in,
)
from gpudra.driver.core.conversion.templates import template_of
from gpudra.driver.core.conversion.types import Ask, Cards, Classes
from gpudra.driver.kube.clock import Clock
from gpudra.driver.kube.reflector import Event, EventKind, ListWatcher, Reflector, ReflectorError
from gpudra.driver.kube.resources import (
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    Obj,
    Resource,
)
from gpudra.driver.kube.workqueue import WorkQueue
from gpudra.driver.observability.logging import get_logger, operation
from gpudra.driver.observability.metrics import REFLECTOR_ERRORS, Metrics

REFUSED = "ConversionRefused"
SELECTOR = f"{OPT_IN} in ({STOCK},{MANAGED})"
# A template that somebody deletes is made again as long as a pod waits for it.
LOOK_AGAIN_SECONDS = 30.0
# The pods of a wave ask for the same: so long one look at their template serves all of them.
FRESH_SECONDS = 5.0
_WORKERS = 4
_OVER = ("Succeeded", "Failed")
Sizes = tuple[frozenset[int], frozenset[int]]
log = get_logger(__name__)


class ConversionApi(ListWatcher, Protocol):
    """What is needed of the API client."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """One object."""
        ...

    async def create(self, resource: Resource, obj: Obj, namespace: str | None = None) -> Obj:
        """A new object."""
        ...

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> Obj:
        """Deletes that very object."""
        ...


class Conversion:
    """Looks after the pods of all namespaces that are opted in.

    Args:
        client: see `ConversionApi`.
        driver: whose classes and cards the claims ask for.
        metrics: of the process.
        events: told what cannot be had.
        clock: for delays.
        rng: for jitter.
    """

    def __init__(
        self,
        client: ConversionApi,
        *,
        driver: str,
        metrics: Metrics,
        events: Events,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._classes = Classes(driver=driver)
        self._metrics = metrics
        self._events = events
        self._clock = clock
        self._rng = rng
        self._told: dict[str, str] = {}
        self._seen: dict[tuple[str, str], tuple[float, Cards, str]] = {}
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue(clock=clock, rng=rng)
        self._pods: dict[str, Reflector[Obj]] = {}
        self._changed = asyncio.Event()
        self._namespaces: Reflector[str] = Reflector(
            client,
            NAMESPACES,
            lambda raw: str((raw["metadata"].get("labels") or {}).get(OPT_IN, "")),
            label_selector=SELECTOR,
            on_event=self._on_namespace,
            on_error=lambda error: self._on_error(NAMESPACES, error),
            clock=clock,
            rng=rng,
        )
        self._slices: Reflector[Sizes] = Reflector(
            client,
            RESOURCE_SLICES,
            sizes_in,
            field_selector=f"spec.driver={driver}",
            on_event=self._on_slice,
            on_error=lambda error: self._on_error(RESOURCE_SLICES, error),
            clock=clock,
            rng=rng,
        )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._namespaces.run(), name="reflector namespaces")
            tasks.create_task(self._slices.run(), name="reflector cards")
            tasks.create_task(self._follow(tasks), name="namespaces of converted pods")
            # What a part of a card is, is not known before all cards are.
            await self._slices.wait_synced()
            await self._queue.process(self._handle, workers=_WORKERS, on_error=self._on_failure)

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """One reflector of pods for each namespace that is opted in."""
        running: dict[str, asyncio.Task[None]] = {}
        while True:
            self._changed.clear()
            wanted = {entry.name for entry in self._namespaces.store.entries()}
            for name in wanted - running.keys():
                self._pods[name] = self._reflector(name)
                running[name] = tasks.create_task(self._pods[name].run(), name=f"pods of {name}")
            for name in running.keys() - wanted:
                running.pop(name).cancel()
                del self._pods[name]
            await self._changed.wait()

    def _reflector(self, namespace: str) -> Reflector[Obj]:
        return Reflector(
            self._client,
            PODS,
            _read,
            namespace=namespace,
            on_event=lambda event: self._on_pod(namespace, event),
            on_error=lambda error: self._on_error(PODS, error),
            clock=self._clock,
            rng=self._rng,
        )

    async def _handle(self, key: tuple[str, str]) -> float | None:
        """One pod; when to look again."""
        namespace, name = key
        mode = self._namespaces.store.get(namespace)
        reflector = self._pods.get(namespace)
        pod = reflector.store.get(name, namespace) if reflector else None
        if not pod or not mode:
            return None
        found = needs_of(pod, managed=mode == MANAGED)
        if found.refusal:
            self._tell(pod, found.refusal)
            return None
        waits = not _has_claims(pod)
        with operation("convert pod"):
            for template, ask in found.asks.items():
                problem = await self._provide(namespace, template, ask, make=waits)
                if problem:
                    self._tell(pod, problem)
        return LOOK_AGAIN_SECONDS if found.asks and waits else None

    async def _provide(self, namespace: str, name: str, ask: Ask, *, make: bool) -> str:
        """Has the template made if it is wanted; why there is none, or another one."""
        cards, now = cards_of(self._slices.store.values()), self._clock.monotonic()
        seen = self._seen.get((namespace, name))
        if seen is not None and now < seen[0] + FRESH_SECONDS and seen[1] == cards:
            return seen[2]
        problem = await self._look(namespace, name, ask, cards, make=make)
        if not make:
            return problem
        self._seen = {key: one for key, one in self._seen.items() if now < one[0] + FRESH_SECONDS}
        self._seen[namespace, name] = (now, cards, problem)
        return problem

    async def _look(self, namespace: str, name: str, ask: Ask, cards: Cards, *, make: bool) -> str:
        try:
            wanted = template_of(ask, cards=cards, classes=self._classes, namespace=namespace)
        except InputError as error:
            return f"template {name} cannot be made: {error}"
        try:
            stored = await self._client.get(RESOURCE_CLAIM_TEMPLATES, name, namespace)
        except NotFoundError:
            return await self._create(namespace, wanted) if make else ""
        problem = difference(stored, ask, cards, self._classes)
        if problem and is_outdated(stored, ask, self._classes):
            return await self._replace(namespace, stored, wanted) if make else ""
        return (
            f"template {name} exists with other content and is left as it is: {problem}"
            if problem
            else ""
        )

    async def _create(self, namespace: str, wanted: Obj) -> str:
        name = wanted["metadata"]["name"]
        try:
            await self._client.create(RESOURCE_CLAIM_TEMPLATES, wanted, namespace)
        except AlreadyExistsError:
            return ""  # another worker's; whether it says the same is seen at the next look
        log.info("template made", namespace=namespace, template=name)
        return ""

    async def _replace(self, namespace: str, stored: Obj, wanted: Obj) -> str:
        """Its cards are not those of today any more. Claims that were made from it stay."""
        name, uid = wanted["metadata"]["name"], stored["metadata"]["uid"]
        await self._client.delete(RESOURCE_CLAIM_TEMPLATES, name, namespace, uid=uid)
        log.info("cards have changed", namespace=namespace, template=name)
        return await self._create(namespace, wanted)

    def _tell(self, pod: Obj, why: str) -> None:
        """Once for each reason, on the pod."""
        metadata = pod["metadata"]
        if self._told.get(metadata["uid"]) == why:
            return
        self._told[metadata["uid"]] = why
        log.warning("not converted", namespace=metadata["namespace"], pod=metadata["name"], why=why)
        self._events.event(_reference(pod), "Warning", REFUSED, why)

    def _on_pod(self, namespace: str, event: Event[Obj]) -> None:
        pod = event.new or event.old
        if not pod:
            return
        if event.kind is EventKind.DELETE:
            self._told.pop(pod["metadata"]["uid"], None)
        else:
            self._queue.add((namespace, pod["metadata"]["name"]))

    def _on_namespace(self, _: Event[str]) -> None:
        self._changed.set()

    def _on_slice(self, event: Event[Sizes]) -> None:
        """Cards have come or gone: what is a part of one may be another amount."""
        if event.old == event.new:
            return
        for namespace, reflector in self._pods.items():
            for pod in reflector.store.values():
                if pod and is_converted(pod):
                    self._queue.add((namespace, pod["metadata"]["name"]))

    def _on_failure(self, key: tuple[str, str], error: Exception) -> None:
        log.warning("cannot convert", namespace=key[0], pod=key[1], error=str(error))

    def _on_error(self, resource: Resource, error: ReflectorError) -> None:
        self._metrics.inc(REFLECTOR_ERRORS, resource=resource.plural, reason=error.kind)


def _read(raw: Obj) -> Obj:
    """What is read of a pod; of one that is bound and was never converted nothing: it is history.

    A converted one may be bound before it is seen here, by a template that somebody else has made.
    """
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    bound = bool(spec.get("nodeName"))
    if status.get("phase") in _OVER or (bound and not is_converted(raw)):
        return {}
    metadata: Mapping[str, Any] = raw["metadata"]
    kept = ("name", "namespace", "uid", "labels", "annotations")
    containers = ("name", "resources", "env")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {
            **{key: spec[key] for key in ("resourceClaims", "schedulerName") if key in spec},
            **{
                kind: [{key: one[key] for key in containers if key in one} for one in spec[kind]]
                for kind in ("containers", "initContainers")
                if kind in spec and not bound
            },
        },
        "status": {"resourceClaimStatuses": status.get("resourceClaimStatuses") or []},
    }


def _has_claims(pod: Obj) -> bool:
    """Whether Kubernetes has made the claims: nobody reads the templates any more."""
    claims = pod["spec"].get("resourceClaims") or ()
    return len(pod["status"]["resourceClaimStatuses"]) >= len(claims)


def _reference(pod: Obj) -> Obj:
    metadata = pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        **{key: metadata[key] for key in ("name", "namespace", "uid")},
    }
