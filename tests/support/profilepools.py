# SPDX-License-Identifier: Apache-2.0
"""What a node with one of the shipped hardware profiles publishes, without any cluster."""

from gpudra.api.resource_v1 import CounterSet, Device
from gpudra.controller.ctl.slices import slices_of_hardware
from gpudra.driver.core.forms import EVERYTHING


def pool_of_profile(profile: str) -> tuple[list[Device], list[CounterSet]]:
    """All devices and counter sets of the pool, every form of the cards."""
    slices = slices_of_hardware(
        profile, driver="gpu.gpudra.io", node_name="node-a", policy=EVERYTHING
    )
    devices = [device for one in slices for device in one.spec.devices]
    return devices, [found for one in slices for found in one.spec.shared_counters]
