# SPDX-License-Identifier: Apache-2.0
"""Who holds devices of this node, as far as publishing has to know.

What is prepared is in the checkpoint. A claim that is allocated and not prepared yet is known to
the API only: all claims are listed for that, and only while a device is about to vanish.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.cards import MigPlace
from gpudra.driver.core.inventory import Gpu, Inventory, MigInstance
from gpudra.driver.kube.resources import RESOURCE_CLAIMS, Resource
from gpudra.driver.kube.verbs import ListResult
from gpudra.kubelet_plugin.records import Records


class ListApi(Protocol):
    """What is asked of the API client."""

    async def list(self, resource: Resource, namespace: str | None = None) -> ListResult:
        """All objects."""
        ...


class Holders:
    """Claims of one driver on one pool.

    Args:
        api: lists claims.
        records: the checkpoint's records now.
        driver: name of the driver.
        pool: name of the pool.
    """

    def __init__(
        self, api: ListApi, records: Callable[[], Records], *, driver: str, pool: str
    ) -> None:
        self._api = api
        self._records = records
        self._driver = driver
        self._pool = pool
        self._own: set[tuple[str, str]] = set()

    def prepared(self) -> frozenset[str]:
        """Names of devices that prepared and half-prepared claims have."""
        return frozenset(
            one.device for record in self._records().values() for one in record.devices
        )

    async def allocated(self) -> frozenset[str]:
        """Names of devices that any claim of the cluster has. Lists all claims.

        Raises:
            ApiError: the API server does not answer or refuses.
        """
        listed = await self._api.list(RESOURCE_CLAIMS)
        return frozenset(
            str(result.get("device"))
            for raw in listed.items
            for result in _results(raw)
            if (result.get("driver"), result.get("pool")) == (self._driver, self._pool)
        )

    def own_mig(self, inventory: Inventory) -> frozenset[MigPlace]:
        """Where claims of ours have MIG instances, or had those that this inventory still shows.

        The inventory is a little older than the checkpoint: an instance whose claim has ended
        since it was read is not somebody else's.
        """
        held = {
            MigPlace(card=hold.card, start=hold.start, size=hold.size)
            for record in self._records().values()
            for hold in record.holds
            if hold.kind == DeviceKind.MIG
        }
        shown = [(_identity(gpu, one), _place(gpu, one)) for gpu, one in _instances(inventory)]
        self._own = {name for name, place in shown if place in held or name in self._own}
        return frozenset(held | {place for name, place in shown if name in self._own})


def _instances(inventory: Inventory) -> list[tuple[Gpu, MigInstance]]:
    return [(gpu, one) for gpu in inventory.gpus if gpu.mig for one in gpu.mig.instances or ()]


def _identity(gpu: Gpu, instance: MigInstance) -> tuple[str, str]:
    return gpu.key, instance.uuid or str(instance.gpu_instance_id)


def _place(gpu: Gpu, instance: MigInstance) -> MigPlace:
    place = instance.placement
    return MigPlace(card=gpu.key, start=place.start, size=place.size)


def _results(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Leniently: another claim's odd shape is not this node's trouble."""
    devices: Any = raw
    for field in ("status", "allocation", "devices", "results"):
        devices = devices.get(field) if isinstance(devices, Mapping) else None
    return [one for one in devices or () if isinstance(one, Mapping)]
