# SPDX-License-Identifier: Apache-2.0
"""Who holds which device, and what of it.

The one place that reads ``status.allocation`` of claims as state. There are three ways to hold a
device: exclusively, through a share (``shareID``), or by administrative access, which holds
nothing. Claims whose allocation is still in flight are put here like any other.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.allocator.consumable_capacity import normalized
from gpudra.driver.core.allocator.types import PoolKey


class Hold(NamedTuple):
    """One claim's grip on one device.

    Attributes:
        claim: ``namespace/name`` of the claim.
        shared: held through a share id; otherwise the device is the claim's alone.
        amounts: nanos consumed, by qualified capacity name; empty for an exclusive hold.
    """

    claim: str
    shared: bool
    amounts: Mapping[tuple[str, str], int]


_NO_AMOUNTS: Mapping[tuple[str, str], int] = MappingProxyType({})


class PoolHolds:
    """The holds on devices of one pool. Never changed once a pool's record has it.

    Attributes:
        devices: holds per device name; devices that the pool no longer lists included.
        shared: whether any of them is a share.
    """

    __slots__ = ("devices", "shared")

    def __init__(self, devices: dict[str, tuple[Hold, ...]], *, shared: bool) -> None:
        self.devices = devices
        self.shared = shared


NO_HOLDS = PoolHolds({}, shared=False)


def claim_identity(claim: ResourceClaim) -> str:
    """Namespace, name and uid: a claim made anew under its name is another claim."""
    return f"{claim.key}/{claim.metadata.uid}"


class Holdings:
    """All holds of a cluster, by pool and device. Changed by whole claims only.

    Attributes:
        by_pool: pools without holds are not in it.
    """

    def __init__(self) -> None:
        self.by_pool: dict[PoolKey, PoolHolds] = {}
        self._by_claim: dict[str, ResourceClaim] = {}

    def load(self, claims: Iterable[ResourceClaim]) -> None:
        """Takes note of many claims; before anybody has asked for the holds of a pool."""
        by_claim, by_pool = self._by_claim, self.by_pool
        for claim in claims:
            allocation = claim.status.allocation
            if allocation is None:
                continue
            metadata = claim.metadata
            key = f"{metadata.namespace}/{metadata.name}"
            identity = f"{key}/{metadata.uid}"
            if identity in by_claim:
                self.remove(identity)
            by_claim[identity] = claim
            held = claim.held
            if held is None:
                self._load_shares(claim)
                continue
            exclusive = (Hold(key, False, _NO_AMOUNTS),)
            for pool, devices in held:
                holds = by_pool.get(pool)
                if holds is None:
                    by_pool[pool] = PoolHolds(dict.fromkeys(devices, exclusive), shared=False)
                else:
                    for device in devices:
                        holds.devices[device] = holds.devices.get(device, ()) + exclusive

    def _load_shares(self, claim: ResourceClaim) -> None:
        for pool, device, hold in _entries(claim):
            holds = self.by_pool.get(pool)
            if holds is None:
                holds = self.by_pool[pool] = PoolHolds({}, shared=False)
            holds.devices[device] = (*holds.devices.get(device, ()), hold)
            holds.shared = holds.shared or hold.shared

    def put(self, claim: ResourceClaim) -> set[PoolKey]:
        """Takes the claim's present allocation for the truth; returns the pools that changed."""
        identity = claim_identity(claim)
        touched = self.remove(identity)
        if claim.status.allocation is None:
            return touched
        self._by_claim[identity] = claim
        fresh: dict[PoolKey, PoolHolds] = {}
        for pool, device, hold in _entries(claim):
            holds = fresh.get(pool)
            if holds is None:
                before = self.holds(pool)
                holds = PoolHolds(dict(before.devices), shared=before.shared)
                fresh[pool] = holds
            holds.devices[device] = (*holds.devices.get(device, ()), hold)
            holds.shared = holds.shared or hold.shared
        self.by_pool.update(fresh)
        return touched | fresh.keys()

    def remove(self, identity: str) -> set[PoolKey]:
        """Forgets a claim (see claim_identity); returns the pools that changed."""
        claim = self._by_claim.pop(identity, None)
        if claim is None:
            return set()
        fresh: dict[PoolKey, dict[str, tuple[Hold, ...]]] = {}
        for pool, device, hold in _entries(claim):
            devices = fresh.get(pool)
            if devices is None:
                devices = fresh[pool] = dict(self.by_pool[pool].devices)
            left = list(devices[device])
            left.remove(hold)
            if left:
                devices[device] = tuple(left)
            else:
                del devices[device]
        for pool, devices in fresh.items():
            if devices:
                shared = self.by_pool[pool].shared and any(
                    hold.shared for own in devices.values() for hold in own
                )
                self.by_pool[pool] = PoolHolds(devices, shared=shared)
            else:
                del self.by_pool[pool]
        return set(fresh)

    def of_pool(self, pool: PoolKey) -> Mapping[str, tuple[Hold, ...]]:
        """The holds on devices of a pool, those of devices that it no longer lists included."""
        return self.holds(pool).devices

    def holds(self, pool: PoolKey) -> PoolHolds:
        """The same; later changes make another object."""
        return self.by_pool.get(pool, NO_HOLDS)

    def __len__(self) -> int:
        return len(self._by_claim)


def _entries(claim: ResourceClaim) -> Iterator[tuple[PoolKey, str, Hold]]:
    allocation = claim.status.allocation
    if allocation is None:
        return
    key = claim.key
    exclusive = Hold(key, False, _NO_AMOUNTS)
    for result in allocation.devices.results:
        if result.admin_access:
            continue
        hold = exclusive
        if result.share_id is not None:
            hold = Hold(key, True, normalized(result.consumed_capacity, result.driver))
        yield (result.driver, result.pool), result.device, hold
