# SPDX-License-Identifier: Apache-2.0
"""What must be true at any moment of a simulation, read from the API's objects alone.

Written without the code that is tested: sums over devices, counters, queues and gangs.
"""

from collections import Counter, defaultdict
from typing import Any

from gpudra.api.quantity import Quantity
from gpudra.driver.kube.fakeserver import ObjectStore, StoreEvent
from gpudra.driver.kube.resources import (
    POD_GROUPS,
    PODS,
    QUEUES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
)
from tests.support.simcluster import SimCluster

GROUP = "gpudra.io/pod-group"
QUEUE = "gpudra.io/queue"


class Rules:
    """The checks.

    Args:
        objects: the state.
        cluster: knows which claims a pod has.
        namespace: where the pods are.
    """

    def __init__(self, objects: ObjectStore, cluster: SimCluster, namespace: str) -> None:
        self._objects = objects
        self._cluster = cluster
        self._namespace = namespace
        # Gangs that have had their minimum; they may fall below it when members end or are deleted.
        self._complete: set[str] = set()
        # Pods that had their devices and did not lose them at the gate, those deleted since included.
        self._ready: set[str] = set()
        self._members = defaultdict[str, set[str]](set)
        self._revision = 0
        objects.subscribe(self._changed)

    def _changed(self, event: StoreEvent) -> None:
        """Follows who has devices: between two looks a pod may get them, and be deleted."""
        new = event.new.obj
        if event.resource == PODS:
            name = (new["metadata"].get("labels") or {}).get(GROUP)
            if name:
                self._members[name].add(new["metadata"]["uid"])
        if event.resource != RESOURCE_CLAIMS:
            return
        has = set() if event.type == "DELETED" else _users(new)
        had = _users(event.old.obj) if event.old is not None else set()
        self._ready |= has
        if had - has:
            gated = {
                pod["metadata"]["uid"]
                for pod in self._objects.list(PODS, self._namespace)
                if pod["spec"].get("schedulingGates")
            }
            self._ready -= (had - has) & gated

    def check(self) -> None:
        """All of them. Raises AssertionError, with the objects in the message."""
        if self._objects.revision == self._revision:
            return
        self._revision = self._objects.revision
        self.devices_are_not_over_committed()
        self.gangs_are_whole()
        self.limits_are_kept()
        self.reservations_are_right()

    def devices_are_not_over_committed(self) -> None:
        """One claim a device, amounts within capacities, counters within their sets."""
        devices, sets = self._devices()
        users = defaultdict[tuple[str, str], list[Obj]](list)
        for claim in self._objects.list(RESOURCE_CLAIMS):
            for result in self._results(claim):
                users[result["pool"], result["device"]].append(result)
        taken = defaultdict[tuple[str, str, str], int](int)
        for key, results in users.items():
            device = devices[key]
            if not device.get("allowMultipleAllocations"):
                assert len(results) == 1, f"{key} was given out {len(results)} times"
            for name, capacity in (device.get("capacity") or {}).items():
                used = sum(
                    _nanos((one.get("consumedCapacity") or {}).get(name, 0)) for one in results
                )
                top = _nanos(capacity["value"])
                assert used <= top, f"{name} of {key}: {used} of {top}"
            for consumption in device.get("consumesCounters") or ():
                for name, counter in consumption["counters"].items():
                    taken[key[0], consumption["counterSet"], name] += _nanos(counter["value"])
        for (pool, set_name, name), amount in taken.items():
            top = sets[pool, set_name][name]
            assert amount <= top, f"counter {name} of {set_name} in {pool}: {amount} of {top}"

    def gangs_are_whole(self) -> None:
        """No gate of a gang is lifted before as many members as it needs have their devices."""
        groups = {one["metadata"]["name"]: one for one in self._objects.list(POD_GROUPS)}
        members = defaultdict[str, list[Obj]](list)
        for pod in self._objects.list(PODS, self._namespace):
            name = (pod["metadata"].get("labels") or {}).get(GROUP)
            if name:
                members[name].append(pod)
        for name, pods in members.items():
            if name not in groups or name in self._complete:
                continue
            free = [pod for pod in pods if not pod["spec"].get("schedulingGates")]
            if not free:
                continue
            ready = len(self._members[name] & self._ready)
            wanted = groups[name]["spec"]["minCount"]
            assert ready >= wanted, (
                f"gang {name}: {len(free)} are let go, but only {ready} of {wanted} have had devices"
            )
            self._complete.add(name)

    def limits_are_kept(self) -> None:
        """The whole cards of each queue are at most its limit."""
        used = self.used()
        for queue in self._objects.list(QUEUES):
            name = queue["metadata"]["name"]
            limit = (queue["spec"].get("limit") or {}).get("gpus")
            if limit is not None:
                assert used[name] <= float(limit) + 1e-6, f"queue {name}: {used[name]} of {limit}"

    def used(self) -> Counter[str]:
        """Cards (parts of shares by their greater part) by queue, those above included."""
        parents = {
            one["metadata"]["name"]: one["spec"].get("parent") for one in self._objects.list(QUEUES)
        }
        devices, _ = self._devices()
        claims = {one["metadata"]["name"]: one for one in self._objects.list(RESOURCE_CLAIMS)}
        charged: dict[str, str] = {}
        for pod in self._objects.list(PODS, self._namespace):
            queue = (pod["metadata"].get("labels") or {}).get(QUEUE)
            if not queue:
                continue
            for claim in self._cluster.claims_of(pod) or ():
                charged.setdefault(claim["metadata"]["name"], queue)
        used = Counter[str]()
        for name, queue in charged.items():
            amount = sum(_cards(one, devices) for one in self._results(claims[name]))
            at: Any = queue
            while at:
                used[at] += amount
                at = parents.get(at)
        return used

    def reservations_are_right(self) -> None:
        """A pod past its gate has its claims, unless the scheduler took them; one bound has them."""
        for pod in self._objects.list(PODS, self._namespace):
            if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Running":
                assert self._has_devices(pod), f"{pod['metadata']['name']} runs without its devices"

    def _has_devices(self, pod: Obj) -> bool:
        claims = self._cluster.claims_of(pod)
        return claims is not None and all(
            any(
                one["uid"] == pod["metadata"]["uid"]
                for one in (claim.get("status") or {}).get("reservedFor") or ()
            )
            for claim in claims
        )

    def _devices(self) -> tuple[dict[tuple[str, str], Obj], dict[tuple[str, str], dict[str, int]]]:
        devices, sets = {}, {}
        for one in self._objects.list(RESOURCE_SLICES):
            spec = one["spec"]
            pool = spec["pool"]["name"]
            for device in spec.get("devices") or ():
                devices[pool, device["name"]] = device
            for found in spec.get("sharedCounters") or ():
                sets[pool, found["name"]] = {
                    name: _nanos(counter["value"]) for name, counter in found["counters"].items()
                }
        return devices, sets

    @staticmethod
    def _results(claim: Obj) -> list[Obj]:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        return list((allocation.get("devices") or {}).get("results") or ())


def _users(claim: Obj) -> set[str]:
    status = claim.get("status") or {}
    if not status.get("allocation"):
        return set()
    return {one["uid"] for one in status.get("reservedFor") or ()}


def _cards(result: Obj, devices: dict[tuple[str, str], Obj]) -> float:
    device = devices[result["pool"], result["device"]]
    if not device.get("allowMultipleAllocations"):
        return 1.0
    parts = [
        _nanos(amount) / _nanos(device["capacity"][name]["value"])
        for name, amount in (result.get("consumedCapacity") or {}).items()
    ]
    return max(parts, default=0.0)


def _nanos(text: Any) -> int:
    return Quantity.parse(str(text)).nanos
