# SPDX-License-Identifier: Apache-2.0
"""Cards and pools for the tests of forms."""

from dataclasses import replace
from typing import Any

from gpudra.api.resource_v1 import CounterSet, Device
from gpudra.driver.core.forms import EVERYTHING, PublishPolicy
from gpudra.driver.core.inventory import Gpu, Inventory, MigInfo, MigInstance
from gpudra.driver.core.resourceslices import ALL_FEATURES, DesiredPool, build_pool
from gpudra.driver.devicelib.simulated import build_inventory, load_hardware

NODE = "n"


def node(profile: str, **mig: Any) -> Inventory:
    """A shipped profile; ``mig`` changes the MIG state of every card."""
    inventory = build_inventory(load_hardware(profile), node_name=NODE)
    gpus = (
        replace(gpu, mig=replace(gpu.mig, **mig) if gpu.mig else None) for gpu in inventory.gpus
    )
    return Inventory(gpus=tuple(gpus))


def one(profile: str, **mig: Any) -> Inventory:
    """The first card of a profile alone."""
    return Inventory(gpus=node(profile, **mig).gpus[:1])


def pool(inventory: Inventory, policy: PublishPolicy = EVERYTHING, **options: Any) -> DesiredPool:
    """What a node with these cards publishes."""
    options = {"features": ALL_FEATURES, **options}
    return build_pool(inventory, node_name=NODE, policy=policy, **options)


def kinds(found: DesiredPool) -> list[str]:
    """Types in published order, neighbours of one type once."""
    types = [str(device.attributes["type"]) for device in found.devices]
    return [one for index, one in enumerate(types) if index == 0 or types[index - 1] != one]


def of_type(found: DesiredPool, type_: str) -> list[Device]:
    """Devices of one type."""
    return [device for device in found.devices if device.attributes["type"] == type_]


def sets(found: DesiredPool) -> tuple[CounterSet, ...]:
    """All counter sets."""
    return tuple(one for part in found.slices for one in part.shared_counters)


def instance(gpu: Gpu, profile_id: int, start: int, **fields: Any) -> MigInstance:
    """An instance as the driver tells it."""
    assert gpu.mig is not None
    profile = gpu.mig.profile(profile_id)
    assert profile is not None
    place = next(at for at in profile.placements if at.start == start)
    values: dict[str, Any] = {
        "uuid": f"MIG-{profile_id}-{start}",
        "profile_id": profile_id,
        "gpu_instance_id": start + 1,
        "compute_instance_id": 0,
        "placement": place,
    }
    return MigInstance(**{**values, **fields})


def with_instances(inventory: Inventory, *places: tuple[int, int], **fields: Any) -> Inventory:
    """The first card with MIG on and these instances (profile id, start)."""
    gpu = inventory.gpus[0]
    mig: MigInfo | None = gpu.mig
    assert mig is not None
    made = tuple(instance(gpu, profile, start, **fields) for profile, start in places)
    first = replace(gpu, mig=replace(mig, enabled=True, instances=made))
    return Inventory(gpus=(first, *inventory.gpus[1:]))


def causes(device: Device) -> list[str]:
    """Taint keys without the driver's name."""
    return [taint.key.partition("/")[2] for taint in device.taints]
