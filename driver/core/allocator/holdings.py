# SPDX-License-Identifier: Apache-2.0
"""Who holds which device, and what of it.

The one place that reads ``status.allocation`` of claims as state. There are three ways to hold a
device: exclusively, through a share (``shareID``), or by administrative access, which holds
nothing. Claims whose allocation is still in flight are put here like any other.
"""

from collections.abc import Mapping
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


PoolHolds = Mapping[str, tuple[Hold, ...]]
"""Holds per device name."""


def claim_identity(claim: ResourceClaim) -> str:
    """Namespace, name and uid: a claim made anew under its name is another claim."""
    return f"{claim.key}/{claim.metadata.uid}"


class Holdings:
    """All holds of a cluster, by pool and device. Changed by whole claims only."""

    def __init__(self) -> None:
        self._by_pool: dict[PoolKey, dict[str, tuple[Hold, ...]]] = {}
        self._by_claim: dict[str, tuple[str, tuple[tuple[PoolKey, str, Hold], ...]]] = {}

    def put(self, claim: ResourceClaim) -> set[PoolKey]:
        """Takes the claim's present allocation for the truth; returns the pools that changed."""
        identity = claim_identity(claim)
        touched = self.remove(identity)
        entries = tuple(_entries(claim))
        if not entries:
            return touched
        self._by_claim[identity] = (claim.key, entries)
        by_pool = self._by_pool
        for pool, device, hold in entries:
            holds = by_pool.get(pool)
            if holds is None:
                holds = by_pool[pool] = {}
            present = holds.get(device)
            holds[device] = (hold,) if present is None else (*present, hold)
            touched.add(pool)
        return touched

    def remove(self, identity: str) -> set[PoolKey]:
        """Forgets a claim (see claim_identity); returns the pools that changed."""
        _, entries = self._by_claim.pop(identity, ("", ()))
        touched = set()
        for pool, device, hold in entries:
            holds = self._by_pool[pool]
            left = list(holds[device])
            left.remove(hold)
            if left:
                holds[device] = tuple(left)
            else:
                del holds[device]
            if not holds:
                del self._by_pool[pool]
            touched.add(pool)
        return touched

    def of_pool(self, pool: PoolKey) -> PoolHolds:
        """The holds on devices of a pool, those of devices that it no longer lists included."""
        return self._by_pool.get(pool, {})

    def __len__(self) -> int:
        return len(self._by_claim)


def _entries(claim: ResourceClaim) -> list[tuple[PoolKey, str, Hold]]:
    allocation = claim.status.allocation
    if allocation is None:
        return []
    entries, key = [], claim.key
    exclusive = Hold(key, False, {})
    for result in allocation.devices.results:
        if result.admin_access:
            continue
        hold = exclusive
        if result.share_id is not None:
            hold = Hold(key, True, normalized(result.consumed_capacity, result.driver))
        entries.append(((result.driver, result.pool), result.device, hold))
    return entries
