# SPDX-License-Identifier: Apache-2.0
"""MIG on simulated cards: the rules of the hardware, decided from intervals and engines."""

import dataclasses

from gpudra.api.errors import HardwareError, InputError
from gpudra.api.hardware import EnginesSpec, Hardware, MigProfileSpec, MigSpec
from gpudra.driver.core.edits import ContainerEdits, DeviceNode
from gpudra.driver.core.inventory import MigInstance
from gpudra.driver.devicelib.protocol import RefusedError
from gpudra.driver.devicelib.simulated.devicenodes import DeviceNodes
from gpudra.driver.devicelib.simulated.model import CardState, mig_instance, minor
from gpudra.driver.devicelib.simulated.state import HardwareState

# Minor numbers of /dev/nvidia-caps: as the driver spaces them, two for each instance.
_CAPS_PER_GPU = 135
_CAPS_PER_INSTANCE = 9
_FIRST_CAP = 3


class SimulatedPartitions:
    """PartitionLib over the shared state."""

    def __init__(self, hardware: Hardware, state: HardwareState, nodes: DeviceNodes) -> None:
        self._hardware = hardware
        self._state = state
        self._nodes = nodes

    def mig_mode(self, gpu: str) -> bool:
        """See PartitionLib."""
        self._mig(gpu)
        return self._state.card(gpu).mig_enabled

    def set_mig_mode(self, gpu: str, *, enabled: bool) -> bool:
        """See PartitionLib."""
        self._mig(gpu)
        card = self._state.card(gpu)
        if card.instances and not enabled:
            raise HardwareError("has MIG instances", obj=f"GPU {gpu}", hint="destroy them first")
        # Nobody uses a simulated card, so the driver would reset it if that is what it takes.
        self._state.update(
            gpu,
            lambda before: dataclasses.replace(before, mig_enabled=enabled, mig_pending=enabled),
        )
        return True

    def mig_instances(self, gpu: str) -> tuple[MigInstance, ...]:
        """See PartitionLib."""
        return self._state.card(gpu).instances

    def create_mig_instance(self, gpu: str, profile_id: int, start: int) -> MigInstance:
        """See PartitionLib."""
        mig = self._mig(gpu)
        made: list[MigInstance] = []

        def create(before: CardState) -> CardState:
            try:
                _check_fit(gpu, mig, before, profile_id, start)
            except HardwareError as error:
                raise RefusedError(error.what, obj=error.obj, hint=error.hint) from error
            used = {one.gpu_instance_id for one in before.instances}
            free = next(number for number in range(1, 256) if number not in used)
            made.append(mig_instance(gpu, mig, profile_id, start, free))
            return dataclasses.replace(before, instances=(*before.instances, made[0]))

        self._state.update(gpu, create)
        return made[0]

    def destroy_mig_instance(self, gpu: str, gpu_instance_id: int) -> None:
        """See PartitionLib."""
        self._mig(gpu)
        self._state.update(
            gpu,
            lambda before: dataclasses.replace(
                before,
                instances=tuple(
                    one for one in before.instances if one.gpu_instance_id != gpu_instance_id
                ),
            ),
        )

    def mig_edits(self, gpu: str, instance: MigInstance) -> ContainerEdits:
        """See PartitionLib."""
        index = self._state.keys.index(gpu)
        number = minor(self._hardware, index)
        first = (
            _FIRST_CAP
            + number * _CAPS_PER_GPU
            + (instance.gpu_instance_id - 1) * _CAPS_PER_INSTANCE
        )
        names = (
            f"nvidia{number}",
            f"nvidia-caps/nvidia-cap{first}",
            f"nvidia-caps/nvidia-cap{first + 1}",
        )
        return self._edits(*names)

    def monitor_edits(self, gpu: str) -> ContainerEdits:
        """The capability node for looking at instances."""
        self._state.card(gpu)
        return self._edits("nvidia-caps/nvidia-cap2")

    def _edits(self, *names: str) -> ContainerEdits:
        return ContainerEdits(
            device_nodes=tuple(
                DeviceNode(path=f"/dev/{name}", host_path=str(self._nodes.make(name)))
                for name in names
            )
        )

    def _mig(self, gpu: str) -> MigSpec:
        self._state.card(gpu)
        spec = self._hardware.spec
        mig = spec.boards[spec.gpus[self._state.keys.index(gpu)].board].mig
        if mig is None:
            raise InputError("has no MIG", obj=f"GPU {gpu}")
        return mig


def fits(mig: MigSpec, card: CardState, profile_id: int, start: int) -> bool:
    """Whether an instance can be made beside those that are there."""
    try:
        _check_fit("", mig, card, profile_id, start)
    except (HardwareError, InputError):
        return False
    return True


def _check_fit(gpu: str, mig: MigSpec, card: CardState, profile_id: int, start: int) -> None:
    profiles = {one.id: one for one in mig.profiles}
    wanted = profiles.get(profile_id)
    obj = f"GPU {gpu}"
    if wanted is None or start not in wanted.placements.starts:
        raise InputError(f"profile {profile_id} cannot start at {start}", obj=obj)
    if not card.mig_enabled:
        raise HardwareError("MIG is off", obj=obj, hint="switch it on first")
    end = start + wanted.placements.size
    for one in card.instances:
        there = one.placement
        if start < there.start + there.size and there.start < end:
            raise HardwareError(
                f"memory slices {start} to {end - 1} are taken by instance {one.gpu_instance_id}",
                obj=obj,
            )
    present = [profiles[one.profile_id] for one in card.instances]
    if sum(one.id == wanted.id for one in present) >= wanted.max:
        raise HardwareError(f"holds {wanted.max} instances of {wanted.name} already", obj=obj)
    _check_engines(obj, mig, [*present, wanted])


def _check_engines(obj: str, mig: MigSpec, together: list[MigProfileSpec]) -> None:
    slices = sum(one.slices for one in together)
    if slices > mig.compute_slices:
        raise HardwareError(f"has {mig.compute_slices} compute slices, not {slices}", obj=obj)
    for name in EnginesSpec.model_fields:
        # The largest profile has every engine that MIG can give.
        total = max(getattr(one.engines, name) or 0 for one in mig.profiles)
        asked = sum(getattr(one.engines, name) or 0 for one in together)
        if asked > total:
            raise HardwareError(f"has {total} of {name} for MIG, not {asked}", obj=obj)
