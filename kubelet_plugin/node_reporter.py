# SPDX-License-Identifier: Apache-2.0
"""Keeps what the node object says about the cards true, and looks whether we may publish at all.

Labels, the condition ``GPUsReady`` and the removal of the start-up taint ``gpudra.io/not-ready`` are
written when they differ, nothing else. While a device plugin offers the same cards
(``status.allocatable`` of the node), nothing is published: two schedulers would give out one card.
"""

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpudra.api.errors import ApiError, ConflictError
from gpudra.driver.core.inventory import Inventory
from gpudra.driver.core.nodestate import (
    NodeCondition,
    device_plugin_resources,
    node_labels,
    plan_node,
)
from gpudra.driver.kube.backoff import Backoff
from gpudra.driver.kube.clock import Clock, rfc3339
from gpudra.driver.kube.resources import NODES
from gpudra.driver.kube.verbs import KubeApi
from gpudra.driver.observability.logging import get_logger

# Labels may be changed by people and a device plugin may come: once a minute is soon enough, and
# five thousand agents make eighty cheap requests a second of it.
PERIOD_SECONDS = 60.0
# Several changes in a row (a card falls sick, its siblings follow) are one write.
SETTLE_SECONDS = 0.5
# A restarted agent publishes within a second or two what is there already; until then the node's
# condition stays as it is.
START_SECONDS = 15.0
_SOON = 1.0
DEVICE_PLUGIN = "DevicePluginActive"
NOT_PUBLISHED = "NotPublished"
UNREAD = "the node object has not been read yet"
# What a device library's Readiness says; anything else is a message.
_REASON = re.compile(r"[A-Z][A-Za-z]+")
log = get_logger(__name__)


class Withhold(Protocol):
    """Told why nothing may be published; None: it may."""

    def __call__(self, why: str | None) -> None:
        """Takes effect at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the reporter gets what it reports; all quick, no I/O.

    Attributes:
        inventory: the cards as read last; None before the first reading.
        hardware_problem: why the cards cannot be read; None when they can.
        publish_problem: why the devices are not what they should be in the API.
        sick: cards that no new claim should get, by key, with the reason.
        managed: whether managed mode gives out the cards; None while that is not known.
    """

    inventory: Callable[[], Inventory | None]
    hardware_problem: Callable[[], str | None]
    publish_problem: Callable[[], str | None]
    sick: Callable[[], Mapping[str, str]]
    managed: Callable[[], bool | None] = lambda: None


class NodeReporter:
    """Writes the node object.

    Args:
        client: of the API.
        node_name: of this node.
        sources: see Sources.
        withhold: the publisher's; called after each look at the node.
        warn: tells people, as an Event on the node: reason and note.
        write: False: only looks, and leaves the node as it is.
        feature_names: also labels under the names of GPU feature discovery.
        clock: for pauses and times.
        rng: for jitter.
    """

    def __init__(
        self,
        client: KubeApi,
        node_name: str,
        sources: Sources,
        *,
        withhold: Withhold,
        warn: Callable[[str, str], None],
        write: bool = True,
        feature_names: bool = False,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._sources = sources
        self._withhold = withhold
        self._warn = warn
        self._write = write
        self._feature_names = feature_names
        self._clock = clock
        self._rng = rng
        self._wake = asyncio.Event()
        self._refused: tuple[str, ...] = ()
        self._started = clock.monotonic()

    def changed(self) -> None:
        """Something that the node should say may be another now."""
        self._wake.set()

    async def run(self) -> None:
        """Looks and writes until cancelled; what fails is tried again."""
        backoff = Backoff(base=0.5, cap=30.0, rng=self._rng)
        while True:
            self._wake.clear()
            try:
                settled = await self.look()
            except ConflictError:
                await self._clock.sleep(backoff.next())
                continue
            except ApiError as error:
                log.warning("cannot report on the node, will try again", error=str(error))
                await self._clock.sleep(backoff.next())
                continue
            backoff.reset()
            await self._rest(PERIOD_SECONDS * self._rng.uniform(0.9, 1.1) if settled else _SOON)

    async def _rest(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        await self._clock.sleep(SETTLE_SECONDS)

    async def look(self) -> bool:
        """One look at the node, and what is to be written; False asks for another one soon.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        node = await self._client.get(NODES, self._node_name)
        inventory = self._sources.inventory()
        vendors = {gpu.vendor for gpu in inventory.gpus} if inventory else set()
        if inventory is not None:
            self._judge(device_plugin_resources(node, vendors))
        if not self._write:
            return True
        condition = self._condition(inventory)
        starting = self._clock.monotonic() - self._started < START_SECONDS
        if starting and condition.reason == NOT_PUBLISHED:
            return False
        known = inventory is not None and self._sources.hardware_problem() is None
        labels = node_labels(
            inventory if inventory is not None and known else Inventory(),
            feature_names=self._feature_names,
        )
        patches = plan_node(
            node,
            labels=labels,
            condition=condition,
            now=rfc3339(self._clock.now()),
            managed=self._sources.managed(),
        )
        if patches.node is not None:  # first: it may carry the version that was read
            await self._client.patch(NODES, self._node_name, patches.node)
        if patches.status is not None:
            await self._client.patch(
                NODES, self._node_name, patches.status, patch_type="strategic", subresource="status"
            )
            log.info("reported on the node", ready=condition.ready, reason=condition.reason)
        return condition.reason != NOT_PUBLISHED

    def _judge(self, resources: tuple[str, ...]) -> None:
        if resources and resources != self._refused:
            note = _refusal(resources)
            log.error("nothing is published beside a device plugin", resources=list(resources))
            self._warn(DEVICE_PLUGIN, note)
        if self._refused and not resources:
            log.info("the device plugin is gone", resources=list(self._refused))
        self._refused = resources
        self._withhold(_refusal(resources) if resources else None)

    def _condition(self, inventory: Inventory | None) -> NodeCondition:
        trouble = self._sources.hardware_problem()
        if inventory is None or trouble is not None:
            reason, colon, message = (trouble or "").partition(": ")
            known = bool(colon) and _REASON.fullmatch(reason) is not None
            return NodeCondition(
                ready=False,
                reason=reason if known else "GPUsUnreadable",
                message=message if known else trouble or "the GPUs have not been read yet",
            )
        if self._refused:
            return NodeCondition(ready=False, reason=DEVICE_PLUGIN, message=_refusal(self._refused))
        unpublished = self._sources.publish_problem()
        if unpublished is not None:
            return NodeCondition(ready=False, reason=NOT_PUBLISHED, message=unpublished)
        return self._by_health(inventory)

    def _by_health(self, inventory: Inventory) -> NodeCondition:
        sick = self._sources.sick()
        known = {gpu.key for gpu in inventory.gpus} | sick.keys()
        if not sick:
            text = f"{len(known)} GPUs are ready"
            return NodeCondition(ready=True, reason="GPUsReady", message=text)
        said = "; ".join(f"{gpu}: {why}" for gpu, why in sick.items())
        return NodeCondition(
            ready=len(sick) < len(known),
            reason="GPUsUnhealthy",
            message=f"{len(sick)} of {len(known)} GPUs are not well: {said}",
        )


def _refusal(resources: tuple[str, ...]) -> str:
    return (
        f"a device plugin offers the same GPUs on this node ({', '.join(resources)} allocatable): "
        "nothing is published; remove the device plugin from the node"
    )
