# SPDX-License-Identifier: Apache-2.0
"""Makes and destroys MIG instances."""

import ctypes
from typing import Any

import pynvml

from gpudra.api.errors import DeviceGoneError, HardwareError
from gpudra.driver.core.edits import ContainerEdits
from gpudra.driver.core.inventory import MigInstance
from gpudra.driver.devicelib.nvml.driverfiles import DriverFiles
from gpudra.driver.devicelib.nvml.migreadings import MAX_INSTANCES, instance_of, mig_uuids, read_mig
from gpudra.driver.devicelib.nvml.session import Asker, Session
from gpudra.driver.devicelib.protocol import RefusedError

# Compute instance profiles by running number; the one that fills the GPU instance is wanted.
_COMPUTE_PROFILES = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT


class NvmlPartitions:
    """PartitionLib on NVML. See the protocol for the contract."""

    def __init__(self, session: Session, files: DriverFiles) -> None:
        self._session = session
        self._files = files

    def mig_mode(self, gpu: str) -> bool:
        """Whether MIG is on now."""
        handle = self._session.handle(gpu)
        with self._session.calling(f"MIG mode of GPU {gpu}"):
            current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(current)

    def set_mig_mode(self, gpu: str, *, enabled: bool) -> bool:
        """Switches MIG; False when it takes effect only after a reset."""
        handle = self._session.handle(gpu)
        with self._session.calling(f"MIG mode of GPU {gpu}"):
            pynvml.nvmlDeviceSetMigMode(handle, int(enabled))
            current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(current) == enabled

    def mig_instances(self, gpu: str) -> tuple[MigInstance, ...]:
        """What exists now."""
        asker = Asker(gpu)
        handle = self._session.handle(gpu)
        with self._session.calling(f"MIG instances of GPU {gpu}"):
            mig = read_mig(handle, asker, needs_reset=False)
        if mig is not None and mig.instances is None:
            raise HardwareError(
                "MIG instances cannot be read",
                obj=f"GPU {gpu}",
                hint=asker.problems[-1].message if asker.problems else "",
            )
        return mig.instances or () if mig is not None else ()

    def create_mig_instance(self, gpu: str, profile_id: int, start: int) -> MigInstance:
        """A GPU instance at exactly this place with a compute instance that fills it."""
        handle = self._session.handle(gpu)
        where = f"MIG profile {profile_id} at slice {start} of GPU {gpu}"
        with self._session.calling(where):
            place = pynvml.c_nvmlGpuInstancePlacement_t(
                start, self._size(handle, profile_id, start)
            )
        try:
            with self._session.calling(where):
                made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                    handle, profile_id, ctypes.byref(place)
                )
        except DeviceGoneError:
            raise
        except HardwareError as error:
            raise RefusedError(error.what, obj=error.obj, hint=error.hint) from error
        try:
            with self._session.calling(where):
                pynvml.nvmlGpuInstanceCreateComputeInstance(made, self._filling_profile(made))
                info = pynvml.nvmlGpuInstanceGetInfo(made)
                return instance_of(info, mig_uuids(handle, Asker(gpu)))
        except HardwareError:
            # Half an instance would hold its slices for ever.
            self._destroy(made, where)
            raise

    def destroy_mig_instance(self, gpu: str, gpu_instance_id: int) -> None:
        """Takes the instance away; nothing happens if it is gone already."""
        handle = self._session.handle(gpu)
        where = f"MIG instance {gpu_instance_id} of GPU {gpu}"
        try:
            instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance_id)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_NotSupported):
            return  # gone, or MIG was switched off, which takes all instances along
        except pynvml.NVMLError as error:
            raise HardwareError(f"NVML says: {error}", obj=where) from error
        self._destroy(instance, where)

    def mig_edits(self, gpu: str, instance: MigInstance) -> ContainerEdits:
        """The parent card's node and the two capability nodes of the instance."""
        handle = self._session.handle(gpu)
        with self._session.calling(f"minor number of GPU {gpu}"):
            minor = pynvml.nvmlDeviceGetMinorNumber(handle)
        return self._files.mig(minor, instance)

    def monitor_edits(self, gpu: str) -> ContainerEdits:  # noqa: ARG002 - one node is for all cards
        """The capability node for looking at instances; nothing on hosts without."""
        return self._files.mig_monitor()

    def _size(self, handle: Any, profile_id: int, start: int) -> int:
        """Memory slices of this profile's placement at ``start``."""
        room = (pynvml.c_nvmlGpuInstancePlacement_t * 64)()
        count = ctypes.c_uint(len(room))
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            handle, profile_id, room, ctypes.byref(count)
        )
        for place in room[: count.value]:
            if place.start == start:
                return int(place.size)
        raise HardwareError(
            f"the profile cannot start at slice {start}", obj=f"MIG profile {profile_id}"
        )

    def _filling_profile(self, instance: Any) -> int:
        """Id of the compute profile with as many slices as the GPU instance has.

        Asked by number and taken by the id in the answer: on newer boards several numbers give a
        profile of the same width, and only the first is ours.
        """
        widest, chosen = 0, None
        for number in range(_COMPUTE_PROFILES):
            try:
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
                continue
            if info.sliceCount > widest:
                widest, chosen = info.sliceCount, info.id
        if chosen is None:
            raise HardwareError("the GPU instance offers no compute profile")
        return int(chosen)

    def _destroy(self, instance: Any, where: str) -> None:
        """Compute instances first, then the GPU instance; what is gone already is fine."""
        with self._session.calling(where):
            try:
                for number in range(_COMPUTE_PROFILES):
                    self._destroy_compute(instance, number)
                pynvml.nvmlGpuInstanceDestroy(instance)
            except pynvml.NVMLError_NotFound:
                return

    def _destroy_compute(self, instance: Any, number: int) -> None:
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            return
        room = (pynvml.c_nvmlComputeInstance_t * MAX_INSTANCES)()
        count = ctypes.c_uint(MAX_INSTANCES)
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, room, ctypes.byref(count))
        for compute in room[: count.value]:
            try:
                pynvml.nvmlComputeInstanceDestroy(compute)
            except pynvml.NVMLError_NotFound:
                continue
