# SPDX-License-Identifier: Apache-2.0
"""What an API server keeps of the slices that are written to it.

gpudra.controller.resourceslices finds it out; what is published depends on it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """What the API server keeps of a slice; found out by a dry-run write, never guessed.

    Attributes:
        counters: ``sharedCounters`` and ``consumesCounters`` (DRAPartitionableDevices).
        consumable_capacity: ``allowMultipleAllocations`` with request policies
            (DRAConsumableCapacity).
        device_taints: ``taints`` (DRADeviceTaints).
        list_attributes: list-valued attributes (DRAListTypeAttributes).
    """

    counters: bool = False
    consumable_capacity: bool = False
    device_taints: bool = False
    list_attributes: bool = False


ALL_FEATURES = ServerFeatures(
    counters=True, consumable_capacity=True, device_taints=True, list_attributes=True
)
